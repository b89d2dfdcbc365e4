//! CUDA source to PTX and machine code, and the compiler's facts about the result.

use super::nvrtc::{Nvrtc, NvrtcError};
use nvkv_spec::{CompileFacts, Toolchain};
use object::{Object, ObjectSection};

/// A compiled source.
#[derive(Clone, Debug)]
pub struct Binary {
    /// PTX text.
    pub ptx: String,
    /// Machine code, an ELF file; never empty.
    pub cubin: Vec<u8>,
    /// Facts about the kernel.
    pub facts: CompileFacts,
    /// The compiler's log.
    pub log: String,
}

/// Why there is no binary.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The source was refused; the text is the log.
    #[error("{0}")]
    Refused(String),
    /// NVRTC itself is missing or failed.
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
}

/// NVRTC and this crate, as stored with every result.
pub fn toolchain(nvrtc: &Nvrtc) -> Toolchain {
    Toolchain { nvrtc: nvrtc.version(), generator: env!("CARGO_PKG_VERSION").to_string() }
}

/// Compiles `source` for `arch` (such as `sm_90a`, suffix included: without it instructions of the
/// target are emulated, and `compute_…` would give no machine code). `symbol` is its one kernel.
pub fn compile(nvrtc: &Nvrtc, source: &str, arch: &str, symbol: &str) -> Result<Binary, CompileError> {
    let output = nvrtc.compile(source, "kernel.cu", &options(arch))?;
    if !output.accepted {
        return Err(CompileError::Refused(output.log));
    }
    if output.cubin.is_empty() {
        return Err(CompileError::Refused(format!("{arch} gave no machine code\n{}", output.log)));
    }
    let Some(instructions) = instructions(&output.cubin, symbol) else {
        return Err(CompileError::Refused(format!("no kernel `{symbol}` in the machine code\n{}", output.log)));
    };
    let facts = CompileFacts {
        cubin_bytes: output.cubin.len() as u32,
        instructions,
        ..resources(&output.log, symbol).ok_or_else(|| {
            CompileError::Refused(format!("no resource report of `{symbol}` in the log:\n{}", output.log))
        })?
    };
    Ok(Binary { ptx: output.ptx, cubin: output.cubin, facts, log: output.log })
}

/// Line information is left out on purpose: with it, a comment added above a kernel would change
/// the machine code's hash, and results could not be carried over an identical kernel.
fn options(arch: &str) -> Vec<String> {
    let arch = format!("-arch={arch}");
    let fixed = ["--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v"];
    std::iter::once(arch).chain(fixed.map(String::from)).collect()
}

/// Instructions in the kernel's section: 16 bytes each since sm_70. Padding at the end counts too.
pub fn instructions(cubin: &[u8], symbol: &str) -> Option<u32> {
    const INSTRUCTION_BYTES: u64 = 16;
    let file = object::File::parse(cubin).ok()?;
    let section = file.section_by_name(&format!(".text.{symbol}"))?;
    u32::try_from(section.size() / INSTRUCTION_BYTES).ok()
}

/// Registers, static shared memory, stack and spills of kernel `symbol`, from the log of `ptxas -v`.
pub fn resources(log: &str, symbol: &str) -> Option<CompileFacts> {
    let entry = format!("Compiling entry function '{symbol}'");
    let mut facts = CompileFacts::default();
    let mut lines = log.lines().skip_while(|line| !line.contains(&entry)).skip(1);
    let properties = format!("Function properties for {symbol}");
    lines.by_ref().find(|line| line.contains(&properties))?;
    let frame = lines.next()?;
    facts.stack = before(frame, "bytes stack frame")?;
    facts.spill_stores = before(frame, "bytes spill stores")?;
    facts.spill_loads = before(frame, "bytes spill loads")?;
    let used = lines.find(|line| line.contains("Used ") && line.contains(" registers"))?;
    facts.registers = before(used, "registers")?;
    facts.static_shared = before(used, "bytes smem").unwrap_or(0);
    Some(facts)
}

/// The number right before `words`.
fn before(line: &str, words: &str) -> Option<u32> {
    let (head, _) = line.split_once(words)?;
    head.split_whitespace().last()?.parse().ok()
}
