//! Random rows for the tests of append and attention.

use nvkv_reference::codec::from_f32;
use nvkv_spec::Dtype;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A generator that gives the same numbers every time.
pub fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// `count` bit patterns of numbers in -2..2.
pub fn random_bits(rng: &mut StdRng, dtype: Dtype, count: usize) -> Vec<u16> {
    (0..count).map(|_| from_f32(dtype, rng.random_range(-2.0..2.0))).collect()
}
