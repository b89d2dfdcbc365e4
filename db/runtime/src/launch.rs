//! Loading kernels into CUDA contexts, and launching them on the caller's stream.
#![allow(unsafe_code)] // driver calls on the caller's context, stream and memory

use crate::bundle::{Changed, Kernel};
use crate::check::{self, CallError};
use crate::cu;
use crate::driver::CudaError;
use crate::find::Found;
use crate::runtime::Runtime;
use cudarc::driver::sys;
use nvkv_spec::abi::{AppendParams, COUNTER_BYTES, DecodeParams, DevicePtr};
use nvkv_spec::{Launch, Problem, Target};
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// A `CUstream`; null is the default stream.
pub type Stream = *mut c_void;

/// Dynamic shared memory that a kernel may use without asking, bytes.
const SHARED_WITHOUT_ASKING: u32 = 48 * 1024;

/// Why kernels cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No driver library.
    #[error("libcuda.so.1 not found: no NVIDIA driver here; install the driver, or add its folder to LD_LIBRARY_PATH")]
    NoDriver,
    /// No context is current on this thread.
    #[error(
        "no CUDA context is current on this thread: make one current (cuCtxSetCurrent; in PyTorch, torch.cuda.init())"
    )]
    NoContext,
    /// The device is none that the cubins run on.
    #[error(
        "this GPU has compute capability {major}.{minor}, the bundle is for {target}: open the bundle of its target"
    )]
    OtherTarget {
        /// Of the device.
        major: u32,
        /// Of the device.
        minor: u32,
        /// Of the bundle.
        target: Target,
    },
    /// Nothing to load.
    #[error("the bundle has no kernel for {}", .0.key())]
    NoKernel(Problem),
    /// A cubin is not as it was when the bundle was opened.
    #[error("{0}; open the bundle again")]
    Changed(#[from] Changed),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Why nothing was launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The call is wrong.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The kernel is not loaded in the current context.
    #[error(
        "{kernel} is not loaded in the current context: call `prepare` for its problem ahead, with this context current"
    )]
    NotLoaded {
        /// The kernel.
        kernel: String,
    },
    /// There is no driver or no context.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Functions by context: modules are loaded once a context and stay as long as it does.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    loaded: RwLock<Vec<(u64, Arc<Functions>)>>,
    loading: Mutex<()>,
}

/// The function of each kernel in one context; null where it is not loaded.
type Functions = [AtomicPtr<sys::CUfunc_st>];

/// Whether a driver is there: without one, the first call of it would end the process.
fn driver() -> Result<(), LoadError> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: the driver's initialisers have no precondition.
    let found = *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() });
    if found { Ok(()) } else { Err(LoadError::NoDriver) }
}

/// The id of the current context: unlike its address, never used again.
fn context() -> Result<u64, LoadError> {
    driver()?;
    let mut id = 0;
    // Writes to a local.
    match cu!(cuCtxGetId(std::ptr::null_mut(), &mut id)) {
        Ok(()) => Ok(id),
        Err(_) => Err(LoadError::NoContext),
    }
}

impl Runtime {
    /// Loads the kernels of `problems` (all of them where the list is empty) into the context that is current on this
    /// thread, if they are not there yet. Call it ahead, for each context: it reads files, allocates and may wait, and it
    /// cannot be captured. Modules stay until the context is destroyed.
    ///
    /// # Errors
    /// Without a driver or a context, on a GPU of another target, or where a cubin changed.
    pub fn prepare(&self, problems: &[Problem]) -> Result<(), LoadError> {
        let context = context()?;
        let sms = self.check_device()?;
        let _one_at_a_time = self.contexts.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let functions = self.contexts.of(context).unwrap_or_else(|| self.contexts.add(context, self.kernels.len()));
        let serving = |problem: &Problem| {
            let found = self.serving(&problem.normal());
            found.map(|(of, _)| of).ok_or(LoadError::NoKernel(*problem))
        };
        let served = problems.iter().map(serving).collect::<Result<Vec<_>, _>>()?;
        let wanted = |kernel: &Kernel| problems.is_empty() || served.contains(&&kernel.problem);
        for (kernel, function) in self.kernels.iter().zip(functions.iter()) {
            if wanted(kernel) && function.load(Ordering::Acquire).is_null() {
                function.store(self.load(kernel)?, Ordering::Release);
            }
        }
        self.set_sms(sms);
        Ok(())
    }

    /// The current device's multiprocessors, if it runs this bundle's cubins: machine code of an `a` target runs on its
    /// own compute capability alone.
    fn check_device(&self) -> Result<u32, LoadError> {
        use sys::CUdevice_attribute as A;
        let mut device = 0;
        // Each call writes to a local; a context is current.
        cu!(cuCtxGetDevice(&mut device))?;
        let attribute = |attribute| {
            let mut value = 0;
            cu!(cuDeviceGetAttribute(&mut value, attribute, device)).map(|()| value as u32)
        };
        let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if (major, minor) != self.target.facts().capability {
            return Err(LoadError::OtherTarget { major, minor, target: self.target });
        }
        Ok(attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?)
    }

