//! Barriers of a block: `bar` and `barrier`.

use super::context::{Context, Decoded};
use crate::exec::{Barrier, Lane, Op, Reduction};
use crate::read::Operand;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    let ["bar" | "barrier", rest @ ..] = form else { return Ok(None) };
    let rest = rest.strip_prefix(&["cta"]).unwrap_or(rest);
    match rest {
        ["sync"] | ["sync", "aligned"] => barrier(context, true),
        ["arrive"] | ["arrive", "aligned"] => barrier(context, false),
        ["red", operation, kind] | ["red", operation, "aligned", kind] => reduction(context, operation, kind),
        _ => Ok(None),
    }
}

/// `bar.sync a{, b}` and `bar.arrive a, b`.
fn barrier(context: &mut Context, waits: bool) -> Decoded {
    let number = context.source::<u32>(0)?;
    let threads = match context.instruction.operands.len() {
        1 if waits => None,
        _ => {
            context.expect(2)?;
            Some(context.source::<u32>(1)?)
        }
    };
    Ok(Some(Op::Barrier(Barrier { number, threads, waits, reduction: None })))
}

/// `bar.red.op d, a{, b}, {!}c`
fn reduction(context: &mut Context, operation: &str, kind: &str) -> Decoded {
    let (class, decide): (_, fn(u32, u32) -> u32) = match (operation, kind) {
        ("popc", "u32") => (u32::CLASS, |votes, _| votes),
        ("and", "pred") => (bool::CLASS, |votes, voters| u32::from(votes == voters)),
        ("or", "pred") => (bool::CLASS, |votes, _| u32::from(votes > 0)),
        _ => return Ok(None),
    };
    let last = context.instruction.operands.len().saturating_sub(1);
    context.expect(last.clamp(2, 3) + 1)?;
    let d = context.operand(0)?;
    let d = context.target_of(d, class)?;
    let number = context.source::<u32>(1)?;
    let threads = if last == 3 { Some(context.source::<u32>(2)?) } else { None };
    let (vote, negated) = match context.operand(last)? {
        Operand::Not(vote) => (context.value(vote, bool::CLASS)?, true),
        vote => (context.value(vote, bool::CLASS)?, false),
    };
    let reduction = Some(Reduction { d, vote, negated, decide });
    Ok(Some(Op::Barrier(Barrier { number, threads, waits: true, reduction })))
}
