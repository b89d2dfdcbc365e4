//! Loads and stores of local memory, and by generic addresses: lane by lane, in whatever space each lies.

use super::elements::{value_of, words_of};
use super::machine::{Blame, Machine, blame, lanes_of};
use super::op::Access;
use super::registers::{Lanes, WARP};
use crate::error::{FaultKind, Space};
use crate::memory::resolve;

/// First local address; a null pointer shows.
pub(crate) const LOCAL_BASE: u32 = 16;

/// Local memory of a warp's lanes, with a mark for each byte that was written.
#[derive(Debug, Default)]
pub(crate) struct Local {
    bytes: Vec<Vec<u8>>,
    written: Vec<Vec<bool>>,
}

impl Local {
    /// So many bytes for each lane.
    pub fn new(bytes: u32) -> Self {
        if bytes == 0 {
            return Self::default();
        }
        Self { bytes: vec![vec![0; bytes as usize]; WARP], written: vec![vec![false; bytes as usize]; WARP] }
    }

    fn place(&self, lane: usize, address: u64, bytes: u32) -> Result<usize, FaultKind> {
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(FaultKind::Misaligned { space: Space::Local, address, bytes });
        }
        let size = self.bytes.get(lane).map_or(0, Vec::len) as u64;
        match address.checked_sub(u64::from(LOCAL_BASE)) {
            Some(at) if at.saturating_add(u64::from(bytes)) <= size => Ok(at as usize),
            _ => Err(FaultKind::OutOfBounds { space: Space::Local, address, bytes }),
        }
    }

    fn load(&self, lane: usize, address: u64, bytes: u32) -> Result<u128, FaultKind> {
        let at = self.place(lane, address, bytes)?;
        let range = at..at + bytes as usize;
        if let Some(byte) = self.written[lane][range.clone()].iter().position(|&written| !written) {
            return Err(FaultKind::Uninitialised { space: Space::Local, address: address + byte as u64 });
        }
        let mut value = [0; 16];
        value[..bytes as usize].copy_from_slice(&self.bytes[lane][range]);
        Ok(u128::from_le_bytes(value))
    }

    fn store(&mut self, lane: usize, address: u64, bytes: u32, value: u128) -> Result<(), FaultKind> {
        let at = self.place(lane, address, bytes)?;
        let range = at..at + bytes as usize;
        self.written[lane][range.clone()].fill(true);
        self.bytes[lane][range].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }
}

/// The space of an access, and the address there; none stands for a generic address.
fn place(space: Option<Space>, address: u64) -> (Space, u64) {
    space.map_or_else(|| resolve(address), |space| (space, address))
}

/// A load by a generic address, or from local memory.
pub(crate) fn load(machine: &mut Machine, space: Option<Space>, access: &Access, active: Lanes) -> Result<(), Blame> {
    let bytes = access.bytes();
    let mut values = [[0; 4]; WARP];
    for lane in lanes_of(active) {
        let (space, address) = place(space, machine.address(&access.address, lane));
        let value = match space {
            Space::Shared => machine.shared.load(address, bytes, machine.lane(lane)),
            Space::Local => machine.local.load(lane, address, bytes),
            Space::Global | Space::Param => machine.load_global(address, bytes, lane),
        };
        values[lane] = words_of(value.map_err(blame(lane))?);
    }
    access.write_elements(machine.registers, &values, active);
    Ok(())
}

/// A load of global memory that the launch does not write to (PTX ISA, `ld.global.nc`).
pub(crate) fn load_constant(machine: &mut Machine, access: &Access, active: Lanes) -> Result<(), Blame> {
    let mut values = [[0; 4]; WARP];
    for lane in lanes_of(active) {
        let address = machine.address(&access.address, lane);
        let value = machine.memory.load_constant(address, access.bytes(), machine.hint);
        values[lane] = words_of(value.map_err(blame(lane))?);
    }
    access.write_elements(machine.registers, &values, active);
    Ok(())
}

/// A store by a generic address, or to local memory.
pub(crate) fn store(machine: &mut Machine, space: Option<Space>, access: &Access, active: Lanes) -> Result<(), Blame> {
    let bytes = access.bytes();
    let values = access.read_elements(machine.registers);
    for lane in lanes_of(active) {
        let (space, address) = place(space, machine.address(&access.address, lane));
        let value = value_of(values[lane]);
        let stored = match space {
            Space::Shared => machine.shared.store(address, bytes, value, machine.lane(lane)),
            Space::Local => machine.local.store(lane, address, bytes, value),
            Space::Global | Space::Param => machine.store_global(address, bytes, value, lane),
        };
        stored.map_err(blame(lane))?;
    }
    Ok(())
}
