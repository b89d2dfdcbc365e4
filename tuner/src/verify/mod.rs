//! Correctness, on a GPU or in the emulator: a kernel against the CPU reference, over cases that hold every known trap.
//!
//! Outputs are poisoned and lie between canaries, what a kernel may not see is NaN, and each launch is
//! made twice on one workspace: results must be the same to the bit.

mod append;
mod case;
mod compare;
mod decode;
mod emulated;
mod executor;
mod guarded;
mod host;
mod kept;
mod on_gpu;
mod prepared;
mod random;
mod rows;

pub use case::{AppendCase, Content, DecodeCase, JUST_BELOW_ONE};
pub(crate) use compare::{has_nan, outputs as compare_outputs};
pub use emulated::{Emulation, Work, emulate};
use guarded::Guarded;
pub(crate) use host::{K_SCALE, Q_SCALE, SOFT_CAP, V_SCALE, new_slots, sm_scale};
pub use kept::{Output, outputs_emulated, outputs_on_gpu};
pub use prepared::Prepared;
pub(crate) use random::{normal_bits, seeded, sinks};

use crate::gpu::{CudaError, Device, Kernel};
use crate::worker::{Depth, VerifyReport, VerifyRequest};
use nvkv_emulator::EmulationError;
use nvkv_spec::{Outcome, Problem, Stage};
use on_gpu::OnGpu;
use std::rc::Rc;

/// Why a kernel failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Its result differs from the reference.
    #[error("{detail} (error {error:.2e})")]
    Wrong {
        /// Relative L2 error, or NaN.
        error: f64,
        /// The case, and where.
        detail: String,
    },
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The emulator found a mistake, or cannot run the kernel.
    #[error("{detail}")]
    Fault {
        /// The case, and what it says.
        detail: String,
    },
}

impl From<EmulationError> for Failure {
    fn from(error: EmulationError) -> Self {
        Self::Fault { detail: error.to_string() }
    }
}

impl Failure {
    /// The same failure, with the place named before it.
    pub(crate) fn at(self, place: &str) -> Self {
        match self {
            Self::Wrong { error, detail } => Self::Wrong { error, detail: format!("{place}: {detail}") },
            Self::Cuda(error) => Self::Cuda(CudaError { reason: format!("{} at {place}", error.reason), ..error }),
            Self::Fault { detail } => Self::Fault { detail: format!("{place}: {detail}") },
        }
    }

    /// As the outcome of a trial that was at `stage`.
    pub(crate) fn outcome(self, stage: Stage) -> Outcome {
        match self {
            Self::Wrong { error, detail } => Outcome::Wrong { error, detail },
            Self::Cuda(error) if error.sticky => Outcome::Crashed { stage, detail: error.to_string() },
            Self::Cuda(error) => Outcome::LaunchFailed { error: error.to_string() },
            Self::Fault { detail } => Outcome::Faulted { detail },
        }
    }
}

/// Verifies kernels on one device; keeps the reference results of the problem at hand.
pub(crate) struct Verifier {
    device: Rc<Device>,
    prepared: Option<(Depth, Prepared)>,
}

impl Verifier {
    /// A verifier that has nothing prepared.
    pub(crate) fn new(device: Rc<Device>) -> Self {
        Self { device, prepared: None }
    }

    /// Runs every case of the requested depth.
    pub(crate) fn verify(&mut self, request: &VerifyRequest) -> Result<VerifyReport, Failure> {
        let VerifyRequest { problem, kernel: candidate, depth } = request;
        let device = self.device.clone();
        let kernel = Kernel::load(&device, &candidate.cubin, &candidate.id.symbol())?;
        let prepared = self.prepared(problem, *depth);
        prepared.run(&candidate.variant, || Ok(OnGpu { device: &device, kernel: &kernel }))
    }

    fn prepared(&mut self, problem: &Problem, depth: Depth) -> &Prepared {
        let kept = self.prepared.take().filter(|(d, prepared)| prepared.problem() == problem && *d == depth);
        let (_, prepared) = self.prepared.insert(kept.unwrap_or_else(|| (depth, Prepared::for_gpu(problem, depth))));
        prepared
    }
}
