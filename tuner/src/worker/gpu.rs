//! The parent's side of a GPU worker.

use super::process::{CallError, Program, Worker, this_binary};
use super::request::{MeasureReport, MeasureRequest, VerifyReport, VerifyRequest};
use super::session::{GpuAnswer, GpuRequest};
use crate::gpu::GpuState;
use nvkv_spec::{GpuEnvironment, Outcome, Stage, Traffic};
use std::path::PathBuf;
use std::time::Duration;

/// Time for the first call to a driver, which may have to wake a device.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

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

/// One process that owns one GPU, started at the first call. A context that a kernel destroyed ends
/// it; the next call starts another.
pub struct GpuWorker {
    worker: Worker,
    limits: Limits,
}

impl GpuWorker {
    /// A worker for CUDA device `device`; the running binary must be `nvkv-tune`.
    pub fn new(device: u32, limits: Limits) -> Self {
        Self::of_binary(this_binary(), device, limits)
    }

    /// The same, from the `nvkv-tune` at `binary`.
    pub fn of_binary(binary: PathBuf, device: u32, limits: Limits) -> Self {
        Self { worker: Worker::new(Program::new(binary, &["gpu", "--device", &device.to_string()])), limits }
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

    /// Time of a plain kernel that moves so many bytes and computes nothing, µs: what a kernel with that traffic can
    /// hope for. Timed as candidates are, `samples` times at each of several grids: the median at the best one; none
    /// where no sample was undisturbed.
    pub fn transfer(&mut self, traffic: Traffic, samples: u32) -> Result<Option<f64>, Outcome> {
        match self.call(&GpuRequest::Transfer { traffic, samples }, self.limits.measure) {
            Ok(GpuAnswer::Transferred(us)) => Ok(us),
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

    /// Times kernels against each other. A candidate that is wrong or refused at this shape has that in
    /// the report, and the others are timed; the call fails where the worker died or was late, and then
    /// does not tell which candidate did it.
    pub fn measure(&mut self, request: &MeasureRequest) -> Result<MeasureReport, Outcome> {
        match self.call(&GpuRequest::Measure(request.clone()), self.limits.measure) {
            Ok(GpuAnswer::Measured(report)) => Ok(report),
            other => Err(failed(other, Stage::Measure)),
        }
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
    let limits = Limits { device: PROBE_LIMIT, verify: PROBE_LIMIT, measure: PROBE_LIMIT };
    GpuWorker::new(device, limits).environment()
}
