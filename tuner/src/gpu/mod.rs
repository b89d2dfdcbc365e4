//! CUDA and NVRTC: the only importer of cudarc, and the only place with `unsafe`.

mod state;

pub use state::GpuState;
