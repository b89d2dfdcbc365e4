//! Loads, stores, atomics, asynchronous copies, fences.

use super::context::{Context, Decoded, Result};
use super::float::{canonical, flush};
use super::names::Register;
use crate::error::Space;
use crate::exec::{Access, AsyncCopy, Atomic, AtomicFunction, Class, Op};

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form.clone();
    match form.as_slice() {
        ["ld", modifiers @ ..] => load(context, modifiers),
        ["st", modifiers @ ..] => store(context, modifiers),
        ["atom", modifiers @ ..] => atomic(context, modifiers),
        ["cp", "async", "ca" | "cg", "shared", "global"] => async_copy(context),
        ["cp", "async", "commit_group"] => Ok(Some(Op::AsyncCommit)),
        ["cp", "async", "wait_group"] => Ok(Some(Op::AsyncWait(context.immediate(0)?))),
        ["cp", "async", "wait_all"] => Ok(Some(Op::AsyncWaitAll)),
        // Instructions take effect in order, one at a time: only other host threads need a fence.
        ["membar", "gl" | "cta" | "sys"]
        | ["fence", "acq_rel" | "sc", "gpu" | "cta" | "sys"]
        | ["fence", "proxy", "async", "shared::cta"] => Ok(Some(Op::Fence)),
        _ => Ok(None),
    }
}

/// What the modifiers of an access say; none where one of them is unknown.
struct Kind {
    space: Space,
    count: usize,
    width: u32,
    signed: bool,
}

impl Kind {
    fn new(modifiers: &[&str]) -> Option<Self> {
        let (scalar, modifiers) = modifiers.split_last()?;
        let (mut space, mut count) = (None, 1);
        for &modifier in modifiers {
            match modifier {
                "global" => space = Some(Space::Global),
                "shared" | "shared::cta" => space = Some(Space::Shared),
                "param" => space = Some(Space::Param),
                "v2" => count = 2,
                "v4" => count = 4,
                // Caches do not exist here, and every access is as strong as any.
                "volatile" | "relaxed" | "gpu" | "cta" | "nc" | "L1::no_allocate" | "ca" | "cg" | "cs" | "wb" => {}
                _ => return None,
            }
        }
        let width = match scalar.trim_start_matches(|c: char| c.is_ascii_alphabetic()) {
            "8" => 1,
            "16" => 2,
            "32" => 4,
            "64" => 8,
            _ => return None,
        };
        Some(Self { space: space?, count, width, signed: scalar.starts_with('s') })
    }
}

fn load(context: &mut Context, modifiers: &[&str]) -> Decoded {
    let Some(kind) = Kind::new(modifiers) else { return Ok(None) };
    context.expect(2)?;
    let address = context.address(1)?;
    let elements = elements(context, 0, &kind)?;
    Ok(Some(Op::Load(Access { space: kind.space, address, width: kind.width, signed: kind.signed, elements })))
}

fn store(context: &mut Context, modifiers: &[&str]) -> Decoded {
    let Some(kind) = Kind::new(modifiers) else { return Ok(None) };
    if kind.space == Space::Param {
        return Ok(None);
    }
    context.expect(2)?;
    let address = context.address(0)?;
    let elements = elements(context, 1, &kind)?;
    Ok(Some(Op::Store(Access { space: kind.space, address, width: kind.width, signed: false, elements })))
}

/// The registers of a vector. They may be wider than the elements.
fn elements(context: &mut Context, index: usize, kind: &Kind) -> Result<Vec<Register>> {
    let parts = context.parts(index)?;
    if parts.len() != kind.count {
        return context.error(format!("{} registers for {} elements", parts.len(), kind.count));
    }
    if kind.width * kind.count as u32 > 16 {
        return context.error("accesses of more than 16 bytes are not supported");
    }
    let class = if kind.width == 8 { Class::Double } else { Class::Word };
    let mut registers = Vec::new();
    for part in &parts {
        let register = context.any(part, class)?;
        if kind.width == 8 && register.class != Class::Double {
            return context.error(format!("{part:?} is narrower than an element"));
        }
        registers.push(register);
    }
    Ok(registers)
}

fn atomic(context: &mut Context, modifiers: &[&str]) -> Decoded {
    let ["global", operation @ ..] = modifiers else { return Ok(None) };
    let Some((function, operands)) = atomic_function(operation) else { return Ok(None) };
    context.expect(2 + operands)?;
    let old = context.destination::<u32>(0)?;
    let address = context.address(1)?;
    let first = context.source::<u32>(2)?;
    let second = if operands == 2 { context.source::<u32>(3)? } else { first };
    Ok(Some(Op::Atomic(Atomic { address, function, operands: [first, second], old })))
}

/// The function of an atomic operation, and how many operands it takes.
fn atomic_function(operation: &[&str]) -> Option<(AtomicFunction, usize)> {
    Some(match operation {
        ["add", "u32" | "s32"] => (|old, a, _| old.wrapping_add(a), 1),
        ["add", "f32"] => (|old, a, _| add_flushed(f32::from_bits(old), f32::from_bits(a)).to_bits(), 1),
        ["min", "u32"] => (|old, a, _| old.min(a), 1),
        ["max", "u32"] => (|old, a, _| old.max(a), 1),
        ["min", "s32"] => (|old, a, _| (old as i32).min(a as i32) as u32, 1),
        ["max", "s32"] => (|old, a, _| (old as i32).max(a as i32) as u32, 1),
        ["and", "b32"] => (|old, a, _| old & a, 1),
        ["or", "b32"] => (|old, a, _| old | a, 1),
        ["xor", "b32"] => (|old, a, _| old ^ a, 1),
        ["exch", "b32"] => (|_, a, _| a, 1),
        ["cas", "b32"] => (|old, expected, new| if old == expected { new } else { old }, 2),
        _ => return None,
    })
}

/// Atomic additions on global memory flush subnormal numbers to zeros of their sign (PTX ISA, "atom").
fn add_flushed(a: f32, b: f32) -> f32 {
    canonical(flush(flush(a) + flush(b)))
}

fn async_copy(context: &mut Context) -> Decoded {
    context.expect(3)?;
    let (to, from) = (context.address(0)?, context.address(1)?);
    let bytes = context.immediate(2)?;
    if ![4, 8, 16].contains(&bytes) {
        return context.error(format!("copies {bytes} bytes, not 4, 8 or 16"));
    }
    Ok(Some(Op::AsyncCopy(AsyncCopy { to, from, bytes })))
}
