//! Which accesses of a block are ordered: a vector clock a warp.
//!
//! Each warp has a clock of its own, and knows up to which time it has seen each other one's accesses (Lamport,
//! "Time, clocks, and the ordering of events"; the shadow words are those of Flanagan and Freund's FastTrack). What
//! one releases (a barrier, an mbarrier's arrival) another acquires. Releases count for the whole warp.

use super::stamp::Stamp;
use std::collections::HashMap;

/// Warps of a block, then asynchronous copies by mbarrier; the last number stands for sets of readers.
const AGENTS: usize = 64;
/// First agent that is no warp.
const FIRST_COPY_AGENT: usize = 32;

/// What is ordered before some point.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Of each agent, the last time whose accesses are.
    seen: [u64; AGENTS],
    /// The same, with a proxy fence in between.
    fenced: [u64; AGENTS],
}

impl View {
    /// Nothing is.
    pub const NONE: Self = Self { seen: [0; AGENTS], fenced: [0; AGENTS] };

    /// Both this and `other` are ordered before.
    pub fn join(&mut self, other: &Self) {
        self.seen.iter_mut().zip(other.seen).for_each(|(mine, other)| *mine = other.max(*mine));
        self.fenced.iter_mut().zip(other.fenced).for_each(|(mine, other)| *mine = other.max(*mine));
    }
}

/// The clocks of a block's warps and asynchronous copies.
pub(crate) struct Clocks {
    times: [u64; AGENTS],
    /// One a warp.
    views: Vec<View>,
    sets: ReaderSets,
}

impl Clocks {
    pub fn new(warps: usize) -> Self {
        Self { times: [1; AGENTS], views: vec![View::NONE; warps], sets: ReaderSets::default() }
    }

    /// Lane 0 of `warp` at this time.
    #[inline(always)]
    pub fn now(&self, warp: usize) -> Stamp {
        Stamp::new(warp, self.times[warp])
    }

    /// All lanes of `warp` have met: what they did so far is ordered before what they do next.
    pub fn meet(&mut self, warp: usize) {
        self.views[warp].seen[warp] = self.times[warp];
        self.times[warp] += 1;
    }

    /// What `warp` lets others see: all that it did and has seen.
    pub fn release(&mut self, warp: usize) -> View {
        let mut view = self.views[warp].clone();
        view.seen[warp] = self.times[warp];
        self.times[warp] += 1;
        view
    }

    /// `warp` sees what others, or lanes of its own, released.
    pub fn acquire(&mut self, warp: usize, view: &View) {
        self.views[warp].join(view);
    }

    /// The asynchronous proxy will see what `warp` did and has seen so far.
    pub fn fence_proxy(&mut self, warp: usize) {
        let now = self.times[warp];
        let View { seen, fenced } = &mut self.views[warp];
        fenced.iter_mut().zip(seen).for_each(|(fenced, seen)| *fenced = (*seen).max(*fenced));
        fenced[warp] = now;
        self.times[warp] += 1;
    }

    /// Stamp of data that an asynchronous copy of the mbarrier `number` brings now, which `view` lets others see.
    pub fn copy_arrives(&mut self, number: usize, view: &mut View) -> Stamp {
        let agent = FIRST_COPY_AGENT + number % (Stamp::SET - FIRST_COPY_AGENT);
        self.times[agent] += 1;
        view.seen[agent] = self.times[agent];
        Stamp::new(agent, self.times[agent])
    }

    /// Whether nothing orders an `earlier` access and one of a warp `now`.
    #[inline(always)]
    pub fn races(&self, earlier: Stamp, now: Stamp) -> bool {
        match earlier.agent() {
            Stamp::SET => self.races_with_one_of(earlier, now),
            _ => self.races_alone(earlier, now),
        }
    }

    #[inline(never)]
    fn races_with_one_of(&self, set: Stamp, now: Stamp) -> bool {
        self.sets.members(set).iter().any(|&member| self.races_alone(member, now))
    }

    /// The same for an access of one agent.
    #[inline(always)]
    fn races_alone(&self, earlier: Stamp, now: Stamp) -> bool {
        earlier.time() > self.views[now.agent()].seen[earlier.agent()] && !earlier.same_thread(now)
    }

    /// Whether the asynchronous proxy may not see that write where a warp has it act `now`.
    pub fn is_unfenced(&self, writer: Stamp, now: Stamp) -> bool {
        writer.agent() < FIRST_COPY_AGENT && writer.time() > self.views[now.agent()].fenced[writer.agent()]
    }

    /// One stamp for earlier readers and `now`, that races with whatever one of them races with.
    #[inline(always)]
    pub fn joined(&mut self, earlier: Stamp, now: Stamp) -> Stamp {
        if earlier == now || !self.races(earlier, now) {
            now
        } else if earlier.agent() == now.agent() {
            now.whole_warp()
        } else {
            self.joined_set(earlier, now.whole_warp())
        }
    }

    fn joined_set(&mut self, earlier: Stamp, now: Stamp) -> Stamp {
        if let Some((pair, both)) = self.sets.latest
            && pair == (earlier, now)
        {
            return both;
        }
        let both = self.joined_anew(earlier, now);
        self.sets.latest = Some(((earlier, now), both));
        both
    }

