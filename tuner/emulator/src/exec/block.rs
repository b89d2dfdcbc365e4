//! A block: its warps take turns, each up to the next barrier.

use super::special::Place;
use super::warp::{Environment, Stop, Warp};
use crate::error::{Fault, FaultKind};
use crate::launch::Stats;
use crate::memory::Shared;

/// Extents of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    /// Shared memory of a block, static and dynamic, bytes.
    pub shared_bytes: u32,
}

/// Runs one block to its end.
pub(crate) fn run_block(env: Environment, grid: Grid, block: [u32; 3]) -> Result<Stats, Box<Fault>> {
    let warps = grid.threads.iter().product::<u32>().div_ceil(32);
    let place = |warp| Place { grid: grid.blocks, threads: grid.threads, block, warp };
    let mut warps: Vec<Warp> = (0..warps).map(|warp| Warp::new(env.program, place(warp))).collect();
    let mut shared = Shared::new(grid.shared_bytes);
    for block_time in 1.. {
        let mut stops = Vec::with_capacity(warps.len());
        for warp in &mut warps {
            stops.push(warp.run(env, &mut shared, block_time)?);
        }
        if stops.iter().all(|&stop| stop == Stop::Done) {
            break;
        }
        check_barriers(env, &warps, &stops)?;
    }
    let mut stats = Stats { blocks: 1, ..Stats::default() };
    for warp in &warps {
        stats.warp_instructions += warp.instructions;
        stats.thread_instructions += warp.thread_instructions;
    }
    Ok(stats)
}

/// All warps that have not ended must wait at the same barrier.
fn check_barriers(env: Environment, warps: &[Warp], stops: &[Stop]) -> Result<(), Box<Fault>> {
    let mut waiting = stops.iter().enumerate().filter_map(|(warp, stop)| match stop {
        Stop::Barrier(number) => Some((warp, *number)),
        Stop::Done => None,
    });
    let Some((first, number)) = waiting.next() else { return Ok(()) };
    match waiting.find(|&(_, other)| other != number) {
        None => Ok(()),
        Some((other, other_barrier)) => {
            let kind = FaultKind::MixedBarriers { barrier: number, other: other as u32, other_barrier };
            Err(warps[first].fault(warps[first].last_step(env.program), kind, None))
        }
    }
}
