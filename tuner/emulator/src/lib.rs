//! Runs PTX on the CPU, warp by warp, and checks it on the way: bounds, alignment, uninitialised reads, races on
//! shared memory, divergent barriers, asynchronous data that was not waited for.
//!
//! ```text
//! text → read (statements) → decode (operations on numbered registers) → exec (warps) over memory (checked)
//! ```
//!
//! An instruction that is not known is an error, never skipped. How results may differ from a GPU's is said where
//! it happens: `exec::tensor` for matrix products, `decode::float` for approximate functions.

mod decode;
mod error;
mod exec;
mod flow;
mod launch;
mod memory;
mod read;

pub use error::{Accessor, EmulationError, Fault, FaultKind, MbarrierMisuse, Space};
pub use launch::{Module, Stats, launch};
pub use memory::Memory;
pub use read::SourceLine;
