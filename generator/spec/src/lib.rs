//! The vocabulary that generator, tuner, database and runtime share.
//!
//! Pure data: no GPU, no SQL, no environment, no clock. What is *asked* is a [`Problem`] at a
//! [`Shape`]; what is *chosen* is a [`Variant`] (compiled) and a [`SplitPolicy`] (launched); the
//! name of a compiled kernel is its [`KernelId`]. The bytes of a cache are spelled once, in
//! [`kv_format`] and [`layout`], the parameters of a kernel once, in [`abi`], and which tuned shape serves
//! which others in [`bucket`].

pub mod abi;
pub mod bucket;
mod device_cache;
mod kernel_id;
pub mod kv_format;
mod launch;
pub mod layout;
mod name;
mod outcome;
mod problem;
mod shape;
mod target;
mod variant;

pub use device_cache::{DeviceCache, DeviceTensor};
pub use kernel_id::KernelId;
pub use kv_format::{ElementFormat, KvFormat, VScaleOrder};
pub use launch::{GRID_X, GRID_YZ, Launch};
pub use outcome::{CompileFacts, Evidence, GpuEnvironment, Outcome, Stage, Toolchain};
pub use problem::{AppendMode, AppendProblem, DecodeProblem, Dtype, Numerics, Operation, Problem};
pub use shape::{Lengths, Shape, Traffic, doublings};
pub use target::{REGISTERS_PER_SM, SHARED_RESERVED_PER_BLOCK, Target, TargetFacts, UnknownTarget};
pub use variant::{
    AppendVariant, DecodeVariant, Dequant, Filling, Mma, Operands, Path, SplitLaunch, SplitPolicy, Staging, Variant,
};
