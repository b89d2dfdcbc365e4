//! The CUDA driver, loaded at run time: errors named by the call that returned them.
#![allow(unsafe_code)] // asks the driver for the texts of its own codes

use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct CudaError {
    /// The function.
    pub call: &'static str,
    /// Name and text of the code.
    pub reason: String,
    /// Whether the context is lost: every later call would fail too, so the process must end.
    pub sticky: bool,
}

impl CudaError {
    /// Turns the code that `call` returned into a result.
    pub fn check(call: &'static str, code: CUresult) -> Result<(), Self> {
        match code {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(Self { call, reason: describe(code), sticky: is_sticky(code) }),
        }
    }
}

fn describe(code: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut pointer = std::ptr::null();
        // SAFETY: writes a pointer to a static string, or leaves null for an unknown code.
        unsafe { get(code, &mut pointer) };
        // SAFETY: not null, so a static string.
        (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
        _ => format!("error {}", code as u32),
    }
}

/// Refusals leave the context usable; anything else (an illegal address, a launch failure, an
/// unknown error) is taken to have destroyed it.
fn is_sticky(code: CUresult) -> bool {
    use CUresult as R;
    !matches!(
        code,
        R::CUDA_ERROR_INVALID_VALUE
            | R::CUDA_ERROR_OUT_OF_MEMORY
            | R::CUDA_ERROR_NOT_INITIALIZED
            | R::CUDA_ERROR_NO_DEVICE
            | R::CUDA_ERROR_INVALID_DEVICE
            | R::CUDA_ERROR_INVALID_IMAGE
            | R::CUDA_ERROR_INVALID_SOURCE
            | R::CUDA_ERROR_NO_BINARY_FOR_GPU
            | R::CUDA_ERROR_NOT_FOUND
            | R::CUDA_ERROR_INVALID_HANDLE
            | R::CUDA_ERROR_NOT_SUPPORTED
            | R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            | R::CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING
            | R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    )
}

/// Calls a driver function (`cudarc` must be a dependency of the caller) and names it in the error. Each use says why
/// its arguments are right.
#[macro_export]
macro_rules! cu {
    ($call:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::CudaError::check(stringify!($call), unsafe { cudarc::driver::sys::$call($($argument),*) })
    };
}
