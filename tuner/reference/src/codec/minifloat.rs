//! E2M1 and E4M3, as `cvt.rn.satfinite` of the PTX ISA rounds to them.

/// A sign-magnitude float without infinities: `(-1)^s * 2^e * (1 + m / 2^mantissa_bits)`, subnormals below.
struct Format {
    mantissa_bits: u32,
    /// Exponent of the smallest normal number, which is also that of the subnormals.
    min_exponent: i32,
    max: f32,
}

const E2M1: Format = Format { mantissa_bits: 1, min_exponent: 0, max: 6.0 };
const E4M3: Format = Format { mantissa_bits: 3, min_exponent: -6, max: 448.0 };

/// `2^exponent` for the exponents of normal f32 numbers.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

impl Format {
    /// Code of `magnitude` >= 0 (infinity included): nearest, ties to the even mantissa, saturating.
    ///
    /// Codes count the representable magnitudes upwards from zero, so the number of steps inside
    /// the binade, added to the steps of the binades below, is the code; a carry into the next
    /// binade needs no case of its own. Dividing by a power of two is exact here.
    fn encode(&self, magnitude: f32) -> u8 {
        let magnitude = magnitude.min(self.max);
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(self.min_exponent);
        let step = power_of_two(exponent - self.mantissa_bits as i32);
        let steps = (magnitude / step).round_ties_even() as u8;
        (((exponent - self.min_exponent) as u8) << self.mantissa_bits) + steps
    }

    /// Value of the magnitude `code` (no sign bit).
    fn decode(&self, code: u8) -> f32 {
        let implicit = 1 << self.mantissa_bits;
        let (binade, mantissa) = (i32::from(code >> self.mantissa_bits), code & (implicit - 1));
        let significand = if binade == 0 { mantissa } else { implicit + mantissa };
        f32::from(significand) * power_of_two(self.min_exponent + (binade - 1).max(0) - self.mantissa_bits as i32)
    }
}

/// Value of an E2M1 code: `sign << 3 | magnitude`, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.
/// Bits above the low four are ignored.
pub fn e2m1_decode(code: u8) -> f32 {
    let magnitude = E2M1.decode(code & 7);
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// E2M1 code nearest to `x`, ties to even, saturating at ±6. Zero keeps its sign: -0.2 gives 0x8.
/// NaN gives +0 (the PTX conversion gives +6; a NaN never reaches either, see [`finite_f32`](super::finite_f32)).
pub fn e2m1_encode(x: f32) -> u8 {
    if x.is_nan() {
        return 0;
    }
    u8::from(x.is_sign_negative()) << 3 | E2M1.encode(x.abs())
}

/// Value of an E4M3 byte; 0x7f and 0xff are NaN, there is no infinity.
pub fn e4m3_decode(byte: u8) -> f32 {
    let magnitude = match byte & 0x7f {
        0x7f => f32::NAN,
        code => E4M3.decode(code),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// E4M3 byte nearest to `x`, ties to even, saturating at ±448, subnormals down to 2^-9. Zero keeps
/// its sign; NaN gives 0x7f.
pub fn e4m3_encode(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    u8::from(x.is_sign_negative()) << 7 | E4M3.encode(x.abs())
}
