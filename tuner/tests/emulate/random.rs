//! Random inputs, the same on every run.

use half::{bf16, f16};
use nvkv_spec::{Dtype, ElementFormat};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A generator that depends on `name` alone.
pub fn seeded(name: &str) -> StdRng {
    StdRng::seed_from_u64(name.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte)))
}

/// Bit pattern of `value` in `dtype`, rounded to nearest even.
pub fn bits(dtype: Dtype, value: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_bits(),
        Dtype::Bf16 => bf16::from_f32(value).to_bits(),
    }
}

/// `count` numbers of about unit variance, as bit patterns.
pub fn elements(rng: &mut StdRng, dtype: Dtype, count: usize) -> Vec<u16> {
    (0..count).map(|_| bits(dtype, (0..12).map(|_| rng.random_range(-0.5..0.5f32)).sum())).collect()
}

/// The same, and one block in eight holds zeros, subnormals, the largest numbers, infinities and NaN.
pub fn hard_elements(rng: &mut StdRng, dtype: Dtype, count: usize) -> Vec<u16> {
    let infinity = bits(dtype, f32::INFINITY);
    let mut all = elements(rng, dtype, count);
    for block in all.chunks_mut(16) {
        if rng.random_range(0..8) == 0 {
            let special = [0, 0x8000, 3, infinity - 1, infinity, infinity | 0x8000, infinity + 1, 0x3C00];
            block.iter_mut().step_by(3).for_each(|x| *x = special[rng.random_range(0..special.len())]);
        }
    }
    all
}

/// Data and block scales of one cached row, without NaN: magnitudes of about 1.
pub fn cached_row(rng: &mut StdRng, format: ElementFormat, head_dim: u32) -> (Vec<u8>, Vec<u8>) {
    let mut data = vec![0; format.data_row_bytes(head_dim) as usize];
    rng.fill(&mut data[..]);
    if format == ElementFormat::Fp8E4m3 {
        data.iter_mut().for_each(|byte| *byte = (*byte & 0x9F) + 0x20);
    }
    let scales = (0..format.scale_row_bytes(head_dim)).map(|_| rng.random_range(0x10..0x40u8));
    (data, scales.collect())
}
