//! Rounding of exact results to any binary format of up to 24 bits of significand, by way of f64.
//!
//! A result that f64 cannot hold is first rounded to odd: its last bit is set where something is lost. What is then
//! rounded to at least two bits fewer comes out as if rounded once (Boldo and Melquiond, "Emulation of FMA and
//! correctly rounded sums: proved algorithms using rounding to odd").

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// To nearest, ties to even.
    Nearest,
    /// To nearest, ties away from zero.
    NearestAway,
    Zero,
    Down,
    Up,
}

impl Mode {
    /// `rn`, `rz`, `rm`, `rp`, `rna`, and with an `i` those of integers.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "rn" | "rni" => Self::Nearest,
            "rna" => Self::NearestAway,
            "rz" | "rzi" => Self::Zero,
            "rm" | "rmi" => Self::Down,
            "rp" | "rpi" => Self::Up,
            _ => return None,
        })
    }

    /// To an integer.
    pub fn integer(self, value: f64) -> f64 {
        match self {
            Self::Nearest => value.round_ties_even(),
            Self::NearestAway => value.round(),
            Self::Zero => value.trunc(),
            Self::Down => value.floor(),
            Self::Up => value.ceil(),
        }
    }

    /// Whether what is too large becomes the largest number, not infinity.
    pub fn stops_at_largest(self, negative: bool) -> bool {
        match self {
            Self::Nearest | Self::NearestAway => false,
            Self::Zero => true,
            Self::Down => !negative,
            Self::Up => negative,
        }
    }
}

/// A binary format with subnormal numbers and infinities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// Fraction bits.
    pub fraction: i32,
    /// Exponent of the smallest normal number; that of the largest is `1 - smallest`.
    pub smallest: i32,
}

pub(super) const F16: Format = Format { fraction: 10, smallest: -14 };
pub(super) const BF16: Format = Format { fraction: 7, smallest: -126 };
pub(super) const F32: Format = Format { fraction: 23, smallest: -126 };
pub(super) const TF32: Format = Format { fraction: 10, smallest: -126 };

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Format {
    /// `value` rounded to the format; NaN stays NaN.
    pub fn round(self, value: f64, mode: Mode) -> f64 {
        if !value.is_finite() || value == 0.0 {
            return value;
        }
        let exponent = ((value.to_bits() >> 52 & 0x7FF) as i32 - 1023).max(self.smallest);
        let unit = power_of_two(exponent - self.fraction);
        let rounded = mode.integer(value / unit) * unit;
        let largest = (2.0 - power_of_two(-self.fraction)) * power_of_two(1 - self.smallest);
        if rounded.abs() <= largest {
            rounded.copysign(value)
        } else if mode.stops_at_largest(value < 0.0) {
            largest.copysign(value)
        } else {
            f64::INFINITY.copysign(value)
        }
    }
}

/// `value`, from which the exact result differs as `error` does from zero, rounded to odd.
pub(super) fn odd(value: f64, error: f64) -> f64 {
    if error == 0.0 || !error.is_finite() || !value.is_finite() || value.to_bits() & 1 == 1 {
        value
    } else if (error > 0.0) == (value > 0.0) {
        // Away from zero; a value of zero has no error.
        f64::from_bits(value.to_bits() + 1)
    } else {
        f64::from_bits(value.to_bits() - 1)
    }
}

/// `a + b`, and what is missing (Knuth's two-sum).
fn sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

/// `a + b`, rounded to odd. With exact opposites the zero is positive, or negative for `Down`.
pub(super) fn odd_sum(a: f64, b: f64, mode: Mode) -> f64 {
    let (value, error) = sum(a, b);
    if value == 0.0 && a != 0.0 && mode == Mode::Down { -0.0 } else { odd(value, error) }
}

/// `a / b`, rounded to odd, for f32 operands.
pub(super) fn odd_quotient(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    odd(quotient, (-quotient).mul_add(b, a) * b.signum())
}

/// The square root of an f32, rounded to odd.
pub(super) fn odd_root(a: f64) -> f64 {
    let root = a.sqrt();
    odd(root, (-root).mul_add(root, a))
}
