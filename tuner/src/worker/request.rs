//! What is asked of a worker and what it answers. Every type travels as JSON.

use crate::gpu::GpuState;
use nvkv_spec::{CompileFacts, KernelId, Outcome, Problem, Shape, SplitPolicy, Target, Toolchain, Variant};
use serde::{Deserialize, Serialize};

/// A source to compile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompileRequest {
    /// Target to compile for.
    pub target: Target,
    /// The kernel's name; its symbol must be in the source.
    pub id: KernelId,
    /// CUDA C++ without includes.
    pub source: String,
}

/// What the compiler gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    /// PTX text.
    pub ptx: String,
    /// Machine code (an ELF file); never empty.
    #[serde(with = "super::hex")]
    pub cubin: Vec<u8>,
    /// Registers, spills, shared memory, sizes.
    pub facts: CompileFacts,
    /// The compiler's log: warnings and the assembler's resource report.
    pub log: String,
    /// What compiled it.
    pub toolchain: Toolchain,
}

/// A compiled kernel to verify or to time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CandidateKernel {
    /// The kernel's name; its entry point is `id.symbol()`.
    pub id: KernelId,
    /// What was chosen at compile time: gives the launch geometry.
    pub variant: Variant,
    /// Split policy of the launch; verification tries several of its own, append kernels ignore it.
    pub split: SplitPolicy,
    /// Machine code.
    #[serde(with = "super::hex")]
    pub cubin: Vec<u8>,
}

/// How much of the case matrix a verification covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// A few dense cases that cover every trap once: before each timing.
    Quick,
    /// The whole matrix: winners and `make test-gpu`.
    Full,
}

/// A kernel to compare with the CPU reference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerifyRequest {
    /// The problem it solves.
    pub problem: Problem,
    /// The kernel.
    pub kernel: CandidateKernel,
    /// How thoroughly.
    pub depth: Depth,
}

/// A kernel that agreed with the reference in every case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Largest relative L2 error over the cases (0 for append kernels: they are exact to the bit).
    pub max_error: f64,
    /// Cases run.
    pub cases: u32,
}

/// Kernels of one problem to time against each other at one shape.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasureRequest {
    /// The problem.
    pub problem: Problem,
    /// The shape.
    pub shape: Shape,
    /// The kernels, timed interleaved: A B C, A B C, …
    pub candidates: Vec<CandidateKernel>,
    /// Samples a kernel.
    pub samples: u32,
}

/// Timings of one [`MeasureRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasureReport {
    /// For each candidate, in the order asked: its samples in µs, or why it has none
    /// (wrong at this shape, launch refused, crashed).
    pub candidates: Vec<Result<Vec<f64>, Outcome>>,
    /// Read ceiling measured beside them, GB/s.
    pub read_ceiling_gbps: f64,
    /// State of the GPU before the first sample.
    pub before: GpuState,
    /// State of the GPU after the last sample.
    pub after: GpuState,
    /// Running median of the sentinel between the samples, µs; none where nothing was sampled.
    pub sentinel_us: Option<f64>,
    /// Samples that were thrown away and taken again, since a sentinel beside them was disturbed.
    pub retaken: u32,
    /// Samples that were thrown away and not replaced: the disturbance did not end.
    pub missing: u32,
}
