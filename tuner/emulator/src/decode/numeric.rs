//! `cvt` between scalar types in every rounding: integers exactly, floats by f64.

use super::arithmetic::saturated;
use super::context::{Context, Decoded};
use super::double::{narrowed, propagated, widened};
use super::exact::Exact;
use super::float::{canonical, flush};
use super::half::{BFLOAT, HALF};
use super::lanewise::map1;
use super::round::{F32, Format, Mode, odd};
use crate::exec::Class;

/// A scalar type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scalar {
    Integer { bits: u32, signed: bool },
    F16,
    Bf16,
    F32,
    F64,
}

impl Scalar {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => {
                let signed = name.starts_with('s');
                let bits = name.strip_prefix(if signed { 's' } else { 'u' })?.parse().ok()?;
                [8, 16, 32, 64].contains(&bits).then_some(Self::Integer { bits, signed })?
            }
        })
    }

    fn is_float(self) -> bool {
        !matches!(self, Self::Integer { .. })
    }

    fn class(self) -> Class {
        match self {
            Self::F64 | Self::Integer { bits: 64, .. } => Class::Double,
            _ => Class::Word,
        }
    }

    /// The integer in the low bits.
    fn integer(self, bits: u64) -> i128 {
        match self {
            Self::Integer { bits: width, signed: true } => i128::from((bits << (64 - width)) as i64 >> (64 - width)),
            Self::Integer { bits: width, .. } => i128::from(bits << (64 - width) >> (64 - width)),
            _ => 0,
        }
    }

    fn float(self, bits: u64) -> f64 {
        match self {
            // By way of f32.
            Self::F16 => widened(canonical((HALF.value)(bits as u16)).to_bits()),
            Self::Bf16 => widened((BFLOAT.value)(bits as u16).to_bits()),
            Self::F32 => widened(bits as u32),
            _ => f64::from_bits(bits),
        }
    }

    /// Least and largest integer.
    fn range(self) -> (i128, i128) {
        match self {
            Self::Integer { bits, signed: true } => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            Self::Integer { bits, .. } => (0, (1 << bits) - 1),
            _ => (0, 0),
        }
    }

    /// What NaN becomes (PTX ISA, `cvt`): zero, but the sign bit alone where f64 or 64-bit integers are involved.
    fn of_nan(self, from: Self) -> u64 {
        match self {
            Self::Integer { bits, .. } if bits == 64 || from == Self::F64 => 1 << (bits - 1),
            _ => 0,
        }
    }
}

/// A conversion with its modifiers.
#[derive(Clone, Copy)]
struct Conversion {
    to: Scalar,
    from: Scalar,
    mode: Mode,
    /// Whether the value is rounded to an integer first.
    integral: bool,
    flush: bool,
    saturate: bool,
    relu: bool,
}

pub(super) fn decode(context: &mut Context, form: &[&str]) -> Decoded {
    let [words @ .., to, from] = form else { return Ok(None) };
    let (Some(to), Some(from)) = (Scalar::named(to), Scalar::named(from)) else { return Ok(None) };
    let (mode, integral) = (Mode::Nearest, false);
    let mut all = Conversion { to, from, mode, integral, flush: false, saturate: false, relu: false };
    let mut rounding = false;
    for &word in words {
        match word {
            "ftz" => all.flush = true,
            "sat" => all.saturate = true,
            "relu" => all.relu = true,
            "rn" | "rz" | "rm" | "rp" | "rni" | "rzi" | "rmi" | "rpi" => {
                let Some(mode) = Mode::named(word) else { return Ok(None) };
                (all.mode, all.integral, rounding) = (mode, word.len() == 3, true);
            }
            _ => return Ok(None),
        }
    }
    if to.is_float() && !from.is_float() && !rounding || !to.is_float() && from.is_float() && !all.integral {
        return context.error("needs a rounding");
    }
    // A source register may be wider than its type.
    let wide = from.class() == Class::Double || context.is_double(1)?;
    match (wide, to.class()) {
        (false, Class::Double) => map1(context, move |a: u32| all.apply(a.into())),
        (false, _) => map1(context, move |a: u32| all.apply(a.into()) as u32),
        (true, Class::Double) => map1(context, move |a: u64| all.apply(a)),
        (true, _) => map1(context, move |a: u64| all.apply(a) as u32),
    }
}

impl Conversion {
    fn apply(self, bits: u64) -> u64 {
        match (self.from.is_float(), self.to.is_float()) {
            (false, false) => self.store(self.from.integer(bits)),
            (false, true) => {
                let value = self.from.integer(bits);
                if self.to == Scalar::F64 {
                    return Exact::integer(value).round(self.mode).to_bits();
                }
                let nearest = value as f64;
                self.store_float(odd(nearest, (value - nearest as i128) as f64))
            }
            (true, false) => {
                let value = self.input(bits);
                if value.is_nan() {
                    return self.to.of_nan(self.from);
                }
                // `as` saturates, and 128 bits hold every limit.
                let (least, largest) = self.to.range();
                self.store((self.mode.integer(value) as i128).clamp(least, largest))
            }
            (true, true) => {
                let value = self.input(bits);
                self.store_float(if self.integral { self.mode.integer(value) } else { value })
            }
        }
    }

    fn input(self, bits: u64) -> f64 {
        let value = self.from.float(bits);
        let flushes = self.flush && self.from == Scalar::F32 && (value as f32).is_subnormal();
        if flushes { 0.0f64.copysign(value) } else { value }
    }

    fn store(self, value: i128) -> u64 {
        let (least, largest) = self.to.range();
        let value = if self.saturate { value.clamp(least, largest) } else { value };
        // A narrow result fills its register by its own sign.
        self.to.integer(value as u64) as u64
    }

    fn store_float(self, value: f64) -> u64 {
        let value = if self.saturate { saturated64(value) } else { value };
        let value = if self.relu && value <= 0.0 { 0.0 } else { value };
        match self.to {
            Scalar::F64 => propagated([value], value).to_bits(),
            Scalar::F32 if self.from == Scalar::F64 && value.is_nan() => narrowed(value).into(),
            Scalar::F32 => {
                let rounded = canonical(self.round(F32, value) as f32);
                u64::from(if self.flush { flush(rounded) } else { rounded }.to_bits())
            }
            Scalar::F16 => u64::from(HALF.round(value, self.mode)),
            _ => u64::from(BFLOAT.round(value, self.mode)),
        }
    }

    fn round(self, format: Format, value: f64) -> f64 {
        format.round(value, self.mode)
    }
}

fn saturated64(value: f64) -> f64 {
    // As f32: what lies between 0 and 1 is rounded later.
    if (0.0..=1.0).contains(&value) { value + 0.0 } else { f64::from(saturated(value as f32)) }
}
