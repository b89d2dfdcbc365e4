//! The binary as a worker: sources in, kernels or reasons out. Needs NVRTC, no GPU.

use nvkv_spec::{KernelId, Outcome, Stage, Target};
use nvkv_tuner::worker::{CompileRequest, CompileWorker, NoKernel};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn worker() -> CompileWorker {
    CompileWorker::of_binary(PathBuf::from(env!("CARGO_BIN_EXE_nvkv-tune")), Duration::from_secs(60))
}

/// A request whose kernel has the symbol that its id wants; `body` is the kernel's.
fn request(body: &str) -> CompileRequest {
    let id: KernelId = serde_json::from_str("\"append-test--w1\"").expect("a name");
    let source = format!("extern \"C\" __global__ void {}(float* out) {{ {body} }}", id.symbol());
    CompileRequest { target: Target::Sm90a, id, source }
}

#[test]
fn one_worker_compiles_refuses_and_compiles_again() {
    let mut worker = worker();
    let good = request("out[threadIdx.x] *= 2;");
    let compiled = worker.compile(&good).unwrap();
    assert!(compiled.cubin.starts_with(b"\x7fELF") && compiled.ptx.contains(&good.id.symbol()));
    assert!(compiled.facts.registers > 0 && compiled.toolchain.nvrtc.starts_with("13."));
    let refused = worker.compile(&request("undeclared();"));
    let Err(NoKernel::Failed(Outcome::CompileFailed { log })) = refused else { panic!("{refused:?}") };
    assert!(log.contains("undeclared"), "{log}");
    assert_eq!(worker.compile(&good).unwrap().cubin, compiled.cubin);
}

#[test]
fn a_compile_that_is_late_is_a_timeout() {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_nvkv-tune"));
    let mut worker = CompileWorker::of_binary(binary, Duration::from_millis(1));
    let late = worker.compile(&request("out[0] = 1;"));
    assert!(matches!(late, Err(NoKernel::Failed(Outcome::Timeout { .. }))), "{late:?}");
}

/// A source that takes more memory than there is may be sound where there is more: it is not refused for good, and the
/// next one is compiled.
#[test]
fn a_compiler_without_memory_is_a_crash_and_no_fault_of_its_source() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let limited = folder.path().join("limited");
    let script = format!("#!/bin/sh\nulimit -v 400000\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_nvkv-tune"));
    std::fs::write(&limited, script).unwrap();
    std::fs::set_permissions(&limited, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut worker = CompileWorker::of_binary(limited, Duration::from_secs(60));
    let good = request("out[0] = 1;");
    // The front end runs out of memory over the first, the code generator over the second.
    let declarations =
        (0..30_000).map(|i| format!("struct S{i} {{ int f(int x) {{ return x * {i} + x / {i}1; }} }};\n"));
    for large in [declarations.collect::<String>(), "__device__ char a[2000000000] = {1};\n".into()] {
        let failed = worker.compile(&CompileRequest { source: large + &good.source, ..good.clone() });
        let Err(NoKernel::Failed(Outcome::Crashed { stage: Stage::Compile, detail })) = failed else {
            panic!("{failed:?}")
        };
        assert!(detail.contains("out of memory"), "{detail}");
        assert!(worker.compile(&good).is_ok());
    }
}

#[test]
fn a_binary_that_is_not_there_is_named() {
    let mut worker = CompileWorker::of_binary("/nowhere/nvkv-tune".into(), Duration::from_secs(1));
    let nothing = worker.compile(&request(""));
    let Err(NoKernel::Failed(Outcome::Crashed { detail, .. })) = nothing else { panic!("{nothing:?}") };
    assert!(detail.contains("/nowhere/nvkv-tune"), "{detail}");
}

/// However its parent ends, its end of the pipe closes.
#[test]
fn a_worker_ends_with_its_parent() {
    for arguments in [&["compile"][..], &["gpu", "--device", "0"]] {
        let mut worker = Command::new(env!("CARGO_BIN_EXE_nvkv-tune"))
            .arg("worker")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(worker.try_wait().unwrap().is_none(), "{arguments:?} ended by itself");
        drop(worker.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(5);
        while worker.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{arguments:?} outlives its parent");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
