//! Barriers in shared memory (PTX ISA, "mbarrier"): phases that end when all arrivals and all announced bytes are in.

use super::clocks::View;
use super::{Memory, Shared, Stamp};
use crate::error::{FaultKind, MbarrierMisuse, Space};
use std::collections::BTreeSet;

/// Counts of arrivals and of announced bytes are below this (PTX ISA, "Contents of the mbarrier object").
const LIMIT: i64 = 1 << 20;

pub(crate) struct Mbarrier {
    /// In the order in which the block made them.
    pub(super) number: usize,
    made: Stamp,
    /// Arrivals of a phase.
    expected: u32,
    /// Arrivals that this phase lacks.
    pending: u32,
    /// Bytes that this phase lacks.
    bytes: i64,
    /// Phases that have ended.
    phase: u64,
    /// What those who arrived in this phase and before let others see.
    open: View,
    /// The same, up to the last phase that has ended.
    ended: View,
    /// Threads whose tests failed since something changed.
    failed: BTreeSet<(usize, u32)>,
}

/// What a waiting thread asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// As an arrival returned it.
    State(u64),
    /// Even or odd.
    Parity(u32),
}

/// What one thread does to an mbarrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Bytes to announce first.
    pub expect_bytes: u32,
    pub count: u32,
    /// Whether later phases expect that many arrivals fewer.
    pub drop: bool,
    /// Whether the phase must not end by it.
    pub no_complete: bool,
}

impl Mbarrier {
    fn expect(&mut self, bytes: i64) -> Result<(), MbarrierMisuse> {
        self.bytes += bytes;
        if self.bytes.abs() < LIMIT { Ok(()) } else { Err(MbarrierMisuse::Bytes(self.bytes)) }
    }

    fn take(&mut self, arrival: Arrival) -> Result<(), MbarrierMisuse> {
        let Arrival { count, drop, no_complete, .. } = arrival;
        if count == 0 || count > self.pending || no_complete && count == self.pending {
            return Err(MbarrierMisuse::Arrivals { pending: self.pending, count });
        }
        self.pending -= count;
        if drop {
            self.expected -= count;
        }
        Ok(())
    }

    /// Ends the phase where nothing is missing.
    fn settle(&mut self) {
        self.failed.clear();
        if self.pending == 0 && self.bytes == 0 {
            self.phase += 1;
            self.pending = self.expected;
            self.ended = self.open.clone();
        }
    }

    /// The state of the running phase, as an arrival returns it.
    fn state(&self) -> u64 {
        self.phase << 32 | u64::from(self.pending)
    }

    fn has_ended(&self, phase: Phase) -> Result<bool, MbarrierMisuse> {
        match phase {
            Phase::Parity(parity) => Ok(self.phase & 1 != u64::from(parity & 1)),
            Phase::State(state) if state >> 32 == self.phase => Ok(false),
            Phase::State(state) if (state >> 32) + 1 == self.phase => Ok(true),
            Phase::State(state) => Err(MbarrierMisuse::State(state)),
        }
    }
}

/// Arrivals that a state, as an arrival returned it, lacked.
pub(crate) fn pending_count(state: u64) -> u32 {
    state as u32
}

impl Shared {
    /// `mbarrier.init`
    pub fn init_mbarrier(&mut self, address: u64, count: u32, now: Stamp) -> Result<(), FaultKind> {
        if count == 0 || i64::from(count) >= LIMIT {
            return Err(misused(address)(MbarrierMisuse::Count(count)));
        }
        self.claim_mbarrier(address, now)?;
        let mbarrier = Mbarrier {
            number: self.made_mbarriers,
            made: now,
            expected: count,
            pending: count,
            bytes: 0,
            phase: 0,
            open: View::NONE,
            ended: View::NONE,
            failed: BTreeSet::new(),
        };
        self.mbarriers.insert(address, mbarrier);
        self.made_mbarriers += 1;
        Ok(())
    }

    /// `mbarrier.inval`
    pub fn drop_mbarrier_object(&mut self, address: u64, now: Stamp) -> Result<(), FaultKind> {
        self.mbarrier(address, now)?;
        if self.copies.use_mbarrier(address) {
            return Err(misused(address)(MbarrierMisuse::InFlight));
        }
        self.mbarriers.remove(&address);
        self.drop_mbarrier(address, now)
    }

