//! One candidate, ready to be timed.

use super::append::AppendBench;
use super::decode::DecodeBench;
use super::probe::Probe;
use crate::gpu::{Buffer, CudaError, Device, Geometry, Graph, Kernel, KernelParams};
use crate::verify::Failure;
use crate::worker::CandidateKernel;
use nvkv_generator::launch;
use nvkv_spec::{Problem, Shape};
use std::rc::Rc;

/// The inputs that all candidates of one measurement share.
pub(super) enum Bench {
    Decode(DecodeBench),
    Append(AppendBench),
}

/// A kernel with a captured launch, and what that launch needs to stay alive.
pub(super) struct Prepared {
    pub(super) graph: Graph,
    _kernel: Kernel,
    _workspace: Buffer,
}

impl Bench {
    /// Allocates and fills what `problem` takes at `shape`.
    pub(super) fn new(device: &Rc<Device>, probe: &Probe, problem: &Problem, shape: &Shape) -> Result<Self, Failure> {
        match (problem, *shape) {
            (Problem::Decode(p), Shape::Decode { batch, context, kv_heads, lengths }) => {
                let kv_len = lengths.of(batch, context);
                Ok(Self::Decode(DecodeBench::new(device, probe, p, shape, &kv_len, kv_heads)?))
            }
            (Problem::Append(p), Shape::Append { tokens, kv_heads }) => {
                Ok(Self::Append(AppendBench::new(device, p, tokens, kv_heads)?))
            }
            _ => {
                let detail = format!("{} is no shape of {}", shape.key(), problem.key());
                Err(Failure::Wrong { error: f64::NAN, detail })
            }
        }
    }

    /// Runs the candidate once, checks what it gives at this very shape, and captures its launch.
    pub(super) fn prepare(
        &self,
        device: &Rc<Device>,
        problem: &Problem,
        shape: &Shape,
        candidate: &CandidateKernel,
    ) -> Result<Prepared, Failure> {
        let launch = launch(problem, &candidate.variant, shape, candidate.split);
        let kernel = Kernel::load(device, &candidate.cubin, &candidate.id.symbol())?;
        kernel.allow_shared(launch.shared_bytes)?;
        let workspace = Buffer::new(device, launch.workspace_bytes as usize)?;
        workspace.fill(0, workspace.bytes(), 0)?;
        let geometry = Geometry { grid: launch.grid, threads: launch.threads, shared_bytes: launch.shared_bytes };
        let graph = match self {
            Self::Decode(bench) => {
                let params = bench.params(&launch, workspace.address());
                self.check(|| run(device, &kernel, geometry, &params))?;
                capture(device, &kernel, geometry, &params)?
            }
            Self::Append(bench) => {
                let params = bench.params();
                self.check(|| run(device, &kernel, geometry, &params))?;
                capture(device, &kernel, geometry, &params)?
            }
        };
        Ok(Prepared { graph, _kernel: kernel, _workspace: workspace })
    }

    /// Runs `launch` on a poisoned output, waits, and checks what it gave.
    pub(super) fn check(&self, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<(), Failure> {
        match self {
            Self::Decode(bench) => bench.check(launch),
            Self::Append(bench) => bench.check(launch),
        }
    }
}

fn run<P: KernelParams>(device: &Device, kernel: &Kernel, geometry: Geometry, params: &P) -> Result<(), CudaError> {
    kernel.launch(geometry, params)?;
    device.synchronize()
}

fn capture<P: KernelParams>(
    device: &Rc<Device>,
    kernel: &Kernel,
    geometry: Geometry,
    params: &P,
) -> Result<Graph, CudaError> {
    Graph::capture(device, || kernel.launch(geometry, params))
}
