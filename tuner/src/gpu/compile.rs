//! CUDA source to PTX and machine code, and the compiler's facts about the result.

use super::nvrtc::{Nvrtc, NvrtcError};
use nvkv_spec::{CompileFacts, Target, Toolchain};
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

/// Loads NVRTC and has it compile a source without fault for `target`: an NVRTC without its builtins loads, and
/// then refuses everything.
pub fn working_nvrtc(target: Target) -> Result<Nvrtc, NvrtcError> {
    const SOURCE: &str = "extern \"C\" __global__ void nvkv_works() {}";
    let nvrtc = Nvrtc::load()?;
    match compile(&nvrtc, SOURCE, target.name(), "nvkv_works") {
        Ok(_) => Ok(nvrtc),
        Err(error) => Err(NvrtcError::Useless { path: nvrtc.path().into(), reason: error.to_string().trim().into() }),
    }
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
/// the machine code's hash, and results could not be carried over an identical kernel. NVRTC's own
/// cache (in use where a driver is) is off, since what it returns comes without the resource report.
fn options(arch: &str) -> Vec<String> {
    let arch = format!("-arch={arch}");
    let fixed = ["--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v", "--no-cache"];
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of NVRTC 13.0: two kernels, and a function that is not inlined.
    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'nvkv_k' for 'sm_90a'
ptxas info    : Function properties for nvkv_k
ptxas         .     1984 bytes stack frame, 2440 bytes spill stores, 3416 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1984 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compile time = 378.403 ms
ptxas info    : Function properties for _Z6helperPfi
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'other' for 'sm_90a'
ptxas info    : Function properties for other
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compile time = 5.241 ms
";

    #[test]
    fn the_resource_report_of_the_right_kernel_is_read() {
        let facts = resources(LOG, "nvkv_k").unwrap();
        let expected = CompileFacts {
            registers: 32,
            static_shared: 4096,
            stack: 1984,
            spill_stores: 2440,
            spill_loads: 3416,
            ..CompileFacts::default()
        };
        assert_eq!(facts, expected);
        assert_eq!(resources(LOG, "other").unwrap().registers, 10);
        assert_eq!(resources(LOG, "nvkv"), None);
    }

    fn nvrtc() -> Nvrtc {
        Nvrtc::load().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"))
    }

    /// Needs shared memory, an atomic and a barrier, so that the facts are not all zero.
    const SOURCE: &str = r#"
extern "C" __global__ void nvkv_tiny(unsigned int* out, int n) {
    __shared__ unsigned int part[256];
    part[threadIdx.x] = out[threadIdx.x] * n;
    __syncthreads();
    atomicAdd(out, part[threadIdx.x ^ 1]);
}"#;

    #[test]
    fn a_kernel_compiles_for_every_target_and_to_the_same_bytes_again() {
        let nvrtc = nvrtc();
        for &target in Target::ALL {
            let binary =
                compile(&nvrtc, SOURCE, target.name(), "nvkv_tiny").unwrap_or_else(|e| panic!("{target}: {e}"));
            assert!(binary.ptx.contains(&format!(".target {target}")), "{target}: {}", binary.ptx);
            assert_eq!(binary.facts.static_shared, 1024, "{target}: {}", binary.log);
            assert!((4..64).contains(&binary.facts.registers), "{target}: {:?}", binary.facts);
            assert!((8..512).contains(&binary.facts.instructions), "{target}: {:?}", binary.facts);
            assert_eq!(binary.facts.cubin_bytes as usize, binary.cubin.len());
            let commented = format!("// a comment\n\n{SOURCE}");
            let again = compile(&nvrtc, &commented, target.name(), "nvkv_tiny").unwrap();
            assert_eq!(again.cubin, binary.cubin, "{target}: a comment changed the machine code");
        }
        assert!(toolchain(&nvrtc).nvrtc.starts_with("13."));
    }

    #[test]
    fn refusals_carry_the_log_and_a_virtual_target_is_one() {
        let nvrtc = nvrtc();
        let refused = |source: &str, arch: &str, symbol: &str| match compile(&nvrtc, source, arch, symbol) {
            Err(CompileError::Refused(log)) => log,
            other => panic!("{other:?}"),
        };
        let log = refused("extern \"C\" __global__ void k() { undeclared = 1; }", "sm_90a", "k");
        assert!(log.contains("undeclared"), "{log}");
        assert!(refused(SOURCE, "compute_100a", "nvkv_tiny").contains("no machine code"));
        assert!(refused(SOURCE, "sm_90a", "another").contains("no kernel `another`"));
    }

    #[test]
    fn the_probe_compiles_for_every_target_with_wide_loads() {
        let nvrtc = nvrtc();
        let source = include_str!("../../../templates/probe.cu");
        for &target in Target::ALL {
            let probe = compile(&nvrtc, source, target.name(), "nvkv_probe_read").unwrap();
            let count = |symbol: &str, instruction: &str| {
                let entry = probe.ptx.split(".entry ").find(|entry| entry.starts_with(symbol));
                entry.map_or(0, |entry| entry.matches(instruction).count())
            };
            for symbol in ["nvkv_probe_read", "nvkv_probe_transfer"] {
                let facts = resources(&probe.log, symbol).unwrap();
                assert_eq!(facts.spill_stores + facts.stack, 0, "{symbol} for {target}");
            }
            let loads = count("nvkv_probe_read", "ld.global.v4.u32");
            assert!(loads >= 9, "{target}: 8 loads in flight, and the rest");
            assert_eq!(count("nvkv_probe_transfer", "ld.global.v4.u32"), 8, "{target}");
            assert_eq!(count("nvkv_probe_transfer", "st.global.v4.u32"), 8, "{target}");
            assert!(instructions(&probe.cubin, "nvkv_probe_fill").is_some());
        }
    }
}
