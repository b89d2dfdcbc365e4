//! f16 and bf16 arithmetic, single and packed. Results are exact in f64, or rounded to odd, before they are rounded.

use super::context::{Context, Decoded};
use super::float::{bf16_bits, bf16_value, f16_bits, f16_value, maximum, minimum};
use super::lanewise::{map1, map2, map3};
use super::round::{BF16, F16, Format, Mode, odd_sum};

/// NaN in either format.
const NAN_16: u16 = 0x7FFF;

/// One of the two formats.
#[derive(Clone, Copy)]
pub(super) struct Half {
    pub format: Format,
    pub value: fn(u16) -> f32,
    /// Of an f32 that the format holds.
    pub bits: fn(f32) -> u16,
}

pub(super) const HALF: Half = Half { format: F16, value: f16_value, bits: f16_bits };
pub(super) const BFLOAT: Half = Half { format: BF16, value: bf16_value, bits: bf16_bits };

impl Half {
    pub fn round(self, value: f64, mode: Mode) -> u16 {
        if value.is_nan() { NAN_16 } else { (self.bits)(self.format.round(value, mode) as f32) }
    }

    /// `result`, but for a NaN.
    fn with_sign(self, a: u16, result: u16) -> u16 {
        if (self.value)(a).is_nan() { NAN_16 } else { result }
    }

    fn wide(self, bits: u16) -> f64 {
        f64::from((self.value)(bits))
    }
}

/// What stands between an operation and its type.
#[derive(Clone, Copy, Default)]
struct Modifiers {
    flush: bool,
    saturate: bool,
    relu: bool,
    keeps_nan: bool,
}

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    let [operation, words @ .., kind] = form else { return Ok(None) };
    let (half, packed) = match *kind {
        "f16" => (HALF, false),
        "f16x2" => (HALF, true),
        "bf16" => (BFLOAT, false),
        "bf16x2" => (BFLOAT, true),
        _ => return Ok(None),
    };
    let mut m = Modifiers::default();
    let mut approximate = false;
    for &word in words {
        match word {
            "rn" => {}
            "ftz" => m.flush = true,
            "sat" => m.saturate = true,
            "relu" => m.relu = true,
            "NaN" => m.keeps_nan = true,
            "approx" => approximate = true,
            _ => return Ok(None),
        }
    }
    match (*operation, approximate) {
        ("abs", false) => unary(context, packed, move |a| half.with_sign(a, a & 0x7FFF)),
        ("neg", false) => unary(context, packed, move |a| half.with_sign(a, a ^ 0x8000)),
        ("ex2", true) => unary(context, packed, move |a| m.result(half, m.input(half, a).exp2())),
        ("tanh", true) => unary(context, packed, move |a| m.result(half, m.input(half, a).tanh())),
        ("add", false) => binary(context, packed, move |a, b| m.result(half, m.input(half, a) + m.input(half, b))),
        ("sub", false) => binary(context, packed, move |a, b| m.result(half, m.input(half, a) - m.input(half, b))),
        ("mul", false) => binary(context, packed, move |a, b| m.result(half, m.input(half, a) * m.input(half, b))),
        ("fma", false) => ternary(context, packed, move |a, b, c| m.fused(half, [a, b, c])),
        ("min", false) => binary(context, packed, move |a, b| m.extremum(half, a, b, minimum)),
        ("max", false) => binary(context, packed, move |a, b| m.extremum(half, a, b, maximum)),
        _ => Ok(None),
    }
}

impl Modifiers {
    fn input(self, half: Half, bits: u16) -> f64 {
        let value = half.wide(bits);
        self.flushed(half, value)
    }

    fn flushed(self, half: Half, value: f64) -> f64 {
        let is_small = value.abs() < 2f64.powi(half.format.smallest);
        if self.flush && is_small { 0.0f64.copysign(value) } else { value }
    }

    /// A sum of two bf16 may take more than 53 bits; the rest of it cannot change a result of 8.
    fn result(self, half: Half, value: f64) -> u16 {
        // What would be rounded up to the smallest normal number is flushed as well.
        let bits = half.round(self.flushed(half, value), Mode::Nearest);
        let negative = bits & 0x8000 != 0;
        match (bits & 0x7FFF, half.round(1.0, Mode::Nearest)) {
            _ if value.is_nan() && self.saturate => 0,
            _ if value.is_nan() => bits,
            (_, _) if negative && (self.saturate || self.relu) => 0,
            (magnitude, one) if self.saturate => magnitude.min(one),
            _ => bits,
        }
    }

    fn fused(self, half: Half, operands: [u16; 3]) -> u16 {
        let [a, b, c] = operands.map(|bits| self.input(half, bits));
        self.result(half, odd_sum(a * b, c, Mode::Nearest))
    }

    fn extremum(self, half: Half, a: u16, b: u16, choose: fn(f32, f32) -> f32) -> u16 {
        let [a, b] = [a, b].map(|bits| self.input(half, bits) as f32);
        if self.keeps_nan && (a.is_nan() || b.is_nan()) {
            NAN_16
        } else {
            half.round(choose(a, b).into(), Mode::Nearest)
        }
    }
}

/// Applies `f` to the lower halves, and where `packed` to the upper ones.
fn each<const N: usize>(packed: bool, words: [u32; N], f: impl Fn([u16; N]) -> u16) -> u32 {
    let low = u32::from(f(words.map(|word| word as u16)));
    if packed { low | u32::from(f(words.map(|word| (word >> 16) as u16))) << 16 } else { low }
}

fn unary(context: &mut Context, packed: bool, f: impl Fn(u16) -> u16 + Send + Sync + 'static) -> Decoded {
    map1(context, move |a: u32| each(packed, [a], |[a]| f(a)))
}

fn binary(context: &mut Context, packed: bool, f: impl Fn(u16, u16) -> u16 + Send + Sync + 'static) -> Decoded {
    map2(context, move |a: u32, b: u32| each(packed, [a, b], |[a, b]| f(a, b)))
}

fn ternary(context: &mut Context, packed: bool, f: impl Fn(u16, u16, u16) -> u16 + Send + Sync + 'static) -> Decoded {
    map3(context, move |a: u32, b: u32, c: u32| each(packed, [a, b, c], |[a, b, c]| f(a, b, c)))
}
