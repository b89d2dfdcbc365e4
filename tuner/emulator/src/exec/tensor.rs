//! Matrix products as tensor cores round them.
//!
//! The rule is that of MMA-Sim (Microsoft, MIT licence; arXiv 2511.10909): products and C are exact; they are
//! aligned to the largest exponent among them, each is truncated to some fraction bits, they are summed exactly,
//! and the sum is truncated to the result's mantissa. A product with a zero has no exponent: so an H200 answered. Which
//! number of bits belongs to which instruction and target is in `decode::tensor`.
//!
//! All of it is exact in f64, and goes column by column side by side: eight columns are two vectors of AVX2. The tests
//! hold it to the same rule written out for one element at a time.

use super::vectors::vectorised;
use crate::decode::NAN;

/// What a zero counts as: a product with one is below every other term, unless the other factor is infinite.
const ZERO_POWER: f64 = power_of_two(-400);
/// Smallest normal f32.
const SMALLEST_F32: f64 = power_of_two(-126);

/// Elements along K of one instruction, at most.
pub(crate) const MAX_K: usize = 32;
/// Rows of A.
pub(crate) type RowsA = [[f64; MAX_K]; 16];
/// Columns of B.
pub(crate) type ColumnsB = [[f64; MAX_K]; 8];
/// C or D: 16 rows of 8 columns.
pub(crate) type Tile = [[f32; 8]; 16];

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

/// `2^exponent` for the exponents of normal f64 numbers.
const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The power of two that `value`'s exponent stands for, in a format whose smallest normal number is `smallest`;
/// infinity for infinities and NaN. Exponents are compared and added as such powers, in the vectors of the values.
#[inline(always)]
fn power(value: f64, smallest: f64) -> f64 {
    let power = f64::from_bits(value.to_bits() & f64::INFINITY.to_bits());
    let power = if power > smallest { power } else { smallest };
    if value == 0.0 { ZERO_POWER } else { power }
}

/// One over a power of two.
#[inline(always)]
fn inverse(power: f64) -> f64 {
    const TWICE_ONE: u64 = 2 * 1.0f64.to_bits();
    f64::from_bits(TWICE_ONE.wrapping_sub(power.to_bits()))
}

/// B by rows, its eight columns side by side, and the powers of its elements.
struct RowsB {
    values: [[f64; 8]; MAX_K],
    powers: [[f64; 8]; MAX_K],
}

impl RowsB {
    #[inline(always)]
    fn new(columns: &ColumnsB, k: usize, smallest: f64) -> Self {
        let mut rows = Self { values: [[0.0; 8]; MAX_K], powers: [[0.0; 8]; MAX_K] };
        for (k, (values, powers)) in rows.values.iter_mut().zip(&mut rows.powers).enumerate().take(k) {
            for n in 0..8 {
                values[n] = columns[n][k];
            }
            for n in 0..8 {
                powers[n] = power(values[n], smallest);
            }
        }
        rows
    }
}

/// D = A B + C over the first `k` elements, a multiple of the step.
pub(crate) fn multiply(a: &RowsA, b: &ColumnsB, c: &Tile, k: usize, rounding: Rounding) -> Tile {
    vectorised(
        #[inline(always)]
        || match rounding.step {
            8 => multiply_by::<8>(a, b, c, k, rounding),
            16 => multiply_by::<16>(a, b, c, k, rounding),
            _ => multiply_by::<MAX_K>(a, b, c, k, rounding),
        },
    )
}

/// The same for a step of that size.
#[inline(always)]
fn multiply_by<const STEP: usize>(a: &RowsA, b: &ColumnsB, c: &Tile, k: usize, rounding: Rounding) -> Tile {
    let smallest = power_of_two(rounding.smallest);
    let b = RowsB::new(b, k, smallest);
    let (values_b, powers_b) = (b.values.as_chunks::<STEP>().0, b.powers.as_chunks::<STEP>().0);
    let mut d = *c;
    for (a, d) in a.iter().zip(&mut d) {
        let mut sums = if rounding.c_last { [0.0; 8] } else { *d };
        for (a, (values_b, powers_b)) in
            a.as_chunks::<STEP>().0.iter().zip(values_b.iter().zip(powers_b)).take(k / STEP)
        {
            dot_add(a, smallest, values_b, powers_b, &mut sums, rounding);
        }
        *d = if rounding.c_last { std::array::from_fn(|n| add(sums[n], d[n])) } else { sums };
    }
    d
}

fn add(a: f32, b: f32) -> f32 {
    let sum = a + b;
    if sum.is_nan() { NAN } else { sum }
}

