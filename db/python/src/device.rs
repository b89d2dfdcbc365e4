//! Contexts of the calling thread, and memory that a call needs besides its tensors.
#![allow(unsafe_code)] // driver calls: contexts and allocations

use crate::errors::{self, DeviceError};
use nvkv_runtime::driver::CudaError;
use nvkv_runtime::spec::abi::COUNTER_BYTES;
use nvkv_runtime::{LoadError, Runtime, cu};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes before the workspace that hold the status word: its alignment.
const STATUS_BYTES: u64 = 256;

fn refused(error: CudaError) -> PyErr {
    DeviceError::new_err(error.to_string())
}

/// Sees to it that `device`'s context is current on this thread: where none is, its primary one becomes so, as PyTorch
/// has it.
pub fn use_device(device: i32) -> PyResult<()> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: the driver's initialisers have no precondition.
    if !*PRESENT.get_or_init(|| unsafe { cudarc::driver::sys::is_culib_present() }) {
        return Err(errors::load(LoadError::NoDriver));
    }
    let mut current = -1;
    // Each call writes to a local.
    if cu!(cuCtxGetDevice(&mut current)).is_ok() {
        if current == device {
            return Ok(());
        }
        let text = format!(
            "the tensors are on device {device}, but {current} is current: use `with torch.cuda.device({device})`"
        );
        return Err(errors::call(text));
    }
    let (mut handle, mut context) = (0, null_mut());
    cu!(cuInit(0)).map_err(refused)?;
    cu!(cuDeviceGet(&mut handle, device)).map_err(refused)?;
    // Never released: it lives as long as the process, as other libraries' do.
    cu!(cuDevicePrimaryCtxRetain(&mut context, handle)).map_err(refused)?;
    cu!(cuCtxSetCurrent(context)).map_err(refused)
}

/// Memory of one stream: a workspace, and a status word that nobody reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scratch {
    pub workspace: u64,
    pub bytes: u64,
    pub status: u64,
}

/// Scratch memory by device and stream. It grows and is never freed: captured graphs hold its address.
#[derive(Default)]
pub struct Scratches(Mutex<HashMap<(i32, usize), Scratch>>);

impl Scratches {
    /// Scratch of at least `bytes` bytes of workspace for a stream of the current context.
    pub fn at_least(&self, runtime: &Runtime, key: (i32, usize), bytes: u64) -> PyResult<Scratch> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = all.get(&key).filter(|scratch| scratch.bytes >= bytes) {
            return Ok(*scratch);
        }
        let stream = key.1 as *mut std::ffi::c_void;
        let mut capturing = cudarc::driver::sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // The stream is the caller's; the status is written to a local.
        cu!(cuStreamIsCapturing(stream.cast(), &mut capturing)).map_err(refused)?;
        if capturing != cudarc::driver::sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            let text = format!(
                "this call needs {bytes} B of workspace, and memory cannot be had while a graph is captured: \
                 call reserve({bytes}, stream=...) or pass workspace="
            );
            return Err(DeviceError::new_err(text));
        }
        let bytes = bytes.max(COUNTER_BYTES).next_power_of_two();
        let mut address = 0;
        cu!(cuMemAlloc_v2(&mut address, (STATUS_BYTES + bytes) as usize)).map_err(refused)?;
        let scratch = Scratch { workspace: address + STATUS_BYTES, bytes, status: address };
        cu!(cuMemsetD8Async(address, 0, STATUS_BYTES as usize, stream.cast())).map_err(refused)?;
        // SAFETY: just allocated, in the current context.
        unsafe { runtime.zero_workspace(scratch.workspace, bytes, stream) }.map_err(errors::launch)?;
        all.insert(key, scratch);
        Ok(scratch)
    }
}
