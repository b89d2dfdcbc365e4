//! The binary as a worker: sources in, kernels or reasons out. Needs NVRTC, no GPU.

use nvkv_spec::{KernelId, Outcome, Target};
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
