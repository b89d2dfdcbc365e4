//! Correctness on the GPU: a kernel against the CPU reference, over cases that hold every known trap.
//!
//! Outputs are poisoned and lie between canaries, what a kernel may not see is NaN, and each launch is
//! made twice on one workspace: results must be the same to the bit.

mod append;
mod case;
mod compare;
mod decode;
mod guarded;
mod host;
mod random;
mod rows;

pub(crate) use compare::{has_nan, outputs as compare_outputs};
use guarded::Guarded;
pub(crate) use host::{K_SCALE, Q_SCALE, V_SCALE, new_slots, sm_scale};
pub(crate) use random::{normal_bits, seeded};

use crate::gpu::{CudaError, Device, Kernel};
use crate::worker::{Depth, VerifyReport, VerifyRequest};
use host::{AppendData, DecodeData};
use nvkv_spec::{Outcome, Problem, Stage, Variant};
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
}

impl Failure {
    /// The same failure, with the place named before it.
    pub(crate) fn at(self, place: &str) -> Self {
        match self {
            Self::Wrong { error, detail } => Self::Wrong { error, detail: format!("{place}: {detail}") },
            Self::Cuda(error) => Self::Cuda(CudaError { reason: format!("{} at {place}", error.reason), ..error }),
        }
    }

    /// As the outcome of a trial that was at `stage`.
    pub(crate) fn outcome(self, stage: Stage) -> Outcome {
        match self {
            Self::Wrong { error, detail } => Outcome::Wrong { error, detail },
            Self::Cuda(error) if error.sticky => Outcome::Crashed { stage, detail: error.to_string() },
            Self::Cuda(error) => Outcome::LaunchFailed { error: error.to_string() },
        }
    }
}

/// Cases of one problem with their reference results.
enum Prepared {
    Decode(Vec<DecodeData>),
    Append(Vec<AppendData>),
}

/// Verifies kernels on one device; keeps the reference results of the problem at hand.
pub(crate) struct Verifier {
    device: Rc<Device>,
    prepared: Option<(Problem, Depth, Prepared)>,
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
        let mut report = VerifyReport { max_error: 0.0, cases: 0 };
        match (problem, candidate.variant, self.prepared(problem, *depth)) {
            (Problem::Decode(_), Variant::Decode(_), Prepared::Decode(cases)) => {
                for data in cases {
                    let error = decode::run(&device, &kernel, problem, &candidate.variant, data)
                        .map_err(|failure| failure.at(&data.case.name))?;
                    report.max_error = report.max_error.max(error);
                    report.cases += data.case.splits.len() as u32;
                }
            }
            (Problem::Append(p), Variant::Append(_), Prepared::Append(cases)) => {
                for data in cases {
                    append::run(&device, &kernel, p, &candidate.variant, data)
                        .map_err(|failure| failure.at(&data.case.name))?;
                    report.cases += 1;
                }
            }
            _ => {
                let detail = format!("{} is no variant of {}", candidate.variant.key(), problem.key());
                return Err(Failure::Wrong { error: f64::NAN, detail });
            }
        }
        Ok(report)
    }

    fn prepared(&mut self, problem: &Problem, depth: Depth) -> &Prepared {
        let kept = self.prepared.take().filter(|(p, d, _)| p == problem && *d == depth);
        let prepare = || match problem {
            Problem::Decode(p) => {
                Prepared::Decode(case::decode_cases(p, depth).iter().map(|c| DecodeData::new(p, c)).collect())
            }
            Problem::Append(p) => {
                Prepared::Append(case::append_cases(depth).iter().map(|c| AppendData::new(p, c)).collect())
            }
        };
        let (_, _, prepared) = self.prepared.insert(kept.unwrap_or_else(|| (*problem, depth, prepare())));
        prepared
    }
}
