//! Elements of matrix products, chosen so that rules of rounding give different results: terms of like and of very
//! unlike size, sums that cancel, C far above and far below the products, subnormal elements, NaN and infinities.

use super::random::Random;

/// A format of elements: a sign, `exponent` bits, `mantissa` bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Format {
    exponent: u32,
    mantissa: u32,
    /// Largest code of a finite magnitude.
    largest: u32,
}

/// What the elements of one product are like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    Integers,
    /// Exponents within so many of the middle.
    Spread(i32),
    /// Neighbours along K that are each other's opposite, but for a few.
    Cancelling,
    /// Few elements that are not zero, and any C.
    Sparse,
    Any,
    /// Subnormal numbers and the smallest normal ones.
    Small,
    Special,
}

/// Products take them in turn.
pub(super) const STYLES: [Style; 8] = [
    Style::Integers,
    Style::Spread(1),
    Style::Spread(4),
    Style::Cancelling,
    Style::Sparse,
    Style::Any,
    Style::Small,
    Style::Special,
];

impl Format {
    /// That of a type's PTX name.
    pub fn named(name: &str) -> Option<Self> {
        let (exponent, mantissa, largest) = match name {
            "f16" => (5, 10, 0x7BFF),
            "bf16" => (8, 7, 0x7F7F),
            "e4m3" => (4, 3, 0x7E),
            "e5m2" => (5, 2, 0x7B),
            _ => return None,
        };
        Some(Self { exponent, mantissa, largest })
    }

    pub fn bits(self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    /// Exponent of the smallest normal number.
    pub fn smallest(self) -> i32 {
        1 - self.bias()
    }

    /// A code from its fields; what is too large is the largest.
    fn code(self, negative: bool, exponent: i32, mantissa: u32) -> u32 {
        let exponent = exponent.clamp(0, (1 << self.exponent) - 1) as u32;
        let magnitude = exponent << self.mantissa | mantissa & ((1 << self.mantissa) - 1);
        u32::from(negative) << (self.bits() - 1) | magnitude.min(self.largest)
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Elements along K. Where they cancel, only A's are each other's opposite.
    pub fn vector(self, k: usize, style: Style, negate: bool, random: &mut Random) -> Vec<u32> {
        let mut codes: Vec<u32> = (0..k).map(|_| self.element(style, random)).collect();
        if matches!(style, Style::Cancelling) {
            let sign = u32::from(negate) << (self.bits() - 1);
            codes.chunks_mut(2).skip(2).for_each(|pair| pair[1] = pair[0] ^ sign);
        }
        codes
    }

    pub fn element(self, style: Style, random: &mut Random) -> u32 {
        let bits = random.bits() as u32;
        let (negative, mantissa) = (bits >> 31 == 1, bits);
        match style {
            Style::Integers => {
                let value = random.below(8) as u32;
                let exponent = value.checked_ilog2().map_or(0, |log| log as i32 + self.bias());
                let shift = self.mantissa.saturating_sub(value.checked_ilog2().unwrap_or(0));
                self.code(negative, exponent, if value == 0 { 0 } else { value << shift })
            }
            Style::Spread(spread) => self.code(negative, self.bias() + random.between(-spread, spread), mantissa),
            Style::Cancelling => self.code(negative, self.bias() + random.between(-6, 6), mantissa),
            Style::Small => self.code(negative, random.between(0, 2), mantissa),
            Style::Sparse if random.below(16) != 0 => 0,
            Style::Sparse | Style::Any => self.code(negative, random.below(1 << self.exponent) as i32, mantissa),
            // NaN and, where there are any, infinities.
            Style::Special if random.one_in(40) => {
                (self.largest + 1 + (bits & 1) * random.below(2) as u32) | u32::from(negative) << (self.bits() - 1)
            }
            Style::Special => self.code(negative, self.bias() + random.between(-3, 3), mantissa),
        }
    }
}

/// An element of C; `smallest` is the exponent of the smallest normal element of A and B.
pub(super) fn accumulator(style: Style, smallest: i32, random: &mut Random) -> u32 {
    let bits = random.bits() as u32;
    let around = |exponent: i32| bits & 0x807F_FFFF | ((127 + exponent) as u32) << 23;
    let (far, near) = (around(random.between(-30, 30)), around(random.between(-8, 8)));
    let small = around((2 * smallest + random.between(-4, 6)).max(-126));
    match style {
        Style::Integers => (random.between(-100, 100) as f32).to_bits(),
        Style::Spread(_) | Style::Cancelling if random.one_in(6) => bits & 0x8000_0000,
        Style::Spread(_) | Style::Cancelling | Style::Any => random.pick(&[far, near]),
        Style::Small => random.pick(&[0, small]),
        Style::Sparse => random.pick(&[bits, near, bits & 0x807F_FFFF, 0x8000_0000]),
        Style::Special => random.pick(&[bits, near, 0x7F80_0000, 0xFF80_0000, 0x7FC1_2345, 0x7F7F_FFFF]),
    }
}
