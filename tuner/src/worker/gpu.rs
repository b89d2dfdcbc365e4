//! The parent's side of a GPU worker.

use super::process::{CallError, Program, Worker};
use super::request::{MeasureReport, MeasureRequest, VerifyReport, VerifyRequest};
use super::session::{GpuAnswer, GpuRequest};
use crate::gpu::GpuState;
use nvkv_spec::{GpuEnvironment, Outcome, Stage};
use std::time::Duration;

/// Why no GPU can be used, and what mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GpuUnavailable(pub String);

/// How long one call to a GPU worker may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Starting CUDA, and reading what the device is and does.
    pub device: Duration,
    /// One verification, reference attention on the CPU included.
    pub verify: Duration,
    /// One measurement of all its candidates.
    pub measure: Duration,
}

impl Default for Limits {
    /// Generous: a first call starts CUDA, and on a busy machine the reference takes its time.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { device: seconds(60), verify: seconds(120), measure: seconds(180) }
    }
}

/// One process that owns one GPU, started at the first call. A context that a kernel destroyed ends
/// it; the next call starts another.
pub struct GpuWorker {
    worker: Worker,
    limits: Limits,
}

impl GpuWorker {
    /// A worker for CUDA device `device`.
    pub fn new(device: u32, limits: Limits) -> Self {
        Self { worker: Worker::new(Program::this(&["gpu", "--device", &device.to_string()])), limits }
    }

    /// The GPU and its driver.
    pub fn environment(&mut self) -> Result<GpuEnvironment, GpuUnavailable> {
        match self.call(&GpuRequest::Environment, self.limits.device) {
            Ok(GpuAnswer::Environment(environment)) => Ok(environment),
            other => Err(unavailable(other)),
        }
    }

    /// What the GPU is doing right now.
    pub fn state(&mut self) -> Result<GpuState, GpuUnavailable> {
        match self.call(&GpuRequest::State, self.limits.device) {
            Ok(GpuAnswer::State(state)) => Ok(state),
            other => Err(unavailable(other)),
        }
    }

    /// Bandwidth of a plain read kernel, GB/s: what no kernel can pass.
    pub fn read_ceiling(&mut self) -> Result<f64, Outcome> {
        match self.call(&GpuRequest::ReadCeiling, self.limits.measure) {
            Ok(GpuAnswer::ReadCeiling(rate)) => Ok(rate),
            other => Err(failed(other, Stage::Measure)),
        }
    }

    /// Compares one kernel with the CPU reference.
    /// Fails with `Wrong`, `LaunchFailed`, `Timeout` or `Crashed`.
    pub fn verify(&mut self, request: &VerifyRequest) -> Result<VerifyReport, Outcome> {
        match self.call(&GpuRequest::Verify(request.clone()), self.limits.verify) {
            Ok(GpuAnswer::Verified(report)) => Ok(report),
            other => Err(failed(other, Stage::Verify)),
        }
    }

    /// Times kernels against each other. A candidate that fails has its reason in the report, and the
    /// others are timed; the call itself fails only where nothing could be measured.
    pub fn measure(&mut self, request: &MeasureRequest) -> Result<MeasureReport, Outcome> {
        match self.measure_once(request) {
            Err(outcome @ (Outcome::Crashed { .. } | Outcome::Timeout { .. })) if request.candidates.len() > 1 => {
                self.measure_survivors(request, outcome)
            }
            other => other,
        }
    }

    fn measure_once(&mut self, request: &MeasureRequest) -> Result<MeasureReport, Outcome> {
        match self.call(&GpuRequest::Measure(request.clone()), self.limits.measure) {
            Ok(GpuAnswer::Measured(report)) => Ok(report),
            other => Err(failed(other, Stage::Measure)),
        }
    }

    /// One of the candidates took the worker down: tries each alone, then times those that live together.
    fn measure_survivors(&mut self, request: &MeasureRequest, first: Outcome) -> Result<MeasureReport, Outcome> {
        let alone = |candidate| MeasureRequest { candidates: vec![candidate], samples: 1, ..request.clone() };
        let tried: Vec<Result<(), Outcome>> =
            request.candidates.iter().map(|candidate| self.measure_once(&alone(candidate.clone())).map(drop)).collect();
        let survivors: Vec<_> =
            request.candidates.iter().zip(&tried).filter(|(_, t)| t.is_ok()).map(|(c, _)| c.clone()).collect();
        // All live alone, or none does: nothing more can be told apart.
        if survivors.is_empty() || survivors.len() == tried.len() {
            return Err(first);
        }
        let mut report = self.measure_once(&MeasureRequest { candidates: survivors, ..request.clone() })?;
        let mut timed = std::mem::take(&mut report.candidates).into_iter();
        report.candidates =
            tried.into_iter().filter_map(|t| t.map_or_else(|o| Some(Err(o)), |()| timed.next())).collect();
        Ok(report)
    }

    fn call(&mut self, request: &GpuRequest, limit: Duration) -> Result<GpuAnswer, CallError> {
        self.worker.call(request, limit)
    }
}

fn unavailable(answer: Result<GpuAnswer, CallError>) -> GpuUnavailable {
    GpuUnavailable(match answer {
        Ok(GpuAnswer::Unavailable(why)) => why,
        Ok(GpuAnswer::Failed(outcome)) => format!("{outcome:?}"),
        Ok(_) => "the GPU worker answered another question".to_string(),
        Err(error) => format!("the GPU worker failed: {error}"),
    })
}

fn failed(answer: Result<GpuAnswer, CallError>, stage: Stage) -> Outcome {
    match answer {
        Ok(GpuAnswer::Failed(outcome)) => outcome,
        Err(error) => error.outcome(stage),
        other => Outcome::LaunchFailed { error: unavailable(other).0 },
    }
}

/// The GPU that is there as device `device`, or why none can be used. Asked of a worker process, so
/// that a broken driver cannot take the tuner down.
pub fn probe_device(device: u32) -> Result<GpuEnvironment, GpuUnavailable> {
    GpuWorker::new(device, Limits::default()).environment()
}
