//! More of what lanes do together: `match`, `elect`, f32 `redux`; and instructions that only tell the hardware something.

use super::context::{Context, Decoded};
use super::float::{canonical, maximum, minimum};
use super::target::Target;
use crate::exec::{Class, Lane, Lanes, Op, Participants, Registers, WARP};
use crate::read::Operand;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["match", "any", "sync", "b32"] => match_any::<u32>(context),
        ["match", "any", "sync", "b64"] => match_any::<u64>(context),
        ["match", "all", "sync", "b32"] => match_all::<u32>(context),
        ["match", "all", "sync", "b64"] => match_all::<u64>(context),
        ["elect", "sync"] => elect(context),
        ["redux", "sync", operation @ ("min" | "max"), rest @ .., "f32"] => reduce(context, operation, rest),
        // When other kernels may start, how many registers there are, and how long to rest: nothing to compute.
        ["griddepcontrol", "launch_dependents" | "wait"] => nothing(context, 0),
        ["setmaxnreg", "inc" | "dec", "sync", "aligned", "u32"] => {
            let count = context.immediate(0)?;
            if !(24..=256).contains(&count) || !count.is_multiple_of(8) {
                return context.error("a number of registers is a multiple of 8 from 24 to 256");
            }
            nothing(context, 1)
        }
        ["nanosleep", "u32"] => nothing(context, 1),
        _ => Ok(None),
    }
}

fn nothing(context: &mut Context, operands: usize) -> Decoded {
    context.expect(operands)?;
    Ok(Some(Op::Lanewise(Box::new(|_, _| {}))))
}

/// Lanes among `lanes` that hold what `lane` does.
fn equal<T: PartialEq>(values: &[T; WARP], lanes: Lanes, lane: usize) -> Lanes {
    (0..WARP).filter(|&other| lanes >> other & 1 == 1 && values[other] == values[lane]).fold(0, |all, i| all | 1 << i)
}

fn match_any<T: Lane + PartialEq + 'static>(context: &mut Context) -> Decoded {
    context.expect(3)?;
    let d = context.destination::<u32>(0)?.slot;
    let (a, members) = (context.source::<T>(1)?.slot, context.source::<u32>(2)?);
    let work = move |registers: &mut Registers, lanes: Lanes| {
        let values = T::read(registers, a);
        let masks = std::array::from_fn(|lane| equal(&values, lanes, lane));
        u32::write(registers, d, &masks, lanes);
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::Members(members), work: Box::new(work) }))
}

/// `d|p`: all lanes of the mask and true where all hold the same, else 0 and false.
fn match_all<T: Lane + PartialEq + 'static>(context: &mut Context) -> Decoded {
    context.expect(3)?;
    let (d, p) = pair(context)?;
    let (a, members) = (context.source::<T>(1)?.slot, context.source::<u32>(2)?);
    let work = move |registers: &mut Registers, lanes: Lanes| {
        let values = T::read(registers, a);
        let all = equal(&values, lanes, lanes.trailing_zeros() as usize) == lanes;
        u32::write(registers, d.slot, &[if all { lanes } else { 0 }; WARP], lanes);
        if let Some(p) = p {
            bool::write(registers, p.slot, &[all; WARP], lanes);
        }
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::Members(members), work: Box::new(work) }))
}

/// `d|p` or `d`.
fn pair(context: &mut Context) -> super::context::Result<(super::Register, Option<super::Register>)> {
    Ok(match context.operand(0)? {
        Operand::Pair(d, p) => (context.target_of(d, Class::Word)?, Some(context.target_of(p, Class::Predicate)?)),
        single => (context.target_of(single, Class::Word)?, None),
    })
}

/// The leader is the lowest lane of the mask; PTX leaves open which.
fn elect(context: &mut Context) -> Decoded {
    context.expect(2)?;
    let (d, p) = pair(context)?;
    let members = context.source::<u32>(1)?;
    let work = move |registers: &mut Registers, lanes: Lanes| {
        let leader = lanes.trailing_zeros();
        u32::write(registers, d.slot, &[leader; WARP], lanes);
        if let Some(p) = p {
            bool::write(registers, p.slot, &std::array::from_fn(|lane| lane as u32 == leader), lanes);
        }
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::Members(members), work: Box::new(work) }))
}

/// `redux.sync.min{.abs}{.NaN}.f32`
fn reduce(context: &mut Context, operation: &str, rest: &[&str]) -> Decoded {
    if context.target != Target::Blackwell {
        return context.error("only sm_100a and its family have it");
    }
    let (magnitude, keeps_nan) = match rest {
        [] => (false, false),
        ["abs"] => (true, false),
        ["NaN"] => (false, true),
        ["abs", "NaN"] => (true, true),
        _ => return Ok(None),
    };
    let choose: fn(f32, f32) -> f32 = if operation == "min" { minimum } else { maximum };
    context.expect(3)?;
    let d = context.destination::<f32>(0)?.slot;
    let (a, members) = (context.source::<f32>(1)?.slot, context.source::<u32>(2)?);
    let work = move |registers: &mut Registers, lanes: Lanes| {
        let a = f32::read(registers, a);
        let values =
            (0..WARP).filter(|lane| lanes >> lane & 1 == 1).map(|lane| if magnitude { a[lane].abs() } else { a[lane] });
        let has_nan = values.clone().any(f32::is_nan);
        let value = if keeps_nan && has_nan { f32::NAN } else { values.reduce(choose).unwrap_or(f32::NAN) };
        f32::write(registers, d, &[canonical(value); WARP], lanes);
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::Members(members), work: Box::new(work) }))
}
