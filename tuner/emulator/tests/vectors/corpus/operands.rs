//! Operands: the hard ones of each type, then random ones.

use super::SLOT;
use super::random::Random;
use super::table::{Form, Operand};

const COUNTS: [u64; 22] =
    [0, 1, 7, 8, 15, 16, 17, 24, 31, 32, 33, 40, 47, 63, 64, 65, 127, 255, 256, 257, 0x8000_0000, 0xFFFF_FFFF];

/// Zeros, ones, infinities, quiet and signalling NaN with payloads, the ends of the subnormal and the normal range,
/// neighbours of 1, powers of two around the integers.
const F32: [u32; 32] = [
    0,
    0x8000_0000,
    0x3F80_0000,
    0xBF80_0000,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_0000,
    0xFFC1_2345,
    0x7F80_0001,
    0xFFBF_FFFF,
    0x7FFF_FFFF,
    1,
    0x8000_0001,
    0x007F_FFFF,
    0x807F_FFFF,
    0x0080_0000,
    0x8080_0000,
    0x7F7F_FFFF,
    0xFF7F_FFFF,
    0x3F80_0001,
    0x3F7F_FFFF,
    0x4B80_0000,
    0x4B7F_FFFF,
    0x3F00_0000,
    0x4F00_0000,
    0xCF00_0000,
    0x4F80_0000,
    0x0040_0000,
    0x3380_0000,
    0x4000_0000,
    0x42FE_0000,
    0xC2FE_0000,
];
/// The same of f64, and the ends of what f32 and the integers hold.
const F64: [u64; 32] = [
    0,
    0x8000_0000_0000_0000,
    0x3FF0_0000_0000_0000,
    0xBFF0_0000_0000_0000,
    0x7FF0_0000_0000_0000,
    0xFFF0_0000_0000_0000,
    0x7FF8_0000_0000_0000,
    0xFFF8_1234_5678_9ABC,
    0x7FF0_0000_0000_0001,
    0x7FFF_FFFF_FFFF_FFFF,
    1,
    0x8000_0000_0000_0001,
    0x000F_FFFF_FFFF_FFFF,
    0x0010_0000_0000_0000,
    0x8010_0000_0000_0000,
    0x7FEF_FFFF_FFFF_FFFF,
    0xFFEF_FFFF_FFFF_FFFF,
    0x3FF0_0000_0000_0001,
    0x3FEF_FFFF_FFFF_FFFF,
    0x47EF_FFFF_E000_0000,
    0x47EF_FFFF_F000_0000,
    0x3810_0000_0000_0000,
    0x36A0_0000_0000_0000,
    0x3690_0000_0000_0000,
    0x3FE0_0000_0000_0000,
    0x41DF_FFFF_FFC0_0000,
    0xC1E0_0000_0000_0000,
    0x41EF_FFFF_FFE0_0000,
    0x43E0_0000_0000_0000,
    0xC3E0_0000_0000_0000,
    0x43F0_0000_0000_0000,
    0x4004_0000_0000_0000,
];
const F16: [u16; 20] = [
    0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE12, 0x7C01, 0x7FFF, 1, 0x8001, 0x03FF, 0x0400, 0x8400,
    0x7BFF, 0xFBFF, 0x3C01, 0x3BFF, 0x5C00,
];
const BF16: [u16; 16] = [
    0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x7FFF, 1, 0x8001, 0x007F, 0x0080, 0x7F7F,
    0xFF7F,
];

impl Form {
    /// Operands of every thread, as the kernel reads them: `SLOT` bytes each.
    pub fn input(&self) -> Vec<u8> {
        let mut random = Random::named(&self.name);
        let values = match &self.product {
            Some(product) => product.operands_of(self.threads, &mut random),
            None => (0..self.threads).flat_map(|thread| self.of_thread(thread, &mut random)).collect(),
        };
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(bytes.len(), self.threads * self.operands.len() * SLOT, "{}", self.name);
        bytes
    }

    fn of_thread(&self, thread: usize, random: &mut Random) -> Vec<u64> {
        let mut values: Vec<u64> = Vec::new();
        for operand in &self.operands {
            let value = match values.first() {
                None => operand.value(thread, random),
                // Beside each hard operand a hard or a random one.
                Some(_) if thread < 32 => operand.value(random.below(64), random),
                Some(&first) if random.one_in(4) => operand.near(first, random),
                Some(_) => operand.value(random.below(96), random),
            };
            values.push(value);
        }
        if self.exhaustive {
            let [low, high] = [thread as u64, (thread as u64).wrapping_mul(0x9E37) & 0xFFFF];
            values[0] = if self.operands[0] == Operand::F16x2 { high << 16 | low } else { low };
        }
        values
    }
}

