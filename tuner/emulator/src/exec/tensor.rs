//! Matrix products as tensor cores round them.
//!
//! The rule is that of MMA-Sim (Microsoft, MIT licence; arXiv 2511.10909): products and C are exact; they are
//! aligned to the largest exponent among them, each is truncated to some fraction bits, they are summed exactly,
//! and the sum is truncated to the result's mantissa. Which number of bits belongs to which instruction and target
//! is in `decode::tensor`.

use crate::decode::NAN;

/// Exponent of an infinity or NaN, as `exponent` gives it; those of finite f32, and of products, are far below.
const SPECIAL: i32 = 1024;
/// Exponent that a zero counts with.
const ZERO_EXPONENT: i32 = -126;

/// Elements along K of one instruction, at most.
pub(crate) const MAX_K: usize = 32;
/// Rows of A.
pub(crate) type RowsA = [[f64; MAX_K]; 16];
/// Columns of B.
pub(crate) type ColumnsB = [[f64; MAX_K]; 8];
/// C or D: 16 rows of 8 columns.
pub(crate) type Tile = [[f32; 8]; 16];

/// `2^exponent` for the exponents of normal f64 numbers.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// How one instruction adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounding {
    /// Exponent of the smallest normal number among the elements of A and B.
    pub smallest: i32,
    /// Fraction bits that an aligned term keeps.
    pub fraction: i32,
    /// Mantissa bits of a result.
    pub mantissa: i32,
    /// Elements along K that are summed at once.
    pub step: usize,
    /// Whether the steps start from zero, and C is added at the end as an f32.
    pub c_last: bool,
}

/// A row or column with the exponents that its elements count with.
struct Operand<'a> {
    values: &'a [f64; MAX_K],
    exponents: [i32; MAX_K],
}

impl<'a> Operand<'a> {
    fn new(values: &'a [f64; MAX_K], smallest: i32) -> Self {
        let mut exponents = [0; MAX_K];
        for (out, &value) in exponents.iter_mut().zip(values) {
            *out = exponent(value, smallest);
        }
        Self { values, exponents }
    }
}

/// Exponent of `value` in a format whose subnormal numbers keep the exponent `smallest`.
#[inline(always)]
fn exponent(value: f64, smallest: i32) -> i32 {
    let exponent = (value.to_bits() >> 52 & 0x7FF) as i32 - 1023;
    if value == 0.0 { ZERO_EXPONENT } else { exponent.max(smallest) }
}

/// D = A B + C over the first `k` elements.
pub(crate) fn multiply(a: &RowsA, b: &ColumnsB, c: &Tile, k: usize, rounding: Rounding) -> Tile {
    let columns = b.each_ref().map(|column| Operand::new(column, rounding.smallest));
    let mut d = *c;
    for (row, d) in a.iter().zip(&mut d) {
        let row = Operand::new(row, rounding.smallest);
        for (column, d) in columns.iter().zip(d) {
            let mut sum = if rounding.c_last { 0.0 } else { *d };
            for first in (0..k).step_by(rounding.step) {
                sum = dot_add(&row, column, first..first + rounding.step, sum, rounding);
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

/// One step: the products of `a` and `b` at `range`, and `c`. All terms are multiples of one unit and all sums are
/// exact, so that they may be added up in any order, four at a time.
fn dot_add(a: &Operand, b: &Operand, range: std::ops::Range<usize>, c: f32, rounding: Rounding) -> f32 {
    let exponents = a.exponents[range.clone()].iter().zip(&b.exponents[range.clone()]);
    let largest = exponents.fold(exponent(f64::from(c), -126), |largest, (a, b)| largest.max(a + b));
    let products = a.values[range.clone()].as_chunks::<4>().0.iter().zip(b.values[range].as_chunks::<4>().0);
    let product = |(a, b): (&[f64; 4], &[f64; 4])| [a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]];
    if largest >= SPECIAL / 2 {
        // An infinity or NaN: what IEEE arithmetic gives.
        let sum = products.flat_map(product).fold(f64::from(c), |sum, product| sum + product);
        return if sum.is_nan() { NAN } else { sum as f32 };
    }
    let unit = power_of_two(largest - rounding.fraction);
    let mut sums = [truncated(f64::from(c), unit), 0.0, 0.0, 0.0];
    for terms in products.map(product) {
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += truncated(term, unit);
        }
    }
    let sum = sums[0] + sums[1] + (sums[2] + sums[3]);
    if sum == 0.0 {
        return 0.0;
    }
    // At most 24 bits are left: the conversion is exact, but for results past the largest f32.
    truncated(sum, power_of_two(exponent(sum, -126) - rounding.mantissa)) as f32
}

/// `value` toward zero to a multiple of `unit`, a power of two; `|value|` is below `2^52 * unit`.
#[inline(always)]
fn truncated(value: f64, unit: f64) -> f64 {
    const TO_INTEGER: f64 = (1u64 << 52) as f64;
    let magnitude = value.abs();
    let nearest = magnitude + unit * TO_INTEGER - unit * TO_INTEGER;
    let below = if nearest > magnitude { nearest - unit } else { nearest };
    below.copysign(value)
}
