//! Barriers of a block (PTX ISA, `bar`): who has come, who waits, and what they agree on.

use super::registers::Lanes;
use crate::decode::Register;
use crate::error::FaultKind;
use crate::memory::{Clocks, View};

/// `bar.sync`, `bar.arrive` and `bar.red`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barrier {
    pub number: Register,
    /// Threads that it is for; all of the block where none are given.
    pub threads: Option<Register>,
    /// Whether the warp waits.
    pub waits: bool,
    pub reduction: Option<Reduction>,
}

/// What `bar.red` makes of a predicate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub d: Register,
    pub vote: Register,
    pub negated: bool,
    /// From the votes for, and the voters.
    pub decide: fn(u32, u32) -> u32,
}

/// A warp that came to a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub number: u32,
    pub threads: Option<u32>,
    pub waits: bool,
    /// Lanes that vote for, and lanes that vote.
    pub votes: [Lanes; 2],
}

/// Barriers of a block (PTX ISA, `bar`): 0 to 15.
pub(super) const BARRIERS: u32 = 16;

/// Threads that one warp counts for, whoever of it has exited.
const WARP_THREADS: u32 = 32;

/// One barrier of a block, between two completions.
pub(super) struct Gathering {
    threads: Option<u32>,
    came: u32,
    pub waiting: Vec<usize>,
    /// Votes for, and voters.
    pub votes: [u32; 2],
    view: View,
}

impl Gathering {
    pub fn new(arrival: &Arrival) -> Self {
        Self { threads: arrival.threads, came: 0, waiting: Vec::new(), votes: [0; 2], view: View::NONE }
    }

    /// `warp` of a block of so many threads comes.
    pub fn add(
        &mut self,
        warp: usize,
        arrival: &Arrival,
        block_threads: u32,
        clocks: &mut Clocks,
    ) -> Result<(), FaultKind> {
        let (barrier, threads) = (arrival.number, arrival.threads.unwrap_or(0));
        if arrival.threads != self.threads {
            return Err(FaultKind::BarrierThreads { barrier, threads, others: self.threads.unwrap_or(0) });
        }
        self.came += WARP_THREADS;
        let most = block_threads.next_multiple_of(WARP_THREADS);
        let fits = threads.is_multiple_of(WARP_THREADS) && threads <= most && self.came <= threads && threads > 0;
        if self.threads.is_some() && !fits {
            return Err(FaultKind::BarrierSize { barrier, threads });
        }
        if arrival.waits {
            self.waiting.push(warp);
        }
        self.votes.iter_mut().zip(arrival.votes).for_each(|(sum, lanes)| *sum += lanes.count_ones());
        self.view.join(&clocks.release(warp));
        Ok(())
    }

    /// Whether all have come, of so many warps that have not ended.
    pub fn is_complete(&self, live_warps: usize) -> bool {
        match self.threads {
            Some(threads) => self.came == threads,
            None => self.came == live_warps as u32 * WARP_THREADS,
        }
    }

    /// Those who waited see what all did before they came.
    pub fn release(&self, clocks: &mut Clocks) {
        self.waiting.iter().for_each(|&warp| clocks.acquire(warp, &self.view));
    }
}
