//! `set`, `setp` with a second predicate or a combination, `slct`.

use super::context::{Context, Decoded};
use super::float::flush;
use super::half::{BFLOAT, HALF, Half};
use super::lanewise::map3;
use super::names::Register;
use crate::exec::{Class, Lane, Lanes, Op, Registers, WARP};
use crate::read::Operand;
use std::cmp::Ordering;

/// Whether a comparison holds for an order, none where a NaN is compared.
type Test = fn(Option<Ordering>) -> bool;

/// How a comparison's result and a predicate become one.
type Join = fn(bool, bool) -> bool;

/// Compares two registers, lane by lane.
type Compare = Box<dyn Fn(&Registers) -> [Option<Ordering>; WARP] + Send + Sync>;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["setp", comparison, rest @ ..] => predicate(context, comparison, rest),
        ["set", comparison, rest @ ..] => value(context, comparison, rest),
        ["slct", "b32" | "u32" | "s32" | "f32", "s32"] => {
            map3(context, |a: u32, b: u32, c: i32| if c >= 0 { a } else { b })
        }
        ["slct", "b64" | "u64" | "s64" | "f64", "s32"] => {
            map3(context, |a: u64, b: u64, c: i32| if c >= 0 { a } else { b })
        }
        ["slct", "b32" | "u32" | "s32" | "f32", "f32"] => {
            map3(context, |a: u32, b: u32, c: f32| if c >= 0.0 { a } else { b })
        }
        ["slct", "ftz", "b32" | "u32" | "s32" | "f32", "f32"] => {
            map3(context, |a: u32, b: u32, c: f32| if flush(c) >= 0.0 { a } else { b })
        }
        _ => Ok(None),
    }
}

fn test(comparison: &str) -> Option<Test> {
    Some(match comparison {
        "eq" => |order| order == Some(Ordering::Equal),
        "ne" => |order| order.is_some_and(Ordering::is_ne),
        "lt" | "lo" => |order| order.is_some_and(Ordering::is_lt),
        "le" | "ls" => |order| order.is_some_and(Ordering::is_le),
        "gt" | "hi" => |order| order.is_some_and(Ordering::is_gt),
        "ge" | "hs" => |order| order.is_some_and(Ordering::is_ge),
        "equ" => |order| order.is_none_or(Ordering::is_eq),
        "neu" => |order| order.is_none_or(Ordering::is_ne),
        "ltu" => |order| order.is_none_or(Ordering::is_lt),
        "leu" => |order| order.is_none_or(Ordering::is_le),
        "gtu" => |order| order.is_none_or(Ordering::is_gt),
        "geu" => |order| order.is_none_or(Ordering::is_ge),
        "num" => |order| order.is_some(),
        "nan" => |order| order.is_none(),
        _ => return None,
    })
}

fn join(name: &str) -> Option<Join> {
    Some(match name {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        "xor" => |a, b| a ^ b,
        _ => return None,
    })
}

