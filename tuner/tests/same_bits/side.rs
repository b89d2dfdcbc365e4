//! Two lists of outputs beside each other.

use half::{bf16, f16};
use nvkv_spec::{Dtype, Problem};
use nvkv_tuner::verify::Output;
use std::fmt;

/// Largest difference of a log-sum-exp, absolute up to 1 and relative beyond.
const LSE_BOUND: f64 = 1e-5;

/// The first output that is not the same to the bit.
pub fn difference(got: &[Output], expected: &[Output]) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("{} outputs on the GPU, {} in the emulator", got.len(), expected.len()));
    }
    let (i, (got, expected)) = got.iter().zip(expected).enumerate().find(|(_, (got, expected))| got != expected)?;
    let differ = got.bytes.iter().zip(&expected.bytes).filter(|(a, b)| a != b).count();
    let at = got.bytes.iter().zip(&expected.bytes).position(|(a, b)| a != b).unwrap_or(0);
    let around = |bytes: &[u8]| format!("{:02x?}", &bytes[at / 4 * 4..(at / 4 * 4 + 4).min(bytes.len())]);
    Some(format!(
        "output {i}, {}: {differ} of {} bytes differ, from byte {at}: {} on the GPU, {} in the emulator",
        got.name,
        got.bytes.len(),
        around(&got.bytes),
        around(&expected.bytes)
    ))
}

/// How near results are where instructions are approximate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nearness {
    /// Bytes that are equal to the bit, where each result is defined.
    pub bytes: usize,
    /// Elements of the 16-bit outputs.
    outputs: usize,
    /// Those that differ.
    differ: usize,
    /// Those that differ by more than one unit in the last place of their own.
    past_unit: usize,
    /// Largest difference of a log-sum-exp.
    lse: f64,
}

impl Nearness {
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.outputs += other.outputs;
        self.differ += other.differ;
        self.past_unit += other.past_unit;
        self.lse = self.lse.max(other.lse);
    }

    /// Takes in the outputs of a kernel; returns what is too far.
    pub fn take(&mut self, problem: &Problem, got: &[Output], expected: &[Output]) -> Vec<String> {
        let mut far = Vec::new();
        for (got, expected) in got.iter().zip(expected) {
            match (got.name, problem) {
                ("out", Problem::Decode(problem)) => {
                    let rows = got.bytes.chunks(2 * problem.head_dim as usize);
                    for (got, expected) in rows.zip(expected.bytes.chunks(2 * problem.head_dim as usize)) {
                        far.extend(self.row(problem.dtype, got, expected));
                    }
                }
                ("lse", _) => far.extend(self.log_sums(&got.bytes, &expected.bytes)),
                // It holds states before they are rounded.
                ("the workspace", _) => {}
                _ => far.extend(difference(std::slice::from_ref(got), std::slice::from_ref(expected))),
            }
        }
        far.truncate(3);
        far
    }

    /// Elements of a head: each within a unit in the last place of its own value, or of the row's root mean square,
    /// since where terms cancel the difference is that of the terms.
    fn row(&mut self, dtype: Dtype, got: &[u8], expected: &[u8]) -> Option<String> {
        let values = |bytes: &[u8]| -> Vec<f64> {
            bytes.as_chunks().0.iter().map(|&bits| value(dtype, u16::from_le_bytes(bits))).collect()
        };
        let (got, expected) = (values(got), values(expected));
        self.outputs += got.iter().filter(|x| !x.is_nan()).count();
        if got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()) {
            return None;
        }
        let finite = expected.iter().filter(|x| x.is_finite());
        let (count, squares) = finite.fold((0.0, 0.0), |(n, sum), x| (n + 1.0, sum + x * x));
        let typical = (squares / count).sqrt();
        let mut far = None;
        for (&a, &b) in got.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()) {
            self.differ += 1;
            let own = a.abs().max(b.abs());
            let is_within = |scale: f64| (a - b).abs() <= unit(dtype, scale);
            self.past_unit += usize::from(!is_within(own));
            if !is_within(own.max(typical)) {
                far = Some(format!("{a} on the GPU, {b} in the emulator, in a row of typically {typical:.2e}"));
            }
        }
        far
    }

    fn log_sums(&mut self, got: &[u8], expected: &[u8]) -> Option<String> {
        let values = |bytes: &[u8]| -> Vec<f64> {
            bytes.as_chunks().0.iter().map(|&bits| f64::from(f32::from_le_bytes(bits))).collect()
        };
        let mut far = None;
        for (a, b) in values(got).into_iter().zip(values(expected)).filter(|(a, b)| a.to_bits() != b.to_bits()) {
            let difference = (a - b).abs() / b.abs().max(1.0);
            self.lse = self.lse.max(difference);
            // Not-a-number is far too.
            if difference.is_nan() || difference > LSE_BOUND {
                far = Some(format!("log-sum-exp {a} on the GPU, {b} in the emulator"));
            }
        }
        far
    }
}

impl fmt::Display for Nearness {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { bytes, outputs, differ, past_unit, lse } = self;
        write!(f, "{bytes:11}  {outputs:15}  {differ:6}  {past_unit:11}  {lse:11.1e}")
    }
}

fn value(dtype: Dtype, bits: u16) -> f64 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f64(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
    }
}

/// The unit in the last place of `magnitude`.
fn unit(dtype: Dtype, magnitude: f64) -> f64 {
    let (mantissa, smallest) = match dtype {
        Dtype::F16 => (10, -14),
        Dtype::Bf16 => (7, -126),
    };
    2f64.powi((magnitude.log2().floor() as i32).max(smallest) - mantissa)
}
