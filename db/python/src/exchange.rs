//! DLPack's C exchange (dlpack.h since 1.3): a table of functions on the type of a library's tensors, which say where a
//! tensor lies and which stream is current, and make no Python object for it. PyTorch has it since 2.10.
#![allow(unsafe_code)] // calls functions of another library by pointers that it publishes

use crate::tensor::DlTensor;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{PoisonError, RwLock};

/// Name of the capsule.
const NAME: &CStr = c"dlpack_exchange_api";
/// The major version of the tables that are read: within it they only grow.
const MAJOR: u32 = 1;
/// `kDLCUDA`.
const CUDA: i32 = 2;

/// `DLPackExchangeAPIHeader`.
#[repr(C)]
struct Header {
    major: u32,
    _minor: u32,
    /// The library's table of an older major version, or null.
    previous: *const Header,
}

/// `DLPackExchangeAPI`.
#[repr(C)]
struct Table {
    header: Header,
    _allocator: *const c_void,
    _managed_from_object: *const c_void,
    _managed_to_object: *const c_void,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    current_work_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

/// The exchange of one library.
#[derive(Clone, Copy)]
pub struct Exchange(&'static Table);

// SAFETY: a table of constant functions that is never written.
unsafe impl Send for Exchange {}
// SAFETY: as above.
unsafe impl Sync for Exchange {}

impl Exchange {
    /// That of `object`'s type; none where its library has none.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        /// Types hold their place here, so that an address stays one type's.
        static KNOWN: RwLock<Vec<(Py<PyType>, Exchange)>> = RwLock::new(Vec::new());
        let kind = object.get_type();
        let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, exchange)) = known.iter().find(|(known, _)| kind.is(known)) {
            return Ok(Some(*exchange));
        }
        drop(known);
        let found = match kind.getattr_opt(intern!(object.py(), "__dlpack_c_exchange_api__"))? {
            Some(capsule) => Self::published(&capsule),
            None => None,
        };
        if let Some(exchange) = found {
            KNOWN.write().unwrap_or_else(PoisonError::into_inner).push((kind.unbind(), exchange));
        }
        Ok(found)
    }

    /// The table in a capsule, of the version that is read here; none where there is none.
    fn published(capsule: &Bound<'_, PyAny>) -> Option<Self> {
        let mut header = capsule.cast::<PyCapsule>().ok()?.pointer_checked(Some(NAME)).ok()?.as_ptr().cast::<Header>();
        // SAFETY: a capsule of that name holds a table, which begins with its header and stays as long as the process; so
        // do those that headers lead to.
        while let Some(found) = unsafe { header.cast_const().as_ref() } {
            if found.major == MAJOR {
                // SAFETY: a table of this version starts there.
                let table = unsafe { &*header.cast_const().cast::<Table>() };
                return table.tensor_from_object.is_some().then_some(Self(table));
            }
            header = found.previous.cast_mut();
        }
        None
    }

    /// Passes `object`, a tensor of this library, to `read`. Nothing is waited for: the caller's order of streams holds.
    pub fn with<T>(self, object: &Bound<'_, PyAny>, read: impl FnOnce(&DlTensor) -> T) -> PyResult<T> {
        let mut tensor = DlTensor::default();
        let status = self.0.tensor_from_object.map(|from| {
            // SAFETY: an object of the type that published the function, and room for the answer, which holds while the
            // tensor does.
            unsafe { from(object.as_ptr().cast(), &mut tensor) }
        });
        match status {
            Some(0) => Ok(read(&tensor)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    /// The library's current stream of a CUDA device; none where it does not tell.
    pub fn current_stream(self, py: Python<'_>, device: c_int) -> PyResult<Option<usize>> {
        let Some(current) = self.0.current_work_stream else { return Ok(None) };
        let mut stream = null_mut();
        // SAFETY: a function of this signature; it writes to a local.
        match unsafe { current(CUDA, device, &mut stream) } {
            0 => Ok(Some(stream as usize)),
            _ => Err(PyErr::fetch(py)),
        }
    }
}
