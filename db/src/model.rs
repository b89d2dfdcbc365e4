//! What goes into the database: runs, kernels, trials.

use nvkv_spec::{CompileFacts, GpuEnvironment, KernelId, Outcome, Problem, Shape, SplitPolicy, Target, Variant};
use serde::{Deserialize, Serialize};

/// A row of `runs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId(pub i64);

/// A row of `trials`; a later trial has a larger id (the machine's clock has no part in it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrialId(pub i64);

/// A row of `measurements`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MeasurementId(pub i64);

/// A place in the history of a run: its trial of this clock, or the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The run.
    pub run: RunId,
    /// Its clock when it began (see `0005_history.sql`).
    pub began: i64,
    /// A trial's clock.
    pub clock: i64,
}

/// One round of measuring: trials timed against each other in one order.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// 0 for the first look, 1 and on for the rounds of a run-off.
    pub round: u32,
    /// Read ceiling measured beside it, GB/s.
    pub read_ceiling_gbps: f64,
    /// Median time of the sentinel, µs; none where it was not timed.
    pub sentinel_us: Option<f64>,
    /// Samples that were thrown away and taken again, since a sentinel beside them was disturbed.
    pub retaken: u32,
    /// Samples that were thrown away and not replaced.
    pub missing: u32,
    /// What the GPU was doing before (clocks, throttle reasons, temperature, power, ECC, MIG, other processes).
    pub state_before: serde_json::Value,
    /// The same after.
    pub state_after: serde_json::Value,
}

/// One invocation of the tuner, as it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRun {
    /// When it started, UTC, RFC 3339.
    pub started_at: String,
    /// The command line, as typed.
    pub command: String,
    /// What is tuned for.
    pub target: Target,
    /// Name of the preset.
    pub preset: String,
    /// Which launches are timed: `exhaustive` (all), or the name of the strategy that chooses them.
    pub search: String,
    /// Version of nvkv.
    pub generator: String,
    /// NVRTC's version, such as `13.0`.
    pub nvrtc: String,
    /// The GPU that measures; none where trials are compiled only (no GPU, or one of another target).
    pub environment: Option<GpuEnvironment>,
    /// How times are taken, such as `graph-replay,cold-l2,interleaved,v1`; none without a GPU.
    pub measurement_policy: Option<String>,
}

/// What identifies a compiled kernel: a change of any part makes another kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelKey {
    /// Problem and variant.
    pub kernel_id: KernelId,
    /// BLAKE3 of the rendered source, hex.
    pub source_hash: String,
    /// NVRTC's version.
    pub nvrtc: String,
}

/// A kernel of one source, as one NVRTC compiled it for one target (or failed to).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRecord {
    /// Compile target.
    pub target: Target,
    /// What it computes.
    pub problem: Problem,
    /// How; with the problem it gives the [`KernelId`].
    pub variant: Variant,
    /// BLAKE3 of the rendered source, hex.
    pub source_hash: String,
    /// NVRTC's version.
    pub nvrtc: String,
    /// Version of nvkv that first generated this source.
    pub generator: String,
    /// What came out of the compiler; none where it failed.
    pub compiled: Option<Compiled>,
}

impl KernelRecord {
    /// Its identity within the target.
    pub fn key(&self) -> KernelKey {
        KernelKey {
            kernel_id: KernelId::new(&self.problem, &self.variant),
            source_hash: self.source_hash.clone(),
            nvrtc: self.nvrtc.clone(),
        }
    }
}

/// What came out of the compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compiled {
    /// BLAKE3 of the cubin, hex.
    pub cubin_hash: String,
    /// The compiler's facts.
    pub facts: CompileFacts,
}

/// One trial, as it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialRecord {
    /// What was tried.
    pub kernel: KernelRecord,
    /// The shape it was tried at; none for a result about the kernel at every shape (a failed
    /// compile, a failed verification). Timed and compiled-only trials always have one, emulated ones
    /// never.
    pub shape: Option<Shape>,
    /// The split policy of the launch; none for append, and for results about the whole kernel.
    pub split: Option<SplitPolicy>,
    /// Whether this is the pick of an engineer without a tuner, the yardstick of its shape.
    pub is_default: bool,
    /// What became of it.
    pub outcome: Outcome,
    /// Bytes a call must move at least (`Shape::bytes`); 0 without a shape.
    pub bytes: u64,
    /// Times of single calls, µs, in the order taken; at least one for a timed trial, else none.
    pub samples: Vec<f64>,
    /// The measurement of each sample; empty where none is known.
    pub measurements: Vec<MeasurementId>,
}

/// What identifies a trial within one target and environment; a later trial of the same key supersedes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TrialKey {
    /// The kernel.
    pub kernel: KernelKey,
    /// The shape, as in [`TrialRecord`].
    pub shape: Option<Shape>,
    /// The split policy, as in [`TrialRecord`].
    pub split: Option<SplitPolicy>,
}

impl TrialRecord {
    /// Its identity within the target and the run's environment.
    pub fn key(&self) -> TrialKey {
        TrialKey { kernel: self.kernel.key(), shape: self.shape, split: self.split }
    }
}

/// A trial that failed, with its reason in the outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// The kernel.
    pub kernel_id: KernelId,
    /// The shape, if it failed at one.
    pub shape: Option<Shape>,
    /// The split policy, if it failed with one.
    pub split: Option<SplitPolicy>,
    /// What became of it.
    pub outcome: Outcome,
}

/// What identifies a place to measure, a platform: boards of one model under one driver, as two of one host. Results of
/// another model or driver are not mixed in. Boards of one model differ by a few percent in their clocks, so the tuner
/// times the kernels of one problem on one board, and compares across boards only what it resumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EnvironmentKey {
    /// The board's name.
    pub name: String,
    /// Its streaming multiprocessors: parts of a board, or boards of one name with fewer, are another platform.
    pub sms: u32,
    /// Driver version.
    pub driver: String,
}

impl From<&GpuEnvironment> for EnvironmentKey {
    fn from(environment: &GpuEnvironment) -> Self {
        Self { name: environment.name.clone(), sms: environment.sms, driver: environment.driver.clone() }
    }
}
