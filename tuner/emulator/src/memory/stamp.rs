//! Who accessed a byte of shared memory, and when, in one word.

use crate::error::Accessor;

/// An agent, one of its lanes, and a time by the agent's own clock ([`super::Clocks`] compares them).
///
/// Bits 0 to 5 are the lane, 6 to 11 the agent, 12 to 59 the time, from 1. Agents 0 to 31 are the warps of a block,
/// those up to 62 its asynchronous copies by mbarrier. Lane 63 stands for several lanes; agent 63 for a set of
/// readers, and the time is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub(crate) struct Stamp(u64);

const MANY: u64 = 63;
const AGENT_AT: u32 = 6;
const TIME_AT: u32 = 12;
const TIME: u64 = (1 << 48) - 1;
/// A write that will happen at some later time.
const PENDING: u64 = 1 << 63;
/// An atomic operation, which others may meet.
const ATOMIC: u64 = 1 << 61;
/// Part of an mbarrier object.
const OPAQUE: u64 = 1 << 62;

impl Stamp {
    /// No access.
    pub const NONE: Self = Self(0);
    /// A byte of an mbarrier object.
    pub const MBARRIER: Self = Self(OPAQUE);
    /// Agent of a set of readers.
    pub const SET: usize = MANY as usize;

    /// Lane 0 of `agent` at `time`.
    pub fn new(agent: usize, time: u64) -> Self {
        Self((time & TIME) << TIME_AT | (agent as u64 & MANY) << AGENT_AT)
    }

    /// The same agent and time, another lane.
    #[inline(always)]
    pub fn lane(self, lane: u32) -> Self {
        Self(self.0 & !MANY | u64::from(lane))
    }

    /// The same time, all lanes of the warp at once.
    pub fn whole_warp(self) -> Self {
        Self(self.0 | MANY)
    }

    /// The same, for a write that will happen at some later time.
    pub fn pending(self) -> Self {
        Self(self.0 | PENDING)
    }

    pub fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// The same, by an atomic operation.
    pub fn atomic(self) -> Self {
        Self(self.0 | ATOMIC)
    }

    pub fn is_atomic(self) -> bool {
        self.0 & ATOMIC != 0
    }

    pub fn is_mbarrier(self) -> bool {
        self.0 & OPAQUE != 0
    }

    /// Whether ordinary accesses are wrong, whoever makes them: nothing is there, or not yet, or an mbarrier.
    #[inline(always)]
    pub fn is_unreadable(self) -> bool {
        self == Self::NONE || self.0 & (PENDING | OPAQUE) != 0
    }

    #[inline(always)]
    pub fn agent(self) -> usize {
        (self.0 >> AGENT_AT & MANY) as usize
    }

    /// The lane; 63 where it is several.
    pub fn lane_index(self) -> u32 {
        (self.0 & MANY) as u32
    }

    #[inline(always)]
    pub fn time(self) -> u64 {
        self.0 >> TIME_AT & TIME
    }

    #[inline(always)]
    pub fn same_thread(self, other: Self) -> bool {
        (self.0 ^ other.0) & (MANY << AGENT_AT | MANY) == 0
    }

    /// The thread or threads.
    pub fn accessor(self) -> Accessor {
        let (agent, lane) = (self.agent() as u32, (self.0 & MANY) as u32);
        match agent {
            0..32 => Accessor { warp: Some(agent), lane: (u64::from(lane) != MANY).then_some(lane) },
            _ => Accessor { warp: None, lane: None },
        }
    }
}
