//! Who accessed a byte of shared memory, and when: enough to tell whether two accesses are ordered.

use crate::error::Accessor;

/// Thread and time in one word. Time is counted in barriers: those of the block, and those of the warp.
///
/// Bits 0 to 5 are the lane, 6 to 11 the warp, 12 to 35 the warp's barriers, 36 to 59 the block's, both from 1. A
/// lane or warp of 63 stands for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Stamp(u64);

const MANY: u64 = 63;
const WARP_AT: u32 = 6;
const WARP_TIME_AT: u32 = 12;
const BLOCK_TIME_AT: u32 = 36;
/// Times are 24 bits; a kernel has to pass 16 million barriers to reuse one.
const TIME: u64 = (1 << 24) - 1;
const PENDING: u64 = 1 << 63;

impl Stamp {
    /// No access.
    pub const NONE: Self = Self(0);

    /// Lane 0 of `warp` at the given times.
    pub fn new(warp: u32, warp_time: u64, block_time: u64) -> Self {
        let times = (warp_time & TIME) << WARP_TIME_AT | (block_time & TIME) << BLOCK_TIME_AT;
        Self(times | u64::from(warp) << WARP_AT)
    }

    /// The same warp and time, another lane.
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

    fn same_block_time(self, other: Self) -> bool {
        (self.0 ^ other.0) >> BLOCK_TIME_AT & TIME == 0
    }

    fn same_warp(self, other: Self) -> bool {
        (self.0 ^ other.0) >> WARP_AT & MANY == 0
    }

    fn same_warp_time(self, other: Self) -> bool {
        (self.0 ^ other.0) >> WARP_TIME_AT & TIME == 0
    }

    /// Whether nothing orders this earlier access and `now`.
    #[inline(always)]
    pub fn races_with(self, now: Self) -> bool {
        self.same_block_time(now) && (!self.same_warp(now) || self.same_warp_time(now) && (self.0 ^ now.0) & MANY != 0)
    }

    /// One stamp for this earlier read and `now`, that races with whatever one of them races with.
    #[inline(always)]
    pub fn joined(self, now: Self) -> Self {
        if self == now || !self.same_block_time(now) {
            now
        } else if !self.same_warp(now) {
            Self(now.0 | MANY << WARP_AT | MANY)
        } else if self.same_warp_time(now) {
            Self(now.0 | MANY)
        } else {
            now
        }
    }

    /// The thread or threads.
    pub fn accessor(self) -> Accessor {
        let (warp, lane) = (self.0 >> WARP_AT & MANY, self.0 & MANY);
        let one = |index: u64| (index != MANY).then_some(index as u32);
        Accessor { warp: one(warp), lane: one(lane) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_race_until_a_barrier_that_both_pass() {
        let at = |warp, lane, warp_time, block_time| Stamp::new(warp, warp_time, block_time).lane(lane);
        let early = at(2, 5, 3, 1);
        assert!(!early.races_with(early), "a thread with itself");
        assert!(early.races_with(at(2, 6, 3, 1)), "another lane");
        assert!(!early.races_with(at(2, 6, 4, 1)), "another lane after a barrier of the warp");
        assert!(early.races_with(at(1, 5, 9, 1)), "another warp, whatever its own barriers");
        assert!(!early.races_with(at(1, 5, 9, 2)), "another warp after a barrier of the block");
        assert!(!Stamp::NONE.races_with(early));
    }

    #[test]
    fn joined_reads_race_with_every_writer_that_one_of_them_races_with() {
        let at = |warp, lane| Stamp::new(warp, 1, 1).lane(lane);
        let lanes = at(0, 1).joined(at(0, 2));
        assert!(lanes.races_with(at(0, 1)) && lanes.races_with(at(0, 2)));
        let warps = at(0, 1).joined(at(3, 1));
        assert!(warps.races_with(at(0, 1)) && warps.races_with(at(3, 1)));
        assert_eq!(warps.accessor(), Accessor { warp: None, lane: None });
        let next = Stamp::new(0, 2, 2).lane(1);
        assert_eq!(warps.joined(next), next, "older reads are ordered before");
    }
}
