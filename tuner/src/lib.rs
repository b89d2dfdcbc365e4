//! The tuner as a library: workers, verification, measurement, and the pipeline over them.

pub mod bundle;
pub mod cli;
pub mod folder;
pub mod gpu;
pub mod pipeline;
pub mod report;
pub mod worker;
