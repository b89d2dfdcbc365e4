//! The tuner as a library: workers, verification, measurement, and the pipeline over them.

pub mod bundle;
pub mod cli;
pub mod folder;
pub mod gpu;
mod measure;
pub mod pipeline;
pub mod report;
mod verify;
pub mod worker;