/// A hard operand while there are any, then random ones.
fn hard_or(hard: &[u64], index: usize, random: impl FnOnce() -> u64) -> u64 {
    hard.get(index).copied().unwrap_or_else(random)
}

impl Operand {
    fn value(&self, index: usize, random: &mut Random) -> u64 {
        match self {
            Self::Integer(bits) => {
                let mask = u64::MAX >> (64 - bits);
                let top = 1 << (bits - 1);
                let hard = [0, 1, mask, top, top - 1, top + 1, 2, mask - 1, 0x80, 0x7F, 0xFF, 0x8000 & mask, 10, 3];
                // Numbers of every length.
                hard_or(&hard, index, || (random.bits() & mask) >> (random.below(2) * random.below(*bits as usize)))
            }
            Self::Count => hard_or(&COUNTS, index, || random.bits() % 33),
            Self::F32 => hard_or(&F32.map(u64::from), index, || u64::from(any_f32(random))),
            Self::F64 => hard_or(&F64, index, || any_f64(random)),
            Self::Halfway(format) => u64::from(halfway(format, random).to_bits()),
            Self::F16 => hard_or(&F16.map(u64::from), index, || random.bits() & 0xFFFF),
            Self::Bf16 => hard_or(&BF16.map(u64::from), index, || random.bits() & 0xFFFF),
            Self::F16x2 => (0..2).fold(0, |both, _| both << 16 | any_f16(random)),
            Self::Bf16x2 => (0..2).fold(0, |both, _| both << 16 | any_bf16(random)),
            Self::E4m3x2 => random.bits() & 0xFFFF,
            Self::Predicate => random.bits() & 1,
            Self::Fragment(_) | Self::Immediate(_) => unreachable!("they have no value of their own"),
        }
    }

    /// A value that is equal to `other`, or its opposite, or a few steps beside: comparisons and cancellation.
    fn near(&self, other: u64, random: &mut Random) -> u64 {
        let step = random.bits() % 3;
        match self {
            Self::F32 => (other ^ (random.bits() & 1) << 31).wrapping_add(step) & 0xFFFF_FFFF,
            Self::F64 => (other ^ (random.bits() & 1) << 63).wrapping_add(step),
            Self::F16x2 | Self::Bf16x2 => other ^ (random.bits() & 0x8000_8000) ^ step,
            Self::Integer(bits) => other.wrapping_add(step).wrapping_sub(1) & u64::MAX >> (64 - bits),
            _ => self.value(random.below(96), random),
        }
    }
}

/// Half of them of every size, half within a few powers of two around 1.
fn any_f32(random: &mut Random) -> u32 {
    let bits = random.bits() as u32;
    let exponent = (random.between(-12, 12) + 127) as u32;
    if random.one_in(2) { bits } else { bits & 0x807F_FFFF | exponent << 23 }
}

fn any_f64(random: &mut Random) -> u64 {
    let bits = random.bits();
    let exponent = (random.between(-12, 12) + 1023) as u64;
    if random.one_in(2) { bits } else { bits & 0x800F_FFFF_FFFF_FFFF | exponent << 52 }
}

fn any_bf16(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => u64::from(random.pick(&BF16)),
        1 => random.bits() & 0xFFFF,
        _ => random.bits() & 0x807F | ((random.between(-4, 4) + 127) as u64) << 7,
    }
}

fn any_f16(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => u64::from(random.pick(&F16)),
        1 => random.bits() & 0xFFFF,
        _ => random.bits() & 0x83FF | ((random.between(-4, 4) + 15) as u64) << 10,
    }
}

/// An f32 in the middle between two neighbours of `format`, or the next f32 on either side.
fn halfway(format: &str, random: &mut Random) -> f32 {
    // Mantissa bits, exponents of the smallest normal number and of what is past the largest.
    let (mantissa, smallest, largest) = match format {
        "f16" => (10, -14, 16),
        "bf16" => (7, -126, 127),
        "e4m3" => (3, -6, 9),
        "e5m2" => (2, -14, 16),
        "tf32" => (10, -126, 127),
        // Neighbours 1 apart, up to what no 32-bit integer holds.
        "int" => (random.between(0, 33), 0, 0),
        _ => panic!("unknown format `{format}`"),
    };
    let exponent = random.between(smallest - 1, largest.max(smallest));
    let step = if format == "int" { 1.0 } else { 2f64.powi(exponent.max(smallest) - mantissa) };
    let first = if exponent < smallest { 0 } else { 1u64 << mantissa };
    let count = first + random.bits() % (1 << mantissa);
    let value = ((count as f64 + 0.5) * step) as f32;
    let value = f32::from_bits(value.to_bits().wrapping_add(random.below(3) as u32).wrapping_sub(1));
    if random.one_in(2) { value } else { -value }
}
