//! The tuner as a library: workers, verification, measurement, and the pipeline over them.

pub mod gpu;
pub mod worker;
