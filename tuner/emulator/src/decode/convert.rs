//! `cvt` of packed and small formats, and of integers; `numeric` has the others.

use super::context::{Context, Decoded};
use super::float::{NAN, bf16_bits, bf16_value, canonical, f16_bits, f16_value};
use super::half::{BFLOAT, HALF, Half};
use super::lanewise::{map1, map2};
use super::minifloat::{E2M1, E2M3, E3M2, E4M3, E5M2, Minifloat};
use super::numeric;
use super::round::{Mode, TF32};
use std::sync::LazyLock;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let Some((&"cvt", form)) = context.form.split_first() else { return Ok(None) };
    match form {
        ["f32", "f16"] => map1(context, |a: u16| canonical(f16_value(a))),
        // A shift: NaN keeps its payload.
        ["f32", "bf16"] => map1(context, |a: u16| bf16_value(a)),
        ["rn", "f16", "f32"] => map1(context, |a: f32| f16_bits(a)),
        ["rn", "bf16", "f32"] => map1(context, |a: f32| bf16_bits(a)),
        // The first operand goes to the upper half.
        ["rn", "f16x2", "f32"] => map2(context, |a: f32, b: f32| pair(f16_bits(b), f16_bits(a))),
        ["rn", "bf16x2", "f32"] => map2(context, |a: f32, b: f32| pair(bf16_bits(b), bf16_bits(a))),
        ["rn", "f16x2", "e4m3x2"] => from_codes(context, *E4M3_HALVES),
        ["rn", "satfinite", "e4m3x2", "f32"] => {
            map2(context, |a: f32, b: f32| u16::from_le_bytes([E4M3.encode(b), E4M3.encode(a)]))
        }
        ["rn", "f32", "s32"] => map1(context, |a: i32| a as f32),
        ["rn", "f32", "u32"] => map1(context, |a: u32| a as f32),
        // Both saturate, and so does Rust's `as`; NaN gives 0.
        ["rzi", "s32", "f32"] => map1(context, |a: f32| a as i32),
        ["rzi", "u32", "f32"] => map1(context, |a: f32| a as u32),
        ["rni", "s32", "f32"] => map1(context, |a: f32| a.round_ties_even() as i32),
        [to, from] if !is_float(to) && !is_float(from) => integers(context, to, from),
        _ => decode_packed(context, form),
    }
}

fn is_float(name: &str) -> bool {
    name.starts_with(['f', 'b'])
}

/// Two values a register.
fn decode_packed(context: &mut Context, form: &[&str]) -> Decoded {
    let whole = form;
    let (form, relu) = match form {
        [rounding, "relu", rest @ ..] => (&[&[*rounding], rest].concat()[..], true),
        [rounding, "satfinite", "relu", rest @ ..] => (&[&[*rounding, "satfinite"], rest].concat()[..], true),
        _ => (form, false),
    };
    match form {
        [rounding @ ("rn" | "rz"), "f16x2", "f32"] => to_halves(context, HALF, rounding, relu),
        [rounding @ ("rn" | "rz"), "bf16x2", "f32"] => to_halves(context, BFLOAT, rounding, relu),
        [rounding @ ("rn" | "rz" | "rna"), "tf32", "f32"] => to_tf32(context, rounding, relu),
        ["rn", "f16x2", codes] => match format(codes) {
            Some(E2M1) => from_nibbles(context, relu),
            Some(format) => from_codes(context, halves(format, relu)),
            None => Ok(None),
        },
        ["rn", "satfinite", codes, "f32"] => match format(codes) {
            Some(E2M1) => map2(context, move |a: f32, b: f32| E2M1.code(b, relu) | E2M1.code(a, relu) << 4),
            Some(format) => {
                map2(context, move |a: f32, b: f32| u16::from_le_bytes([format.code(b, relu), format.code(a, relu)]))
            }
            None => Ok(None),
        },
        ["rn", "satfinite", codes @ ("e4m3x2" | "e5m2x2"), "f16x2"] => {
            let format = if *codes == "e4m3x2" { E4M3 } else { E5M2 };
            map1(context, move |a: u32| {
                let encode = |bits: u32| format.code(f16_value(bits as u16), relu);
                u16::from_le_bytes([encode(a), encode(a >> 16)])
            })
        }
        _ => numeric::decode(context, whole),
    }
}

