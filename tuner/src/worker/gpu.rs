//! The parent's side of a GPU worker.

use super::request::{MeasureReport, MeasureRequest, VerifyReport, VerifyRequest};
use crate::gpu::GpuState;
use nvkv_spec::{GpuEnvironment, Outcome};
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

/// One process that owns one GPU, started at the first call.
pub struct GpuWorker {}

impl GpuWorker {
    /// A worker for CUDA device `device`.
    pub fn new(_device: u32, _limits: Limits) -> Self {
        todo!()
    }

    /// The GPU and its driver.
    pub fn environment(&mut self) -> Result<GpuEnvironment, GpuUnavailable> {
        todo!()
    }

    /// What the GPU is doing right now.
    pub fn state(&mut self) -> Result<GpuState, GpuUnavailable> {
        todo!()
    }

    /// Bandwidth of a plain read kernel, GB/s: what no kernel can pass.
    pub fn read_ceiling(&mut self) -> Result<f64, Outcome> {
        todo!()
    }

    /// Compares one kernel with the CPU reference.
    /// Fails with `Wrong`, `LaunchFailed`, `Timeout` or `Crashed`.
    pub fn verify(&mut self, _request: &VerifyRequest) -> Result<VerifyReport, Outcome> {
        todo!()
    }

    /// Times kernels against each other. A candidate that fails has its reason in the report, and the
    /// others are timed; the call itself fails only where nothing could be measured.
    pub fn measure(&mut self, _request: &MeasureRequest) -> Result<MeasureReport, Outcome> {
        todo!()
    }
}

/// The GPU that is there as device `device`, or why none can be used. Asked of a worker process, so
/// that a broken driver cannot take the tuner down.
pub fn probe_device(_device: u32) -> Result<GpuEnvironment, GpuUnavailable> {
    todo!()
}
