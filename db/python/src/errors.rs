//! Exceptions.

use nvkv_runtime::{LaunchError, LoadError, Miss as NoKernel, OpenError};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(nvkv, Error, PyException, "Anything that nvkv refuses; the text says what is wrong and what to do.");
create_exception!(nvkv, BundleError, Error, "The bundle or the database cannot be used.");
create_exception!(nvkv, Miss, Error, "The bundle has no kernel for this.");
create_exception!(nvkv, CallError, Error, "A tensor or a number of the call is wrong; nothing was launched.");
create_exception!(nvkv, DeviceError, Error, "No driver, no GPU of the bundle's target, or the driver refused.");

pub(crate) fn open(error: OpenError) -> PyErr {
    BundleError::new_err(error.to_string())
}

pub(crate) fn miss(miss: NoKernel) -> PyErr {
    match miss {
        NoKernel::NoKernel { .. } => Miss::new_err(miss.to_string()),
        _ => CallError::new_err(miss.to_string()),
    }
}

pub(crate) fn load(error: LoadError) -> PyErr {
    match error {
        LoadError::NoKernel(_) => Miss::new_err(error.to_string()),
        LoadError::Changed(_) => BundleError::new_err(error.to_string()),
        _ => DeviceError::new_err(error.to_string()),
    }
}

pub(crate) fn launch(error: LaunchError) -> PyErr {
    match error {
        LaunchError::Call(error) => CallError::new_err(error.to_string()),
        LaunchError::Load(error) => load(error),
        LaunchError::NotLoaded { .. } | LaunchError::Cuda(_) => DeviceError::new_err(error.to_string()),
    }
}

/// A wrong argument.
pub(crate) fn call(message: impl Into<String>) -> PyErr {
    CallError::new_err(message.into())
}
