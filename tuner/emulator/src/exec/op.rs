//! Operations with all operands resolved: what `decode` makes and a warp executes.

use super::registers::{Lanes, Registers};
use crate::decode::{Register, RegisterPlan};
use crate::error::{FaultKind, Space};
use crate::read::SourceLine;
use std::fmt;

/// Work on registers, lane by lane, for the given lanes.
pub(crate) type Lanewise = Box<dyn Fn(&mut Registers, Lanes) + Send + Sync>;

/// Work that lanes do together.
pub(crate) type Collective = Box<dyn Fn(&mut Registers, Lanes) -> Result<(), FaultKind> + Send + Sync>;

/// `[base + offset]`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub base: Register,
    pub offset: i64,
}

/// One access: `count` elements of `width` bytes side by side.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub space: Space,
    pub address: Address,
    pub width: u32,
    /// Whether a narrow element is sign-extended.
    pub signed: bool,
    pub elements: Vec<Register>,
}

/// New value of a word in memory, from the old one and the operands.
pub(crate) type AtomicFunction = fn(u32, u32, u32) -> u32;

/// An atomic operation on a 32-bit word of global memory.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub address: Address,
    pub function: AtomicFunction,
    pub operands: [Register; 2],
    /// Takes the old value.
    pub old: Register,
}

/// `cp.async`: shared `to` from global `from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncCopy {
    pub to: Address,
    pub from: Address,
    pub bytes: u32,
}

/// `wgmma.mma_async`: A in registers, B in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub d: Vec<Register>,
    pub a: Vec<Register>,
    pub b: Register,
    /// Whether the accumulators are added to.
    pub accumulate: Register,
}

/// Which lanes a warp-wide instruction needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Participants {
    /// Every lane of the warp.
    All,
    /// Those of a mask.
    Members(Register),
    /// Whoever is there.
    Active,
}

pub(crate) enum Op {
    Lanewise(Lanewise),
    Collective {
        participants: Participants,
        work: Collective,
    },
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    AsyncCopy(AsyncCopy),
    AsyncCommit,
    /// Waits until at most so many groups are in flight.
    AsyncWait(u32),
    /// Waits for all copies, those too that no group holds.
    AsyncWaitAll,
    Wgmma(Wgmma),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait(u32),
    /// Orders memory accesses of the device.
    Fence,
    /// `bar.warp.sync`
    WarpBarrier(Register),
    /// `bar.sync` of the barrier with that number.
    Barrier(Register),
    /// `reconverge` is where lanes that went different ways meet.
    Branch {
        target: usize,
        reconverge: usize,
    },
    Exit,
}

/// An operation with what it takes to run and to report it.
pub(crate) struct Step {
    pub op: Op,
    /// Predicate, and whether it is negated.
    pub guard: Option<(Register, bool)>,
    /// Registers that it names.
    pub registers: Vec<Register>,
    pub line: u32,
    pub opcode: String,
    pub source_line: Option<SourceLine>,
}

/// A kernel that is ready to run.
pub(crate) struct Program {
    pub name: String,
    pub steps: Vec<Step>,
    pub registers: RegisterPlan,
    pub param_bytes: u32,
    /// Static shared memory, bytes; dynamic shared memory follows.
    pub shared_bytes: u32,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("name", &self.name).field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}
