//! A block: its warps take turns, each until it must wait.

use super::barrier::{Arrival, Gathering};
use super::special::Place;
use super::warp::{Environment, Stop, Warp};
use crate::error::{Fault, FaultKind};
use crate::launch::Stats;
use crate::memory::{BlockView, Cursor, Shared};
use std::collections::BTreeMap;

/// Rounds in which warps only test mbarriers before they are taken to wait for ever.
const QUIET_ROUNDS: u32 = 1000;

/// Extents of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    /// Shared memory of a block, static and dynamic, bytes.
    pub shared_bytes: u32,
}

/// Where a warp is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Tested an mbarrier whose phase had not ended.
    Polling,
    /// At the barrier of that number.
    Waiting(u32),
    Done,
}

struct Block<'a> {
    env: Environment<'a>,
    threads: u32,
    warps: Vec<Warp>,
    states: Vec<State>,
    shared: Shared,
    barriers: BTreeMap<u32, Gathering>,
}

/// Runs one block to its end.
pub(crate) fn run_block(env: Environment, grid: Grid, block: [u32; 3]) -> Result<Stats, Box<Fault>> {
    let threads = grid.threads.iter().product::<u32>();
    let place = |warp| Place { grid: grid.blocks, threads: grid.threads, block, warp };
    let view = Cursor::new(BlockView::new(env.launch, grid.blocks, block));
    let warp = |warp| Warp::new(env.program, place(warp), view.clone());
    let warps: Vec<Warp> = (0..threads.div_ceil(32)).map(warp).collect();
    let states = vec![State::Ready; warps.len()];
    let shared = Shared::new(grid.shared_bytes, warps.len());
    let mut block = Block { env, threads, warps, states, shared, barriers: BTreeMap::new() };
    block.run()?;
    let mut stats = Stats { blocks: 1, ..Stats::default() };
    for warp in &block.warps {
        stats.warp_instructions += warp.instructions;
        stats.thread_instructions += warp.thread_instructions;
    }
    Ok(stats)
}

impl Block<'_> {
    fn run(&mut self) -> Result<(), Box<Fault>> {
        let mut quiet = 0;
        while self.states.iter().any(|&state| state != State::Done) {
            let changes = self.shared.changes();
            let mut moved = false;
            for warp in 0..self.warps.len() {
                if matches!(self.states[warp], State::Ready | State::Polling) {
                    let state = self.turn(warp)?;
                    moved |= state != State::Polling;
                }
            }
            quiet = if moved || self.shared.changes() != changes { 0 } else { quiet + 1 };
            if quiet > 0 && !self.states.contains(&State::Polling) || quiet > QUIET_ROUNDS {
                return Err(self.deadlock());
            }
        }
        self.shared.end(self.env.memory).map_err(|kind| self.fault(self.warps.len() - 1, kind))
    }

    /// Lets a warp go on until it must wait; where it is then.
    fn turn(&mut self, warp: usize) -> Result<State, Box<Fault>> {
        let state = match self.warps[warp].run(self.env, &mut self.shared)? {
            Stop::Done => State::Done,
            Stop::Poll => State::Polling,
            Stop::Barrier(arrival) => {
                self.states[warp] = if arrival.waits { State::Waiting(arrival.number) } else { State::Ready };
                self.arrive(warp, &arrival).map_err(|kind| self.fault(warp, kind))?;
                return Ok(self.states[warp]);
            }
        };
        self.states[warp] = state;
        if state == State::Done {
            // Barriers do not wait for warps that have ended.
            self.barriers.keys().copied().collect::<Vec<_>>().into_iter().for_each(|number| self.complete(number));
        }
        Ok(state)
    }

    fn arrive(&mut self, warp: usize, arrival: &Arrival) -> Result<(), FaultKind> {
        let gathering = self.barriers.entry(arrival.number).or_insert_with(|| Gathering::new(arrival));
        gathering.add(warp, arrival, self.threads, &mut self.shared.clocks)?;
        self.complete(arrival.number);
        Ok(())
    }

    /// Lets those go who wait at a barrier to which all have come.
    fn complete(&mut self, number: u32) {
        let live = self.states.iter().filter(|&&state| state != State::Done).count();
        if !self.barriers.get(&number).is_some_and(|gathering| gathering.is_complete(live)) {
            return;
        }
        let Some(gathering) = self.barriers.remove(&number) else { return };
        gathering.release(&mut self.shared.clocks);
        if gathering.waiting.len() == live {
            self.shared.forget_own_writes();
        }
        for &warp in &gathering.waiting {
            self.states[warp] = State::Ready;
            self.warps[warp].leave_barrier(self.env.program, gathering.votes);
        }
    }

    /// Names two warps at different barriers, or the first that waits.
    fn deadlock(&self) -> Box<Fault> {
        let mut waiting = self.states.iter().enumerate().filter_map(|(warp, state)| match state {
            State::Waiting(number) => Some((warp, *number)),
            _ => None,
        });
        let stuck = self.states.iter().position(|&state| state != State::Done).unwrap_or(0);
        let Some((first, barrier)) = waiting.next() else { return self.fault(stuck, FaultKind::Deadlock) };
        match waiting.find(|&(_, other)| other != barrier) {
            None => self.fault(stuck, FaultKind::Deadlock),
            Some((other, other_barrier)) => {
                self.fault(first, FaultKind::MixedBarriers { barrier, other: other as u32, other_barrier })
            }
        }
    }

    fn fault(&self, warp: usize, kind: FaultKind) -> Box<Fault> {
        self.warps[warp].fault(self.warps[warp].last_step(self.env.program), kind, None)
    }
}
