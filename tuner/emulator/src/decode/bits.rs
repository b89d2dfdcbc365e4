//! Integer instructions of rarer kinds: dot products, sums of differences, bit searches, permutes in fixed patterns.

use super::context::{Context, Decoded};
use super::lanewise::{map1, map2, map3, map3_of};

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["sad", "u32"] => map3(context, |a: u32, b: u32, c: u32| a.abs_diff(b).wrapping_add(c)),
        ["sad", "s32"] => map3(context, |a: i32, b: i32, c: u32| a.abs_diff(b).wrapping_add(c)),
        ["sad", "u16"] => map3(context, |a: u16, b: u16, c: u16| a.abs_diff(b).wrapping_add(c)),
        ["sad", "s16"] => map3(context, |a: i16, b: i16, c: u16| a.abs_diff(b).wrapping_add(c)),
        ["sad", "u64"] => map3(context, |a: u64, b: u64, c: u64| a.abs_diff(b).wrapping_add(c)),
        ["sad", "s64"] => map3(context, |a: i64, b: i64, c: u64| a.abs_diff(b).wrapping_add(c)),
        ["mul24", part @ ("lo" | "hi"), "u32"] => {
            let shift = if *part == "hi" { 16 } else { 0 };
            map2(context, move |a: u32, b: u32| ((u64::from(a & 0xFF_FFFF) * u64::from(b & 0xFF_FFFF)) >> shift) as u32)
        }
        ["mul24", part @ ("lo" | "hi"), "s32"] => {
            let shift = if *part == "hi" { 16 } else { 0 };
            map2(context, move |a: u32, b: u32| (product24(a, b) >> shift) as u32)
        }
        ["mad24", "lo", "u32"] => {
            map3(context, |a: u32, b: u32, c: u32| (a & 0xFF_FFFF).wrapping_mul(b & 0xFF_FFFF).wrapping_add(c))
        }
        ["mad24", "lo", "s32"] => map3(context, |a: u32, b: u32, c: u32| (product24(a, b) as u32).wrapping_add(c)),
        ["add" | "sub" | "mad", .., "sat", "s32"] => saturating(context, form),
        ["mad", "hi", "u32"] => {
            map3(context, |a: u32, b: u32, c: u32| (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c))
        }
        ["mad", "hi", "s32"] => {
            map3(context, |a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c))
        }
        ["mad", "lo", "u16" | "s16"] => map3(context, |a: u16, b: u16, c: u16| a.wrapping_mul(b).wrapping_add(c)),
        ["mad", "wide", "u16"] => map3(context, |a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
        ["mad", "wide", "s16"] => map3(context, |a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
        ["neg", "s16"] => map1(context, i16::wrapping_neg),
        ["abs", "s16"] => map1(context, i16::wrapping_abs),
        _ => search(context, form),
    }
}

fn product24(a: u32, b: u32) -> i64 {
    let extended = |x: u32| i64::from((x << 8) as i32 >> 8);
    extended(a) * extended(b)
}

fn saturating(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["add", "sat", _] => map2(context, i32::saturating_add),
        ["sub", "sat", _] => map2(context, i32::saturating_sub),
        ["mad", "hi", "sat", _] => {
            map3(context, |a: i32, b: i32, c: i32| (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c))
        }
        _ => Ok(None),
    }
}

