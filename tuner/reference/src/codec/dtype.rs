//! The 16-bit types of queries, outputs and new rows.

use half::{bf16, f16};
use nvkv_spec::Dtype;

/// Value of the bit pattern `bits`; exact.
pub fn to_f32(dtype: Dtype, bits: u16) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f32(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
    }
}

/// Bit pattern nearest to `x`, ties to even; overflow gives infinity, as IEEE conversion does.
pub fn from_f32(dtype: Dtype, x: f32) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f32(x).to_bits(),
        Dtype::Bf16 => bf16::from_f32(x).to_bits(),
    }
}

/// What an append takes `bits` for, and whether that replaced a non-finite input: NaN counts as
/// +0, an infinity as the largest finite value of the type with its sign.
pub fn finite_f32(dtype: Dtype, bits: u16) -> (f32, bool) {
    let x = to_f32(dtype, bits);
    let largest = match dtype {
        Dtype::F16 => f16::MAX.to_f32(),
        Dtype::Bf16 => bf16::MAX.to_f32(),
    };
    match x {
        _ if x.is_nan() => (0.0, true),
        _ if x.is_infinite() => (largest.copysign(x), true),
        _ => (x, false),
    }
}
