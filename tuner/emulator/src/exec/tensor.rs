//! Matrix products as tensor cores round them.
//!
//! The rule is that of MMA-Sim (Microsoft, MIT licence; arXiv 2511.10909): products and C are exact; they are
//! aligned to the largest exponent among them, each is truncated to some fraction bits, they are summed exactly,
//! and the sum is truncated to the result's mantissa. Which number of bits belongs to which instruction and target
//! is in `decode::tensor`.

use crate::decode::NAN;

/// An operand element: `significand * 2^(exponent - 10)`. The exponent is the element's own, not that of its
/// leading bit: subnormal numbers keep the format's smallest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Factor {
    pub significand: i32,
    pub exponent: i32,
}

/// Fraction bits of a factor's significand.
pub(crate) const FACTOR_BITS: u32 = 10;
/// Exponent of infinities (significand ±1) and NaN (0).
const SPECIAL: i32 = 1 << 20;
/// Exponent that a zero counts with.
const ZERO_EXPONENT: i32 = -126;

/// Elements along K of one instruction, at most.
pub(crate) const MAX_K: usize = 32;
/// Rows of A, by element.
pub(crate) type RowsA = [[Factor; MAX_K]; 16];
/// Columns of B, by element.
pub(crate) type ColumnsB = [[Factor; MAX_K]; 8];
/// C or D: 16 rows of 8 columns.
pub(crate) type Tile = [[f32; 8]; 16];

impl Factor {
    pub fn zero() -> Self {
        Self { significand: 0, exponent: ZERO_EXPONENT }
    }

    pub fn nan() -> Self {
        Self { significand: 0, exponent: SPECIAL }
    }

    /// `significand` has `bits` fraction bits.
    pub fn new(negative: bool, significand: u32, bits: u32, exponent: i32) -> Self {
        if significand == 0 {
            return Self::zero();
        }
        let significand = (significand << (FACTOR_BITS - bits)) as i32;
        Self { significand: if negative { -significand } else { significand }, exponent }
    }

    pub fn from_f16(bits: u16) -> Self {
        let (negative, exponent, fraction) = (bits >> 15 == 1, i32::from(bits >> 10 & 31), u32::from(bits & 0x3FF));
        match exponent {
            0 => Self::new(negative, fraction, 10, -14),
            31 if fraction != 0 => Self::nan(),
            31 => Self { significand: if negative { -1 } else { 1 }, exponent: SPECIAL },
            _ => Self::new(negative, fraction | 0x400, 10, exponent - 15),
        }
    }

    fn value(self) -> f64 {
        match (self.exponent, self.significand) {
            (SPECIAL, 0) => f64::NAN,
            (SPECIAL, sign) => f64::from(sign) * f64::INFINITY,
            (exponent, significand) => f64::from(significand) * 2f64.powi(exponent - FACTOR_BITS as i32),
        }
    }
}

/// How one instruction adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// Fraction bits that an aligned term keeps.
    pub fraction: u32,
    /// Mantissa bits of a result.
    pub mantissa: u32,
    /// Elements along K that are summed at once.
    pub step: usize,
    /// Whether the steps start from zero, and C is added at the end as an f32.
    pub c_last: bool,
}

/// D = A B + C over the first `k` elements.
pub(crate) fn multiply(a: &RowsA, b: &ColumnsB, c: &Tile, k: usize, rounding: Rounding) -> Tile {
    let mut d = *c;
    for (a, d) in a.iter().zip(&mut d) {
        for (b, d) in b.iter().zip(d) {
            let mut sum = if rounding.c_last { 0.0 } else { *d };
            for (a, b) in a[..k].chunks(rounding.step).zip(b[..k].chunks(rounding.step)) {
                sum = dot_add(a, b, sum, rounding);
            }
            *d = if rounding.c_last { add(sum, *d) } else { sum };
        }
    }
    d
}

fn add(a: f32, b: f32) -> f32 {
    let sum = a + b;
    if sum.is_nan() { NAN } else { sum }
}

/// One step: the products of `a` and `b`, and `c`.
fn dot_add(a: &[Factor], b: &[Factor], c: f32, rounding: Rounding) -> f32 {
    let (c_significand, c_exponent) = parts_f32(c);
    let largest = a.iter().zip(b).fold(c_exponent, |largest, (a, b)| largest.max(a.exponent + b.exponent));
    if largest >= SPECIAL / 2 {
        return special_sum(a, b, c);
    }
    let align = |significand: i64, bits: u32, exponent: i32| {
        let shift = (bits as i32 + largest - exponent).min(63) as u32;
        let magnitude = (significand.unsigned_abs() << rounding.fraction) >> shift;
        if significand < 0 { -(magnitude as i64) } else { magnitude as i64 }
    };
    let mut sum = align(c_significand, 23, c_exponent);
    for (a, b) in a.iter().zip(b) {
        // Both have at most 11 bits.
        let product = a.significand * b.significand;
        sum += align(i64::from(product), 2 * FACTOR_BITS, a.exponent + b.exponent);
    }
    truncated(sum, largest - rounding.fraction as i32, rounding.mantissa)
}

/// Signed significand with 23 fraction bits, and exponent.
fn parts_f32(value: f32) -> (i64, i32) {
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 23 & 255) as i32, i64::from(bits & 0x7F_FFFF));
    let (magnitude, exponent) = match exponent {
        0 => (fraction, -126),
        255 => (fraction, SPECIAL),
        _ => (fraction | 0x80_0000, exponent - 127),
    };
    (if value.is_sign_negative() { -magnitude } else { magnitude }, exponent)
}

/// With an infinity or NaN among the terms: what IEEE arithmetic gives.
fn special_sum(a: &[Factor], b: &[Factor], c: f32) -> f32 {
    let sum = a.iter().zip(b).fold(f64::from(c), |sum, (a, b)| sum + a.value() * b.value());
    if sum.is_nan() { NAN } else { sum as f32 }
}

/// `sum * 2^unit`, rounded toward zero to `mantissa` bits behind the leading one.
fn truncated(sum: i64, unit: i32, mantissa: u32) -> f32 {
    if sum == 0 {
        return 0.0;
    }
    let magnitude = sum.unsigned_abs();
    let exponent = 63 - magnitude.leading_zeros() as i32 + unit;
    let last = exponent.max(-126) - mantissa as i32;
    let drop = last - unit;
    let kept = if drop >= 0 { magnitude.checked_shr(drop as u32).unwrap_or(0) } else { magnitude << -drop };
    // At most 24 bits: both conversions are exact, but for results past the largest f32.
    let value = (kept as f64 * 2f64.powi(last)) as f32;
    if sum < 0 { -value } else { value }
}
