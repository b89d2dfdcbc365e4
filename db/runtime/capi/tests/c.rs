//! The C example compiles against the header and either library, and runs: without a GPU as far as that goes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use nvkv_runtime::fixture;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo put `libnvkv.so` and `libnvkv.a`: beside this test's binary.
fn libraries() -> PathBuf {
    let binary = std::env::current_exe().unwrap();
    binary.parent().unwrap().to_path_buf()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out
}

fn compile(program: &Path, link: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]).arg("-I").arg(root.join("include"));
    run(cc.arg(root.join("../../../examples/guide.c")).arg("-L").arg(libraries()).args(link).arg("-o").arg(program));
}

#[test]
fn the_example_runs_with_both_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("sm_90a");
    fixture::write(&bundle, &fixture::small()).unwrap();
    for (name, link) in
        [("shared", &["-lnvkv", "-lm", "-ldl"][..]), ("static", &["-l:libnvkv.a", "-lm", "-ldl", "-lpthread"][..])]
    {
        let program = folder.path().join(name);
        compile(&program, link);
        // The fixture's kernels are no machine code: nothing is launched, whatever GPU is here.
        let mut example = Command::new(&program);
        example.arg(&bundle).env("LD_LIBRARY_PATH", libraries()).env("CUDA_VISIBLE_DEVICES", "-1");
        let said = run(&mut example);
        for expected in [
            "kernel decode-nvfp4-fp8-d128-g8-q1-p16-bf16-linear--",
            "trust      fallback",
            "miss: the bundle for sm_90a has no kernel for decode-nvfp4-fp8-d96",
            "bad argument: problem.dtype is 7; known: 0 (f16), 1 (bf16)",
            r#""served":"miss","count":1"#,
        ] {
            assert!(said.contains(expected), "{name}: no {expected} in: {said}");
        }
        let failed = Command::new(&program).arg("nowhere").env("LD_LIBRARY_PATH", libraries()).output().unwrap();
        assert!(String::from_utf8_lossy(&failed.stderr).contains("no bundle in nowhere"));
    }
}

/// The structs of the header are those of the kernels: sizes and offsets by the C compiler.
#[test]
fn c_lays_the_parameters_out_as_the_kernels_read_them() {
    use nvkv_runtime::spec::abi::{AppendParams, DecodeParams};
    let folder = tempfile::tempdir().unwrap();
    let mut source = String::from("#include <stddef.h>\n#include \"nvkv.h\"\n");
    for (name, size, fields) in [
        ("nvkv_decode_params", size_of::<DecodeParams>(), DecodeParams::FIELDS),
        ("nvkv_append_params", size_of::<AppendParams>(), AppendParams::FIELDS),
    ] {
        source += &format!("_Static_assert(sizeof({name}) == {size}, \"size\");\n");
        for field in fields {
            let (field, offset) = (field.name, field.offset);
            source += &format!("_Static_assert(offsetof({name}, {field}) == {offset}, \"{field}\");\n");
        }
    }
    let file = folder.path().join("layout.c");
    std::fs::write(&file, source).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    run(Command::new("cc").args(["-std=c11", "-c"]).arg("-I").arg(include).arg(&file).args(["-o", "/dev/null"]));
}
