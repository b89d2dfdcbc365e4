//! f32 arithmetic in every rounding, flushed and saturated; `double` has that of f64.

use super::context::{Context, Decoded};
use super::double;
use super::float::{canonical, flush, maximum, minimum};
use super::lanewise::{map1, map2, map3};
use super::round::{F32, Mode, odd_quotient, odd_root, odd_sum};
use crate::exec::Lane;

/// What stands between an operation and its type.
#[derive(Clone, Copy)]
struct Modifiers {
    mode: Mode,
    flush: bool,
    saturate: bool,
}

impl Modifiers {
    /// Where all words are known.
    fn new(words: &[&str]) -> Option<Self> {
        let mut all = Self { mode: Mode::Nearest, flush: false, saturate: false };
        for &word in words {
            match word {
                "ftz" => all.flush = true,
                "sat" => all.saturate = true,
                "rn" | "rz" | "rm" | "rp" => all.mode = Mode::named(word)?,
                _ => return None,
            }
        }
        Some(all)
    }

    fn input(self, value: f32) -> f64 {
        f64::from(if self.flush { flush(value) } else { value })
    }

    /// The f32 of an f64 that is exact, or rounded to odd.
    fn result(self, value: f64) -> f32 {
        let rounded = canonical(F32.round(value, self.mode) as f32);
        let rounded = if self.flush { flush(rounded) } else { rounded };
        if self.saturate { saturated(rounded) } else { rounded }
    }
}

/// To 0 to 1; NaN to 0.
pub(super) fn saturated(value: f32) -> f32 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 }
}

/// What `testp` asks of a number.
macro_rules! number_class {
    ($class:expr, $float:ty) => {{
        let is: Option<fn($float) -> bool> = match $class {
            "finite" => Some(<$float>::is_finite),
            "infinite" => Some(<$float>::is_infinite),
            "number" => Some(|a| !a.is_nan()),
            "notanumber" => Some(<$float>::is_nan),
            // Zero counts.
            "normal" => Some(|a| a.is_normal() || a == 0.0),
            "subnormal" => Some(<$float>::is_subnormal),
            _ => None,
        };
        is
    }};
}

fn test<T: Lane + 'static>(context: &mut Context, is: Option<fn(T) -> bool>) -> Decoded {
    is.map_or(Ok(None), |is| map1(context, is))
}

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["testp", class, "f32"] => test(context, number_class!(*class, f32)),
        ["testp", class, "f64"] => test(context, number_class!(*class, f64)),
        [operation, words @ .., "f32"] => single(context, operation, words),
        [operation, words @ .., "f64"] => double::decode(context, operation, words),
        _ => Ok(None),
    }
}

fn single(context: &mut Context, operation: &str, words: &[&str]) -> Decoded {
    let Some(m) = Modifiers::new(words) else { return approximate(context, operation, words) };
    match operation {
        "add" => map2(context, move |a: f32, b: f32| m.result(odd_sum(m.input(a), m.input(b), m.mode))),
        "sub" => map2(context, move |a: f32, b: f32| m.result(odd_sum(m.input(a), -m.input(b), m.mode))),
        "mul" => map2(context, move |a: f32, b: f32| m.result(m.input(a) * m.input(b))),
        // The product of two f32 is exact.
        "fma" | "mad" => {
            map3(context, move |a: f32, b: f32, c: f32| m.result(odd_sum(m.input(a) * m.input(b), m.input(c), m.mode)))
        }
        "div" => map2(context, move |a: f32, b: f32| m.result(odd_quotient(m.input(a), m.input(b)))),
        "rcp" => map1(context, move |a: f32| m.result(odd_quotient(1.0, m.input(a)))),
        "sqrt" => map1(context, move |a: f32| m.result(odd_root(m.input(a)))),
        "min" => map2(context, move |a: f32, b: f32| minimum(m.input(a) as f32, m.input(b) as f32)),
        "max" => map2(context, move |a: f32, b: f32| maximum(m.input(a) as f32, m.input(b) as f32)),
        "abs" => map1(context, move |a: f32| canonical((m.input(a) as f32).abs())),
        "neg" => map1(context, move |a: f32| canonical(-(m.input(a) as f32))),
        "copysign" => map2(context, |a: f32, b: f32| b.copysign(a)),
        _ => Ok(None),
    }
}

/// Approximations are computed in f64 and rounded once; `float` says how far a GPU's may be.
fn approximate(context: &mut Context, operation: &str, words: &[&str]) -> Decoded {
    if operation == "min" || operation == "max" {
        return extremum(context, operation, words);
    }
    let m = match words {
        ["approx" | "full"] => Modifiers::new(&[]),
        ["approx" | "full", "ftz"] => Modifiers::new(&["ftz"]),
        _ => None,
    };
    let Some(m) = m else { return Ok(None) };
    let function: fn(f64) -> f64 = match (operation, words[0]) {
        ("div", "full") => return map2(context, move |a: f32, b: f32| m.result(m.input(a) / m.input(b))),
        ("div", _) => return map2(context, move |a: f32, b: f32| m.result(fast_quotient(m.input(a), m.input(b)))),
        ("ex2", "approx") => f64::exp2,
        ("lg2", "approx") => f64::log2,
        ("rcp", "approx") => f64::recip,
        ("sqrt", "approx") => f64::sqrt,
        ("rsqrt", "approx") => |a| 1.0 / a.sqrt(),
        ("sin", "approx") => f64::sin,
        ("cos", "approx") => f64::cos,
        ("tanh", "approx") => f64::tanh,
        _ => return Ok(None),
    };
    map1(context, move |a: f32| m.result(function(m.input(a))))
}

/// `div.approx`: a times 1 / b, which is zero where b is beyond 2^126 (PTX ISA, `div`, floating point).
fn fast_quotient(a: f64, b: f64) -> f64 {
    if b.abs() > 126f64.exp2() { a * 0f64.copysign(b) } else { a / b }
}

/// `min` and `max` that pass NaN on, or take the sign that the operands' signs make.
fn extremum(context: &mut Context, operation: &str, words: &[&str]) -> Decoded {
    let (mut flushes, mut keeps_nan, mut xor) = (false, false, false);
    for &word in words {
        match word {
            "ftz" => flushes = true,
            "NaN" => keeps_nan = true,
            "xorsign" | "abs" => xor = true,
            _ => return Ok(None),
        }
    }
    let larger = operation == "max";
    map2(context, move |a: f32, b: f32| {
        let [a, b] = [a, b].map(|x| if flushes { flush(x) } else { x });
        let sign = a.to_bits() ^ b.to_bits();
        let [x, y] = if xor { [a.abs(), b.abs()] } else { [a, b] };
        if keeps_nan && (a.is_nan() || b.is_nan()) {
            return canonical(f32::NAN);
        }
        let value = if larger { maximum(x, y) } else { minimum(x, y) };
        if xor && !value.is_nan() { value.copysign(f32::from_bits(sign)) } else { value }
    })
}
