//! Asynchronous copies: `cp.async`, `cp.async.bulk`, and what waits for them.

use super::context::{Context, Decoded};
use super::mbarrier::place;
use crate::error::FaultKind;
use crate::exec::{Lanes, Machine, Op, blame, lanes_of};
use crate::memory::ThreadCopy;
use crate::read::Operand;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["cp", "async", "mbarrier", "arrive", rest @ ..] => arrive(context, rest),
        ["cp", "async", "bulk", rest @ ..] => bulk(context, rest),
        ["cp", "async", cache @ ("ca" | "cg"), rest @ ..] => copy(context, cache, rest),
        // What is fetched early or kept longer, in caches that are not here.
        ["prefetch", "global" | "local", "L1" | "L2"]
        | ["prefetch", "L1" | "L2"]
        | ["prefetch", "global", "L2::evict_last" | "L2::evict_normal"]
        | ["prefetchu", "L1"] => hint(context, 1),
        ["applypriority", "global", "L2::evict_normal"] => hint(context, 2),
        _ => Ok(None),
    }
}

fn bulk(context: &mut Context, form: &[&str]) -> Decoded {
    let (form, hint) = match form.split_last() {
        Some((&"L2::cache_hint", rest)) => (rest, 1),
        _ => (form, 0),
    };
    match form {
        ["shared::cluster" | "shared::cta", "global", "mbarrier::complete_tx::bytes"] => {
            context.expect(4 + hint)?;
            load(context)
        }
        ["global", "shared::cta", "bulk_group"] => {
            context.expect(3 + hint)?;
            store(context)
        }
        ["prefetch", "L2", "global"] => {
            context.expect(2 + hint)?;
            let (from, bytes) = (context.address(0)?, context.source::<u32>(1)?);
            each_lane(move |machine, lane| {
                machine.memory.check(machine.address(&from, lane), machine.value(bytes, lane) as u32)
            })
        }
        ["commit_group"] => each_lane(|machine, lane| {
            machine.shared.close_bulk_group(machine.lane(lane));
            Ok(())
        }),
        ["wait_group"] => wait(context, false),
        ["wait_group", "read"] => wait(context, true),
        _ => Ok(None),
    }
}

fn each_lane(f: impl Fn(&mut Machine, usize) -> Result<(), FaultKind> + Send + Sync + 'static) -> Decoded {
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        lanes_of(lanes).try_for_each(|lane| f(machine, lane).map_err(blame(lane)))?;
        Ok(None)
    }))))
}

/// `[to], [from], bytes, [mbarrier]`
fn load(context: &mut Context) -> Decoded {
    let (to, from) = (context.address(0)?, context.address(1)?);
    let (bytes, mbarrier) = (context.source::<u32>(2)?, context.address(3)?);
    each_lane(move |machine, lane| {
        let addresses = [&to, &from, &mbarrier].map(|address| machine.address(address, lane));
        let (bytes, now) = (machine.value(bytes, lane) as u32, machine.lane(lane));
        machine.shared.bulk_load(machine.memory, addresses, bytes, now)
    })
}

/// `[to], [from], bytes`
fn store(context: &mut Context) -> Decoded {
    let (to, from, bytes) = (context.address(0)?, context.address(1)?, context.source::<u32>(2)?);
    each_lane(move |machine, lane| {
        let addresses = [&to, &from].map(|address| machine.address(address, lane));
        let (bytes, now) = (machine.value(bytes, lane) as u32, machine.lane(lane));
        machine.shared.bulk_store(machine.memory, addresses, bytes, now)
    })
}

fn wait(context: &mut Context, read_only: bool) -> Decoded {
    context.expect(1)?;
    let left = context.immediate(0)?;
    each_lane(move |machine, lane| {
        let now = machine.lane(lane);
        machine.shared.wait_bulk_groups(machine.memory, left, read_only, now)
    })
}

