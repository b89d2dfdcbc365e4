//! The snippets of docs/engine-guide.md are pieces of the examples, word for word, and the Rust one runs here as far as
//! this machine goes (the C and the Python one in their own tests).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use nvkv_runtime::fixture;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Without indentation, which depends on where a piece stands.
fn lines(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// The fenced blocks, each with its language.
fn blocks(text: &str) -> Vec<(String, String)> {
    let fences: Vec<_> = text.split("\n```").collect();
    let inside = fences.iter().skip(1).step_by(2);
    inside.map(|block| block.split_once('\n').unwrap()).map(|(a, b)| (a.trim().into(), b.into())).collect()
}

#[test]
fn every_snippet_is_a_piece_of_a_tested_example() {
    let sources = [("rust", "guide.rs"), ("c", "guide.c"), ("python", "guide.py")]
        .map(|(language, file)| (language, file, lines(&read(&format!("examples/{file}")))));
    let blocks = blocks(&read("docs/engine-guide.md"));
    for (language, file, source) in &sources {
        let mut of_language = blocks.iter().filter(|(name, _)| name == language).peekable();
        assert!(of_language.peek().is_some(), "no snippet in {language}");
        for (_, block) in of_language {
            assert!(source.contains(lines(block).trim()), "not in examples/{file}:\n{block}");
        }
    }
    let known = |name: &str| name == "sh" || sources.iter().any(|(language, ..)| *language == name);
    assert!(blocks.iter().all(|(name, _)| known(name)), "a snippet that no test runs");
}

#[test]
fn the_rust_example_runs() {
    let folder = tempfile::tempdir().unwrap();
    fixture::write(folder.path(), &fixture::small()).unwrap();
    // Beside the folder of this test's binary.
    let test = std::env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/guide");
    let output = Command::new(example).arg(folder.path()).env("CUDA_VISIBLE_DEVICES", "-1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("fallback") && said.contains("nvkv-tune --arch sm_90a"), "{said}");
    assert!(said.contains(r#""served":"fallback","count":1"#), "{said}");
}
