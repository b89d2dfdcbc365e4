//! Moves, selections and comparisons.

use super::context::{Context, Decoded};
use super::lanewise::{map1, map2, map3};
use super::names::Register;
use crate::error::Space;
use crate::exec::{Class, Lane, Op, WARP, vectorised};
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW, resolve};
use crate::read::Operand;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["mov", "b32" | "u32" | "s32" | "f32" | "b16" | "u16" | "s16"] => move_words(context),
        ["mov", "b64" | "u64" | "s64" | "f64"] => move_doubles(context),
        ["cvta", "global" | "const" | "param", "u64"] | ["cvta", "to", "global" | "const", "u64"] => {
            map1(context, |a: u64| a)
        }
        ["cvta", "shared" | "shared::cta", "u64"] => map1(context, |a: u64| a + SHARED_WINDOW),
        ["cvta", "local", "u64"] => map1(context, |a: u64| a + LOCAL_WINDOW),
        ["cvta", "to", "shared" | "shared::cta", "u64"] => map1(context, |a: u64| a.wrapping_sub(SHARED_WINDOW)),
        ["cvta", "to", "local", "u64"] => map1(context, |a: u64| a.wrapping_sub(LOCAL_WINDOW)),
        ["isspacep", "global"] => map1(context, |a: u64| resolve(a).0 == Space::Global),
        ["isspacep", "shared" | "shared::cta"] => map1(context, |a: u64| resolve(a).0 == Space::Shared),
        ["isspacep", "local"] => map1(context, |a: u64| resolve(a).0 == Space::Local),
        ["selp", "b32" | "u32" | "s32" | "f32" | "b16" | "u16" | "s16"] => {
            map3(context, |a: u32, b: u32, p: bool| if p { a } else { b })
        }
        ["selp", "b64" | "u64" | "s64" | "f64"] => map3(context, |a: u64, b: u64, p: bool| if p { a } else { b }),
        ["setp", comparison, kind] => compare(context, comparison, kind),
        _ => Ok(None),
    }
}

/// `mov.b32 d, a`, `mov.b32 d, {a, b}` and `mov.b32 {a, b}, d`, with 2 or 4 parts.
fn move_words(context: &mut Context) -> Decoded {
    context.expect(2)?;
    match (context.operand(0)?, context.operand(1)?) {
        (Operand::Vector(parts), _) => unpack::<u32>(context, parts),
        (_, Operand::Vector(parts)) => pack::<u32>(context, parts),
        _ => map1(context, |a: u32| a),
    }
}

fn move_doubles(context: &mut Context) -> Decoded {
    context.expect(2)?;
    match (context.operand(0)?, context.operand(1)?) {
        (Operand::Vector(parts), _) => unpack::<u64>(context, parts),
        (_, Operand::Vector(parts)) => pack::<u64>(context, parts),
        _ => map1(context, |a: u64| a),
    }
}

/// Bits a part has where `class` is cut into `parts` of them.
fn part_bits(class: Class, parts: usize) -> u32 {
    let whole = if class == Class::Double { 64 } else { 32 };
    whole / parts as u32
}

fn unpack<T: Lane>(context: &mut Context, parts: &[Operand]) -> Decoded {
    let whole = context.source::<T>(1)?;
    let bits = part_bits(T::CLASS, parts.len());
    let parts: Vec<Register> =
        parts.iter().map(|part| context.target_of(part, Class::Word)).collect::<Result<_, _>>()?;
    Ok(Some(Op::Lanewise(Box::new(move |registers, lanes| {
        vectorised(
            #[inline(always)]
            || {
                let values = registers.row(whole.class, whole.slot);
                let mask = u64::from(u32::MAX) >> (32 - bits);
                for (i, part) in parts.iter().enumerate() {
                    let mut row = [0; WARP];
                    for (part, value) in row.iter_mut().zip(&values) {
                        *part = (value >> (bits * i as u32) & mask) as u32;
                    }
                    u32::write(registers, part.slot, &row, lanes);
                }
            },
        )
    }))))
}

fn pack<T: Lane>(context: &mut Context, parts: &[Operand]) -> Decoded {
    let whole = context.destination::<T>(0)?;
    let bits = part_bits(T::CLASS, parts.len());
    let parts: Vec<Register> = parts.iter().map(|part| context.value(part, Class::Word)).collect::<Result<_, _>>()?;
    Ok(Some(Op::Lanewise(Box::new(move |registers, lanes| {
        vectorised(
            #[inline(always)]
            || {
                let mut values = [0u64; WARP];
                let mask = u32::MAX >> (32 - bits);
                for (i, part) in parts.iter().enumerate() {
                    for (value, part) in values.iter_mut().zip(u32::read(registers, part.slot)) {
                        *value |= u64::from(part & mask) << (bits * i as u32);
                    }
                }
                match whole.class {
                    Class::Double => u64::write(registers, whole.slot, &values, lanes),
                    _ => u32::write(registers, whole.slot, &values.map(|value| value as u32), lanes),
                }
            },
        )
    }))))
}

fn compare(context: &mut Context, comparison: &str, kind: &str) -> Decoded {
    match kind {
        "s16" => compare_as::<i16>(context, comparison),
        "u16" | "b16" => compare_as::<u16>(context, comparison),
        "s32" => compare_as::<i32>(context, comparison),
        "u32" | "b32" => compare_as::<u32>(context, comparison),
        "s64" => compare_as::<i64>(context, comparison),
        "u64" | "b64" => compare_as::<u64>(context, comparison),
        "f32" => compare_as::<f32>(context, comparison),
        _ => Ok(None),
    }
}

/// Comparisons of NaN are false, and true where the name ends in `u` (unordered).
fn compare_as<T: Lane + PartialOrd>(context: &mut Context, comparison: &str) -> Decoded {
    match comparison {
        "eq" => map2(context, |a: T, b: T| a == b),
        "ne" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_some_and(|order| order.is_ne())),
        "lt" | "lo" => map2(context, |a: T, b: T| a < b),
        "le" | "ls" => map2(context, |a: T, b: T| a <= b),
        "gt" | "hi" => map2(context, |a: T, b: T| a > b),
        "ge" | "hs" => map2(context, |a: T, b: T| a >= b),
        "equ" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_none_or(|order| order.is_eq())),
        "neu" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_none_or(|order| order.is_ne())),
        "ltu" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_none_or(|order| order.is_lt())),
        "leu" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_none_or(|order| order.is_le())),
        "gtu" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_none_or(|order| order.is_gt())),
        "geu" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_none_or(|order| order.is_ge())),
        "num" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_some()),
        "nan" => map2(context, |a: T, b: T| a.partial_cmp(&b).is_none()),
        _ => Ok(None),
    }
}