/// The joining operation, whether f32 is flushed, and the rest.
fn modifiers<'a>(rest: &'a [&'a str]) -> (Option<Join>, bool, &'a [&'a str]) {
    let (joined, rest) = match rest {
        [name, rest @ ..] if join(name).is_some() => (join(name), rest),
        rest => (None, rest),
    };
    match rest {
        ["ftz", rest @ ..] => (joined, true, rest),
        rest => (joined, false, rest),
    }
}

/// `p{|q}, a, b{, {!}c}`: q is the same of the comparison's opposite.
fn predicate(context: &mut Context, comparison: &str, rest: &[&str]) -> Decoded {
    let (joined, flushes, rest) = modifiers(rest);
    let (Some(test), [kind]) = (test(comparison), rest) else { return Ok(None) };
    context.expect(3 + usize::from(joined.is_some()))?;
    let (p, q) = match context.operand(0)? {
        Operand::Pair(p, q) => (context.target_of(p, Class::Predicate)?, Some(context.target_of(q, Class::Predicate)?)),
        single => (context.target_of(single, Class::Predicate)?, None),
    };
    let Some(compare) = compare(context, kind, flushes)? else { return Ok(None) };
    let joined = joined_predicate(context, joined)?;
    Ok(Some(Op::Lanewise(Box::new(move |registers: &mut Registers, lanes: Lanes| {
        let holds = compare(registers).map(test);
        let other = holds.map(|holds| !holds);
        let (holds, other) = (joined.apply(registers, holds), joined.apply(registers, other));
        bool::write(registers, p.slot, &holds, lanes);
        if let Some(q) = q {
            bool::write(registers, q.slot, &other, lanes);
        }
    }))))
}

/// `d, a, b{, {!}c}`: ones (or 1.0) where it holds.
fn value(context: &mut Context, comparison: &str, rest: &[&str]) -> Decoded {
    let (joined, flushes, rest) = modifiers(rest);
    let (Some(test), [to, kind]) = (test(comparison), rest) else { return Ok(None) };
    let ones = match *to {
        "u32" | "s32" => u32::MAX,
        "f32" => 1.0f32.to_bits(),
        "f16" => 0x3C00,
        "bf16" => 0x3F80,
        _ => return Ok(None),
    };
    context.expect(3 + usize::from(joined.is_some()))?;
    let d = context.destination::<u32>(0)?.slot;
    let Some(compare) = compare(context, kind, flushes)? else { return Ok(None) };
    let joined = joined_predicate(context, joined)?;
    Ok(Some(Op::Lanewise(Box::new(move |registers: &mut Registers, lanes: Lanes| {
        let holds = compare(registers).map(test);
        let values = joined.apply(registers, holds).map(|holds| if holds { ones } else { 0 });
        u32::write(registers, d, &values, lanes);
    }))))
}

/// The fourth operand, where there is one.
struct Joined(Option<(Join, Register, bool)>);

fn joined_predicate(context: &mut Context, join: Option<Join>) -> super::context::Result<Joined> {
    let Some(join) = join else { return Ok(Joined(None)) };
    let (operand, negated) = match context.operand(3)? {
        Operand::Not(operand) => (&**operand, true),
        operand => (operand, false),
    };
    Ok(Joined(Some((join, context.value(operand, Class::Predicate)?, negated))))
}

impl Joined {
    fn apply(&self, registers: &Registers, holds: [bool; WARP]) -> [bool; WARP] {
        let Some((join, other, negated)) = self.0 else { return holds };
        let other = bool::read(registers, other.slot);
        std::array::from_fn(|lane| join(holds[lane], other[lane] != negated))
    }
}

fn compare(context: &mut Context, kind: &str, flushes: bool) -> super::context::Result<Option<Compare>> {
    Ok(Some(match kind {
        "s16" => ordered::<i16>(context)?,
        "u16" | "b16" => ordered::<u16>(context)?,
        "s32" => ordered::<i32>(context)?,
        "u32" | "b32" => ordered::<u32>(context)?,
        "s64" => ordered::<i64>(context)?,
        "u64" | "b64" => ordered::<u64>(context)?,
        "f64" => ordered::<f64>(context)?,
        "f16" => halves(context, HALF)?,
        "bf16" => halves(context, BFLOAT)?,
        "f32" if flushes => {
            let (a, b) = (context.source::<f32>(1)?.slot, context.source::<f32>(2)?.slot);
            Box::new(move |registers| {
                let [a, b] = [a, b].map(|slot| f32::read(registers, slot).map(flush));
                std::array::from_fn(|lane| a[lane].partial_cmp(&b[lane]))
            })
        }
        "f32" => ordered::<f32>(context)?,
        _ => return Ok(None),
    }))
}

fn ordered<T: Lane + PartialOrd + 'static>(context: &mut Context) -> super::context::Result<Compare> {
    let (a, b) = (context.source::<T>(1)?.slot, context.source::<T>(2)?.slot);
    Ok(Box::new(move |registers| {
        let (a, b) = (T::read(registers, a), T::read(registers, b));
        std::array::from_fn(|lane| a[lane].partial_cmp(&b[lane]))
    }))
}

fn halves(context: &mut Context, half: Half) -> super::context::Result<Compare> {
    let (a, b) = (context.source::<u16>(1)?.slot, context.source::<u16>(2)?.slot);
    Ok(Box::new(move |registers| {
        let [a, b] = [a, b].map(|slot| u16::read(registers, slot).map(half.value));
        std::array::from_fn(|lane| a[lane].partial_cmp(&b[lane]))
    }))
}
