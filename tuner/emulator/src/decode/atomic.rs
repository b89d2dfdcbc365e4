//! `atom` and `red`, on global and shared memory.

use super::context::{Context, Decoded};
use super::double::propagated;
use super::float::{bf16_bits, bf16_value, canonical, f16_bits, f16_value, flush};
use crate::error::Space;
use crate::exec::{Class, Lanes, Machine, Op, blame, lanes_of};
use crate::memory::resolve;

/// New value of a location, from the old one and the operands.
type Function = fn(u64, u64, u64) -> u64;

/// Global f32 additions flush subnormal numbers to zeros of their sign; those on shared memory do not (PTX ISA, `atom`).
fn add_flushed(old: u64, a: u64, _: u64) -> u64 {
    u64::from(canonical(flush(flush(f32_of(old)) + flush(f32_of(a)))).to_bits())
}

/// Global f64 additions pass NaN on as it is, the signalling one too.
fn add_unquieted(old: u64, a: u64, _: u64) -> u64 {
    let is_nan = |bits: u64| f64::from_bits(bits).is_nan();
    let nan = [old, a].into_iter().find(|&bits| is_nan(bits));
    nan.unwrap_or_else(|| add64(old, a, 0))
}

fn add64(old: u64, a: u64, _: u64) -> u64 {
    let [old, a] = [old, a].map(f64::from_bits);
    propagated([old, a], old + a).to_bits()
}

/// What an atomic instruction says.
struct Form<'a> {
    /// None for a generic address.
    space: Option<Space>,
    operation: &'a str,
    kind: &'a str,
    hint: usize,
    /// Whether it has a fence of its own,
    releases: bool,
    /// which other blocks see.
    beyond_block: bool,
}

impl<'a> Form<'a> {
    fn new(words: &[&'a str]) -> Option<Self> {
        let (&kind, words) = words.split_last()?;
        let mut form = Self { space: None, operation: "", kind, hint: 0, releases: false, beyond_block: true };
        for &word in words {
            match word {
                "global" => form.space = Some(Space::Global),
                "shared" | "shared::cta" => form.space = Some(Space::Shared),
                // Every access is as strong as any; halves are never flushed.
                "release" | "acq_rel" => form.releases = true,
                "cta" => form.beyond_block = false,
                "relaxed" | "acquire" | "cluster" | "gpu" | "sys" | "noftz" => {}
                "L2::cache_hint" => form.hint = 1,
                "add" | "min" | "max" | "inc" | "dec" | "and" | "or" | "xor" | "exch" | "cas" => form.operation = word,
                _ => return None,
            }
        }
        Some(form)
    }

    /// Bytes of the location.
    fn bytes(&self) -> Option<u32> {
        Some(match self.kind.trim_start_matches(|c: char| c.is_ascii_alphabetic()) {
            "16" => 2,
            "32" | "16x2" => 4,
            "64" => 8,
            _ => return None,
        })
    }
}

pub(super) fn decode(context: &mut Context) -> Decoded {
    let words = context.form;
    let (form, returns) = match words {
        ["atom", rest @ ..] => (Form::new(rest), true),
        ["red", rest @ ..] => (Form::new(rest), false),
        _ => return Ok(None),
    };
    let Some((form, bytes)) = form.and_then(|form| Some((form.bytes()?, form))).map(|(bytes, form)| (form, bytes))
    else {
        return Ok(None);
    };
    let Some(function) = function(form.operation, form.kind) else { return Ok(None) };
    let of_global: Function = match (form.operation, form.kind) {
        ("add", "f32") => add_flushed,
        ("add", "f64") => add_unquieted,
        _ => function,
    };
    let operands = if form.operation == "cas" { 2 } else { 1 };
    let first = usize::from(returns);
    context.expect(first + 1 + operands + form.hint)?;
    let class = if bytes == 8 { Class::Double } else { Class::Word };
    let old = match returns {
        true => Some(context.target_of(context.operand(0)?, class)?),
        false => None,
    };
    let address = context.address(first)?;
    let a = context.value(context.operand(first + 1)?, class)?;
    let b = if operands == 2 { context.value(context.operand(first + 2)?, class)? } else { a };
    let (space, releases) = (form.space, form.releases && form.beyond_block);
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        if releases {
            machine.hint.fence();
        }
        for lane in lanes_of(lanes) {
            let at = machine.address(&address, lane);
            let (space, at) = space.map_or_else(|| resolve(at), |space| (space, at));
            let (a, b) = (machine.value(a, lane), machine.value(b, lane));
            let found = match space {
                Space::Shared => {
                    machine.shared.update(at, bytes, machine.now.lane(lane as u32), |old| function(old, a, b))
                }
                _ => machine.memory.update(at, bytes, |old| of_global(old, a, b), machine.hint),
            };
            let found = found.map_err(blame(lane))?;
            if let Some(old) = old {
                machine.set(old, lane, found);
            }
        }
        Ok(None)
    }))))
}

fn function(operation: &str, kind: &str) -> Option<Function> {
    Some(match (operation, kind) {
        ("exch", "b16" | "b32" | "b64") => |_, a, _| a,
        ("cas", "b16") => |old, expected, new| if old == expected & 0xFFFF { new } else { old },
        ("cas", "b32" | "b64") => |old, expected, new| if old == expected { new } else { old },
        ("and", "b32" | "b64") => |old, a, _| old & a,
        ("or", "b32" | "b64") => |old, a, _| old | a,
        ("xor", "b32" | "b64") => |old, a, _| old ^ a,
        ("add", "u32" | "s32" | "u64" | "s64") => |old, a, _| old.wrapping_add(a),
        ("inc", "u32") => |old, a, _| if old >= a { 0 } else { old + 1 },
        ("dec", "u32") => |old, a, _| if old == 0 || old > a { a } else { old - 1 },
        ("min", "u32" | "u64") => |old, a, _| old.min(a),
        ("max", "u32" | "u64") => |old, a, _| old.max(a),
        ("min", "s32") => |old, a, _| (old as i32).min(a as i32) as u32 as u64,
        ("max", "s32") => |old, a, _| (old as i32).max(a as i32) as u32 as u64,
        ("min", "s64") => |old, a, _| (old as i64).min(a as i64) as u64,
        ("max", "s64") => |old, a, _| (old as i64).max(a as i64) as u64,
        _ => return float_function(operation, kind),
    })
}

fn float_function(operation: &str, kind: &str) -> Option<Function> {
    Some(match (operation, kind) {
        ("add", "f32") => |old, a, _| u64::from(canonical(f32_of(old) + f32_of(a)).to_bits()),
        ("add", "f64") => add64,
        ("add", "f16") => |old, a, _| u64::from(f16_bits(f16_value(old as u16) + f16_value(a as u16))),
        ("add", "bf16") => |old, a, _| u64::from(bf16_bits(bf16_value(old as u16) + bf16_value(a as u16))),
        ("add", "f16x2") => |old, a, _| halves(old, a, |x, y| f16_bits(f16_value(x) + f16_value(y))),
        ("add", "bf16x2") => |old, a, _| halves(old, a, |x, y| bf16_bits(bf16_value(x) + bf16_value(y))),
        _ => return None,
    })
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn halves(a: u64, b: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    let half = |shift: u32| u64::from(f((a >> shift) as u16, (b >> shift) as u16));
    half(0) | half(16) << 16
}
