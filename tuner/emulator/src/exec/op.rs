//! Operations with all operands resolved: what `decode` makes and a warp executes.

use super::barrier::Barrier;
use super::machine::{Blame, Machine};
use super::registers::{Lanes, Registers};
use super::warp::Stop;
use crate::decode::{Register, RegisterPlan};
use crate::error::{FaultKind, Space};
use crate::read::SourceLine;
use std::fmt;

/// Work on registers, lane by lane, for the given lanes.
pub(crate) type Lanewise = Box<dyn Fn(&mut Registers, Lanes) + Send + Sync>;

/// Work that lanes do together.
pub(crate) type Collective = Box<dyn Fn(&mut Registers, Lanes) -> Result<(), FaultKind> + Send + Sync>;

/// Work on registers and memory, for the given lanes. It may end a warp's turn.
pub(crate) type Work = Box<dyn Fn(&mut Machine, Lanes) -> Result<Option<Stop>, Blame> + Send + Sync>;

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

impl Access {
    /// Bytes in all.
    pub fn bytes(&self) -> u32 {
        self.width * self.elements.len() as u32
    }
}

/// Element types of `wgmma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WgmmaType {
    E4M3,
    E5M2,
    F16,
    Bf16,
}

/// Where A of a `wgmma` lies; in shared memory by a matrix descriptor.
#[derive(Clone, Debug)]
pub(crate) enum WgmmaA {
    Registers(Vec<Register>),
    Shared(Register),
}

/// `wgmma.mma_async`, with B in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub d: Vec<Register>,
    pub a: WgmmaA,
    pub b: Register,
    /// Whether the accumulators are added to.
    pub accumulate: Register,
    /// Of A and B.
    pub types: [WgmmaType; 2],
    /// Whether A and B in shared memory have K innermost.
    pub k_major: [bool; 2],
    /// Whether A and B count negative.
    pub negated: [bool; 2],
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
    Machine(Work),
    Load(Access),
    Store(Access),
    AsyncCommit,
    /// Waits until at most so many groups are in flight.
    AsyncWait(u32),
    /// Waits for all copies, those too that no group holds.
    AsyncWaitAll,
    Wgmma(Box<Wgmma>),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait(u32),
    /// Orders memory accesses of the device.
    Fence,
    /// `fence.proxy.async`
    ProxyFence,
    /// `bar.warp.sync`
    WarpBarrier(Register),
    /// `bar` of several warps.
    Barrier(Barrier),
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
    /// Registers that it names and a `wgmma` writes.
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
    /// Local memory of a thread, bytes.
    pub local_bytes: u32,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("name", &self.name).field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}
