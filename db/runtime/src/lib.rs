//! What an inference engine uses: open a bundle, find the kernel for a step, launch it.
//!
//! [`Runtime::open`] reads and checks a bundle once. [`Runtime::find`] answers from memory, [`Runtime::prepare`] loads
//! kernels into a CUDA context ahead, and [`Runtime::decode`] and [`Runtime::append`] put a launch into the caller's
//! stream: they neither allocate nor wait, and may be captured into a graph. A [`Runtime`] is shared between threads by
//! reference. CUDA is found at run time: without it everything but loading and launching works.
//!
//! The guide, from a bundle to the first token, is `docs/engine-guide.md`.

#![allow(clippy::macro_metavars_in_unsafe)] // `cu!`: a driver call is unsafe as a whole, its arguments included

pub mod bundle;
mod check;
#[cfg(feature = "db")]
mod database;
pub mod driver;
mod explain;
mod find;
#[cfg(feature = "fixture")]
pub mod fixture;
mod index;
mod launch;
mod log;
mod runtime;

pub use check::CallError;
pub use explain::{Explanation, Near, tune_command};
pub use find::{Found, Miss, NEAR, Trust};
pub use launch::{LaunchError, LoadError, Stream};
pub use log::{Asked, HISTOGRAM_SCHEMA, Histogram, rounded};
pub use nvkv_spec as spec;
pub use runtime::{OpenError, Refused, Runtime};
