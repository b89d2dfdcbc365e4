//! f64 results in the directed roundings: computed in integers, with a last bit that says whether anything is missing,
//! and rounded once. Native arithmetic rounds to nearest only.

use super::round::Mode;
use std::cmp::Ordering;

/// Fraction bits of f64.
const FRACTION: u32 = 52;
/// Exponent of the last bit of subnormal numbers.
const SMALLEST: i32 = -1074;

/// `significand * 2^exponent`, with a sign that zero has as well. Its significand is below 2^127; where one does not
/// hold the whole result, it has 60 bits or more and ends in a 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    negative: bool,
    significand: u128,
    exponent: i32,
}

impl Exact {
    /// A finite number. Its significand has 53 bits.
    pub fn of(value: f64) -> Self {
        let field = (value.to_bits() >> FRACTION & 0x7FF) as i32;
        let fraction = value.to_bits() & ((1 << FRACTION) - 1);
        let significand = if field == 0 { fraction } else { fraction | 1 << FRACTION };
        let shift = significand.leading_zeros().min(63) - (63 - FRACTION);
        Self {
            negative: value.is_sign_negative(),
            significand: u128::from(significand << shift),
            exponent: field.max(1) - 1 + SMALLEST - shift as i32,
        }
    }

    /// An integer of up to 64 bits.
    pub fn integer(value: i128) -> Self {
        Self { negative: value < 0, significand: value.unsigned_abs(), exponent: 0 }
    }

    fn bits(self) -> i32 {
        128 - self.significand.leading_zeros() as i32
    }

    /// Position above the highest bit; that of zero is below all others'.
    fn top(self) -> i32 {
        if self.significand == 0 { i32::MIN } else { self.exponent + self.bits() }
    }

    /// `a * b` of numbers with 53 bits.
    pub fn product(a: Self, b: Self) -> Self {
        Self {
            negative: a.negative != b.negative,
            significand: a.significand * b.significand,
            exponent: a.exponent + b.exponent,
        }
    }

    /// `a + b` of numbers with up to 106 bits. Bits are missing only where `b` is so far below `a` that little cancels.
    pub fn sum(a: Self, b: Self, mode: Mode) -> Self {
        let (high, low) = if a.top() >= b.top() { (a, b) } else { (b, a) };
        if low.significand == 0 {
            let differ = high.significand == 0 && high.negative != low.negative;
            return if differ { Self { negative: mode == Mode::Down, ..high } } else { high };
        }
        let shift = 126 - high.bits();
        let exponent = high.exponent - shift;
        let (large, small) = (high.significand << shift, low.moved(low.exponent - exponent));
        let (significand, negative) = match large.cmp(&small) {
            _ if high.negative == low.negative => (large + small, high.negative),
            Ordering::Equal => (0, mode == Mode::Down),
            Ordering::Greater => (large - small, high.negative),
            Ordering::Less => (small - large, low.negative),
        };
        Self { negative, significand, exponent }
    }

    /// The significand moved to the left by `places`, to the right where they are negative.
    fn moved(self, places: i32) -> u128 {
        match places {
            0.. => self.significand << places,
            -127..0 => jammed(self.significand >> -places, self.significand << (128 + places) != 0),
            _ => 1,
        }
    }

    /// `a / b` of numbers with 53 bits; `b` is not zero.
    pub fn quotient(a: Self, b: Self) -> Self {
        const MORE: u32 = 70;
        let dividend = a.significand << MORE;
        Self {
            negative: a.negative != b.negative,
            significand: jammed(dividend / b.significand, !dividend.is_multiple_of(b.significand)),
            exponent: a.exponent - b.exponent - MORE as i32,
        }
    }

    /// The square root of a number with 53 bits that is not below zero.
    pub fn root(self) -> Self {
        let more = 72 + self.exponent.rem_euclid(2);
        let square = self.significand << more;
        let root = square.isqrt();
        Self { significand: jammed(root, root * root != square), exponent: (self.exponent - more) / 2, ..self }
    }

    pub fn round(self, mode: Mode) -> f64 {
        let last = (self.top().saturating_sub(FRACTION as i32 + 1)).max(SMALLEST);
        let (kept, rest) = self.split(last.saturating_sub(self.exponent));
        let away = match mode {
            Mode::Nearest => rest > HALF || rest == HALF && kept & 1 == 1,
            Mode::NearestAway => rest >= HALF,
            Mode::Zero => false,
            Mode::Down => self.negative && rest > 0,
            Mode::Up => !self.negative && rest > 0,
        };
        // A carry goes into the exponent, as it should; the leading bit counts as one there as well.
        let magnitude = (u128::from((last - SMALLEST) as u32) << FRACTION) + kept + u128::from(away);
        let value = if magnitude < u128::from(f64::INFINITY.to_bits()) {
            f64::from_bits(magnitude as u64)
        } else if mode.stops_at_largest(self.negative) {
            f64::MAX
        } else {
            f64::INFINITY
        };
        if self.negative { -value } else { value }
    }

    /// Without its last `places` bits, and these as a fraction of 2^128, never rounded to nothing or to a half.
    fn split(self, places: i32) -> (u128, u128) {
        match places {
            ..=0 => (self.significand << -places.max(-127), 0),
            1..=127 => (self.significand >> places, self.significand << (128 - places)),
            _ => (0, u128::from(self.significand != 0)),
        }
    }
}

/// Half of the last bit that is kept.
const HALF: u128 = 1 << 127;

/// `bits`, whose last is set where more are missing.
fn jammed(bits: u128, missing: bool) -> u128 {
    bits | u128::from(missing)
}