    fn joined_anew(&mut self, earlier: Stamp, now: Stamp) -> Stamp {
        if let Some(&known) = self.sets.joined.get(&(earlier, now)) {
            return known;
        }
        let mut members = match earlier.agent() {
            Stamp::SET => self.sets.members(earlier).to_vec(),
            _ => vec![earlier.whole_warp()],
        };
        members.retain(|&member| member.agent() != now.agent() && self.races(member, now));
        members.push(now);
        let set = self.sets.insert(members);
        self.sets.joined.insert((earlier, now), set);
        set
    }
}

/// Sets of readers of several warps, each warp's last reads.
#[derive(Default)]
struct ReaderSets {
    sets: Vec<Vec<Stamp>>,
    numbers: HashMap<Vec<Stamp>, usize>,
    /// A set or reader, and a new one: both.
    joined: HashMap<(Stamp, Stamp), Stamp>,
    /// The pair that was joined last: mostly it comes again.
    latest: Option<((Stamp, Stamp), Stamp)>,
}

impl ReaderSets {
    fn members(&self, set: Stamp) -> &[Stamp] {
        &self.sets[set.time() as usize - 1]
    }

    fn insert(&mut self, mut members: Vec<Stamp>) -> Stamp {
        members.sort_by_key(|member| member.agent());
        let number = *self.numbers.entry(members).or_insert_with_key(|members| {
            self.sets.push(members.clone());
            self.sets.len()
        });
        Stamp::new(Stamp::SET, number as u64).whole_warp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A barrier of all warps.
    fn barrier(clocks: &mut Clocks, warps: usize) {
        let mut view = View::NONE;
        (0..warps).for_each(|warp| view.join(&clocks.release(warp)));
        (0..warps).for_each(|warp| {
            clocks.acquire(warp, &view);
            clocks.meet(warp);
        });
    }

    #[test]
    fn threads_race_until_a_barrier_that_both_pass() {
        let mut clocks = Clocks::new(3);
        let early = clocks.now(2).lane(5);
        assert!(!clocks.races(early, early), "a thread with itself");
        assert!(clocks.races(early, clocks.now(2).lane(6)), "another lane");
        let _released = clocks.release(2);
        assert!(clocks.races(early, clocks.now(2).lane(6)), "a release is no barrier of the warp");
        clocks.meet(2);
        assert!(!clocks.races(early, clocks.now(2).lane(6)), "another lane after a barrier of the warp");
        clocks.meet(1);
        assert!(clocks.races(early, clocks.now(1).lane(5)), "another warp, whatever its own barriers");
        barrier(&mut clocks, 3);
        assert!(!clocks.races(early, clocks.now(1).lane(5)), "another warp after a barrier of the block");
        assert!(!clocks.races(Stamp::NONE, clocks.now(0)));
    }

    #[test]
    fn what_is_released_is_ordered_and_what_comes_later_is_not() {
        let mut clocks = Clocks::new(3);
        let before = clocks.now(0).lane(1);
        let released = clocks.release(0);
        let after = clocks.now(0).lane(1);
        clocks.acquire(1, &released);
        assert!(!clocks.races(before, clocks.now(1)) && clocks.races(after, clocks.now(1)));
        // Warp 2 learns of warp 0 through warp 1.
        let passed_on = clocks.release(1);
        clocks.acquire(2, &passed_on);
        assert!(!clocks.races(before, clocks.now(2)) && clocks.races(after, clocks.now(2)));
    }

    #[test]
    fn joined_reads_race_with_every_writer_that_one_of_them_races_with() {
        let mut clocks = Clocks::new(4);
        let (first, third) = (clocks.now(0), clocks.now(3));
        let lanes = clocks.joined(first.lane(1), first.lane(2));
        assert!(clocks.races(lanes, first.lane(1)) && clocks.races(lanes, first.lane(2)));
        let warps = clocks.joined(first.lane(1), third.lane(1));
        let one_released = clocks.release(0);
        clocks.acquire(1, &one_released);
        assert!(clocks.races(warps, clocks.now(1)), "warp 3 is not ordered before");
        let other_released = clocks.release(3);
        clocks.acquire(1, &other_released);
        assert!(!clocks.races(warps, clocks.now(1)), "both are");
        barrier(&mut clocks, 4);
        let next = clocks.now(2).lane(1);
        assert_eq!(clocks.joined(warps, next), next, "older reads are ordered before");
    }

    #[test]
    fn proxy_fences_cover_what_came_before_them() {
        let mut clocks = Clocks::new(2);
        let write = clocks.now(0).lane(3);
        assert!(clocks.is_unfenced(write, clocks.now(0)));
        clocks.fence_proxy(0);
        let late = clocks.now(0).lane(3);
        assert!(!clocks.is_unfenced(write, clocks.now(0)) && clocks.is_unfenced(late, clocks.now(0)));
        assert!(clocks.is_unfenced(write, clocks.now(1)), "not yet ordered before warp 1");
        barrier(&mut clocks, 2);
        assert!(!clocks.is_unfenced(write, clocks.now(1)) && clocks.is_unfenced(late, clocks.now(1)));
    }
}
