//! 8x8 matrices of 16-bit elements between shared memory and registers: `ldmatrix`, `stmatrix`.

use super::context::{Context, Decoded};
use super::mbarrier::{Place, place};
use super::names::Register;
use crate::error::FaultKind;
use crate::exec::{Blame, Lane, Lanes, Machine, Op, WARP, blame};

/// Bytes of a row.
const ROW: u32 = 16;
const ROWS: usize = 8;

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    let (loads, rest) = match form {
        ["ldmatrix", "sync", "aligned", "m8n8", rest @ .., "b16"] => (true, rest),
        ["stmatrix", "sync", "aligned", "m8n8", rest @ .., "b16"] => (false, rest),
        _ => return Ok(None),
    };
    let (count, rest) = match rest {
        ["x1", rest @ ..] => (1, rest),
        ["x2", rest @ ..] => (2, rest),
        ["x4", rest @ ..] => (4, rest),
        _ => return Ok(None),
    };
    let (transposed, rest) = match rest {
        ["trans", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let generic = match rest {
        [] => true,
        ["shared" | "shared::cta"] => false,
        _ => return Ok(None),
    };
    context.expect(2)?;
    let registers = context.words(usize::from(!loads), count)?;
    let at = place(context, usize::from(loads), generic)?;
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        if lanes != Lanes::MAX {
            return Err((FaultKind::MissingLanes { needed: Lanes::MAX, active: lanes }, None));
        }
        if loads {
            // A destination may lie where the addresses do.
            let all: Vec<_> =
                (0..registers.len()).map(|matrix| load(machine, at, matrix, transposed)).collect::<Result<_, _>>()?;
            registers
                .iter()
                .zip(&all)
                .for_each(|(d, values)| u32::write(machine.registers, d.slot, values, Lanes::MAX));
        } else {
            for (matrix, &register) in registers.iter().enumerate() {
                store(machine, at, matrix, register, transposed)?;
            }
        }
        Ok(None)
    }))))
}

/// Row and column of the lower of the two elements that a lane holds, the other's after it; `transposed`, its row is
/// the one after instead.
fn elements(lane: usize, transposed: bool) -> [(usize, usize); 2] {
    let (row, column) = (lane / 4, lane % 4 * 2);
    let all = [(row, column), (row, column + 1)];
    if transposed { all.map(|(row, column)| (column, row)) } else { all }
}

/// The lanes from `8 * matrix` on hold the addresses of the matrix's rows. All lanes get their parts, so the whole
/// warp counts as having read them.
fn load(machine: &mut Machine, at: Place, matrix: usize, transposed: bool) -> Result<[u32; WARP], Blame> {
    let mut rows = [[0u8; ROW as usize]; ROWS];
    for (i, row) in rows.iter_mut().enumerate() {
        let lane = ROWS * matrix + i;
        let address = machine.shared_address(&at.address, at.generic, lane)?;
        *row = machine.shared.load(address, ROW, machine.now.whole_warp()).map_err(blame(lane))?.to_le_bytes();
    }
    Ok(std::array::from_fn(|lane| {
        let half =
            |(row, column): (usize, usize)| u16::from_le_bytes([rows[row][2 * column], rows[row][2 * column + 1]]);
        let [low, high] = elements(lane, transposed).map(half);
        u32::from(low) | u32::from(high) << 16
    }))
}

fn store(machine: &mut Machine, at: Place, matrix: usize, a: Register, transposed: bool) -> Result<(), Blame> {
    let mut rows = [[0u8; ROW as usize]; ROWS];
    for (lane, value) in u32::read(machine.registers, a.slot).into_iter().enumerate() {
        for ((row, column), half) in elements(lane, transposed).into_iter().zip(value.to_le_bytes().as_chunks::<2>().0)
        {
            rows[row][2 * column..2 * column + 2].copy_from_slice(half);
        }
    }
    for (i, row) in rows.into_iter().enumerate() {
        let lane = ROWS * matrix + i;
        let address = machine.shared_address(&at.address, at.generic, lane)?;
        let (value, now) = (u128::from_le_bytes(row), machine.now.whole_warp());
        machine.shared.store(address, ROW, value, now).map_err(blame(lane))?;
    }
    Ok(())
}
