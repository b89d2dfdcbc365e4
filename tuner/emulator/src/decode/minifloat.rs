//! E4M3, E5M2, E2M3, E3M2 and E2M1: decoding, and encoding to nearest even with saturation.

/// A format with a sign, an exponent and `mantissa` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Minifloat {
    mantissa: u32,
    bias: i32,
    /// Code of the largest finite magnitude.
    largest: u8,
    /// Code of NaN; formats without one saturate instead.
    nan: u8,
    /// Code of infinity, where there is one.
    infinity: Option<u8>,
    /// Position of the sign bit.
    sign: u32,
}

/// 4 exponent bits, 3 mantissa bits; up to 448; 0x7f is NaN.
pub(crate) const E4M3: Minifloat =
    Minifloat { mantissa: 3, bias: 7, largest: 0x7E, nan: 0x7F, infinity: None, sign: 7 };
/// 5 exponent bits, 2 mantissa bits; up to 57344; infinities, and 0x7f for NaN.
pub(crate) const E5M2: Minifloat =
    Minifloat { mantissa: 2, bias: 15, largest: 0x7B, nan: 0x7F, infinity: Some(0x7C), sign: 7 };
/// 2 exponent bits, 3 mantissa bits; up to 7.5.
pub(crate) const E2M3: Minifloat = Minifloat { mantissa: 3, bias: 1, largest: 31, nan: 31, infinity: None, sign: 5 };
/// 3 exponent bits, 2 mantissa bits; up to 28.
pub(crate) const E3M2: Minifloat = Minifloat { mantissa: 2, bias: 3, largest: 31, nan: 31, infinity: None, sign: 5 };
/// 2 exponent bits, 1 mantissa bit; up to 6.
pub(crate) const E2M1: Minifloat = Minifloat { mantissa: 1, bias: 1, largest: 7, nan: 7, infinity: None, sign: 3 };

impl Minifloat {
    /// Code to value: exact.
    pub fn decode(&self, code: u8) -> f32 {
        let magnitude = code & ((1 << self.sign) - 1);
        if Some(magnitude) == self.infinity {
            return if code >> self.sign & 1 == 1 { f32::NEG_INFINITY } else { f32::INFINITY };
        }
        if magnitude > self.largest {
            return f32::NAN;
        }
        let fraction = u32::from(magnitude) & ((1 << self.mantissa) - 1);
        let (significand, exponent) = match i32::from(magnitude >> self.mantissa) {
            0 => (fraction, 1 - self.bias),
            exponent => (fraction | 1 << self.mantissa, exponent - self.bias),
        };
        let value = significand as f32 * power_of_two(exponent - self.mantissa as i32);
        if code >> self.sign & 1 == 1 { -value } else { value }
    }

    /// The same as [`Self::encode`]; with `relu`, zero for what is negative.
    pub fn code(&self, value: f32, relu: bool) -> u8 {
        self.encode(if relu && value <= 0.0 { 0.0 } else { value })
    }

    /// Value to the nearest code, ties to even; what is too large, infinities too, becomes the largest.
    pub fn encode(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = u8::from(value.is_sign_negative()) << self.sign;
        let magnitude = value.abs();
        let smallest_normal = power_of_two(1 - self.bias);
        let code = if magnitude < smallest_normal {
            // Codes below the first normal number are multiples of one step; rounding up may reach it.
            (magnitude / smallest_normal * (1 << self.mantissa) as f32).round_ties_even() as u32
        } else {
            let cut = 23 - self.mantissa;
            let bits = magnitude.to_bits();
            let rounded = (bits + (1 << (cut - 1)) - 1 + (bits >> cut & 1)) >> cut;
            rounded - (((127 - self.bias) as u32) << self.mantissa)
        };
        sign | code.min(u32::from(self.largest)) as u8
    }
}

/// `2^exponent` for the exponents of normal f32 numbers.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