    fn load(&self, kernel: &Kernel) -> Result<sys::CUfunction, LoadError> {
        let cubin = self.cubin(kernel)?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // The driver reads as far as the headers say: these are the bytes that the compiler gave.
        cu!(cuModuleLoadData(&mut module, cubin.as_ptr().cast()))?;
        let symbol = CString::new(kernel.symbol.as_str()).unwrap_or_default();
        cu!(cuModuleGetFunction(&mut function, module, symbol.as_ptr()))?;
        if kernel.launch.shared_bytes > SHARED_WITHOUT_ASKING {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            cu!(cuFuncSetAttribute(function, attribute, kernel.launch.shared_bytes as i32))?;
        }
        Ok(function)
    }

    fn function(&self, found: &Found) -> Result<sys::CUfunction, LaunchError> {
        let functions = self.contexts.of(context()?);
        let function = functions.as_ref().and_then(|functions| functions.get(found.index()));
        let function = function.map_or(std::ptr::null_mut(), |function| function.load(Ordering::Acquire));
        if function.is_null() {
            return Err(LaunchError::NotLoaded { kernel: found.kernel.id.to_string() });
        }
        Ok(function)
    }

    /// Puts a decode or fused launch into `stream`: it neither allocates nor waits, and may be captured into a graph,
    /// which stays valid when the lengths in `kv_len` change. `max_splits`, `min_split_tokens` and `taper` of `params` are
    /// set from `found`; `workspace_bytes` is the size of `params.workspace`, whose first MiB was zeroed once
    /// ([`Runtime::zero_workspace`]).
    ///
    /// # Errors
    /// Where the call breaks the contract of the pointers, or the kernel was not prepared in the current context. Then
    /// nothing was launched.
    ///
    /// # Safety
    /// `params` points to memory of the current context's device, as large as its documentation and the tables and lengths
    /// in it say, that lives until the work in `stream` is done; `stream` is a stream of that context. `found` is of this
    /// runtime.
    pub unsafe fn decode(
        &self,
        found: &Found,
        params: &DecodeParams,
        workspace_bytes: u64,
        stream: Stream,
    ) -> Result<(), LaunchError> {
        let Launch { max_splits, min_split_tokens, taper, .. } = found.launch;
        check::decode(found.kernel, &found.launch, params, workspace_bytes)?;
        let params = DecodeParams { max_splits, min_split_tokens, taper, ..*params };
        self.enqueue(found, &params, stream)
    }

    /// Puts an append launch into `stream`: it neither allocates nor waits, and may be captured into a graph.
    ///
    /// # Errors
    /// As for [`Runtime::decode`].
    ///
    /// # Safety
    /// As for [`Runtime::decode`]; every slot in `slot_mapping` that is not negative lies in the cache, and none comes twice.
    pub unsafe fn append(&self, found: &Found, params: &AppendParams, stream: Stream) -> Result<(), LaunchError> {
        check::append(found.kernel, &found.launch, params)?;
        self.enqueue(found, params, stream)
    }

    fn enqueue<P>(&self, found: &Found, params: &P, stream: Stream) -> Result<(), LaunchError> {
        let function = self.function(found)?;
        let Launch { grid: [x, y, z], threads, shared_bytes, .. } = found.launch;
        let mut argument: *mut c_void = std::ptr::from_ref(params).cast_mut().cast();
        // One argument, the parameter struct by value (its layout was compared when the bundle was opened), which the
        // driver copies before it returns.
        Ok(cu!(cuLaunchKernel(
            function,
            x,
            y,
            z,
            threads,
            1,
            1,
            shared_bytes,
            stream.cast(),
            &mut argument,
            std::ptr::null_mut()
        ))?)
    }

    /// Zeroes the counters of a workspace of `bytes` bytes, in stream order: once after it was allocated, and again only
    /// after a launch that failed. Launches that share a workspace must be ordered.
    ///
    /// # Safety
    /// `workspace` is the address of `bytes` bytes of the current context's device, and `stream` a stream of that context.
    pub unsafe fn zero_workspace(&self, workspace: DevicePtr, bytes: u64, stream: Stream) -> Result<(), LaunchError> {
        context()?;
        if bytes == 0 {
            return Ok(());
        }
        Ok(cu!(cuMemsetD8Async(workspace, 0, bytes.min(COUNTER_BYTES) as usize, stream.cast()))?)
    }
}

impl Contexts {
    fn of(&self, context: u64) -> Option<Arc<Functions>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.iter().find(|(id, _)| *id == context).map(|(_, functions)| functions.clone())
    }

    fn add(&self, context: u64, kernels: usize) -> Arc<Functions> {
        let functions: Arc<Functions> = (0..kernels).map(|_| AtomicPtr::default()).collect();
        self.loaded.write().unwrap_or_else(PoisonError::into_inner).push((context, functions.clone()));
        functions
    }
}
