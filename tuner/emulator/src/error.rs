//! What can go wrong, from a line that is no PTX to a kernel that races with itself.

use crate::read::SourceLine;
use std::fmt;

/// Why a module was not read, or a launch not finished.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EmulationError {
    /// A line is not PTX as this reader knows it.
    #[error("PTX line {line}: {problem} in `{text}`")]
    Syntax {
        /// Line, from 1.
        line: u32,
        /// The line itself.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An instruction that the emulator does not have. It is never skipped.
    #[error("PTX line {line}: unknown instruction `{opcode}`; it must be added to the emulator's `decode`")]
    UnknownInstruction {
        /// Line, from 1.
        line: u32,
        /// Opcode with its modifiers.
        opcode: String,
    },
    /// A known instruction with operands that do not fit it.
    #[error("PTX line {line}: `{opcode}`: {problem}")]
    Operand {
        /// Line, from 1.
        line: u32,
        /// Opcode with its modifiers.
        opcode: String,
        /// What does not fit.
        problem: String,
    },
    /// The module has no such kernel.
    #[error("no kernel `{symbol}` in the module; it has {known}")]
    NoKernel {
        /// What was asked for.
        symbol: String,
        /// What there is.
        known: String,
    },
    /// The launch does not fit the kernel.
    #[error("launch of `{symbol}`: {problem}")]
    Launch {
        /// The kernel.
        symbol: String,
        /// What does not fit.
        problem: String,
    },
    /// A host access outside every allocation.
    #[error("host access to {bytes} bytes at {address:#x}: not inside one allocation")]
    HostAccess {
        /// Device address.
        address: u64,
        /// Length.
        bytes: usize,
    },
    /// The kernel did something it must not do.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// A kernel's mistake, and where it was made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// PTX line, from 1.
    pub line: u32,
    /// The instruction, with its modifiers.
    pub opcode: String,
    /// CUDA source line, where the PTX has `.loc`.
    pub source_line: Option<SourceLine>,
    /// Block index.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// Lane, where one is to blame.
    pub lane: Option<u32>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {} `{}`", self.line, self.opcode)?;
        if let Some(source_line) = &self.source_line {
            write!(f, " ({source_line})")?;
        }
        let [x, y, z] = self.block;
        write!(f, ", block ({x}, {y}, {z}), warp {}", self.warp)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        write!(f, ": {}", self.kind)
    }
}

/// A memory space, as messages and accesses name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Kernel parameters.
    Param,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Param => "parameter",
        })
    }
}

