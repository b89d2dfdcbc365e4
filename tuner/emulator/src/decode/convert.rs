//! `cvt`.

use super::context::{Context, Decoded};
use super::float::{bf16_bits, bf16_value, canonical, f16_bits, f16_value};
use super::lanewise::{map1, map2};
use super::minifloat::{E2M1, E4M3};

pub(super) fn decode(context: &mut Context) -> Decoded {
    let Some((&"cvt", form)) = context.form.split_first() else { return Ok(None) };
    let form = form.to_vec();
    match form.as_slice() {
        ["f32", "f16"] => map1(context, |a: u16| canonical(f16_value(a))),
        // A shift: NaN keeps its payload.
        ["f32", "bf16"] => map1(context, |a: u16| bf16_value(a)),
        ["rn", "f16", "f32"] => map1(context, |a: f32| f16_bits(a)),
        ["rn", "bf16", "f32"] => map1(context, |a: f32| bf16_bits(a)),
        // The first operand goes to the upper half.
        ["rn", "f16x2", "f32"] => map2(context, |a: f32, b: f32| pair(f16_bits(b), f16_bits(a))),
        ["rn", "bf16x2", "f32"] => map2(context, |a: f32, b: f32| pair(bf16_bits(b), bf16_bits(a))),
        ["rn", "f16x2", "e4m3x2"] => {
            let halves: [u16; 256] = std::array::from_fn(|code| f16_bits(E4M3.decode(code as u8)));
            map1(context, move |a: u16| pair(halves[usize::from(a & 0xFF)], halves[usize::from(a >> 8)]))
        }
        ["rn", "f16x2", "e2m1x2"] => {
            map1(context, |a: u8| pair(f16_bits(E2M1.decode(a & 15)), f16_bits(E2M1.decode(a >> 4))))
        }
        ["rn", "satfinite", "e4m3x2", "f32"] => {
            map2(context, |a: f32, b: f32| u16::from_le_bytes([E4M3.encode(b), E4M3.encode(a)]))
        }
        ["rn", "satfinite", "e4m3x2", "f16x2"] => map1(context, |a: u32| {
            let encode = |bits: u32| E4M3.encode(f16_value(bits as u16));
            u16::from_le_bytes([encode(a), encode(a >> 16)])
        }),
        ["rn", "satfinite", "e2m1x2", "f32"] => map2(context, |a: f32, b: f32| E2M1.encode(b) | E2M1.encode(a) << 4),
        ["rn", "f32", "s32"] => map1(context, |a: i32| a as f32),
        ["rn", "f32", "u32"] => map1(context, |a: u32| a as f32),
        // Both saturate, and so does Rust's `as`; NaN gives 0.
        ["rzi", "s32", "f32"] => map1(context, |a: f32| a as i32),
        ["rzi", "u32", "f32"] => map1(context, |a: f32| a as u32),
        ["rni", "s32", "f32"] => map1(context, |a: f32| a.round_ties_even() as i32),
        [to, from] => integers(context, to, from),
        _ => Ok(None),
    }
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
