//! A block of sixteen elements: E2M1 codes under one E4M3 scale, to and from values.

use super::{e2m1_decode, e2m1_encode, e4m3_decode, e4m3_encode};
use nvkv_spec::{Numerics, kv_format::BLOCK};
use std::sync::LazyLock;

/// Sixteen consecutive head-dim elements of one token and one KV head, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// E2M1 codes, one a byte.
    pub codes: [u8; BLOCK as usize],
    /// E4M3 block scale.
    pub scale: u8,
}

impl Block {
    /// The codes two a byte, the even element in the low nibble.
    pub fn packed(&self) -> [u8; BLOCK as usize / 2] {
        std::array::from_fn(|i| self.codes[2 * i] | self.codes[2 * i + 1] << 4)
    }
}

/// Requantises finite values, as every append kernel must, to the bit:
///
/// `sf = RN_e4m3(amax / (6 g))`; if `sf = 0` every code is +0, else `code = RN_e2m1(x / (sf g))`.
///
/// Each product and quotient is one IEEE f32 operation, subnormals kept; both roundings saturate,
/// and a zero keeps the sign of `x`. `g`, the scale of the tensor, must be a positive normal
/// number: then `sf g` is never zero and no 0/0 occurs.
///
/// # Panics
/// In debug builds, where `g` or a value is outside the contract.
pub fn quantise_block(x: &[f32; BLOCK as usize], g: f32) -> Block {
    debug_assert!(g.is_normal() && g > 0.0, "tensor scale {g} is not a positive normal number");
    debug_assert!(x.iter().all(|x| x.is_finite()), "finite_f32 comes first");
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    let scale = e4m3_encode(amax / (6.0 * g));
    let sf = e4m3_decode(scale);
    if sf == 0.0 {
        return Block { codes: [0; BLOCK as usize], scale: 0 };
    }
    let divisor = sf * g;
    Block { codes: x.map(|x| e2m1_encode(x / divisor)), scale }
}

/// An NVFP4 element as numerics class `fp8` multiplies it: `RN_e4m3(e2m1 * sf)`, saturating at
/// 448. NaN for the scale bytes 0x7f and 0xff, which no append writes.
pub fn fp8_element(code: u8, scale: u8) -> f32 {
    e4m3_decode(e4m3_encode(exact_element(code, scale)))
}

/// An NVFP4 element as numerics class `exact` multiplies it: `e2m1 * sf`, at most 6 significant bits.
fn exact_element(code: u8, scale: u8) -> f32 {
    e2m1_decode(code) * e4m3_decode(scale)
}

/// Values of the sixteen codes under each scale byte.
type ElementValues = [[f32; 16]; 256];

fn tabulate(element: fn(u8, u8) -> f32) -> ElementValues {
    std::array::from_fn(|scale| std::array::from_fn(|code| element(code as u8, scale as u8)))
}

/// `values[scale][code]` of NVFP4 elements in a numerics class.
pub(crate) fn element_values(numerics: Numerics) -> &'static ElementValues {
    static FP8: LazyLock<ElementValues> = LazyLock::new(|| tabulate(fp8_element));
    static EXACT: LazyLock<ElementValues> = LazyLock::new(|| tabulate(exact_element));
    match numerics {
        Numerics::Fp8 => &FP8,
        Numerics::Exact => &EXACT,
    }
}

/// Values of the E4M3 bytes.
pub(crate) static E4M3_VALUES: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| e4m3_decode(byte as u8)));