/// One step of a row: adds to each column's `c` the products of `a` and `b`.
#[inline(always)]
fn dot_add<const STEP: usize>(
    a: &[f64; STEP],
    smallest: f64,
    b: &[[f64; 8]; STEP],
    powers_b: &[[f64; 8]; STEP],
    c: &mut [f32; 8],
    rounding: Rounding,
) {
    let (mut start, mut largest) = ([0.0; 8], [0.0; 8]);
    for n in 0..8 {
        start[n] = f64::from(c[n]);
        largest[n] = power(start[n], SMALLEST_F32);
    }
    let mut powers_a = [0.0; STEP];
    for k in 0..STEP {
        powers_a[k] = power(a[k], smallest);
    }
    for k in 0..STEP {
        for n in 0..8 {
            let power = powers_a[k] * powers_b[k][n];
            largest[n] = if power > largest[n] { power } else { largest[n] };
        }
    }
    // In units of an aligned term's last bit, terms are cut to integers, whose sums are exact in any order.
    let (mut unit, mut per_unit, mut sums) = ([0.0; 8], [0.0; 8], [0.0; 8]);
    for n in 0..8 {
        unit[n] = largest[n] * power_of_two(-rounding.fraction);
        per_unit[n] = inverse(unit[n]);
        sums[n] = (start[n] * per_unit[n]).trunc();
    }
    for k in 0..STEP {
        for n in 0..8 {
            sums[n] += (a[k] * b[k][n] * per_unit[n]).trunc();
        }
    }
    for n in 0..8 {
        c[n] = cut(sums[n] * unit[n], rounding.mantissa);
    }
    if largest.contains(&f64::INFINITY) {
        for n in (0..8).filter(|&n| largest[n] == f64::INFINITY) {
            c[n] = special(a, b, n, start[n]);
        }
    }
}

/// `sum` toward zero to a mantissa of so many bits: an f32, but for what lies past the largest one.
#[inline(always)]
fn cut(sum: f64, mantissa: i32) -> f32 {
    let last_bit = power(sum, SMALLEST_F32) * power_of_two(-mantissa);
    let cut = (sum * inverse(last_bit)).trunc() * last_bit;
    // No sum is a negative zero.
    (cut + 0.0) as f32
}

