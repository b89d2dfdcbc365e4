//! Status codes, and the message of a thread's last failure.

use nvkv_runtime::{LaunchError, LoadError, Miss, OpenError};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What came of a call. Past NVKV_OK, nvkv_last_error says what is wrong and what to do.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum nvkv_status {
    /// Done.
    NVKV_OK = 0,
    /// The bundle has no kernel for this.
    NVKV_MISS = 1,
    /// An argument is wrong: a null or misaligned pointer, a stride, a size, a number that names nothing.
    NVKV_BAD_ARGUMENT = 2,
    /// The bundle or the database cannot be used.
    NVKV_UNUSABLE = 3,
    /// No driver, no current context, or a GPU of another target.
    NVKV_NO_DEVICE = 4,
    /// The kernel is not loaded in the current context: call nvkv_prepare.
    NVKV_NOT_LOADED = 5,
    /// The CUDA driver refused.
    NVKV_CUDA = 6,
    /// A defect of nvkv.
    NVKV_INTERNAL = 7,
}

/// A failure on its way to C.
#[derive(Debug)]
pub(crate) struct Error {
    status: nvkv_status,
    pub message: String,
}

impl Error {
    fn new(status: nvkv_status, message: impl Display) -> Self {
        Self { status, message: message.to_string() }
    }

    pub fn argument(message: String) -> Self {
        Self::new(nvkv_status::NVKV_BAD_ARGUMENT, message)
    }

    pub fn null(name: &str) -> Self {
        Self::argument(format!("{name} is null"))
    }

    pub fn internal(message: impl Display) -> Self {
        Self::new(nvkv_status::NVKV_INTERNAL, message)
    }

    pub fn open(error: OpenError) -> Self {
        Self::new(nvkv_status::NVKV_UNUSABLE, error)
    }

    pub fn miss(miss: Miss) -> Self {
        let status = match miss {
            Miss::NoKernel { .. } => nvkv_status::NVKV_MISS,
            _ => nvkv_status::NVKV_BAD_ARGUMENT,
        };
        Self::new(status, miss)
    }

    pub fn load(error: LoadError) -> Self {
        let status = match error {
            LoadError::NoDriver | LoadError::NoContext | LoadError::OtherTarget { .. } => nvkv_status::NVKV_NO_DEVICE,
            LoadError::NoKernel(_) => nvkv_status::NVKV_MISS,
            LoadError::Changed(_) => nvkv_status::NVKV_UNUSABLE,
            LoadError::Cuda(_) => nvkv_status::NVKV_CUDA,
        };
        Self::new(status, error)
    }

    pub fn launch(error: LaunchError) -> Self {
        match error {
            LaunchError::Load(error) => Self::load(error),
            LaunchError::Call(error) => Self::new(nvkv_status::NVKV_BAD_ARGUMENT, error),
            LaunchError::NotLoaded { .. } => Self::new(nvkv_status::NVKV_NOT_LOADED, error),
            LaunchError::Cuda(error) => Self::new(nvkv_status::NVKV_CUDA, error),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What this thread's last call that failed says, and what to do; empty before the first. Lives until the thread's next
/// call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn nvkv_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Runs the body of a function: its failure becomes a status, a panic too.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Error>) -> nvkv_status {
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Error::internal(said(panic.as_ref()))));
    match done {
        Ok(()) => nvkv_status::NVKV_OK,
        Err(Error { status, message }) => {
            let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
            LAST.with_borrow_mut(|last| *last = message);
            status
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a defect of nvkv: {}", text.unwrap_or("it panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_a_status_with_its_words() {
        assert_eq!(guarded(|| panic!("a number {}", 7)), nvkv_status::NVKV_INTERNAL);
        // SAFETY: a string of this thread.
        let said = unsafe { CStr::from_ptr(nvkv_last_error()) }.to_str().unwrap();
        assert!(said.contains("a number 7"), "{said}");
    }
}
