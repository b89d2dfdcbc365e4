//! Crash isolation: compilers and GPU work run in child processes of the same binary.
//!
//! A worker is `nvkv-tune worker compile` or `nvkv-tune worker gpu --device N`; parent and child
//! exchange length-prefixed JSON over stdin and stdout, and the last of the child's stderr is kept as
//! its last words. A call that does not come back in time, or whose worker dies, is an
//! [`Outcome`](nvkv_spec::Outcome); the next call starts a fresh worker.

mod compile;
#[cfg(test)]
pub mod fake;
mod frame;
mod gpu;
mod hex;
mod process;
mod request;
mod serve;
mod session;

pub use compile::{CompileWorker, NoKernel, compile_main};
pub use gpu::{GpuUnavailable, GpuWorker, Limits, probe_device};
pub use request::{
    CandidateKernel, CompileRequest, Compiled, Depth, MeasureReport, MeasureRequest, VerifyReport, VerifyRequest,
};
pub use session::gpu_main;
