//! Results beside a GPU's.

use super::SLOT;
use super::table::{Form, Tolerance};

impl Form {
    /// The first results that differ by more than the form allows, with their operands, and how many there are.
    pub fn difference(&self, got: &[u8], expected: &[u8]) -> Option<String> {
        assert_eq!(got.len(), expected.len(), "{}", self.name);
        let bytes: usize = self.results.iter().map(|kind| kind.bytes()).sum();
        let input = self.input();
        let pairs = got.chunks_exact(bytes).zip(expected.chunks_exact(bytes)).enumerate();
        let wrong: Vec<_> = pairs
            .filter(|&(thread, (got, expected))| got != expected && !self.is_near(&input, thread, got, expected))
            .collect();
        let &(thread, (got, expected)) = wrong.first()?;
        let record = self.operands.len() * SLOT;
        let operands = hex(&input[thread * record..][..record], SLOT);
        let (got, expected) = (hex(got, 4), hex(expected, 4));
        let count = wrong.len();
        Some(format!("{count} threads differ; thread {thread}, operands {operands}: {got}, the GPU {expected}"))
    }

    fn is_near(&self, input: &[u8], thread: usize, got: &[u8], expected: &[u8]) -> bool {
        let value = |bytes: &[u8]| f64::from(f32::from_le_bytes(std::array::from_fn(|i| bytes[i])));
        let operand = value(&input[thread * self.operands.len() * SLOT..]);
        let difference = || (value(got) - value(expected)).abs();
        match self.tolerance {
            Tolerance::Bits => false,
            Tolerance::AbsoluteAroundOne(bound) if operand > 0.5 && operand < 2.0 => difference() <= bound,
            Tolerance::Relative(bound) | Tolerance::AbsoluteAroundOne(bound) => {
                // The emulator's own result is rounded.
                difference() <= (bound + f64::from(f32::EPSILON) / 2.0) * value(expected).abs()
            }
        }
    }
}

/// Little-endian numbers of up to `bytes` bytes.
fn hex(all: &[u8], bytes: usize) -> String {
    let number = |chunk: &[u8]| chunk.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    all.chunks(bytes).take(12).map(number).collect::<Vec<_>>().join(" ")
}
