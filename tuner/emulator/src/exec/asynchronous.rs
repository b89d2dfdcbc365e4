//! What a warp started and did not wait for yet. Everything happens as late as PTX allows: when it is waited for.

use super::op::{Address, Wgmma};
use super::registers::{Lanes, Registers, WARP};
use crate::decode::{Matrix, Register};
use crate::memory::ThreadCopy;

/// The `cp.async` of a warp, in the order in which they were issued. Each lane counts its own groups.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Lane, group, and the copy.
    pending: Vec<(u32, u32, ThreadCopy)>,
    committed: [u32; WARP],
}

impl Copies {
    pub fn issue(&mut self, copy: ThreadCopy) {
        let lane = copy.stamp.lane_index();
        self.pending.push((lane, self.committed[lane as usize], copy));
    }

    pub fn commit(&mut self, lanes: Lanes) {
        for (lane, committed) in self.committed.iter_mut().enumerate() {
            *committed += lanes >> lane & 1;
        }
    }

    /// Takes out the copies that must have arrived where `lanes` wait until at most `left` groups are in flight.
    pub fn arrived(&mut self, lanes: Lanes, left: u32) -> Vec<ThreadCopy> {
        let committed = self.committed;
        let due = |&mut (lane, group, _): &mut _| lanes >> lane & 1 == 1 && group + left < committed[lane as usize];
        let mut arrived = Vec::with_capacity(self.pending.len());
        arrived.extend(self.pending.extract_if(.., due).map(|(.., copy)| copy));
        arrived
    }

    /// Takes out all copies of a lane.
    pub fn take_all(&mut self, lane: u32) -> Vec<ThreadCopy> {
        self.pending.extract_if(.., |&mut (of, ..)| of == lane).map(|(.., copy)| copy).collect()
    }
}

/// A `wgmma.mma_async` that has not happened.
#[derive(Clone, Debug)]
pub(super) struct PendingWgmma {
    pub op: Wgmma,
    /// A, where it lies in shared memory.
    pub a: Option<Matrix>,
    pub b: Matrix,
    pub accumulate: bool,
    pub group: u32,
}

/// The asynchronous MMAs of a warp.
#[derive(Debug, Default)]
pub(crate) struct Wgmmas {
    pending: Vec<PendingWgmma>,
    committed: u32,
    pub(super) fenced: bool,
}

impl Wgmmas {
    /// In the open group.
    pub(super) fn issue(&mut self, wgmma: PendingWgmma) {
        self.pending.push(PendingWgmma { group: self.committed, ..wgmma });
    }

    pub fn commit(&mut self) {
        self.committed += 1;
    }

    /// Takes out what must have happened where at most `left` groups may be in flight.
    pub(super) fn arrived(&mut self, left: u32) -> Vec<PendingWgmma> {
        let committed = self.committed;
        self.pending.extract_if(.., |wgmma| wgmma.group + left < committed).collect()
    }

    /// Whether one of `registers` may still be written.
    pub fn writes_any(&self, registers: &[Register]) -> bool {
        !registers.is_empty() && self.pending.iter().any(|wgmma| wgmma.op.d.iter().any(|d| registers.contains(d)))
    }
}

impl Address {
    /// The addresses of all lanes.
    pub fn of_lanes(&self, registers: &Registers) -> [u64; WARP] {
        let mut row = registers.row(self.base.class, self.base.slot);
        row.iter_mut().for_each(|base| *base = self.at(*base));
        row
    }

    /// The address, from the value of its base.
    pub fn at(&self, base: u64) -> u64 {
        base.wrapping_add_signed(self.offset)
    }
}
