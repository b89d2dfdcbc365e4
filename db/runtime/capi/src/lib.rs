//! The runtime behind a C ABI: opaque handles, status codes with messages, and no panic across the boundary.
//!
//! `include/nvkv.h` is written from this file and from the table of kernel parameters; a test holds it current.
#![allow(unsafe_code)] // pointers from C

mod problem;
mod status;

pub use problem::*;
pub use status::{nvkv_last_error, nvkv_status};

use ::nvkv_runtime::spec::abi::{AppendParams, DecodeParams};
use ::nvkv_runtime::spec::{Problem, Shape};
use ::nvkv_runtime::{Runtime, Trust};
use status::{Error, guarded};
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;

/// An open bundle. Every function may be called from any thread at any time, except nvkv_close.
#[allow(non_camel_case_types)]
pub struct nvkv_runtime {
    runtime: Runtime,
    /// Kernel ids, for C.
    ids: Vec<CString>,
}

/// Where a choice comes from.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum nvkv_trust {
    /// Verified and timed at this very shape.
    NVKV_TRUST_EXACT = 0,
    /// Verified, and timed at the nearest tuned shape.
    NVKV_TRUST_BUCKET = 1,
    /// Never timed: the order is a model's, at the nearest shape.
    NVKV_TRUST_PREDICTED = 2,
    /// The problem's default variant: no tuned shape is near.
    NVKV_TRUST_FALLBACK = 3,
}

/// What nvkv_find answers.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct nvkv_found {
    /// Id of the kernel; lives as long as the runtime.
    pub kernel: *const c_char,
    /// Where the choice comes from.
    pub trust: nvkv_trust,
    /// Distance of the tuned shape in doublings; NaN for a fallback.
    pub distance: f64,
    /// How much slower than the best it was measured to be at shapes it serves, as a share; NaN where not known.
    pub regret: f64,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block.
    pub threads: u32,
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    /// Splits a request at most.
    pub max_splits: u32,
    /// Tokens a split at least.
    pub min_split_tokens: u32,
    /// How often a request's last split is halved.
    pub taper: u32,
    /// Workspace that the launch needs, bytes.
    pub workspace_bytes: u64,
}

/// Opens the bundle in the folder `bundle`, with the winners of the database file `db` beside its own where that is not
/// null. Checks schema, digest and hashes. Free with nvkv_close.
///
/// # Safety
/// Strings end in a zero byte; `out` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_open(
    bundle: *const c_char,
    db: *const c_char,
    out: *mut *mut nvkv_runtime,
) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (bundle, db) = unsafe { (text(bundle, "bundle")?, optional_text(db)?) };
        let out = not_null(out, "out")?;
        let runtime = Runtime::open(bundle, db.map(Path::new)).map_err(Error::open)?;
        let ids = runtime.kernels().iter().map(|kernel| CString::new(kernel.id.as_str()).unwrap_or_default()).collect();
        // SAFETY: not null, and the caller's promise.
        unsafe { *out = Box::into_raw(Box::new(nvkv_runtime { runtime, ids })) };
        Ok(())
    })
}

/// Frees a runtime; null is allowed. Loaded kernels stay in their contexts: captured graphs stay valid.
///
/// # Safety
/// `runtime` came from nvkv_open, and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_close(runtime: *mut nvkv_runtime) {
    if !runtime.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(runtime) });
    }
}

/// The kernel for `problem` at `shape`: NVKV_OK, or NVKV_MISS with the reason in nvkv_last_error. Nanoseconds where the
/// same was asked before.
///
/// # Safety
/// Pointers are null or valid; `runtime` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_find(
    runtime: *const nvkv_runtime,
    problem: *const nvkv_problem,
    shape: *const nvkv_shape,
    out: *mut nvkv_found,
) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (this, (problem, shape)) = unsafe { (valid(runtime, "runtime")?, question(problem, shape)?) };
        let out = not_null(out, "out")?;
        let found = this.runtime.find(&problem, &shape).map_err(Error::miss)?;
        let (trust, distance, regret) = match found.trust {
            Trust::Exact => (nvkv_trust::NVKV_TRUST_EXACT, 0.0, None),
            Trust::Bucket { distance, regret } => (nvkv_trust::NVKV_TRUST_BUCKET, distance, regret),
            Trust::Predicted { distance } => (nvkv_trust::NVKV_TRUST_PREDICTED, distance, None),
            Trust::Fallback => (nvkv_trust::NVKV_TRUST_FALLBACK, f64::NAN, None),
        };
        let launch = found.launch;
        let answer = nvkv_found {
            kernel: this.ids[found.index()].as_ptr(),
            trust,
            distance,
            regret: regret.unwrap_or(f64::NAN),
            grid: launch.grid,
            threads: launch.threads,
            shared_bytes: launch.shared_bytes,
            max_splits: launch.max_splits,
            min_split_tokens: launch.min_split_tokens,
            taper: launch.taper,
            workspace_bytes: launch.workspace_bytes,
        };
        // SAFETY: not null, and the caller's promise.
        unsafe { out.write(answer) };
        Ok(())
    })
}

/// Why nvkv_find answers as it does, what is near, and what would have to be tuned, as text or as JSON. Free `out` with
/// nvkv_string_free.
///
/// # Safety
/// Pointers are null or valid; `runtime` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_explain(
    runtime: *const nvkv_runtime,
    problem: *const nvkv_problem,
    shape: *const nvkv_shape,
    json: bool,
    out: *mut *mut c_char,
) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (this, (problem, shape)) = unsafe { (valid(runtime, "runtime")?, question(problem, shape)?) };
        let explanation = this.runtime.explain(&problem, &shape);
        let text =
            if json { serde_json::to_string(&explanation).map_err(Error::internal)? } else { explanation.to_string() };
        // SAFETY: the caller's promise.
        unsafe { give(text, out) }
    })
}