/// What a kernel did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// Outside every allocation, or across the end of one.
    #[error("{bytes} bytes at {space} address {address:#x}: out of bounds")]
    OutOfBounds {
        /// Where.
        space: Space,
        /// First byte.
        address: u64,
        /// Length of the access.
        bytes: u32,
    },
    /// An address that is no multiple of the access.
    #[error("{bytes} bytes at {space} address {address:#x}: misaligned")]
    Misaligned {
        /// Where.
        space: Space,
        /// First byte.
        address: u64,
        /// Length of the access.
        bytes: u32,
    },
    /// A read of a byte that nobody wrote.
    #[error("reads {space} address {address:#x}, which was never written")]
    Uninitialised {
        /// Where.
        space: Space,
        /// The byte.
        address: u64,
    },
    /// Two threads, no barrier between them, and one of them writes.
    #[error("{} {space} address {address:#x}, which {other} {} with no barrier in between", verb(*.writes), past(*.other_wrote))]
    Race {
        /// Where.
        space: Space,
        /// The byte.
        address: u64,
        /// Whether this access writes.
        writes: bool,
        /// The other thread or threads.
        other: Accessor,
        /// Whether the other access wrote.
        other_wrote: bool,
    },
    /// Two blocks, one of them writing, and no fence and atomic in between.
    #[error(
        "{} global address {address:#x}, which block {other:?} {} in this launch with no fence and atomic in between",
        verb(*.writes),
        past(*.other_wrote)
    )]
    BlockRace {
        /// The byte, or the word that holds it.
        address: u64,
        /// Whether this access writes.
        writes: bool,
        /// The other block.
        other: [u32; 3],
        /// Whether the other access wrote.
        other_wrote: bool,
    },
    /// A read through the cache of constants (`ld.global.nc`) of what the launch itself wrote.
    #[error("reads global address {address:#x} with `.nc`, where this launch wrote: it need not see that")]
    ConstantWritten {
        /// First byte of the read.
        address: u64,
    },
    /// A byte that an asynchronous copy may still write.
    #[error("touches shared address {address:#x} while an asynchronous copy of {other} to it is not waited for")]
    AsyncPending {
        /// The byte.
        address: u64,
        /// Whose copy.
        other: Accessor,
    },
    /// A byte that an asynchronous operation may still read.
    #[error("writes shared address {address:#x} while an asynchronous operation that reads it is not waited for")]
    AsyncReading {
        /// The byte, or the first of the 16 that hold it.
        address: u64,
    },
    /// The asynchronous proxy would use what ordinary stores wrote, or write over it, unfenced.
    #[error("uses shared address {address:#x}, which {other} wrote, with no `fence.proxy.async` in between")]
    ProxyFence {
        /// The byte.
        address: u64,
        /// Who wrote it.
        other: Accessor,
    },
    /// An mbarrier that is used as it must not be.
    #[error("mbarrier at shared address {address:#x}: {misuse}")]
    Mbarrier {
        /// The mbarrier.
        address: u64,
        /// What is wrong.
        misuse: MbarrierMisuse,
    },
    /// A load or store of an mbarrier's bytes.
    #[error("touches shared address {address:#x}, which belongs to an mbarrier")]
    MbarrierAccess {
        /// The byte.
        address: u64,
    },
    /// A register that an asynchronous MMA may still write.
    #[error("uses a register of a `wgmma` that is not waited for")]
    WgmmaPending,
    /// Accumulators of an asynchronous MMA without the fence that orders register accesses before it.
    #[error("no `wgmma.fence` since the warp began or last waited for a `wgmma`")]
    WgmmaFence,
    /// A matrix descriptor with a base offset.
    #[error("matrix descriptor {0:#x}: base offsets are not supported; align the matrix to its swizzle")]
    Descriptor(u64),
    /// A block barrier that only some lanes of a warp reach together.
    #[error("block barrier with lanes {active:#010x} of {live:#010x}: the warp is divergent")]
    DivergentBarrier {
        /// Lanes that are there.
        active: u32,
        /// Lanes that have not exited.
        live: u32,
    },
    /// Warps of one block wait at different barriers.
    #[error("waits at barrier {barrier} while warp {other} waits at barrier {other_barrier}")]
    MixedBarriers {
        /// This warp's barrier.
        barrier: u32,
        /// Another warp.
        other: u32,
        /// The barrier at which it waits.
        other_barrier: u32,
    },
    /// A barrier that no block has.
    #[error("barrier {0}: a block has 0 to 15")]
    BarrierNumber(u32),
    /// Lanes of one warp that name different barriers, or different numbers of threads.
    #[error("lanes of the warp name different barriers, or different numbers of threads")]
    BarrierLanes,
    /// Two warps name different numbers of threads for one barrier.
    #[error("barrier {barrier} of {threads} threads, of {others} for those who came before")]
    BarrierThreads {
        /// The barrier.
        barrier: u32,
        /// Threads that this warp waits for; 0 where it says none.
        threads: u32,
        /// What another said.
        others: u32,
    },
    /// A number of threads that is no multiple of 32, more than the block has, or fewer than came.
    #[error("barrier {barrier} of {threads} threads: not a multiple of 32 up to the block's")]
    BarrierSize {
        /// The barrier.
        barrier: u32,
        /// Threads.
        threads: u32,
    },
    /// Every warp waits.
    #[error("waits for what no warp will do: all others wait too, or have ended")]
    Deadlock,
    /// A warp-wide instruction without all the lanes that it names.
    #[error("needs lanes {needed:#010x}, but {active:#010x} are here")]
    MissingLanes {
        /// Lanes that must take part.
        needed: u32,
        /// Lanes that do.
        active: u32,
    },
    /// A warp that ran for too long: most likely it waits for what never comes.
    #[error("no end after {0} instructions of one warp")]
    NoEnd(u64),
}

/// How an mbarrier is misused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MbarrierMisuse {
    /// There is none.
    #[error("not initialised")]
    NotMade,
    /// A number of arrivals outside what an mbarrier counts.
    #[error("initialised with {0} arrivals, not 1 to 1048575")]
    Count(u32),
    /// More arrivals than the phase expects, none, or the last one by an instruction that must not end a phase.
    #[error("{count} arrivals where the phase lacks {pending}")]
    Arrivals {
        /// Arrivals that the phase lacks.
        pending: u32,
        /// Arrivals that came.
        count: u32,
    },
    /// More bytes announced, or come, than an mbarrier counts.
    #[error("a count of {0} bytes, beyond 1048575")]
    Bytes(i64),
    /// A state that is neither the running phase's nor the one's before.
    #[error("state {0:#x} is of no current phase")]
    State(u64),
    /// Copies that it counts are under way.
    #[error("dropped, or left at the end of the block, while asynchronous copies that it counts are under way")]
    InFlight,
}

fn verb(writes: bool) -> &'static str {
    if writes { "writes" } else { "reads" }
}

fn past(wrote: bool) -> &'static str {
    if wrote { "wrote" } else { "read" }
}

/// A thread or threads of a block that accessed shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessor {
    /// Warp; none where several warps did.
    pub warp: Option<u32>,
    /// Lane; none where several lanes did.
    pub lane: Option<u32>,
}

impl fmt::Display for Accessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.warp, self.lane) {
            (Some(warp), Some(lane)) => write!(f, "lane {lane} of warp {warp}"),
            (Some(warp), None) => write!(f, "warp {warp}"),
            (None, _) => f.write_str("several warps"),
        }
    }
}
