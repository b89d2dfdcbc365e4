//! The runtime for Python. Tensors of any library, by DLPack's C exchange, PyTorch's attributes,
//! `__cuda_array_interface__` or DLPack's capsules; nothing is imported that the caller did not import.

mod answers;
mod arguments;
mod device;
mod errors;
mod exchange;
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
