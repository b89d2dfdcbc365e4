//! Compile workers: the parent's handle, and the child's work.

use super::frame::Reply;
use super::process::{Program, Worker, this_binary};
use super::request::{CompileRequest, Compiled};
use super::serve::serve;
use crate::gpu::{self, CompileError, Nvrtc};
use nvkv_spec::{Outcome, Stage};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Why a source gave no kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NoKernel {
    /// What became of this source: `CompileFailed`, `Timeout` or `Crashed`.
    Failed(Outcome),
    /// No source can be compiled here: why, and what mends it. No source is at fault.
    NoCompiler(String),
}

/// One compiler process, started at the first call. Give each rayon thread its own:
/// `sources.par_iter().map_init(|| CompileWorker::new(limit), |worker, source| worker.compile(source))`.
pub struct CompileWorker {
    worker: Worker,
    limit: Duration,
}

impl CompileWorker {
    /// A worker whose calls may take `limit` each; the running binary must be `nvkv-tune`.
    pub fn new(limit: Duration) -> Self {
        Self::of_binary(this_binary(), limit)
    }

    /// The same, from the `nvkv-tune` at `binary`.
    pub fn of_binary(binary: PathBuf, limit: Duration) -> Self {
        Self { worker: Worker::new(Program::new(binary, &["compile"])), limit }
    }

    /// Compiles one source.
    pub fn compile(&mut self, request: &CompileRequest) -> Result<Compiled, NoKernel> {
        let answer: Result<Result<Compiled, NoKernel>, _> = self.worker.call(request, self.limit);
        answer.unwrap_or_else(|error| Err(NoKernel::Failed(error.outcome(Stage::Compile))))
    }
}

/// The hidden subcommand `worker compile`: answers [`CompileRequest`]s until stdin closes.
pub fn compile_main() -> ExitCode {
    let mut nvrtc = None;
    serve(move |request: CompileRequest| Reply { answer: compile(&mut nvrtc, &request), last: false })
}

fn compile(nvrtc: &mut Option<Nvrtc>, request: &CompileRequest) -> Result<Compiled, NoKernel> {
    let nvrtc = match nvrtc {
        Some(nvrtc) => nvrtc,
        None => nvrtc.insert(gpu::working_nvrtc(request.target).map_err(|e| NoKernel::NoCompiler(e.to_string()))?),
    };
    match gpu::compile(nvrtc, &request.source, request.target.name(), &request.id.symbol()) {
        Ok(binary) => Ok(Compiled {
            ptx: binary.ptx,
            cubin: binary.cubin,
            facts: binary.facts,
            log: binary.log,
            toolchain: gpu::toolchain(nvrtc),
        }),
        Err(CompileError::Refused(log)) => Err(NoKernel::Failed(Outcome::CompileFailed { log })),
        // Not the source's fault for certain (no memory, say): like a crash, it is tried again another time.
        Err(CompileError::Nvrtc(error)) => {
            Err(NoKernel::Failed(Outcome::Crashed { stage: Stage::Compile, detail: error.to_string() }))
        }
    }
}
