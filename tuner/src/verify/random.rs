//! Random inputs, the same on every run: seeded by name.

use half::{bf16, f16};
use nvkv_spec::{Dtype, ElementFormat};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A generator that depends on `name` alone.
pub fn seeded(name: &str) -> StdRng {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
    });
    StdRng::seed_from_u64(seed)
}

/// Bit pattern of `value` in `dtype`, rounded to nearest even.
pub fn bits(dtype: Dtype, value: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_bits(),
        Dtype::Bf16 => bf16::from_f32(value).to_bits(),
    }
}

/// About normal, standard deviation 1: the sum of twelve uniform numbers.
pub fn normal(rng: &mut StdRng) -> f32 {
    (0..12).map(|_| rng.random_range(-0.5..0.5f32)).sum()
}

/// Sinks of `heads` query heads: most about the scores, some far above, some that are none.
pub fn sinks(rng: &mut StdRng, heads: u32) -> Vec<f32> {
    let sink = |head: u32| match head % 5 {
        2 => 9.0,
        4 => f32::NEG_INFINITY,
        _ => 2.0 * normal(rng),
    };
    (0..heads).map(sink).collect()
}

/// `count` normal numbers as bit patterns.
pub fn normal_bits(rng: &mut StdRng, dtype: Dtype, count: usize) -> Vec<u16> {
    (0..count).map(|_| bits(dtype, normal(rng))).collect()
}

/// `count` numbers that are hard to requantise, as bit patterns: blocks of very different magnitudes, exact
/// ties, zeros of both signs, subnormals, the largest numbers, infinities and NaN. Every 16 share a kind,
/// and odd elements of special kinds are normal numbers.
pub fn hard_bits(rng: &mut StdRng, dtype: Dtype, count: usize) -> Vec<u16> {
    let infinity = bits(dtype, f32::INFINITY);
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        let kind = rng.random_range(0..12);
        let magnitude = f32::powi(2.0, rng.random_range(-14..15));
        let sign = |rng: &mut StdRng| if rng.random::<bool>() { 1.0f32 } else { -1.0 };
        for _ in 0..16 {
            let value = normal(rng);
            all.push(match kind {
                0 => bits(dtype, 0.0 * sign(rng)),
                1 => rng.random_range(0..8u16) | rng.random_range(0..2u16) << 15, // subnormal
                2 => (infinity - 1) | rng.random_range(0..2u16) << 15,            // largest finite
                // Ties of E2M1 where the block's scale is a power of two, as the 6 makes it.
                3 => bits(
                    dtype,
                    sign(rng) * magnitude * [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0][rng.random_range(0..8usize)],
                ),
                4 if rng.random_range(0..4) == 0 => infinity | rng.random_range(0..2u16) << 15,
                5 if rng.random_range(0..4) == 0 => infinity + rng.random_range(1..4u16),
                6 | 7 => bits(dtype, value * magnitude),
                _ => bits(dtype, value),
            });
        }
    }
    all.truncate(count);
    all
}

/// Data and block scales of one cached row of `head_dim` elements, without NaN: magnitudes about 1
/// in each block, one block in 16 tiny, subnormal or zero.
pub fn cached_row(rng: &mut StdRng, format: ElementFormat, head_dim: u32) -> (Vec<u8>, Vec<u8>) {
    let mut data = vec![0; format.data_row_bytes(head_dim) as usize];
    rng.fill(&mut data[..]);
    if format == ElementFormat::Fp8E4m3 {
        // Either sign, exponents -3 to 0.
        data.iter_mut().for_each(|byte| *byte = (*byte & 0x9f) + 0x20);
    }
    let scales = (0..format.scale_row_bytes(head_dim)).map(|_| match rng.random_range(0..16) {
        0 => rng.random_range(0..0x18u8),
        _ => rng.random_range(0x20..0x40u8),
    });
    (data, scales.collect())
}

/// Sign of element `d` of every huge key, and of the queries that meet them: the Thue-Morse sequence,
/// which no permutation of lanes or blocks maps to itself by chance.
pub fn huge_sign(d: usize) -> f32 {
    if d.count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// A row with every element of the largest magnitude, signs by [`huge_sign`].
pub fn huge_row(format: ElementFormat, head_dim: u32) -> (Vec<u8>, Vec<u8>) {
    let sign = |d: usize| u8::from(huge_sign(d) < 0.0);
    let elements = 0..head_dim as usize;
    let data = match format {
        ElementFormat::Nvfp4 => elements.step_by(2).map(|d| 0x77 | sign(d) << 3 | sign(d + 1) << 7).collect(),
        ElementFormat::Fp8E4m3 => elements.map(|d| 0x7e | sign(d) << 7).collect(),
    };
    (data, vec![0x7e; format.scale_row_bytes(head_dim) as usize])
}

/// Query rows that are nearly parallel or antiparallel to [`huge_row`]: the huge key's score is far above
/// or far below all others, never among them, where its own rounding would decide the softmax.
pub fn aligned_bits(rng: &mut StdRng, dtype: Dtype, rows: usize, head_dim: u32) -> Vec<u16> {
    let mut all = Vec::with_capacity(rows * head_dim as usize);
    for _ in 0..rows {
        let side = if rng.random::<bool>() { 1.0 } else { -1.0 };
        all.extend((0..head_dim as usize).map(|d| bits(dtype, side * huge_sign(d) * normal(rng).abs())));
    }
    all
}
