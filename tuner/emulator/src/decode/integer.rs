//! Integer and bit arithmetic.

use super::context::{Context, Decoded};
use super::lanewise::{map1, map2, map3, map3_of, map4};

/// What the hardware gives for a division by zero; PTX leaves it open.
const BY_ZERO_U32: u32 = u32::MAX;
const BY_ZERO_U64: u64 = u64::MAX;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        [_, "s64" | "u64" | "b64"] | [_, "lo" | "hi", "s64" | "u64"] => decode_doubles(context, form),
        [_, "s16" | "u16" | "b16"] | [_, "lo", "s16" | "u16"] => decode_halves(context, form),
        [_, "pred"] => decode_predicates(context, form),
        ["add", "s32" | "u32"] => map2(context, u32::wrapping_add),
        ["sub", "s32" | "u32"] => map2(context, u32::wrapping_sub),
        ["mul", "lo", "s32" | "u32"] => map2(context, u32::wrapping_mul),
        ["mul", "hi", "s32"] => map2(context, |a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        ["mul", "hi", "u32"] => map2(context, |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        ["mul", "wide", "s32"] => map2(context, |a: i32, b: i32| i64::from(a) * i64::from(b)),
        ["mul", "wide", "u32"] => map2(context, |a: u32, b: u32| u64::from(a) * u64::from(b)),
        ["mul", "wide", "s16"] => map2(context, |a: i16, b: i16| i32::from(a) * i32::from(b)),
        ["mul", "wide", "u16"] => map2(context, |a: u16, b: u16| u32::from(a) * u32::from(b)),
        ["mad", "lo", "s32" | "u32"] => map3(context, |a: u32, b: u32, c: u32| a.wrapping_mul(b).wrapping_add(c)),
        ["mad", "wide", "s32"] => map3(context, |a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)),
        ["mad", "wide", "u32"] => map3(context, |a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
        ["div", "s32"] => map2(context, |a: i32, b: i32| if b == 0 { -1 } else { a.wrapping_div(b) }),
        ["div", "u32"] => map2(context, |a: u32, b: u32| a.checked_div(b).unwrap_or(BY_ZERO_U32)),
        ["rem", "s32"] => map2(context, |a: i32, b: i32| if b == 0 { -1 } else { a.wrapping_rem(b) }),
        ["rem", "u32"] => map2(context, |a: u32, b: u32| a.checked_rem(b).unwrap_or(BY_ZERO_U32)),
        ["min", "s32"] => map2(context, i32::min),
        ["min", "u32"] => map2(context, u32::min),
        ["max", "s32"] => map2(context, i32::max),
        ["max", "u32"] => map2(context, u32::max),
        ["abs", "s32"] => map1(context, i32::wrapping_abs),
        ["neg", "s32"] => map1(context, i32::wrapping_neg),
        ["popc", "b32"] => map1(context, u32::count_ones),
        ["clz", "b32"] => map1(context, u32::leading_zeros),
        ["brev", "b32"] => map1(context, u32::reverse_bits),
        _ => decode_bits(context, form),
    }
}

fn decode_bits(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["and", "b32"] => map2(context, |a: u32, b: u32| a & b),
        ["or", "b32"] => map2(context, |a: u32, b: u32| a | b),
        ["xor", "b32"] => map2(context, |a: u32, b: u32| a ^ b),
        ["not", "b32"] => map1(context, |a: u32| !a),
        // Amounts past the width shift everything out.
        ["shl", "b32"] => map2(context, |a: u32, n: u32| a.checked_shl(n).unwrap_or(0)),
        ["shr", "u32" | "b32"] => map2(context, |a: u32, n: u32| a.checked_shr(n).unwrap_or(0)),
        ["shr", "s32"] => map2(context, |a: i32, n: u32| a >> n.min(31)),
        ["shf", "l", "wrap", "b32"] => map3(context, |low: u32, high: u32, n: u32| funnel(low, high, 32 - (n & 31))),
        ["shf", "l", "clamp", "b32"] => map3(context, |low: u32, high: u32, n: u32| funnel(low, high, 32 - n.min(32))),
        ["shf", "r", "wrap", "b32"] => map3(context, |low: u32, high: u32, n: u32| funnel(low, high, n & 31)),
        ["shf", "r", "clamp", "b32"] => map3(context, |low: u32, high: u32, n: u32| funnel(low, high, n.min(32))),
        ["bfe", "u32"] => map3(context, bit_field_u32),
        ["bfe", "s32"] => map3(context, bit_field_s32),
        ["bfi", "b32"] => map4(context, insert_field),
        ["prmt", "b32"] => map3(context, permute),
        ["lop3", "b32"] => {
            context.expect(5)?;
            let table = context.immediate(4)?;
            map3_of(context, move |a: u32, b: u32, c: u32| logic3(a, b, c, table))
        }
        _ => Ok(None),
    }
}

fn decode_halves(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["add", _] => map2(context, u16::wrapping_add),
        ["sub", _] => map2(context, u16::wrapping_sub),
        ["mul", "lo", _] => map2(context, u16::wrapping_mul),
        ["and", "b16"] => map2(context, |a: u16, b: u16| a & b),
        ["or", "b16"] => map2(context, |a: u16, b: u16| a | b),
        ["xor", "b16"] => map2(context, |a: u16, b: u16| a ^ b),
        ["not", "b16"] => map1(context, |a: u16| !a),
        ["shl", "b16"] => map2(context, |a: u16, n: u32| a.checked_shl(n).unwrap_or(0)),
        ["shr", "u16" | "b16"] => map2(context, |a: u16, n: u32| a.checked_shr(n).unwrap_or(0)),
        ["shr", "s16"] => map2(context, |a: i16, n: u32| a >> n.min(15)),
        ["min", "s16"] => map2(context, i16::min),
        ["min", "u16"] => map2(context, u16::min),
        ["max", "s16"] => map2(context, i16::max),
        ["max", "u16"] => map2(context, u16::max),
        _ => Ok(None),
    }
}

