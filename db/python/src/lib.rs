//! The runtime for Python. Tensors of any library: PyTorch's by their attributes, others by
//! `__cuda_array_interface__` or DLPack; nothing is imported that the caller did not import.

mod answers;
mod arguments;
mod device;
mod errors;
mod runtime;
mod tensor;

use pyo3::prelude::*;

/// The native half of `nvkv`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::answers::{PyFound, PyProblem};
    #[pymodule_export]
    use crate::errors::{BundleError, CallError, DeviceError, Error, Miss};
    #[pymodule_export]
    use crate::runtime::PyRuntime;
}