/// Column `n` where an infinity or NaN is among the terms: what IEEE arithmetic gives.
#[cold]
fn special(a: &[f64], b: &[[f64; 8]], n: usize, c: f64) -> f32 {
    let sum = a.iter().zip(b).fold(c, |sum, (a, b)| sum + a * b[n]);
    if sum.is_nan() { NAN } else { sum as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Of a normal f32.
    const SMALLEST_EXPONENT: i32 = -126;

    /// Exponent of `value` in a format whose subnormal numbers keep the exponent `smallest`.
    fn exponent(value: f64, smallest: i32) -> i32 {
        match value {
            0.0 => -400,
            _ => ((value.to_bits() >> 52 & 0x7FF) as i32 - 1023).max(smallest),
        }
    }

    /// The rule for one element, term by term.
    fn one_element(terms: &[(f64, i32)], c: f32, rounding: Rounding) -> f32 {
        let c = f64::from(c);
        let exponents = terms.iter().filter(|(product, _)| *product != 0.0).map(|&(_, exponent)| exponent);
        let largest = exponents.fold(exponent(c, SMALLEST_EXPONENT), i32::max);
        if terms.iter().any(|(product, _)| !product.is_finite()) || !c.is_finite() {
            let sum = terms.iter().fold(c, |sum, (product, _)| sum + product);
            return if sum.is_nan() { NAN } else { sum as f32 };
        }
        let unit = power_of_two(largest - rounding.fraction);
        let sum = terms.iter().fold(truncated(c, unit), |sum, &(product, _)| sum + truncated(product, unit));
        match sum {
            0.0 => 0.0,
            _ => truncated(sum, power_of_two(exponent(sum, SMALLEST_EXPONENT) - rounding.mantissa)) as f32,
        }
    }

    /// `value` toward zero to a multiple of `unit`, a power of two, by an integer.
    fn truncated(value: f64, unit: f64) -> f64 {
        (value / unit) as i64 as f64 * unit
    }

    fn plain(a: &RowsA, b: &ColumnsB, c: &Tile, k: usize, rounding: Rounding) -> Tile {
        let mut d = *c;
        for (row, d) in a.iter().zip(&mut d) {
            for (n, d) in d.iter_mut().enumerate() {
                let term = |k: usize| {
                    let exponent = |value| exponent(value, rounding.smallest);
                    (row[k] * b[n][k], exponent(row[k]) + exponent(b[n][k]))
                };
                let mut sum = if rounding.c_last { 0.0 } else { *d };
                for first in (0..k).step_by(rounding.step) {
                    let terms: Vec<_> = (first..first + rounding.step).map(term).collect();
                    sum = one_element(&terms, sum, rounding);
                }
                *d = if rounding.c_last { add(sum, *d) } else { sum };
            }
        }
        d
    }

    const ROUNDINGS: [Rounding; 6] = [
        Rounding { smallest: -126, fraction: 25, mantissa: 23, step: 16, c_last: false },
        Rounding { smallest: -14, fraction: 25, mantissa: 23, step: 16, c_last: false },
        Rounding { smallest: -14, fraction: 24, mantissa: 23, step: 8, c_last: false },
        Rounding { smallest: -14, fraction: 25, mantissa: 23, step: 16, c_last: true },
        Rounding { smallest: -6, fraction: 13, mantissa: 13, step: 32, c_last: false },
        Rounding { smallest: -6, fraction: 25, mantissa: 23, step: 32, c_last: false },
    ];

    /// A bf16, f16 or E4M3 number: any of them, one of few powers of two, one near the smallest, zero, or now and then
    /// an infinity or NaN.
    fn element(rng: &mut StdRng, rounding: Rounding, special: bool) -> f64 {
        let mantissa = if rounding.smallest == -6 { 3 } else { 10 };
        let significand = f64::from(rng.random_range(1 << mantissa..2 << mantissa)) / f64::from(1 << mantissa);
        let sign = if rng.random() { 1.0 } else { -1.0 };
        sign * match rng.random_range(0..if special { 60 } else { 50 }) {
            0..20 => significand * power_of_two(rng.random_range(rounding.smallest..-rounding.smallest + 2)),
            20..35 => power_of_two(rng.random_range(-1..3)),
            35..40 => (significand - 1.0) * power_of_two(rounding.smallest),
            40..45 => significand * power_of_two(-rounding.smallest + 1),
            45..59 => 0.0,
            _ => [f64::INFINITY, f64::NAN][rng.random_range(0..2)],
        }
    }

    /// C beside the products: of their size, far above or below, subnormal, zero, or the sum's opposite.
    fn start(rng: &mut StdRng, sum: f64, special: bool) -> f32 {
        let value = f32::from_bits(rng.random::<u32>() & 0x807F_FFFF | 0x3F80_0000);
        match rng.random_range(0..if special { 14 } else { 12 }) {
            0..4 => value * 2f32.powi(rng.random_range(-40..40)),
            4 => value * 2f32.powi(rng.random_range(80..128)),
            5 => f32::from_bits(rng.random::<u32>() & 0x807F_FFFF),
            6..8 => 0.0f32.copysign(value),
            8..12 => -sum as f32,
            12 => f32::INFINITY.copysign(value),
            _ => f32::NAN,
        }
    }

    #[test]
    fn vectors_of_columns_round_as_one_element_does() {
        let mut rng = StdRng::seed_from_u64(11);
        for round in 0..400 {
            for rounding in ROUNDINGS {
                let special = round % 4 == 0;
                let mut a: RowsA =
                    std::array::from_fn(|_| std::array::from_fn(|_| element(&mut rng, rounding, special)));
                let mut b: ColumnsB =
                    std::array::from_fn(|_| std::array::from_fn(|_| element(&mut rng, rounding, special)));
                if round % 8 == 1 {
                    // Neighbours cancel: C, or nothing, is left.
                    a.iter_mut().for_each(|row| row.as_chunks_mut::<2>().0.iter_mut().for_each(|x| x[1] = x[0]));
                    b.iter_mut().for_each(|column| column.as_chunks_mut::<2>().0.iter_mut().for_each(|x| x[1] = -x[0]));
                }
                if round % 8 == 3 {
                    // Hardly a product: a small C is the largest term.
                    a.iter_mut().flatten().filter(|_| rng.random_range(0..32) != 0).for_each(|x| *x = 0.0);
                }
                let sum = |m: usize, n: usize| a[m].iter().zip(&b[n]).map(|(a, b)| a * b).sum::<f64>();
                let c: Tile = std::array::from_fn(|m| std::array::from_fn(|n| start(&mut rng, sum(m, n), special)));
                let (fast, plain) = (multiply(&a, &b, &c, MAX_K, rounding), plain(&a, &b, &c, MAX_K, rounding));
                assert_eq!(
                    fast.map(|row| row.map(f32::to_bits)),
                    plain.map(|row| row.map(f32::to_bits)),
                    "{rounding:?}"
                );
            }
        }
    }
}