fn decode_doubles(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["add", _] => map2(context, u64::wrapping_add),
        ["sub", _] => map2(context, u64::wrapping_sub),
        ["mul", "lo", _] => map2(context, u64::wrapping_mul),
        ["mul", "hi", "s64"] => map2(context, |a: i64, b: i64| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        ["mul", "hi", "u64"] => map2(context, |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        ["mad", "lo", _] => map3(context, |a: u64, b: u64, c: u64| a.wrapping_mul(b).wrapping_add(c)),
        ["div", "s64"] => map2(context, |a: i64, b: i64| if b == 0 { -1 } else { a.wrapping_div(b) }),
        ["div", "u64"] => map2(context, |a: u64, b: u64| a.checked_div(b).unwrap_or(BY_ZERO_U64)),
        ["rem", "s64"] => map2(context, |a: i64, b: i64| if b == 0 { -1 } else { a.wrapping_rem(b) }),
        ["rem", "u64"] => map2(context, |a: u64, b: u64| a.checked_rem(b).unwrap_or(BY_ZERO_U64)),
        ["min", "s64"] => map2(context, i64::min),
        ["min", "u64"] => map2(context, u64::min),
        ["max", "s64"] => map2(context, i64::max),
        ["max", "u64"] => map2(context, u64::max),
        ["abs", "s64"] => map1(context, i64::wrapping_abs),
        ["neg", "s64"] => map1(context, i64::wrapping_neg),
        ["and", "b64"] => map2(context, |a: u64, b: u64| a & b),
        ["or", "b64"] => map2(context, |a: u64, b: u64| a | b),
        ["xor", "b64"] => map2(context, |a: u64, b: u64| a ^ b),
        ["not", "b64"] => map1(context, |a: u64| !a),
        ["shl", "b64"] => map2(context, |a: u64, n: u32| a.checked_shl(n).unwrap_or(0)),
        ["shr", "u64" | "b64"] => map2(context, |a: u64, n: u32| a.checked_shr(n).unwrap_or(0)),
        ["shr", "s64"] => map2(context, |a: i64, n: u32| a >> n.min(63)),
        ["popc", "b64"] => map1(context, u64::count_ones),
        ["clz", "b64"] => map1(context, u64::leading_zeros),
        _ => Ok(None),
    }
}

fn decode_predicates(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["and", _] => map2(context, |a: bool, b: bool| a & b),
        ["or", _] => map2(context, |a: bool, b: bool| a | b),
        ["xor", _] => map2(context, |a: bool, b: bool| a ^ b),
        ["not", _] => map1(context, |a: bool| !a),
        ["mov", _] => map1(context, |a: bool| a),
        _ => Ok(None),
    }
}

/// Low word of `high:low >> n`, for n up to 32.
#[inline(always)]
fn funnel(low: u32, high: u32, n: u32) -> u32 {
    ((u64::from(high) << 32 | u64::from(low)) >> n) as u32
}

/// Position and length of a bit field are taken from their low bytes.
#[inline(always)]
fn bit_field_u32(a: u32, at: u32, length: u32) -> u32 {
    let (at, length) = (at & 255, length & 255);
    let mask = if length >= 32 { u32::MAX } else { (1 << length) - 1 };
    a.checked_shr(at).unwrap_or(0) & mask
}

/// Past bit 31 the field is filled with `a`'s sign; its own top bit is extended.
#[inline(always)]
fn bit_field_s32(a: i32, at: u32, length: u32) -> i32 {
    let (at, length) = (at & 255, length & 255);
    if length == 0 {
        return 0;
    }
    let field = a >> at.min(31);
    let above = 32 - length.min(32);
    field << above >> above
}

/// `a`'s low bits into `b` at `at`.
#[inline(always)]
fn insert_field(a: u32, b: u32, at: u32, length: u32) -> u32 {
    let (at, length) = (at & 255, length & 255);
    let field = if length >= 32 { u32::MAX } else { (1 << length) - 1 };
    let mask = field.checked_shl(at).unwrap_or(0);
    b & !mask | a.checked_shl(at).unwrap_or(0) & mask
}

/// Each nibble of `selector` picks a byte of `b:a`; its high bit replicates that byte's sign instead.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    (0..4).fold(0, |out, i| {
        let choice = selector >> (4 * i) & 15;
        let word = if choice & 4 == 0 { a } else { b };
        let byte = word >> (8 * (choice & 3)) & 0xFF;
        let sign = (byte >> 7).wrapping_neg() & 0xFF;
        out | (if choice & 8 == 0 { byte } else { sign }) << (8 * i)
    })
}

/// Bit `4 a + 2 b + c` of `table`, bit by bit.
#[inline(always)]
fn logic3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).fold(0, |out, row| {
        let pick = |bit: u32, value: u32| if row >> bit & 1 == 1 { value } else { !value };
        let wanted = (table >> row & 1).wrapping_neg();
        out | wanted & pick(2, a) & pick(1, b) & pick(0, c)
    })
}
