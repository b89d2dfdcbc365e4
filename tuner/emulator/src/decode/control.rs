//! Branches, barriers, and what the lanes of a warp do together.

use super::barrier;
use super::context::{Context, Decoded};
use super::names::Register;
use crate::error::FaultKind;
use crate::exec::{Lane, Lanes, Op, Participants, Registers, WARP};
use crate::read::Operand;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["bra"] | ["bra", "uni"] => {
            context.expect(1)?;
            // Where lanes meet again is known once all is decoded.
            Ok(Some(Op::Branch { target: context.label(0)?, reconverge: usize::MAX }))
        }
        ["ret"] | ["exit"] => Ok(Some(Op::Exit)),
        ["bar", "warp", "sync"] => Ok(Some(Op::WarpBarrier(context.source::<u32>(0)?))),
        ["shfl", "sync", mode, "b32"] => shuffle(context, mode),
        ["vote", "sync", mode, kind] => vote(context, mode, kind),
        ["redux", "sync", operation, kind] => reduce(context, operation, kind),
        ["activemask", "b32"] => {
            let d = context.destination::<u32>(0)?.slot;
            let work = move |registers: &mut Registers, lanes| {
                u32::write(registers, d, &[lanes; WARP], lanes);
                Ok(())
            };
            Ok(Some(Op::Collective { participants: Participants::Active, work: Box::new(work) }))
        }
        ["movmatrix", "sync", "aligned", "m8n8", "trans", "b16"] => transpose(context),
        _ => barrier::decode(context),
    }
}

fn collective(
    members: Register,
    work: impl Fn(&mut Registers, Lanes) -> Result<(), FaultKind> + Send + Sync + 'static,
) -> Decoded {
    Ok(Some(Op::Collective { participants: Participants::Members(members), work: Box::new(work) }))
}

/// Source lane of `lane`, by the PTX ISA's pseudo-code for `shfl`; where it is out of range, the lane itself.
fn source_lane(mode: Mode, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let last = lane & segment | clamp & !segment;
    let first = lane & segment;
    let (source, valid) = match mode {
        Mode::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= last as i32),
        Mode::Down => (lane + b, lane + b <= last),
        Mode::Butterfly => (lane ^ b, lane ^ b <= last),
        Mode::Index => {
            let source = first | b & !segment;
            (source, source <= last)
        }
    };
    if valid { (source, true) } else { (lane, false) }
}

#[derive(Clone, Copy)]
enum Mode {
    Up,
    Down,
    Butterfly,
    Index,
}

fn shuffle(context: &mut Context, mode: &str) -> Decoded {
    let mode = match mode {
        "up" => Mode::Up,
        "down" => Mode::Down,
        "bfly" => Mode::Butterfly,
        "idx" => Mode::Index,
        _ => return Ok(None),
    };
    context.expect(5)?;
    let (d, p) = match context.operand(0)? {
        Operand::Pair(d, p) => (context.target_of(d, u32::CLASS)?, Some(context.target_of(p, bool::CLASS)?)),
        single => (context.target_of(single, u32::CLASS)?, None),
    };
    let (a, b) = (context.source::<u32>(1)?.slot, context.source::<u32>(2)?.slot);
    let (c, members) = (context.source::<u32>(3)?.slot, context.source::<u32>(4)?);
    collective(members, move |registers, lanes| {
        let (a, b, c) = (u32::read(registers, a), u32::read(registers, b), u32::read(registers, c));
        let (mut values, mut valid) = ([0; WARP], [false; WARP]);
        for lane in (0..WARP).filter(|lane| lanes >> lane & 1 == 1) {
            let (source, in_range) = source_lane(mode, lane as u32, b[lane], c[lane]);
            if lanes >> source & 1 == 0 {
                return Err(FaultKind::MissingLanes { needed: 1 << source, active: lanes });
            }
            (values[lane], valid[lane]) = (a[source as usize], in_range);
        }
        u32::write(registers, d.slot, &values, lanes);
        if let Some(p) = p {
            bool::write(registers, p.slot, &valid, lanes);
        }
        Ok(())
    })
}

fn vote(context: &mut Context, mode: &str, kind: &str) -> Decoded {
    context.expect(3)?;
    let (operand, negated) = match context.operand(1)? {
        Operand::Not(operand) => (&**operand, true),
        operand => (operand, false),
    };
    let (a, members) = (context.value(operand, bool::CLASS)?.slot, context.source::<u32>(2)?);
    let votes = move |registers: &Registers, lanes: Lanes| {
        let row = registers.predicates[a.0 as usize];
        lanes & if negated { !row } else { row }
    };
    let decide: fn(Lanes, Lanes) -> bool = match (mode, kind) {
        ("ballot", "b32") => {
            let d = context.destination::<u32>(0)?.slot;
            return collective(members, move |registers, lanes| {
                let votes = votes(registers, lanes);
                u32::write(registers, d, &[votes; WARP], lanes);
                Ok(())
            });
        }
        ("any", "pred") => |votes, _| votes != 0,
        ("all", "pred") => |votes, lanes| votes == lanes,
        ("uni", "pred") => |votes, lanes| votes == 0 || votes == lanes,
        _ => return Ok(None),
    };
    let d = context.destination::<bool>(0)?.slot;
    collective(members, move |registers, lanes| {
        let decision = decide(votes(registers, lanes), lanes);
        bool::write(registers, d, &[decision; WARP], lanes);
        Ok(())
    })
}

fn reduce(context: &mut Context, operation: &str, kind: &str) -> Decoded {
    let join: fn(u32, u32) -> u32 = match (operation, kind) {
        ("add", "u32" | "s32") => u32::wrapping_add,
        ("min", "u32") => u32::min,
        ("max", "u32") => u32::max,
        ("min", "s32") => |a, b| (a as i32).min(b as i32) as u32,
        ("max", "s32") => |a, b| (a as i32).max(b as i32) as u32,
        ("and", "b32") => |a, b| a & b,
        ("or", "b32") => |a, b| a | b,
        ("xor", "b32") => |a, b| a ^ b,
        _ => return Ok(None),
    };
    context.expect(3)?;
    let d = context.destination::<u32>(0)?.slot;
    let (a, members) = (context.source::<u32>(1)?.slot, context.source::<u32>(2)?);
    collective(members, move |registers, lanes| {
        let a = u32::read(registers, a);
        let values = (0..WARP).filter(|lane| lanes >> lane & 1 == 1).map(|lane| a[lane]);
        let value = values.reduce(join).unwrap_or(0);
        u32::write(registers, d, &[value; WARP], lanes);
        Ok(())
    })
}

/// Lane `4 i + j` holds elements `(i, 2 j)` and `(i, 2 j + 1)` of an 8x8 matrix, before and after.
fn transpose(context: &mut Context) -> Decoded {
    context.expect(2)?;
    let (d, a) = (context.destination::<u32>(0)?.slot, context.source::<u32>(1)?.slot);
    let work = move |registers: &mut Registers, lanes| {
        let a = u32::read(registers, a);
        let element = |row: usize, column: usize| a[4 * row + column / 2] >> (16 * (column % 2)) & 0xFFFF;
        let values = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, lane % 4 * 2);
            element(column, row) | element(column + 1, row) << 16
        });
        u32::write(registers, d, &values, lanes);
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::All, work: Box::new(work) }))
}