/// Which shapes were asked for and how they were served, as JSON for `nvkv-tune --shapes`. Free `out` with
/// nvkv_string_free.
///
/// # Safety
/// Pointers are null or valid; `runtime` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_shape_histogram(runtime: *const nvkv_runtime, out: *mut *mut c_char) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let this = unsafe { valid(runtime, "runtime")? };
        let text = serde_json::to_string(&this.runtime.shape_histogram()).map_err(Error::internal)?;
        // SAFETY: the caller's promise.
        unsafe { give(text, out) }
    })
}

/// Frees a string that this library gave; null is allowed.
///
/// # Safety
/// `text` came from this library, and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Loads the kernels of `problem` (null: of all problems) into the CUDA context that is current on this thread. Ahead of
/// launches and captures: it reads files and allocates.
///
/// # Safety
/// Pointers are null or valid; `runtime` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_prepare(runtime: *const nvkv_runtime, problem: *const nvkv_problem) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (this, problem) = unsafe { (valid(runtime, "runtime")?, problem.as_ref()) };
        let problems: Vec<Problem> = problem.map(|p| p.to_rust()).transpose()?.into_iter().collect();
        this.runtime.prepare(&problems).map_err(Error::load)
    })
}

/// Puts a decode or fused launch of `problem` into `stream` (a CUstream): it neither allocates nor waits, and may be
/// captured into a graph. `shape` is that of nvkv_find: its batch and KV heads are those of `params`, whose `max_splits`,
/// `min_split_tokens` and `taper` are set here. `workspace_bytes` is the size of `params->workspace`, whose first MiB was
/// zeroed once (nvkv_zero_workspace).
///
/// # Safety
/// Host pointers are null or valid; device pointers are as the fields of `params` say, in the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_decode(
    runtime: *const nvkv_runtime,
    problem: *const nvkv_problem,
    shape: *const nvkv_shape,
    params: *const DecodeParams,
    workspace_bytes: u64,
    stream: *mut c_void,
) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (this, (problem, shape), params) =
            unsafe { (valid(runtime, "runtime")?, question(problem, shape)?, valid(params, "params")?) };
        let found = this.runtime.find(&problem, &shape).map_err(Error::miss)?;
        // SAFETY: the caller's promise.
        unsafe { this.runtime.decode(&found, params, workspace_bytes, stream) }.map_err(Error::launch)
    })
}

/// Puts an append launch of `problem` into `stream` (a CUstream): it neither allocates nor waits, and may be captured.
///
/// # Safety
/// As for nvkv_decode; no slot comes twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_append(
    runtime: *const nvkv_runtime,
    problem: *const nvkv_problem,
    params: *const AppendParams,
    stream: *mut c_void,
) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (this, problem, params) =
            unsafe { (valid(runtime, "runtime")?, valid(problem, "problem")?, valid(params, "params")?) };
        let shape = Shape::Append { tokens: params.tokens, kv_heads: params.kv_heads };
        let found = this.runtime.find(&problem.to_rust()?, &shape).map_err(Error::miss)?;
        // SAFETY: the caller's promise.
        unsafe { this.runtime.append(&found, params, stream) }.map_err(Error::launch)
    })
}

/// Zeroes what must be zero in a workspace of `bytes` bytes at device address `workspace`, in stream order: once after it
/// was allocated, and again only after a launch that failed.
///
/// # Safety
/// `workspace` has so many bytes in the current context, and `stream` is one of its streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvkv_zero_workspace(
    runtime: *const nvkv_runtime,
    workspace: *mut c_void,
    bytes: u64,
    stream: *mut c_void,
) -> nvkv_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let this = unsafe { valid(runtime, "runtime")? };
        let workspace = not_null(workspace, "workspace")?;
        // SAFETY: the caller's promise.
        unsafe { this.runtime.zero_workspace(workspace as u64, bytes, stream) }.map_err(Error::launch)
    })
}

/// # Safety
/// `pointer` is null or valid.
unsafe fn valid<'a, T>(pointer: *const T, name: &'static str) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(Error::null(name))
}

fn not_null<T>(pointer: *mut T, name: &'static str) -> Result<*mut T, Error> {
    if pointer.is_null() { Err(Error::null(name)) } else { Ok(pointer) }
}

/// # Safety
/// `text` is null or ends in a zero byte.
unsafe fn text<'a>(text: *const c_char, name: &'static str) -> Result<&'a str, Error> {
    // SAFETY: the caller's promise.
    unsafe { optional_text(text)? }.ok_or(Error::null(name))
}

/// # Safety
/// `text` is null or ends in a zero byte.
unsafe fn optional_text<'a>(text: *const c_char) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map(Some).map_err(|_| Error::argument("a path is not UTF-8".into()))
}

/// # Safety
/// Pointers are null or valid.
unsafe fn question(problem: *const nvkv_problem, shape: *const nvkv_shape) -> Result<(Problem, Shape), Error> {
    // SAFETY: the caller's promise.
    let (problem, shape) = unsafe { (valid(problem, "problem")?.to_rust()?, valid(shape, "shape")?) };
    Ok((problem, shape.of(&problem)?))
}

/// # Safety
/// `out` is null or may be written to.
unsafe fn give(text: String, out: *mut *mut c_char) -> Result<(), Error> {
    let out = not_null(out, "out")?;
    let text = CString::new(text).map_err(Error::internal)?;
    // SAFETY: not null, and the caller's promise.
    unsafe { *out = text.into_raw() };
    Ok(())
}
