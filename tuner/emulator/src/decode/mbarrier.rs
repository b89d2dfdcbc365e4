//! `mbarrier`.

use super::context::{Context, Decoded, Result};
use super::names::Register;
use crate::error::FaultKind;
use crate::exec::{Address, Class, Lane, Lanes, Machine, Op, Stop, blame, lanes_of};
use crate::memory::{Arrival, Phase, Stamp, pending_count};

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    let ["mbarrier", rest @ .., "b64"] = form else { return Ok(None) };
    if rest == ["pending_count"] {
        return super::lanewise::map1(context, pending_count);
    }
    let Some(form) = Form::new(rest) else { return Ok(None) };
    match form.words.as_slice() {
        ["init"] => {
            context.expect(2)?;
            let (at, count) = (place(context, 0, form.generic)?, context.source::<u32>(1)?);
            each_lane(at, move |machine, address, lane| {
                let count = machine.value(count, lane) as u32;
                machine.shared.init_mbarrier(address, count, machine.lane(lane))
            })
        }
        ["inval"] => {
            context.expect(1)?;
            let at = place(context, 0, form.generic)?;
            each_lane(at, |machine, address, lane| machine.shared.drop_mbarrier_object(address, machine.lane(lane)))
        }
        ["expect_tx"] => expect_bytes(context, form.generic, 1),
        ["complete_tx"] => expect_bytes(context, form.generic, -1),
        [kind @ ("arrive" | "arrive_drop"), rest @ ..] => arrive(context, &form, *kind == "arrive_drop", rest),
        ["test_wait" | "try_wait"] => wait(context, form.generic, false),
        ["test_wait" | "try_wait", "parity"] => wait(context, form.generic, true),
        _ => Ok(None),
    }
}

/// The words of a form without those that say how strong it is, and where the mbarrier lies.
struct Form<'a> {
    words: Vec<&'a str>,
    generic: bool,
}

impl<'a> Form<'a> {
    fn new(words: &[&'a str]) -> Option<Self> {
        let mut form = Self { words: Vec::new(), generic: true };
        for &word in words {
            match word {
                "shared" | "shared::cta" | "shared::cluster" => form.generic = false,
                // One block is the cluster, and every access is as strong as any.
                "release" | "acquire" | "relaxed" | "cta" | "cluster" => {}
                "init" | "inval" | "expect_tx" | "complete_tx" | "arrive" | "arrive_drop" | "noComplete"
                | "test_wait" | "try_wait" | "parity" => form.words.push(word),
                _ => return None,
            }
        }
        Some(form)
    }
}

/// Where an mbarrier lies, and whether the address is generic.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub address: Address,
    pub generic: bool,
}

pub(super) fn place(context: &mut Context, index: usize, generic: bool) -> Result<Place> {
    Ok(Place { address: context.address(index)?, generic })
}

/// `f` of the mbarrier's address, lane by lane.
fn each_lane(
    place: Place,
    f: impl Fn(&mut Machine, u64, usize) -> std::result::Result<(), FaultKind> + Send + Sync + 'static,
) -> Decoded {
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        for lane in lanes_of(lanes) {
            let address = machine.shared_address(&place.address, place.generic, lane)?;
            f(machine, address, lane).map_err(blame(lane))?;
        }
        Ok(None)
    }))))
}

fn expect_bytes(context: &mut Context, generic: bool, sign: i64) -> Decoded {
    context.expect(2)?;
    let (at, bytes) = (place(context, 0, generic)?, context.source::<u32>(1)?);
    each_lane(at, move |machine, address, lane| {
        let bytes = sign * machine.value(bytes, lane) as i64;
        machine.shared.expect_bytes(address, bytes, machine.lane(lane))
    })
}

/// `{state,} [address]{, count}`; for a shared address of the cluster the state may be left out.
fn arrive(context: &mut Context, form: &Form, drop: bool, rest: &[&str]) -> Decoded {
    let (expects, no_complete) = match rest {
        [] => (false, false),
        ["expect_tx"] => (true, false),
        ["noComplete"] => (false, true),
        _ => return Ok(None),
    };
    let operands = context.instruction.operands.len();
    let has_state = !matches!(context.operand(0)?, crate::read::Operand::Address { .. });
    let first = usize::from(has_state);
    let state = if has_state { Some(context.destination::<u64>(0)?) } else { None };
    let at = place(context, first, form.generic)?;
    let count = if operands > first + 1 { Some(context.source::<u32>(first + 1)?) } else { None };
    context.expect(first + 1 + usize::from(count.is_some()))?;
    each_lane(at, move |machine, address, lane| {
        let given = count.map(|count| machine.value(count, lane) as u32);
        let (expect_bytes, count) = if expects { (given.unwrap_or(0), 1) } else { (0, given.unwrap_or(1)) };
        let arrival = Arrival { expect_bytes, count, drop, no_complete };
        let now: Stamp = machine.lane(lane);
        let before = machine.shared.arrive(address, arrival, now)?;
        if let Some(state) = state {
            machine.set(state, lane, before);
        }
        Ok(())
    })
}

/// `p, [address], state or parity{, time}`. Where a lane fails, other warps get a turn.
fn wait(context: &mut Context, generic: bool, parity: bool) -> Decoded {
    if context.instruction.operands.len() != 4 {
        context.expect(3)?;
    }
    let p = context.destination::<bool>(0)?;
    let at = place(context, 1, generic)?;
    let class = if parity { u32::CLASS } else { u64::CLASS };
    let operand = context.operand(2)?;
    let phase: Register = context.value(operand, class)?;
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        let mut all = true;
        for lane in lanes_of(lanes) {
            let address = machine.shared_address(&at.address, at.generic, lane)?;
            let bits = machine.value(phase, lane);
            let phase = if class == Class::Word { Phase::Parity(bits as u32) } else { Phase::State(bits) };
            let now = machine.lane(lane);
            let ended = machine.shared.test_mbarrier(machine.memory, address, phase, now).map_err(blame(lane))?;
            machine.set(p, lane, u64::from(ended));
            all &= ended;
        }
        Ok((!all).then_some(Stop::Poll))
    }))))
}