    /// The mbarrier at `address`, which must have been made before `now`.
    pub(super) fn mbarrier(&mut self, address: u64, now: Stamp) -> Result<&mut Mbarrier, FaultKind> {
        let Some(mbarrier) = self.mbarriers.get_mut(&address) else {
            return Err(misused(address)(MbarrierMisuse::NotMade));
        };
        if self.clocks.races(mbarrier.made, now) {
            let other = mbarrier.made.accessor();
            return Err(FaultKind::Race { space: Space::Shared, address, writes: false, other, other_wrote: true });
        }
        Ok(mbarrier)
    }

    /// `mbarrier.arrive` and its variants; the state before.
    pub fn arrive(&mut self, address: u64, arrival: Arrival, now: Stamp) -> Result<u64, FaultKind> {
        self.mbarrier(address, now)?;
        let view = self.clocks.release(now.agent());
        self.arrive_with(address, arrival, &view)
    }

    /// The same, by what `view` lets others see.
    pub(super) fn arrive_with(&mut self, address: u64, arrival: Arrival, view: &View) -> Result<u64, FaultKind> {
        self.change(address, |mbarrier| {
            mbarrier.expect(i64::from(arrival.expect_bytes))?;
            let state = mbarrier.state();
            mbarrier.take(arrival)?;
            mbarrier.open.join(view);
            Ok(state)
        })
    }

    /// `mbarrier.expect_tx`, and with a negative number `mbarrier.complete_tx`.
    pub fn expect_bytes(&mut self, address: u64, bytes: i64, now: Stamp) -> Result<(), FaultKind> {
        self.mbarrier(address, now)?;
        self.change(address, |mbarrier| mbarrier.expect(bytes))
    }

    /// Data of the asynchronous proxy has come; the stamp of what it writes.
    pub(super) fn complete_bytes(&mut self, address: u64, bytes: u32) -> Result<Stamp, FaultKind> {
        let Some(mbarrier) = self.mbarriers.get_mut(&address) else {
            return Err(misused(address)(MbarrierMisuse::NotMade));
        };
        let stamp = self.clocks.copy_arrives(mbarrier.number, &mut mbarrier.open);
        self.change(address, |mbarrier| mbarrier.expect(-i64::from(bytes)))?;
        Ok(stamp)
    }

    /// `cp.async.mbarrier.arrive` without `.noinc` adds an arrival to the phase that its own will take away.
    pub(super) fn add_pending(&mut self, address: u64, now: Stamp) -> Result<(), FaultKind> {
        self.mbarrier(address, now)?.pending += 1;
        Ok(())
    }

    fn change<T>(
        &mut self,
        address: u64,
        f: impl FnOnce(&mut Mbarrier) -> Result<T, MbarrierMisuse>,
    ) -> Result<T, FaultKind> {
        self.changes += 1;
        let Some(mbarrier) = self.mbarriers.get_mut(&address) else {
            return Err(misused(address)(MbarrierMisuse::NotMade));
        };
        let result = f(mbarrier).map_err(misused(address))?;
        mbarrier.settle();
        Ok(result)
    }

    /// `mbarrier.test_wait`: where the phase has ended, the warp sees what those who arrived let it see. A thread's
    /// first test fails while copies are under way, as it may on a GPU; its second finds them done.
    pub fn test_mbarrier(
        &mut self,
        memory: &Memory,
        address: u64,
        phase: Phase,
        now: Stamp,
    ) -> Result<bool, FaultKind> {
        let mbarrier = self.mbarrier(address, now)?;
        if !mbarrier.has_ended(phase).map_err(misused(address))? {
            if mbarrier.failed.insert((now.agent(), now.lane_index())) {
                return Ok(false);
            }
            self.deliver(memory, address)?;
        }
        let mbarrier = self.mbarrier(address, now)?;
        let ended = mbarrier.has_ended(phase).map_err(misused(address))?;
        if ended {
            let view = mbarrier.ended.clone();
            self.clocks.acquire(now.agent(), &view);
        }
        Ok(ended)
    }
}

fn misused(address: u64) -> impl Fn(MbarrierMisuse) -> FaultKind {
    move |misuse| FaultKind::Mbarrier { address, misuse }
}