/// `[to], [from], bytes{, bytes of the source | ignore the source}`: what the source lacks is zero.
fn copy(context: &mut Context, cache: &str, form: &[&str]) -> Decoded {
    let (form, hint) = match form {
        [rest @ .., "L2::cache_hint"] => (rest, 1),
        _ => (form, 0),
    };
    let form = match form {
        [rest @ .., "L2::64B" | "L2::128B" | "L2::256B"] => rest,
        _ => form,
    };
    let ["shared" | "shared::cta", "global"] = form else { return Ok(None) };
    let (to, from, bytes) = (context.address(0)?, context.address(1)?, context.immediate(2)?);
    if !(bytes == 16 || cache == "ca" && (bytes == 4 || bytes == 8)) {
        return context.error(format!("copies {bytes} bytes, not 4, 8 or 16 with `.ca` and 16 with `.cg`"));
    }
    let given = context.instruction.operands.len() - hint;
    let filled = match given {
        3 => None,
        _ => {
            context.expect(4 + hint)?;
            Some(source_bytes(context)?)
        }
    };
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        for lane in lanes_of(lanes) {
            let filled = filled.map_or(bytes, |(register, ignores)| match machine.value(register, lane) {
                0 if ignores => bytes,
                _ if ignores => 0,
                filled => filled as u32,
            });
            let (to, from) = (machine.address(&to, lane), machine.address(&from, lane));
            issue(machine, ThreadCopy { to, from, bytes, filled, stamp: machine.lane(lane) }).map_err(blame(lane))?;
        }
        Ok(None)
    }))))
}

/// The fourth operand: a number of bytes, or (a predicate) whether the source is ignored.
fn source_bytes(context: &mut Context) -> super::context::Result<(super::Register, bool)> {
    let operand = context.operand(3)?;
    if let Operand::Name(name) = operand
        && let Some(register) = context.names.register(name)
        && register.class == crate::exec::Class::Predicate
    {
        return Ok((context.value(operand, register.class)?, true));
    }
    Ok((context.source::<u32>(3)?, false))
}

/// A bad address shows here, at the instruction that has it; the data is read again when it arrives.
fn issue(machine: &mut Machine, copy: ThreadCopy) -> Result<(), FaultKind> {
    if copy.filled > copy.bytes {
        return Err(FaultKind::OutOfBounds { space: crate::Space::Shared, address: copy.to, bytes: copy.filled });
    }
    if copy.filled > 0 && !copy.from.is_multiple_of(u64::from(copy.bytes)) {
        let (space, address, bytes) = (crate::Space::Global, copy.from, copy.bytes);
        return Err(FaultKind::Misaligned { space, address, bytes });
    }
    copy.read(machine.memory, machine.hint)?;
    machine.shared.check_global_read(copy.from, copy.filled, copy.stamp)?;
    machine.shared.begin_copy(copy.to, copy.bytes, copy.stamp)?;
    machine.copies.issue(copy);
    Ok(())
}

/// `cp.async.mbarrier.arrive{.noinc}{.shared}.b64 [mbarrier]`
fn arrive(context: &mut Context, form: &[&str]) -> Decoded {
    let (counted, form) = match form {
        ["noinc", rest @ ..] => (false, rest),
        rest => (true, rest),
    };
    let generic = match form {
        ["b64"] => true,
        ["shared" | "shared::cta", "b64"] => false,
        _ => return Ok(None),
    };
    context.expect(1)?;
    let at = place(context, 0, generic)?;
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        for lane in lanes_of(lanes) {
            let mbarrier = machine.shared_address(&at.address, at.generic, lane)?;
            let copies = machine.copies.take_all(lane as u32);
            let now = machine.lane(lane);
            machine.shared.arrive_after(mbarrier, copies, counted, now).map_err(blame(lane))?;
        }
        Ok(None)
    }))))
}

/// `[address]`, and perhaps a size: nothing to compute.
fn hint(context: &mut Context, operands: usize) -> Decoded {
    context.expect(operands)?;
    let _address = context.address(0)?;
    Ok(Some(Op::Lanewise(Box::new(|_, _| {}))))
}
