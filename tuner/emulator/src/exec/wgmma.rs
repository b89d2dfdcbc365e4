//! A `wgmma` from its issue, where its operands must be there, to the wait, where it happens.

use super::asynchronous::PendingWgmma;
use super::machine::{Blame, Machine};
use super::op::{Wgmma, WgmmaA};
use super::registers::Lanes;
use super::tensor::MAX_K;
use crate::decode::{Matrix, Register, fill_rows, multiply_columns, rows_of_registers};
use crate::error::FaultKind;
use crate::memory::{Shared, Stamp};

/// Rows of A that a warp multiplies; those of the group's second warp follow those of the first.
const WARP_ROWS: u32 = 16;
const GROUP_WARPS: u32 = 4;

/// Checks what a product needs, and notes it as one that may begin.
pub(super) fn issue(machine: &mut Machine, op: &Wgmma, active: Lanes) -> Result<(), Blame> {
    let fault = |kind| (kind, None);
    if active != Lanes::MAX {
        return Err(fault(FaultKind::MissingLanes { needed: Lanes::MAX, active }));
    }
    if !machine.wgmmas.fenced {
        return Err(fault(FaultKind::WgmmaFence));
    }
    let matrix = |descriptor: Register, k_major| {
        let bits = machine.value(descriptor, 0);
        Matrix::new(bits, k_major).ok_or((FaultKind::Descriptor(bits), None))
    };
    let a = match op.a {
        WgmmaA::Registers(_) => None,
        WgmmaA::Shared(descriptor) => Some(matrix(descriptor, op.k_major[0])?),
    };
    let b = matrix(op.b, op.k_major[1])?;
    let accumulate = machine.value(op.accumulate, 0) == 1;
    let pending = PendingWgmma { op: op.clone(), a, b, accumulate, group: 0 };
    let now = machine.now.whole_warp();
    for_each_chunk(&pending, now, |address| machine.shared.begin_async_read(address, 16, now)).map_err(fault)?;
    machine.wgmmas.issue(pending);
    Ok(())
}

/// Addresses of all chunks that a warp's part of a product reads.
fn for_each_chunk(
    wgmma: &PendingWgmma,
    now: Stamp,
    mut f: impl FnMut(u64) -> Result<(), FaultKind>,
) -> Result<(), FaultKind> {
    let [kind_a, kind_b] = wgmma.op.types;
    if let Some(a) = wgmma.a {
        a.chunks(first_row(now), WARP_ROWS, kind_a.bytes()).try_for_each(|chunk| f(chunk.address))?;
    }
    let columns = 2 * wgmma.op.d.len() as u32;
    wgmma.b.chunks(0, columns, kind_b.bytes()).try_for_each(|chunk| f(chunk.address))
}

fn first_row(now: Stamp) -> u32 {
    now.agent() as u32 % GROUP_WARPS * WARP_ROWS
}

/// Carries out the products that must have happened where at most `left` groups may be in flight.
pub(super) fn wait(machine: &mut Machine, left: u32) -> Result<(), FaultKind> {
    machine.wgmmas.fenced = false;
    for wgmma in machine.wgmmas.arrived(left) {
        run(machine, &wgmma)?;
    }
    Ok(())
}

fn run(machine: &mut Machine, wgmma: &PendingWgmma) -> Result<(), FaultKind> {
    let (op, now) = (&wgmma.op, machine.now.whole_warp());
    let read = |shared: &mut Shared, address| shared.end_async_read(address, now);
    let mut a = [[0.0; MAX_K]; 16];
    if let Some(matrix) = wgmma.a {
        fill_rows(&mut a, matrix, first_row(now), op.types[0], |address| read(machine.shared, address))?;
    } else if let WgmmaA::Registers(registers) = &op.a {
        a = rows_of_registers(machine.registers, registers, op.types[0]);
    }
    for block in 0..op.d.len() / 4 {
        let mut b = [[0.0; MAX_K]; 8];
        fill_rows(&mut b, wgmma.b, 8 * block as u32, op.types[1], |address| read(machine.shared, address))?;
        multiply_columns(machine.registers, op, block, &a, &mut b, wgmma.accumulate);
    }
    Ok(())
}
