//! Crash isolation: compilers and GPU work run in child processes of the same binary.
//!
//! A worker is `nvkv-tune worker compile` or `nvkv-tune worker gpu --device N`; parent and child
//! exchange length-prefixed JSON over stdin and stdout, and the last of the child's stderr is kept as
//! its last words. A call that does not come back in time, or whose worker dies, is an
//! [`Outcome`](nvkv_spec::Outcome); the next call starts a fresh worker.

mod compile;
mod gpu;
mod hex;
mod request;

pub use compile::CompileWorker;
pub use gpu::{GpuUnavailable, GpuWorker, Limits, probe_device};
pub use request::{
    CandidateKernel, CompileRequest, Compiled, Depth, MeasureReport, MeasureRequest, VerifyReport, VerifyRequest,
};

/// The hidden subcommand `worker compile`: answers [`CompileRequest`]s until stdin closes.
pub fn compile_main() {
    todo!()
}

/// The hidden subcommand `worker gpu --device N`: answers GPU requests until stdin closes.
pub fn gpu_main(_device: u32) {
    todo!()
}
