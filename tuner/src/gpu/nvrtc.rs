//! The nine NVRTC functions that nvkv calls, bound to the very file that was found.
//!
//! cudarc's own binding searches fixed names on the loader's path, so another version on the machine
//! could answer; the compiler is part of a kernel's identity, so it is loaded by its path here.
#![allow(unsafe_code)] // foreign functions: signatures are those of nvrtc.h 13.0

use super::nvrtc_path::{NVRTC, NvrtcMissing, NvrtcPath, Surroundings, find};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_NOW, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

type Program = *mut c_void;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetBytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type CreateProgram = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

const SUCCESS: c_int = 0;
/// `NVRTC_ERROR_COMPILATION`: the source is at fault, and the log says where.
const COMPILATION: c_int = 6;
/// What the log of such an error has where it is the machine that is at fault.
const NO_MEMORY: &str = "catastrophic error: out of memory";

/// What mends an NVRTC that is there and does not work.
const INSTALL: &str = "install NVRTC 13 whole, its libnvrtc-builtins beside it, with `make toolchain` or with \
    `pip install 'nvidia-cuda-nvrtc==13.0.*'`, and name its folder in $NVKV_NVRTC or unset that";

/// NVRTC could not be used at all.
#[derive(Debug, thiserror::Error)]
pub enum NvrtcError {
    /// It is not there.
    #[error(transparent)]
    Missing(#[from] NvrtcMissing),
    /// It is there and does not load.
    #[error("{} does not load as NVRTC 13: {reason}; {INSTALL}", path.display())]
    Load {
        /// The library or one of its builtins.
        path: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// It loads and refuses every source, as without its builtins.
    #[error("{} loads but compiles nothing: {reason}; {INSTALL}", path.display())]
    Useless {
        /// The library.
        path: PathBuf,
        /// Its log for a source that has no fault.
        reason: String,
    },
    /// A call failed for another reason than the source.
    #[error("{call}: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// NVRTC's own words.
        reason: String,
    },
    /// Source, name or option holds a zero byte.
    #[error("a zero byte in {0}")]
    ZeroByte(&'static str),
}

/// NVRTC, loaded.
pub struct Nvrtc {
    create: Symbol<CreateProgram>,
    compile: Symbol<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>,
    destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int>,
    error_string: Symbol<unsafe extern "C" fn(c_int) -> *const c_char>,
    log: (Symbol<GetSize>, Symbol<GetBytes>),
    ptx: (Symbol<GetSize>, Symbol<GetBytes>),
    cubin: (Symbol<GetSize>, Symbol<GetBytes>),
    version: (i32, i32),
    path: PathBuf,
    // Kept open for as long as the symbols live.
    _libraries: Vec<Library>,
}

/// What a compile gives.
pub struct Output {
    /// Whether the source was accepted.
    pub accepted: bool,
    /// The log.
    pub log: String,
    /// PTX text; empty where refused.
    pub ptx: String,
    /// Machine code; empty where refused.
    pub cubin: Vec<u8>,
}

impl Nvrtc {
    /// Finds and loads NVRTC 13.
    pub fn load() -> Result<Self, NvrtcError> {
        // SAFETY: NVRTC's initialisers are trusted; the handle is closed at once.
        let loader_has_it = || unsafe { Library::open(Some(NVRTC), RTLD_LAZY) }.is_ok();
        Self::load_from(find(&Surroundings::of_process(loader_has_it))?)
    }

    fn load_from(found: NvrtcPath) -> Result<Self, NvrtcError> {
        let open = |path: &Path, flags| {
            // SAFETY: NVIDIA's libraries; their initialisers have no precondition.
            unsafe { Library::open(Some(path), flags) }
                .map_err(|error| NvrtcError::Load { path: path.to_path_buf(), reason: whole(&error) })
        };
        let mut libraries = Vec::new();
        for builtins in &found.builtins {
            libraries.push(open(builtins, RTLD_NOW | RTLD_GLOBAL)?);
        }
        let library = open(&found.nvrtc, RTLD_NOW)?;
        let nvrtc = Self::bind(&library, found.nvrtc.clone())
            .map_err(|error| NvrtcError::Load { path: found.nvrtc, reason: whole(&error) })?;
        libraries.push(library);
        Ok(Self { _libraries: libraries, ..nvrtc })
    }

    fn bind(library: &Library, path: PathBuf) -> Result<Self, libloading::Error> {
        // SAFETY: each type is the one that nvrtc.h 13.0 declares for the name.
        unsafe {
            let version: Symbol<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int> =
                library.get(b"nvrtcVersion\0")?;
            let (mut major, mut minor) = (0, 0);
            version(&mut major, &mut minor);
            Ok(Self {
                create: library.get(b"nvrtcCreateProgram\0")?,
                compile: library.get(b"nvrtcCompileProgram\0")?,
                destroy: library.get(b"nvrtcDestroyProgram\0")?,
                error_string: library.get(b"nvrtcGetErrorString\0")?,
                log: (library.get(b"nvrtcGetProgramLogSize\0")?, library.get(b"nvrtcGetProgramLog\0")?),
                ptx: (library.get(b"nvrtcGetPTXSize\0")?, library.get(b"nvrtcGetPTX\0")?),
                cubin: (library.get(b"nvrtcGetCUBINSize\0")?, library.get(b"nvrtcGetCUBIN\0")?),
                version: (major, minor),
                path,
                _libraries: Vec::new(),
            })
        }
    }

    /// Version, such as `13.0`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The file that was loaded, or the bare name where the loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles `source`; a source that is refused is an [`Output`], not an error.
    pub fn compile(&self, source: &str, name: &str, options: &[String]) -> Result<Output, NvrtcError> {
        let c_string = |text: &str, what| CString::new(text).map_err(|_| NvrtcError::ZeroByte(what));
        let (source, name) = (c_string(source, "the source")?, c_string(name, "the name")?);
        let options = options.iter().map(|o| c_string(o, "an option")).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
        let mut handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: both strings end in zero and outlive the call; no headers are passed.
        let code = unsafe { (self.create)(&mut handle, source.as_ptr(), name.as_ptr(), 0, none, none) };
        self.check("nvrtcCreateProgram", code)?;
        // SAFETY: the handle is live; NVRTC copies the options before it returns.
        let code = unsafe { (self.compile)(handle, pointers.len() as c_int, pointers.as_ptr()) };
        let output = self.output(handle, code);
        // SAFETY: the handle is live and not used after this.
        unsafe { (self.destroy)(&mut handle) };
        output
    }

    fn output(&self, program: Program, code: c_int) -> Result<Output, NvrtcError> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string();
        let log = text(self.bytes(program, &self.log, "nvrtcGetProgramLog")?);
        if code == COMPILATION && !log.contains(NO_MEMORY) {
            return Ok(Output { accepted: false, log, ptx: String::new(), cubin: Vec::new() });
        }
        self.check("nvrtcCompileProgram", code).map_err(|error| match error {
            NvrtcError::Call { call, reason } => NvrtcError::Call { call, reason: format!("{reason}\n{log}") },
            other => other,
        })?;
        let ptx = text(self.bytes(program, &self.ptx, "nvrtcGetPTX")?);
        let cubin = self.bytes(program, &self.cubin, "nvrtcGetCUBIN")?;
        Ok(Output { accepted: true, log, ptx, cubin })
    }

    fn bytes(
        &self,
        program: Program,
        (size, get): &(Symbol<GetSize>, Symbol<GetBytes>),
        call: &'static str,
    ) -> Result<Vec<u8>, NvrtcError> {
        let mut length = 0;
        // SAFETY: the handle is live, and the size is written to a local.
        self.check(call, unsafe { size(program, &mut length) })?;
        let mut bytes = vec![0u8; length];
        if length > 0 {
            // SAFETY: the buffer has the length that NVRTC just asked for.
            self.check(call, unsafe { get(program, bytes.as_mut_ptr().cast()) })?;
        }
        Ok(bytes)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), NvrtcError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: NVRTC returns a static string for every code.
        let reason = unsafe { CStr::from_ptr((self.error_string)(code)) }.to_string_lossy().into_owned();
        Err(NvrtcError::Call { call, reason })
    }
}

/// An error and its causes: the loader's own says only which of its calls failed.
fn whole(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
