//! Loads, stores, fences.

use super::context::{Context, Decoded, Result};
use super::names::Register;
use crate::error::Space;
use crate::exec::{Access, Class, Op, generic_load, generic_store, load_constant};

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["ld", modifiers @ ..] => load(context, modifiers),
        ["st", modifiers @ ..] => store(context, modifiers),
        ["cp", "async", "commit_group"] => Ok(Some(Op::AsyncCommit)),
        ["cp", "async", "wait_group"] => Ok(Some(Op::AsyncWait(context.immediate(0)?))),
        ["cp", "async", "wait_all"] => Ok(Some(Op::AsyncWaitAll)),
        ["membar", "gl" | "sys"] | ["fence", "acq_rel" | "sc", "gpu" | "sys" | "cluster"] => Ok(Some(Op::Fence)),
        // Within a block instructions take effect in order, one at a time.
        ["membar", "cta"]
        | ["fence", "acq_rel" | "sc", "cta"]
        | ["fence", "mbarrier_init", "release", "cluster"]
        | ["fence", "proxy", "alias"]
        | ["fence", "proxy", "async", "global"] => Ok(Some(Op::Lanewise(Box::new(|_, _| {})))),
        ["fence", "proxy", "async"] | ["fence", "proxy", "async", "shared::cta" | "shared::cluster"] => {
            Ok(Some(Op::ProxyFence))
        }
        _ => Ok(None),
    }
}

/// What the modifiers of an access say; none where one of them is unknown.
struct Kind {
    /// None for a generic address.
    space: Option<Space>,
    count: usize,
    width: u32,
    signed: bool,
    /// Through the cache of constants.
    constant: bool,
}

impl Kind {
    fn new(modifiers: &[&str]) -> Option<Self> {
        let (scalar, modifiers) = modifiers.split_last()?;
        let (mut space, mut count, mut constant) = (None, 1, false);
        for &modifier in modifiers {
            match modifier {
                // Constants are global memory here.
                "global" | "const" => space = Some(Space::Global),
                "shared" | "shared::cta" => space = Some(Space::Shared),
                "local" => space = Some(Space::Local),
                "param" | "param::entry" => space = Some(Space::Param),
                "v2" => count = 2,
                "v4" => count = 4,
                // Caches do not exist here, and every access is as strong as any.
                "volatile" | "relaxed" | "acquire" | "release" | "weak" | "gpu" | "cta" | "cluster" | "sys" => {}
                "nc" => constant = true,
                "L1::no_allocate"
                | "L1::evict_first"
                | "L1::evict_last"
                | "L1::evict_normal"
                | "L1::evict_unchanged"
                | "L2::64B"
                | "L2::128B"
                | "L2::256B"
                | "ca"
                | "cg"
                | "cs"
                | "lu"
                | "cv"
                | "wb"
                | "wt" => {}
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
        Some(Self { space, count, width, signed: scalar.starts_with('s'), constant })
    }

    fn space_or_global(&self) -> Space {
        self.space.unwrap_or(Space::Global)
    }
}

fn load(context: &mut Context, modifiers: &[&str]) -> Decoded {
    let Some(kind) = Kind::new(modifiers) else { return Ok(None) };
    context.expect(2)?;
    let address = context.address(1)?;
    let elements = context.overwritten(|context| elements(context, 0, &kind))?;
    let access = Access { address, width: kind.width, signed: kind.signed, elements, space: kind.space_or_global() };
    let space = kind.space;
    Ok(Some(match space {
        Some(Space::Global) if kind.constant => {
            Op::Machine(Box::new(move |machine, lanes| load_constant(machine, &access, lanes).map(|()| None)))
        }
        Some(Space::Global | Space::Shared | Space::Param) => Op::Load(access),
        _ => Op::Machine(Box::new(move |machine, lanes| generic_load(machine, space, &access, lanes).map(|()| None))),
    }))
}

fn store(context: &mut Context, modifiers: &[&str]) -> Decoded {
    let Some(kind) = Kind::new(modifiers) else { return Ok(None) };
    if kind.space == Some(Space::Param) {
        return Ok(None);
    }
    context.expect(2)?;
    let address = context.address(0)?;
    let elements = elements(context, 1, &kind)?;
    let access = Access { address, width: kind.width, signed: false, elements, space: kind.space_or_global() };
    let space = kind.space;
    Ok(Some(match space {
        Some(Space::Global | Space::Shared) => Op::Store(access),
        _ => Op::Machine(Box::new(move |machine, lanes| generic_store(machine, space, &access, lanes).map(|()| None))),
    }))
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
    for part in parts {
        let register = context.any(part, class)?;
        if register.class == Class::Predicate || kind.width == 8 && register.class != Class::Double {
            return context.error(format!("{part:?} is narrower than an element"));
        }
        registers.push(register);
    }
    Ok(registers)
}
