//! `wmma`: 16x16 matrices with fragments of the implementation's own making, as PTX allows.
//!
//! Lane `l` holds elements `8 l` to `8 l + 7` of a matrix in the order in which `wmma` names rows and columns. f16
//! fragments of A and B have twice the registers that this takes: the second half repeats the first.

use super::context::{Context, Decoded};
use super::float::{bf16_value, f16_value};
use super::names::Register;
use super::tensor::half_rounding;
use crate::error::{FaultKind, Space};
use crate::exec::{Address, Blame, Lane, Lanes, MAX_K, Machine, Op, Participants, Registers, WARP, blame, multiply};
use crate::memory::resolve;

const SIZE: usize = 16;
/// Elements of a lane.
const ELEMENTS: usize = SIZE * SIZE / WARP;

/// Bytes of an element, and registers of a fragment.
fn fragment(matrix: &str, kind: &str) -> Option<(u32, usize)> {
    Some(match (matrix, kind) {
        ("a" | "b", "f16") => (2, 8),
        ("a" | "b", "bf16") => (2, 4),
        ("c" | "d", "f32") => (4, 8),
        _ => return None,
    })
}

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["wmma", "load", matrix, "sync", "aligned", layout, "m16n16k16", rest @ .., kind] => {
            transfer(context, true, matrix, layout, rest, kind)
        }
        ["wmma", "store", "d", "sync", "aligned", layout, "m16n16k16", rest @ .., kind] => {
            transfer(context, false, "d", layout, rest, kind)
        }
        ["wmma", "mma", "sync", "aligned", a, b, "m16n16k16", "f32", "f32"] => product(context, [a, b], "f16"),
        ["wmma", "mma", "sync", "aligned", a, b, "m16n16k16", "f32", "bf16", "bf16", "f32"] => {
            product(context, [a, b], "bf16")
        }
        _ => Ok(None),
    }
}

/// Where the elements of a matrix lie.
#[derive(Clone, Copy)]
struct Place {
    address: Address,
    /// None for a generic address.
    space: Option<Space>,
    /// Elements between rows, or columns; without one, they are packed.
    stride: Option<Register>,
    row_major: bool,
    bytes: u32,
}

impl Place {
    /// Space and address of an element.
    fn element(&self, machine: &Machine, lane: usize, element: usize) -> (Space, u64) {
        let (row, column) = (element / SIZE, element % SIZE);
        let (outer, inner) = if self.row_major { (row, column) } else { (column, row) };
        let stride = self.stride.map_or(SIZE as u64, |stride| machine.value(stride, lane));
        let offset = (outer as u64 * stride + inner as u64) * u64::from(self.bytes);
        let address = machine.address(&self.address, lane).wrapping_add(offset);
        self.space.map_or_else(|| resolve(address), |space| (space, address))
    }
}

fn transfer(context: &mut Context, loads: bool, matrix: &str, layout: &str, rest: &[&str], kind: &str) -> Decoded {
    let Some((bytes, count)) = fragment(matrix, kind) else { return Ok(None) };
    let (space, row_major) = match (rest, layout) {
        ([], "row" | "col") => (None, layout == "row"),
        (["global"], "row" | "col") => (Some(Space::Global), layout == "row"),
        (["shared" | "shared::cta"], "row" | "col") => (Some(Space::Shared), layout == "row"),
        _ => return Ok(None),
    };
    let registers = context.words(usize::from(!loads), count)?;
    let address = context.address(usize::from(loads))?;
    let stride = if context.instruction.operands.len() == 3 { Some(context.source::<u32>(2)?) } else { None };
    context.expect(2 + usize::from(stride.is_some()))?;
    let place = Place { address, space, stride, row_major, bytes };
    Ok(Some(Op::Machine(Box::new(move |machine: &mut Machine, lanes: Lanes| {
        if lanes != Lanes::MAX {
            return Err((FaultKind::MissingLanes { needed: Lanes::MAX, active: lanes }, None));
        }
        for lane in 0..WARP {
            if loads { load(machine, place, &registers, lane)? } else { store(machine, place, &registers, lane)? }
        }
        Ok(None)
    }))))
}

