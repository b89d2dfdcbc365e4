//! What a warp started and did not wait for yet. Everything happens as late as PTX allows: when it is waited for.

use super::op::{Address, Wgmma};
use super::registers::{Lanes, WARP};
use crate::decode::{Descriptor, Register};

/// A `cp.async` of one lane that has not arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCopy {
    pub lane: u32,
    pub to: u64,
    pub from: u64,
    pub bytes: u32,
    /// Number of the lane's group that it belongs to.
    group: u32,
}

/// The copies of a warp, in the order in which they were issued. Each lane counts its own groups.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pending: Vec<PendingCopy>,
    committed: [u32; WARP],
}

impl Copies {
    pub fn issue(&mut self, lane: u32, to: u64, from: u64, bytes: u32) {
        let group = self.committed[lane as usize];
        self.pending.push(PendingCopy { lane, to, from, bytes, group });
    }

    pub fn commit(&mut self, lanes: Lanes) {
        for (lane, committed) in self.committed.iter_mut().enumerate() {
            *committed += lanes >> lane & 1;
        }
    }

    /// Takes out the copies that must have arrived where `lanes` wait until at most `left` groups are in flight.
    pub fn arrived(&mut self, lanes: Lanes, left: u32) -> Vec<PendingCopy> {
        let committed = self.committed;
        let due =
            |copy: &mut PendingCopy| lanes >> copy.lane & 1 == 1 && copy.group + left < committed[copy.lane as usize];
        self.pending.extract_if(.., due).collect()
    }
}

/// A `wgmma.mma_async` that has not happened.
#[derive(Clone, Debug)]
pub(super) struct PendingWgmma {
    pub op: Wgmma,
    pub descriptor: Descriptor,
    pub accumulate: bool,
    group: u32,
}

/// The asynchronous MMAs of a warp.
#[derive(Debug, Default)]
pub(super) struct Wgmmas {
    pending: Vec<PendingWgmma>,
    committed: u32,
    pub fenced: bool,
}

impl Wgmmas {
    pub fn issue(&mut self, op: Wgmma, descriptor: Descriptor, accumulate: bool) {
        self.pending.push(PendingWgmma { op, descriptor, accumulate, group: self.committed });
    }

    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Takes out what must have happened where at most `left` groups may be in flight.
    pub fn arrived(&mut self, left: u32) -> Vec<PendingWgmma> {
        let committed = self.committed;
        self.pending.extract_if(.., |wgmma| wgmma.group + left < committed).collect()
    }

    /// Whether one of `registers` may still be written.
    pub fn writes_any(&self, registers: &[Register]) -> bool {
        self.pending.iter().any(|wgmma| wgmma.op.d.iter().any(|d| registers.contains(d)))
    }
}

impl Address {
    /// The address, from the value of its base.
    pub fn at(&self, base: u64) -> u64 {
        base.wrapping_add_signed(self.offset)
    }
}
