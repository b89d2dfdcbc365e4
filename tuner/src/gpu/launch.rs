//! A kernel from its machine code, and its launches: direct, or captured into a graph.
#![allow(unsafe_code)] // driver calls on handles that these types own

use super::buffer::KernelParams;
use super::{CudaError, Device};
use cudarc::driver::sys;
use nvkv_runtime::cu;
use object::{Object, ObjectSection};
use std::ffi::{CStr, CString};
use std::rc::Rc;

/// Grid and block of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block.
    pub threads: u32,
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
}

/// Dynamic shared memory that a kernel may use without asking, bytes.
const SHARED_WITHOUT_ASKING: u32 = 48 * 1024;

/// One kernel, loaded.
pub struct Kernel {
    device: Rc<Device>,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

impl Kernel {
    /// Loads entry point `symbol` of `cubin`.
    pub fn load(device: &Rc<Device>, cubin: &[u8], symbol: &str) -> Result<Self, CudaError> {
        let mut kernel = Self { device: device.clone(), module: std::ptr::null_mut(), function: std::ptr::null_mut() };
        if !is_whole_elf(cubin) {
            let reason = "the machine code is not a whole ELF file".to_string();
            return Err(CudaError { call: "cuModuleLoadData", reason, sticky: false });
        }
        // The driver takes no length: it reads as far as the headers say, which was checked to be inside.
        cu!(cuModuleLoadData(&mut kernel.module, cubin.as_ptr().cast()))?;
        let name = CString::new(symbol).unwrap_or_default();
        cu!(cuModuleGetFunction(&mut kernel.function, kernel.module, name.as_ptr()))?;
        Ok(kernel)
    }

    /// Compiles PTX with the driver's own compiler, and loads entry point `symbol`.
    pub fn from_ptx(device: &Rc<Device>, ptx: &str, symbol: &str) -> Result<Self, CudaError> {
        use sys::CUjit_option as Jit;
        let mut kernel = Self { device: device.clone(), module: std::ptr::null_mut(), function: std::ptr::null_mut() };
        let text = CString::new(ptx).unwrap_or_default();
        let mut log = vec![0u8; 4096];
        let mut options = [Jit::CU_JIT_ERROR_LOG_BUFFER, Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The size travels in the pointer's place.
        let mut values = [log.as_mut_ptr().cast(), log.len() as *mut std::ffi::c_void];
        // The text ends in a zero; the log is as long as the options say.
        let loaded = cu!(cuModuleLoadDataEx(
            &mut kernel.module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr()
        ));
        loaded.map_err(|error| {
            let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
            CudaError { reason: format!("{}: {log}", error.reason), ..error }
        })?;
        let name = CString::new(symbol).unwrap_or_default();
        cu!(cuModuleGetFunction(&mut kernel.function, kernel.module, name.as_ptr()))?;
        Ok(kernel)
    }

    /// Allows up to `bytes` of dynamic shared memory, as launches with that much need.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        if bytes <= SHARED_WITHOUT_ASKING {
            return Ok(());
        }
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // The function lives as long as `self`.
        cu!(cuFuncSetAttribute(self.function, attribute, bytes as i32))
    }

    /// Puts one launch into the device's stream.
    pub fn launch<P: KernelParams>(&self, geometry: Geometry, params: &P) -> Result<(), CudaError> {
        let [x, y, z] = geometry.grid;
        let mut argument: *mut std::ffi::c_void = std::ptr::from_ref(params).cast_mut().cast();
        // One argument, `P` by value, which the driver copies before it returns.
        cu!(cuLaunchKernel(
            self.function,
            x,
            y,
            z,
            geometry.threads,
            1,
            1,
            geometry.shared_bytes,
            self.device.stream,
            &mut argument,
            std::ptr::null_mut()
        ))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if !self.module.is_null() {
            // An error here follows one that was already reported.
            let _ = cu!(cuModuleUnload(self.module));
        }
    }
}

/// Whether headers and sections all lie inside `bytes`.
fn is_whole_elf(bytes: &[u8]) -> bool {
    object::File::parse(bytes).is_ok_and(|file| file.sections().all(|section| section.data().is_ok()))
}

/// Launches captured once, replayed as a whole.
pub struct Graph {
    device: Rc<Device>,
    executable: sys::CUgraphExec,
}

impl Graph {
    /// Captures the launches that `work` makes.
    pub fn capture<E: From<CudaError>>(device: &Rc<Device>, work: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // The stream lives as long as the device; the capture is ended even where `work` fails.
        cu!(cuStreamBeginCapture_v2(device.stream, mode))?;
        let captured = work();
        let ended = cu!(cuStreamEndCapture(device.stream, &mut graph));
        captured?;
        ended?;
        // `graph` is valid after a capture that ended well; the executable keeps what it needs of it.
        let instantiated = cu!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
        cu!(cuGraphDestroy(graph))?;
        instantiated?;
        Ok(Self { device: device.clone(), executable })
    }

    /// Puts one replay into the device's stream.
    pub fn replay(&self) -> Result<(), CudaError> {
        // Executable and stream live as long as `self`.
        cu!(cuGraphLaunch(self.executable, self.device.stream))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // An error here follows one that was already reported.
        let _ = cu!(cuGraphExecDestroy(self.executable));
    }
}
