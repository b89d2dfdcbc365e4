//! Floating-point arithmetic, rounded to nearest even. NaN results are the canonical NaN.
//!
//! Instructions with `.approx` are computed in f64 and rounded once. NVIDIA documents for them a maximum relative
//! error of 2^-22 (`ex2`), an absolute one of 2^-22 around 1 (`lg2`), 1 ulp (`rcp`, `div`) and 2^-22.9 (`rsqrt`):
//! a GPU's result may differ by that much. `add`, `sub` and `mul` without `.rn` may be fused by `ptxas`; here
//! they are rounded one by one.

use super::context::{Context, Decoded};
use super::lanewise::{map1, map2, map3};

/// NaN as the GPU makes it.
pub(crate) const NAN: f32 = f32::from_bits(0x7FFF_FFFF);
/// The same in f16 and bf16.
const NAN_16: u16 = 0x7FFF;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["add", "f32"] | ["add", "rn", "f32"] => map2(context, |a: f32, b: f32| canonical(a + b)),
        ["sub", "f32"] | ["sub", "rn", "f32"] => map2(context, |a: f32, b: f32| canonical(a - b)),
        ["mul", "f32"] | ["mul", "rn", "f32"] => map2(context, |a: f32, b: f32| canonical(a * b)),
        ["fma", "rn", "f32"] => map3(context, |a: f32, b: f32, c: f32| canonical(a.mul_add(b, c))),
        ["div", "rn", "f32"] => map2(context, |a: f32, b: f32| canonical(a / b)),
        ["rcp", "rn", "f32"] => map1(context, |a: f32| canonical(1.0 / a)),
        ["sqrt", "rn", "f32"] => map1(context, square_root),
        ["min", "f32"] => map2(context, minimum),
        ["max", "f32"] => map2(context, maximum),
        ["abs", "f32"] => map1(context, |a: f32| canonical(a.abs())),
        ["neg", "f32"] => map1(context, |a: f32| canonical(-a)),
        _ => decode_approximate(context, form),
    }
}

fn decode_approximate(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["ex2", "approx", "f32"] => map1(context, |a: f32| canonical(f64::from(a).exp2() as f32)),
        ["ex2", "approx", "ftz", "f32"] => map1(context, |a: f32| flushed1(a, |a| f64::from(a).exp2() as f32)),
        ["lg2", "approx", "f32"] => map1(context, |a: f32| canonical(f64::from(a).log2() as f32)),
        ["lg2", "approx", "ftz", "f32"] => map1(context, |a: f32| flushed1(a, |a| f64::from(a).log2() as f32)),
        ["rcp", "approx", "ftz", "f32"] => map1(context, |a: f32| flushed1(a, |a| 1.0 / a)),
        ["rsqrt", "approx", "ftz", "f32"] => {
            map1(context, |a: f32| flushed1(a, |a| (1.0 / f64::from(a).sqrt()) as f32))
        }
        _ => decode_packed(context, form),
    }
}

/// Two 16-bit floats a register. A product or a sum of two 16-bit floats is rounded right from f32.
fn decode_packed(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["add", "f16x2"] | ["add", "rn", "f16x2"] => map_halves(context, |x, y| x + y),
        ["sub", "f16x2"] | ["sub", "rn", "f16x2"] => map_halves(context, |x, y| x - y),
        ["mul", "f16x2"] | ["mul", "rn", "f16x2"] => map_halves(context, |x, y| x * y),
        _ => Ok(None),
    }
}

fn map_halves(context: &mut Context, f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static) -> Decoded {
    map2(
        context,
        #[inline(always)]
        move |a: u32, b: u32| halves(a, b, &f),
    )
}

#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    let half = |shift: u32| u32::from(f16_bits(f(f16_value((a >> shift) as u16), f16_value((b >> shift) as u16))));
    half(0) | half(16) << 16
}

#[inline(always)]
pub(super) fn canonical(value: f32) -> f32 {
    if value.is_nan() { NAN } else { value }
}

/// NaN is told from the bits: where `is_nan` asks about a root, LLVM takes x86's own NaN for as good as any other.
#[inline(always)]
fn square_root(a: f32) -> f32 {
    let root = a.sqrt();
    if root.to_bits() & 0x7FFF_FFFF > f32::INFINITY.to_bits() { NAN } else { root }
}

/// Subnormal inputs and results become zeros of their sign.
fn flushed1(a: f32, f: impl Fn(f32) -> f32) -> f32 {
    canonical(flush(f(flush(a))))
}

pub(super) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Of a number and NaN the number; of two zeros the negative one.
#[inline(always)]
pub(super) fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        canonical(b)
    } else if b.is_nan() || a < b {
        a
    } else if b < a {
        b
    } else {
        f32::from_bits(a.to_bits() | b.to_bits())
    }
}

/// Of a number and NaN the number; of two zeros the positive one.
#[inline(always)]
pub(super) fn maximum(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        canonical(b)
    } else if b.is_nan() || a > b {
        a
    } else if b > a {
        b
    } else {
        f32::from_bits(a.to_bits() & b.to_bits())
    }
}

/// f16 to f32: exact. Branches are selections here and below, so that loops over lanes are vectors.
#[inline(always)]
pub(super) fn f16_value(bits: u16) -> f32 {
    const TO_F32_BIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(bits & 0x7FFF) << 13;
    let finite = (f32::from_bits(magnitude) * TO_F32_BIAS).to_bits();
    let special = magnitude | 0x7F80_0000;
    let sign = u32::from(bits & 0x8000) << 16;
    f32::from_bits(sign | if bits & 0x7C00 == 0x7C00 { special } else { finite })
}

pub(super) fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to f16, to nearest even.
#[inline(always)]
pub(super) fn f16_bits(value: f32) -> u16 {
    /// Half of the step below the first number that rounds to infinity.
    const OVERFLOW: u32 = 0x477F_F000;
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    // The last bit of 0.5 is worth 2^-24, the step of f16's subnormal numbers: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let normal = cut(magnitude, 13).wrapping_sub((127 - 15) << 10);
    let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    let code = if magnitude >= OVERFLOW { 0x7C00 } else { finite };
    if value.is_nan() { NAN_16 } else { code as u16 | (value.to_bits() >> 16) as u16 & 0x8000 }
}

/// f32 to bf16, to nearest even.
#[inline(always)]
pub(super) fn bf16_bits(value: f32) -> u16 {
    if value.is_nan() { NAN_16 } else { cut(value.to_bits(), 16) as u16 }
}

/// `bits` without the last `n`, rounded to nearest even. A carry goes into the exponent, as it should.
#[inline(always)]
fn cut(bits: u32, n: u32) -> u32 {
    (bits + ((1 << (n - 1)) - 1) + (bits >> n & 1)) >> n
}
