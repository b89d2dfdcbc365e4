//! CUDA and NVRTC: the only importer of cudarc, and the only place with `unsafe`.

mod buffer;
mod compile;
mod device;
mod launch;
mod nvml;
mod nvrtc;
mod nvrtc_path;
mod probe_params;
mod state;
mod timer;

pub use buffer::{Buffer, KernelParams, Plain};
pub use compile::{Binary, CompileError, compile, toolchain, working_nvrtc};
pub use device::{Device, DeviceError};
pub use launch::{Geometry, Graph, Kernel};
pub use nvkv_runtime::driver::CudaError;
pub use nvml::Nvml;
pub use nvrtc::{Nvrtc, NvrtcError};
pub use nvrtc_path::NvrtcMissing;
pub use probe_params::{FillParams, ReadParams, TransferParams};
pub use state::GpuState;
pub use timer::Timer;
