//! One GPU: its context, its stream, and what it is.
#![allow(unsafe_code)] // driver calls on handles that `Device` owns

use super::{CudaError, Nvml};
use cudarc::driver::sys;
use libloading::os::unix::{Library, RTLD_LAZY};
use nvkv_runtime::cu;
use nvkv_spec::GpuEnvironment;
use std::ffi::CStr;

const DRIVER: &str = "libcuda.so.1";

/// Why no GPU can be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No driver library.
    #[error(
        "{DRIVER} not found: no NVIDIA driver here; install the driver, or add its folder to LD_LIBRARY_PATH ({0})"
    )]
    NoDriver(libloading::Error),
    /// The driver sees fewer devices.
    #[error("no CUDA device {asked}: the driver sees {count} (CUDA_VISIBLE_DEVICES may hide some)")]
    NoDevice {
        /// Ordinal asked for.
        asked: u32,
        /// Devices there are.
        count: u32,
    },
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The primary context of one device, current on the thread that opened it, and one stream that
/// all work goes through in order. Neither `Send` nor `Sync`: it holds raw handles.
pub struct Device {
    handle: sys::CUdevice,
    pub(super) stream: sys::CUstream,
}

impl Device {
    /// Opens CUDA device `ordinal` and makes its primary context current on this thread.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        // cudarc panics where the driver is missing, so that is found out first.
        // SAFETY: the driver's initialisers have no precondition.
        let driver = unsafe { Library::open(Some(DRIVER), RTLD_LAZY) }.map_err(DeviceError::NoDriver)?;
        let (mut count, mut handle) = (0, 0);
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // Each call writes to a local.
        cu!(cuInit(0))?;
        drop(driver);
        cu!(cuDeviceGetCount(&mut count))?;
        if ordinal >= count as u32 {
            return Err(DeviceError::NoDevice { asked: ordinal, count: count as u32 });
        }
        cu!(cuDeviceGet(&mut handle, ordinal as i32))?;
        // The context is never released: it lives as long as the worker process.
        cu!(cuDevicePrimaryCtxRetain(&mut context, handle))?;
        cu!(cuCtxSetCurrent(context))?;
        cu!(cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        Ok(Self { handle, stream })
    }

    /// Waits until all work given so far is done; the place where faults of kernels surface.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // The stream lives as long as `self`.
        cu!(cuStreamSynchronize(self.stream))
    }

    /// Free device memory, bytes.
    pub fn free_memory(&self) -> Result<u64, CudaError> {
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(free as u64)
    }

    /// Compute capability, major and minor.
    pub fn capability(&self) -> Result<(u32, u32), CudaError> {
        use sys::CUdevice_attribute as A;
        let major = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok((major, self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?))
    }

    /// Streaming multiprocessors.
    pub fn sms(&self) -> Result<u32, CudaError> {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// L2 cache, bytes.
    pub fn l2_bytes(&self) -> Result<u64, CudaError> {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).map(u64::from)
    }

    /// UUID as `nvidia-smi -L` prints it.
    pub fn uuid(&self) -> Result<String, CudaError> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        cu!(cuDeviceGetUuid_v2(&mut uuid, self.handle))?;
        Ok(format_uuid(uuid.bytes.map(|b| b as u8)))
    }

    /// What the GPU and its driver are. Where NVML is missing, the driver is named by the CUDA
    /// version it supports, and maximal clocks are the driver API's.
    pub fn environment(&self, nvml: Option<&Nvml>) -> Result<GpuEnvironment, CudaError> {
        use sys::CUdevice_attribute as A;
        let clock = |attribute| self.attribute(attribute).map(|khz| khz / 1000).unwrap_or(0);
        let (driver, clocks) = nvml.map(|n| (n.driver(), n.max_clocks())).unwrap_or_default();
        let driver = match driver {
            Some(version) => version,
            None => self.cuda_version()?,
        };
        Ok(GpuEnvironment {
            name: self.name()?,
            uuid: self.uuid()?,
            capability: self.capability()?,
            sms: self.sms()?,
            l2_bytes: self.l2_bytes()?,
            memory_bytes: self.memory()?,
            driver,
            max_sm_clock: clocks.0.unwrap_or_else(|| clock(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)),
            max_memory_clock: clocks.1.unwrap_or_else(|| clock(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)),
        })
    }

    fn name(&self) -> Result<String, CudaError> {
        let mut name = [0; 256];
        // The driver writes at most 256 bytes, zero included.
        cu!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.handle))?;
        let bytes = name.map(|c| c as u8);
        Ok(CStr::from_bytes_until_nul(&bytes).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default())
    }

    fn memory(&self) -> Result<u64, CudaError> {
        let mut bytes = 0;
        cu!(cuDeviceTotalMem_v2(&mut bytes, self.handle))?;
        Ok(bytes as u64)
    }

    fn cuda_version(&self) -> Result<String, CudaError> {
        let mut version = 0;
        cu!(cuDriverGetVersion(&mut version))?;
        Ok(format!("CUDA {}.{}", version / 1000, version % 1000 / 10))
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        cu!(cuDeviceGetAttribute(&mut value, attribute, self.handle))?;
        Ok(value as u32)
    }
}

fn format_uuid(bytes: [u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| bytes[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("GPU-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

#[cfg(test)]
mod tests {
    use super::format_uuid;

    #[test]
    fn uuids_read_as_nvidia_smi_prints_them() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(format_uuid(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