fn load(machine: &mut Machine, place: Place, registers: &[Register], lane: usize) -> Result<(), Blame> {
    let bits = 8 * place.bytes as usize;
    let mut elements = [0; ELEMENTS];
    // All before a destination is written: it may lie where the address does.
    for (i, element) in elements.iter_mut().enumerate() {
        let value = match place.element(machine, lane, lane * ELEMENTS + i) {
            (Space::Shared, at) => machine.shared.load(at, place.bytes, machine.lane(lane)),
            (_, at) => machine.load_global(at, place.bytes, lane),
        };
        *element = value.map_err(blame(lane))? as u64;
    }
    let per_register = 32 / bits;
    for (i, &register) in registers.iter().enumerate() {
        let parts = (0..per_register).map(|part| elements[(i * per_register + part) % ELEMENTS] << (bits * part));
        machine.set(register, lane, parts.sum());
    }
    Ok(())
}

fn store(machine: &mut Machine, place: Place, registers: &[Register], lane: usize) -> Result<(), Blame> {
    for (i, &register) in registers.iter().enumerate() {
        let value = u128::from(machine.value(register, lane));
        let stored = match place.element(machine, lane, lane * ELEMENTS + i) {
            (Space::Shared, at) => machine.shared.store(at, place.bytes, value, machine.lane(lane)),
            (_, at) => machine.store_global(at, place.bytes, value, lane),
        };
        stored.map_err(blame(lane))?;
    }
    Ok(())
}

/// The order of rows and columns in memory is that of the load; a fragment knows its elements.
fn product(context: &mut Context, layouts: [&str; 2], kind: &str) -> Decoded {
    if layouts.iter().any(|layout| !["row", "col"].contains(layout)) {
        return Ok(None);
    }
    context.expect(4)?;
    let count = if kind == "f16" { 8 } else { 4 };
    let value: fn(u32) -> f64 = match kind {
        "f16" => |bits| f64::from(f16_value(bits as u16)),
        _ => |bits| f64::from(bf16_value(bits as u16)),
    };
    let (d, a) = (context.words(0, ELEMENTS)?, context.words(1, count)?);
    let (b, c) = (context.words(2, count)?, context.words(3, ELEMENTS)?);
    let rounding = half_rounding(context.target, kind == "bf16");
    let work = move |registers: &mut Registers, _| {
        let (a, b) = (halves(registers, &a, value), halves(registers, &b, value));
        let mut rows = [[0.0; MAX_K]; SIZE];
        rows.iter_mut().zip(&a).for_each(|(row, a)| row[..SIZE].copy_from_slice(a));
        let c = floats(registers, &c);
        let mut result = c;
        for first in [0, 8] {
            let columns =
                std::array::from_fn(|n| std::array::from_fn(|k| if k < SIZE { b[k][first + n] } else { 0.0 }));
            let start = c.map(|row| std::array::from_fn(|n| row[first + n]));
            for (row, product) in result.iter_mut().zip(multiply(&rows, &columns, &start, SIZE, rounding)) {
                row[first..first + 8].copy_from_slice(&product);
            }
        }
        write(registers, &d, &result);
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::All, work: Box::new(work) }))
}

fn halves(registers: &Registers, fragment: &[Register], value: fn(u32) -> f64) -> [[f64; SIZE]; SIZE] {
    let mut matrix = [[0.0; SIZE]; SIZE];
    for (i, register) in fragment[..ELEMENTS / 2].iter().enumerate() {
        for (lane, word) in u32::read(registers, register.slot).into_iter().enumerate() {
            let element = lane * ELEMENTS + 2 * i;
            let row = &mut matrix[element / SIZE];
            (row[element % SIZE], row[element % SIZE + 1]) = (value(word), value(word >> 16));
        }
    }
    matrix
}

fn floats(registers: &Registers, fragment: &[Register]) -> [[f32; SIZE]; SIZE] {
    let mut matrix = [[0.0; SIZE]; SIZE];
    for (i, register) in fragment.iter().enumerate() {
        for (lane, value) in f32::read(registers, register.slot).into_iter().enumerate() {
            let element = lane * ELEMENTS + i;
            matrix[element / SIZE][element % SIZE] = value;
        }
    }
    matrix
}

fn write(registers: &mut Registers, fragment: &[Register], matrix: &[[f32; SIZE]; SIZE]) {
    for (i, register) in fragment.iter().enumerate() {
        let values = std::array::from_fn(|lane| {
            let element = lane * ELEMENTS + i;
            matrix[element / SIZE][element % SIZE]
        });
        f32::write(registers, register.slot, &values, Lanes::MAX);
    }
}