fn search(context: &mut Context, form: &[&str]) -> Decoded {
    match form {
        ["bfind", "u32"] => map1(context, |a: u32| highest(a.into())),
        ["bfind", "s32"] => map1(context, |a: i32| highest(u64::from(if a < 0 { !a } else { a } as u32))),
        ["bfind", "u64"] => map1(context, |a: u64| highest(a)),
        ["bfind", "s64"] => map1(context, |a: i64| highest(if a < 0 { !a } else { a } as u64)),
        // The shift that brings the bit to the top.
        ["bfind", "shiftamt", "u32"] => map1(context, |a: u32| shift(highest(a.into()), 31)),
        ["bfind", "shiftamt", "s32"] => {
            map1(context, |a: i32| shift(highest(u64::from(if a < 0 { !a } else { a } as u32)), 31))
        }
        ["bfind", "shiftamt", "u64"] => map1(context, |a: u64| shift(highest(a), 63)),
        ["brev", "b64"] => map1(context, u64::reverse_bits),
        ["fns", "b32"] => map3(context, nth_set),
        ["szext", mode @ ("wrap" | "clamp"), kind @ ("u32" | "s32")] => {
            let (wraps, signed) = (*mode == "wrap", *kind == "s32");
            map2(context, move |a: u32, n: u32| extended(a, if wraps { n & 31 } else { n.min(32) }, signed))
        }
        ["bmsk", mode @ ("wrap" | "clamp"), "b32"] => {
            let wraps = *mode == "wrap";
            map2(
                context,
                move |at: u32, n: u32| if wraps { mask(at & 31, n & 31) } else { mask(at.min(32), n.min(32)) },
            )
        }
        // Position and length count in full: the 8 bits of the 32-bit forms do not bound them.
        ["bfe", "u64"] => map3(context, |a: u64, at: u32, n: u32| field64(a, at, n)),
        ["bfe", "s64"] => map3(context, |a: i64, at: u32, n: u32| {
            let above = 64 - n.min(64);
            if n == 0 { 0 } else { a >> at.min(63) << above >> above }
        }),
        ["prmt", "b32", mode @ ("f4e" | "b4e" | "rc8" | "ecl" | "ecr" | "rc16")] => {
            let selectors = permutations(mode);
            context.expect(4)?;
            map3_of(context, move |a: u32, b: u32, c: u32| picked(a, b, selectors[c as usize & 3]))
        }
        ["dp4a", a @ ("u32" | "s32"), b @ ("u32" | "s32")] => {
            let (a_signed, b_signed) = (*a == "s32", *b == "s32");
            map3(context, move |a: u32, b: u32, c: u32| dot(a, b, c, a_signed, b_signed, None))
        }
        ["dp2a", half @ ("lo" | "hi"), a @ ("u32" | "s32"), b @ ("u32" | "s32")] => {
            let (a_signed, b_signed, upper) = (*a == "s32", *b == "s32", *half == "hi");
            map3(context, move |a: u32, b: u32, c: u32| dot(a, b, c, a_signed, b_signed, Some(upper)))
        }
        _ => Ok(None),
    }
}

/// Position of the highest bit that is set; all ones where there is none.
fn highest(bits: u64) -> u32 {
    bits.checked_ilog2().unwrap_or(u32::MAX)
}

fn shift(position: u32, top: u32) -> u32 {
    if position == u32::MAX { position } else { top - position }
}

/// Position of the `n`-th bit set in `bits` from `base`, upward or (n below 0) downward; 0 for the bit itself.
fn nth_set(bits: u32, base: u32, n: i32) -> u32 {
    let base = base & 31;
    if n == 0 {
        return if bits >> base & 1 == 1 { base } else { u32::MAX };
    }
    let set = |&at: &u32| bits >> at & 1 == 1;
    let nth = n.unsigned_abs() as usize - 1;
    let found = if n > 0 { (base..32).filter(set).nth(nth) } else { (0..=base).rev().filter(set).nth(nth) };
    found.unwrap_or(u32::MAX)
}

/// The low `n` bits, extended.
fn extended(a: u32, n: u32, signed: bool) -> u32 {
    match n {
        0 => 0,
        _ if signed => ((a << (32 - n)) as i32 >> (32 - n)) as u32,
        _ => a << (32 - n) >> (32 - n),
    }
}

fn mask(at: u32, n: u32) -> u32 {
    (u64::from(u32::MAX) >> (32 - n) << at) as u32
}

fn field64(a: u64, at: u32, n: u32) -> u64 {
    let mask = if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    a.checked_shr(at).unwrap_or(0) & mask
}

/// Which byte of `b:a` each byte of the result is, the lowest first, by the control's low bits (PTX ISA, `prmt`).
fn permutations(mode: &str) -> [[u8; 4]; 4] {
    match mode {
        "f4e" => [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e" => [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8" => [[0; 4], [1; 4], [2; 4], [3; 4]],
        "ecl" => [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr" => [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        _ => [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }
}

fn picked(a: u32, b: u32, selector: [u8; 4]) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    u32::from_le_bytes(selector.map(|byte| bytes[usize::from(byte)]))
}

/// Products of bytes, or of the halves of `a` and two bytes of `b`, added to `c`.
fn dot(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, upper: Option<bool>) -> u32 {
    let part = |word: u32, at: u32, bits: u32, signed: bool| {
        let raw = word >> at << (32 - bits);
        if signed { i64::from(raw as i32 >> (32 - bits)) } else { i64::from(raw >> (32 - bits)) }
    };
    let sum: i64 = match upper {
        None => (0..4).map(|i| part(a, 8 * i, 8, a_signed) * part(b, 8 * i, 8, b_signed)).sum(),
        Some(upper) => {
            let first = if upper { 16 } else { 0 };
            (0..2).map(|i| part(a, 16 * i, 16, a_signed) * part(b, first + 8 * i, 8, b_signed)).sum()
        }
    };
    (i64::from(c) + sum) as u32
}
