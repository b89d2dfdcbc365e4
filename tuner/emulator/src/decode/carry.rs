//! Arithmetic of more than one word: the carry flag (PTX ISA, "Extended-precision integer arithmetic").

use super::context::{Context, Decoded};
use crate::exec::{Lane, Op, WARP};

/// What an instruction does with the flag.
#[derive(Clone, Copy)]
struct Flag {
    reads: bool,
    writes: bool,
    /// Subtractions keep the carry of `a + !b + 1` in it, which is clear where they borrow.
    borrows: bool,
}

/// `a`, `b`, the word that is added to a product, and the flag to the result and the new flag.
type Step<T> = fn(T, T, T, bool) -> (T, bool);

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    let (words, kind) = match form {
        [words @ .., kind @ ("u32" | "s32" | "u64" | "s64")] => (words, *kind),
        _ => return Ok(None),
    };
    let (words, writes) = match words {
        [words @ .., "cc"] => (words, true),
        words => (words, false),
    };
    let (operation, reads) = match words.first() {
        Some(&"addc") => ("add", true),
        Some(&"subc") => ("sub", true),
        Some(&"madc") => ("mad", true),
        Some(&operation @ ("add" | "sub" | "mad")) if writes => (operation, false),
        _ => return Ok(None),
    };
    let flag = Flag { reads, writes, borrows: operation == "sub" };
    match (operation, &words[1..], kind) {
        ("add", [], "u32" | "s32") => {
            two(context, flag, |a: u32, b, _, c| with_carry(a.overflowing_add(b), |x| x.overflowing_add(c.into())))
        }
        ("add", [], _) => {
            two(context, flag, |a: u64, b, _, c| with_carry(a.overflowing_add(b), |x| x.overflowing_add(c.into())))
        }
        ("sub", [], "u32" | "s32") => {
            two(context, flag, |a: u32, b, _, c| with_carry(a.overflowing_sub(b), |x| x.overflowing_sub(c.into())))
        }
        ("sub", [], _) => {
            two(context, flag, |a: u64, b, _, c| with_carry(a.overflowing_sub(b), |x| x.overflowing_sub(c.into())))
        }
        ("mad", ["lo"], "u32" | "s32") => three(context, flag, |a: u32, b, d, c| added(a.wrapping_mul(b), d, c)),
        ("mad", ["hi"], "u32") => {
            three(context, flag, |a: u32, b, d, c| added(((u64::from(a) * u64::from(b)) >> 32) as u32, d, c))
        }
        ("mad", ["hi"], "s32") => three(context, flag, |a: u32, b, d, c| {
            added(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32, d, c)
        }),
        ("mad", ["lo"], _) => three(context, flag, |a: u64, b, d, c| added64(a.wrapping_mul(b), d, c)),
        ("mad", ["hi"], "u64") => {
            three(context, flag, |a: u64, b, d, c| added64(((u128::from(a) * u128::from(b)) >> 64) as u64, d, c))
        }
        ("mad", ["hi"], _) => three(context, flag, |a: u64, b, d, c| {
            added64(((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64, d, c)
        }),
        _ => Ok(None),
    }
}

fn with_carry<T>(first: (T, bool), second: impl Fn(T) -> (T, bool)) -> (T, bool) {
    let (value, carry) = second(first.0);
    (value, carry | first.1)
}

fn added(product: u32, d: u32, c: bool) -> (u32, bool) {
    with_carry(product.overflowing_add(d), |x| x.overflowing_add(c.into()))
}

fn added64(product: u64, d: u64, c: bool) -> (u64, bool) {
    with_carry(product.overflowing_add(d), |x| x.overflowing_add(c.into()))
}

fn two<T: Lane + 'static>(context: &mut Context, flag: Flag, step: Step<T>) -> Decoded {
    context.expect(3)?;
    run(context, flag, step, 2)
}

fn three<T: Lane + 'static>(context: &mut Context, flag: Flag, step: Step<T>) -> Decoded {
    context.expect(4)?;
    run(context, flag, step, 3)
}

fn run<T: Lane + 'static>(context: &mut Context, flag: Flag, step: Step<T>, last: usize) -> Decoded {
    let d = context.destination::<T>(0)?.slot;
    let (a, b, e) = (context.source::<T>(1)?.slot, context.source::<T>(2)?.slot, context.source::<T>(last)?.slot);
    let carry = context.names.flag().slot;
    Ok(Some(Op::Lanewise(Box::new(move |registers, lanes| {
        let (a, b, e) = (T::read(registers, a), T::read(registers, b), T::read(registers, e));
        let carries = bool::read(registers, carry);
        let (mut values, mut flags) = ([T::default(); WARP], [false; WARP]);
        for lane in 0..WARP {
            let (value, carry) = step(a[lane], b[lane], e[lane], flag.reads && carries[lane] != flag.borrows);
            (values[lane], flags[lane]) = (value, carry != flag.borrows);
        }
        T::write(registers, d, &values, lanes);
        if flag.writes {
            bool::write(registers, carry, &flags, lanes);
        }
    }))))
}