fn format(codes: &str) -> Option<Minifloat> {
    Some(match codes {
        "e4m3x2" => E4M3,
        "e5m2x2" => E5M2,
        "e2m3x2" => E2M3,
        "e3m2x2" => E3M2,
        "e2m1x2" => E2M1,
        _ => return None,
    })
}

/// The first operand goes to the upper half.
fn to_halves(context: &mut Context, half: Half, rounding: &str, relu: bool) -> Decoded {
    let Some(mode) = Mode::named(rounding) else { return Ok(None) };
    map2(context, move |a: f32, b: f32| {
        let [a, b] = [a, b].map(|x| half.round(f64::from(if relu && x <= 0.0 { 0.0 } else { x }), mode));
        pair(b, a)
    })
}

/// An f32 register whose lowest 13 bits are zero. `rna` cuts a NaN, the others make their own.
fn to_tf32(context: &mut Context, rounding: &str, relu: bool) -> Decoded {
    const KEPT: u32 = !0x1FFF;
    let Some(mode) = Mode::named(rounding) else { return Ok(None) };
    map1(context, move |a: f32| match a {
        _ if a.is_nan() && mode == Mode::NearestAway => a.to_bits() & KEPT,
        _ if a.is_nan() => NAN.to_bits() & KEPT,
        _ if relu && a <= 0.0 => 0,
        _ => (TF32.round(f64::from(a), mode) as f32).to_bits(),
    })
}

/// What E4M3 codes are in f16. Dequantisation has hundreds of such instructions.
static E4M3_HALVES: LazyLock<[u16; 256]> = LazyLock::new(|| halves(E4M3, false));

fn halves(format: Minifloat, relu: bool) -> [u16; 256] {
    std::array::from_fn(|code| half_of(format, code as u8, relu))
}

fn from_codes(context: &mut Context, halves: [u16; 256]) -> Decoded {
    map1(context, move |a: u16| pair(halves[usize::from(a & 0xFF)], halves[usize::from(a >> 8)]))
}

fn from_nibbles(context: &mut Context, relu: bool) -> Decoded {
    let halves: [u16; 16] = std::array::from_fn(|code| half_of(E2M1, code as u8, relu));
    map1(context, move |a: u8| pair(halves[usize::from(a & 15)], halves[usize::from(a >> 4)]))
}

fn half_of(format: Minifloat, code: u8, relu: bool) -> u16 {
    let value = format.decode(code);
    f16_bits(if relu && value.is_sign_negative() && !value.is_nan() { 0.0 } else { value })
}

fn pair(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

/// Between integers: the source is cut to its type, extended by its own sign, then cut again. Its register may be
/// wider than its type.
fn integers(context: &mut Context, to: &str, from: &str) -> Decoded {
    let wide = context.is_double(1)?;
    macro_rules! between {
        ($from:ty, $to:ty) => {
            if wide { map1(context, |a: u64| a as $from as $to) } else { map1(context, |a: u32| a as $from as $to) }
        };
    }
    macro_rules! to {
        ($to:ty) => {
            match from {
                "u8" => between!(u8, $to),
                "s8" => between!(i8, $to),
                "u16" => between!(u16, $to),
                "s16" => between!(i16, $to),
                "u32" => between!(u32, $to),
                "s32" => between!(i32, $to),
                "u64" => map1(context, |a: u64| a as $to),
                "s64" => map1(context, |a: i64| a as $to),
                _ => Ok(None),
            }
        };
    }
    match to {
        "u8" => to!(u8),
        "u16" => to!(u16),
        "s16" => to!(i16),
        "u32" => to!(u32),
        "s32" => to!(i32),
        "u64" => to!(u64),
        "s64" => to!(i64),
        _ => Ok(None),
    }
}
