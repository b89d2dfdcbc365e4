//! What an instruction of a warp may touch.

use super::asynchronous::{Copies, Wgmmas};
use super::generic::Local;
use super::op::Address;
use super::registers::{Lanes, Registers};
use crate::decode::Register;
use crate::error::{FaultKind, Space};
use crate::memory::{Cursor, Memory, Shared, Stamp, resolve};

/// A warp at an instruction: its registers, and the memory that it sees.
pub(crate) struct Machine<'a> {
    pub registers: &'a mut Registers,
    pub shared: &'a mut Shared,
    pub memory: &'a Memory,
    pub local: &'a mut Local,
    pub copies: &'a mut Copies,
    pub wgmmas: &'a mut Wgmmas,
    /// Lane 0 of the warp at this time.
    pub now: Stamp,
    pub hint: &'a mut Cursor,
}

/// A fault, and the lane to blame.
pub(crate) type Blame = (FaultKind, Option<u32>);

/// Turns a fault into that of a lane.
pub(crate) fn blame(lane: usize) -> impl Fn(FaultKind) -> Blame {
    move |kind| (kind, Some(lane as u32))
}

/// Numbers of the lanes, from the lowest.
pub(crate) fn lanes_of(mut lanes: Lanes) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (lanes != 0).then(|| {
            let lane = lanes.trailing_zeros();
            lanes &= lanes - 1;
            lane as usize
        })
    })
}

impl Machine<'_> {
    /// The address that a lane has.
    pub fn address(&self, address: &Address, lane: usize) -> u64 {
        address.at(self.registers.bits(address.base.class, address.base.slot, lane))
    }

    /// The same in shared memory; a `generic` address must lie there.
    pub fn shared_address(&self, address: &Address, generic: bool, lane: usize) -> Result<u64, Blame> {
        let address = self.address(address, lane);
        match (generic, resolve(address)) {
            (false, _) => Ok(address),
            (true, (Space::Shared, address)) => Ok(address),
            (true, _) => Err(blame(lane)(FaultKind::OutOfBounds { space: Space::Shared, address, bytes: 1 })),
        }
    }

    /// What a lane has in a register.
    pub fn value(&self, register: Register, lane: usize) -> u64 {
        self.registers.bits(register.class, register.slot, lane)
    }

    /// Writes a lane of a register.
    pub fn set(&mut self, register: Register, lane: usize, value: u64) {
        self.registers.set_bits(register.class, register.slot, lane, value);
    }

    /// A lane reads global memory.
    pub fn load_global(&mut self, address: u64, bytes: u32, lane: usize) -> Result<u128, FaultKind> {
        self.shared.load_global(self.memory, address, bytes, self.hint, self.now.lane(lane as u32))
    }

    /// A lane writes to global memory.
    pub fn store_global(&mut self, address: u64, bytes: u32, value: u128, lane: usize) -> Result<(), FaultKind> {
        self.shared.store_global(self.memory, address, bytes, value, self.hint, self.now.lane(lane as u32))
    }

    /// A lane of the warp at this time.
    pub fn lane(&self, lane: usize) -> Stamp {
        self.now.lane(lane as u32)
    }
}
