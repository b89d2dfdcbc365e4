//! f64 arithmetic in every rounding.
//!
//! A result of NaN is the first operand that is NaN (of `fma` the second, the third, then the first), quieted, with sign
//! and payload; an invalid operation makes 0xfff8000000000000. No other type keeps them. They are told from the bits: LLVM may take one NaN for another.

use super::context::{Context, Decoded};
use super::exact::Exact;
use super::lanewise::{map1, map2, map3};
use super::round::Mode;

const SIGN: u64 = 1 << 63;
/// The NaN of an invalid operation.
const INVALID: u64 = 0xFFF8 << 48;

pub(super) fn decode(context: &mut Context, operation: &str, words: &[&str]) -> Decoded {
    let mode = match words {
        [] => Mode::Nearest,
        [name @ ("rn" | "rz" | "rm" | "rp")] => match Mode::named(name) {
            Some(mode) => mode,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    match operation {
        "add" => map2(context, move |a: f64, b: f64| add(a, b, b, mode)),
        "sub" => map2(context, move |a: f64, b: f64| add(a, b, -b, mode)),
        "mul" => map2(context, move |a: f64, b: f64| rounded([a, b], a * b, mode, |[a, b]| Exact::product(a, b))),
        "fma" | "mad" => map3(context, move |a: f64, b: f64, c: f64| {
            let sum = a.mul_add(b, c);
            rounded([b, c, a], sum, mode, |[b, c, a]| Exact::sum(Exact::product(a, b), c, mode))
        }),
        "div" => map2(context, move |a: f64, b: f64| divide([a, b], a, b, mode)),
        "rcp" => map1(context, move |a: f64| divide([a], 1.0, a, mode)),
        "sqrt" => map1(context, move |a: f64| rounded([a], a.sqrt(), mode, |[a]| a.root())),
        "min" => map2(context, |a: f64, b: f64| extreme(a, b, false)),
        "max" => map2(context, |a: f64, b: f64| extreme(a, b, true)),
        "abs" => map1(context, |a: f64| propagated([a], a.abs())),
        "neg" => map1(context, |a: f64| propagated([a], -a)),
        "copysign" => map2(context, |a: f64, b: f64| b.copysign(a)),
        _ => Ok(None),
    }
}

fn is_nan(value: f64) -> bool {
    value.to_bits() & !SIGN > f64::INFINITY.to_bits()
}

/// A NaN as the GPU passes it on.
fn quieted(nan: f64) -> f64 {
    f64::from_bits(nan.to_bits() | 1 << 51)
}

/// `result`, or the NaN that the GPU makes of these operands.
pub(super) fn propagated<const N: usize>(operands: [f64; N], result: f64) -> f64 {
    if !is_nan(result) {
        return result;
    }
    operands.into_iter().find(|&x| is_nan(x)).map_or(f64::from_bits(INVALID), quieted)
}

/// `nearest` is the result to nearest, `exact` the one to round otherwise, where all is finite.
fn rounded<const N: usize>(operands: [f64; N], nearest: f64, mode: Mode, exact: impl Fn([Exact; N]) -> Exact) -> f64 {
    if mode == Mode::Nearest || is_nan(nearest) || operands.iter().any(|x| !x.is_finite()) {
        propagated(operands, nearest)
    } else {
        exact(operands.map(Exact::of)).round(mode)
    }
}

/// `a + term`, where `term` is `b` or its opposite; NaN keeps the sign of `b`.
fn add(a: f64, b: f64, term: f64, mode: Mode) -> f64 {
    rounded([a, b], a + term, mode, |_| Exact::sum(Exact::of(a), Exact::of(term), mode))
}

fn divide<const N: usize>(operands: [f64; N], a: f64, b: f64, mode: Mode) -> f64 {
    let nearest = a / b;
    if b == 0.0 {
        return propagated(operands, nearest);
    }
    rounded(operands, nearest, mode, |_| Exact::quotient(Exact::of(a), Exact::of(b)))
}

/// Of a number and NaN the number, of two NaN the second; of two zeros that with the sign that is asked for.
fn extreme(a: f64, b: f64, larger: bool) -> f64 {
    match (is_nan(a), is_nan(b)) {
        (true, true) => quieted(b),
        (true, false) => b,
        (false, true) => a,
        _ if a == b => {
            if a.is_sign_negative() == larger {
                b
            } else {
                a
            }
        }
        _ => {
            if (a > b) == larger {
                a
            } else {
                b
            }
        }
    }
}

/// The f64 of an f32: NaN keeps sign and payload.
pub(super) fn widened(bits: u32) -> f64 {
    let value = f32::from_bits(bits);
    if !value.is_nan() {
        return f64::from(value);
    }
    let (sign, payload) = (u64::from(bits >> 31) << 63, u64::from(bits & 0x7F_FFFF) << 29);
    quieted(f64::from_bits(sign | f64::INFINITY.to_bits() | payload))
}

/// The f32 that f64's NaN becomes: sign, and as much of the payload as it has room for.
pub(super) fn narrowed(nan: f64) -> u32 {
    let bits = nan.to_bits();
    let sign = (bits >> 32) as u32 & 0x8000_0000;
    sign | 0x7FC0_0000 | (bits >> 29) as u32 & 0x3F_FFFF
}
