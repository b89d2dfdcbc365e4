//! What became of a trial, and the environment it belongs to.

use crate::name::named_enum;
use serde::{Deserialize, Serialize};

named_enum! {
    /// The step of a trial that a failure belongs to.
    Stage: "stage" {
        /// Source to PTX and cubin.
        Compile = "compile",
        /// Comparison with the CPU reference.
        Verify = "verify",
        /// Timing.
        Measure = "measure",
    }
}

/// What became of a trial. Failures are results: each is stored with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// NVRTC refused the source.
    CompileFailed {
        /// The compiler's log.
        log: String,
    },
    /// Compiled; no GPU of the target was there to run it.
    CompiledOnly {
        /// Time of one call by the generator's model, µs. A prediction, never a measurement.
        predicted_us: f64,
    },
    /// Agreed with the reference in the emulator; no GPU of the target was there. Says nothing of its speed.
    Emulated {
        /// Largest relative L2 error over the cases.
        error: f64,
        /// Cases that were run.
        cases: u32,
    },
    /// The emulator found a mistake (a race, an access out of bounds, data that was not waited for), or cannot run it.
    Faulted {
        /// The case, the PTX line, and what happened.
        detail: String,
    },
    /// The driver refused the module or the launch.
    LaunchFailed {
        /// The driver's error.
        error: String,
    },
    /// The result differs from the reference.
    Wrong {
        /// Relative L2 error, or NaN (JSON's null).
        #[serde(deserialize_with = "nan_from_null")]
        error: f64,
        /// The case that failed, and where.
        detail: String,
    },
    /// The worker did not answer in time and was killed.
    Timeout {
        /// Where.
        stage: Stage,
        /// The limit, s.
        seconds: f64,
    },
    /// The worker died: a crash or a sticky CUDA error.
    Crashed {
        /// Where.
        stage: Stage,
        /// Exit status and last words.
        detail: String,
    },
    /// Verified, then timed; the samples are stored with the trial.
    Timed {
        /// Largest relative L2 error over the verification cases.
        error: f64,
    },
}

/// JSON has no NaN: it is written as null, and read back here.
fn nan_from_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl Outcome {
    /// The short name of the outcome, as stored.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CompileFailed { .. } => "compile_failed",
            Self::CompiledOnly { .. } => "compiled_only",
            Self::Emulated { .. } => "emulated",
            Self::Faulted { .. } => "faulted",
            Self::LaunchFailed { .. } => "launch_failed",
            Self::Wrong { .. } => "wrong",
            Self::Timeout { .. } => "timeout",
            Self::Crashed { .. } => "crashed",
            Self::Timed { .. } => "timed",
        }
    }
}

/// The compiler's facts about one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompileFacts {
    /// 32-bit registers a thread.
    pub registers: u32,
    /// Static shared memory a block, bytes (the dynamic part is the footprint's).
    pub static_shared: u32,
    /// Bytes spilled (stores).
    pub spill_stores: u32,
    /// Bytes spilled (loads).
    pub spill_loads: u32,
    /// Stack frame a thread, bytes.
    pub stack: u32,
    /// Size of the cubin, bytes.
    pub cubin_bytes: u32,
    /// Instructions in the kernel's section of the cubin (16 bytes each).
    pub instructions: u32,
}

/// What compiled a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Toolchain {
    /// NVRTC's version, such as `13.0`.
    pub nvrtc: String,
    /// Version of nvkv.
    pub generator: String,
}

/// The GPU and driver that a measurement belongs to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuEnvironment {
    /// Marketing name.
    pub name: String,
    /// UUID of the board.
    pub uuid: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Driver version, such as `580.159.04`.
    pub driver: String,
    /// Highest SM clock, MHz.
    pub max_sm_clock: u32,
    /// Highest memory clock, MHz.
    pub max_memory_clock: u32,
}

/// Why a kernel in a bundle may be trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "evidence", rename_all = "snake_case")]
pub enum Evidence {
    /// Verified against the reference and timed on this GPU.
    VerifiedOnGpu {
        /// The GPU's name.
        gpu: String,
        /// Its driver.
        driver: String,
    },
    /// Agreed with the reference in the emulator, on the CPU; the order among variants is a model's.
    Emulated {
        /// Cases that were run.
        cases: u32,
        /// Largest relative L2 error over them.
        max_error: f64,
    },
    /// Compiled only; the order among variants is a model's.
    Predicted,
}
