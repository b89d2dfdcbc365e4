//! `include/nvkv.h` is what the source says now. `cargo test -p nvkv-capi --test header -- --ignored` writes it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, Language, Style};
use nvkv_runtime::spec::abi::{AppendParams, DecodeParams, Field};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

const NOTICE: &str = "\
/* libnvkv: find, load and launch NVFP4-KV attention kernels. Written by cbindgen from the Rust source: do not edit. The
   guide is docs/engine-guide.md. Pointers in nvkv_decode_params and nvkv_append_params are device addresses. */";

/// A parameter struct from the table that kernels and manifests are made from.
fn params(name: &str, doc: &str, fields: &[Field]) -> String {
    let mut text = format!("/**\n * {doc}\n */\ntypedef struct {name} {{\n");
    for Field { name, cuda_type, doc, .. } in fields {
        writeln!(text, "  /**\n   * {doc}\n   */\n  {cuda_type} {name};").unwrap();
    }
    text + &format!("}} {name};\n")
}

fn header() -> String {
    let structs = [
        params(
            "nvkv_decode_params",
            "What a decode or fused kernel takes. Strides are in bytes.",
            DecodeParams::FIELDS,
        ),
        params("nvkv_append_params", "What an append kernel takes. Strides are in bytes.", AppendParams::FIELDS),
    ];
    let mut config = Config {
        language: Language::C,
        style: Style::Both,
        header: Some(NOTICE.into()),
        include_guard: Some("NVKV_H".into()),
        cpp_compat: true,
        documentation_style: DocumentationStyle::Doxy,
        after_includes: Some(structs.join("\n")),
        enumeration: EnumConfig::default(),
        ..Config::default()
    };
    let renamed = [("DecodeParams", "nvkv_decode_params"), ("AppendParams", "nvkv_append_params")];
    config.export.rename = renamed.map(|(rust, c)| (rust.into(), c.into())).into();
    let mut text = Vec::new();
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let builder = ["lib.rs", "problem.rs", "status.rs"]
        .iter()
        .fold(Builder::new().with_config(config), |builder, file| builder.with_src(source.join(file)));
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include/nvkv.h")
}

#[test]
fn the_header_is_current() {
    let committed = fs::read_to_string(path()).unwrap_or_default();
    assert!(
        committed == header(),
        "include/nvkv.h is not what the source says: `cargo test -p nvkv-capi --test header -- --ignored` writes it"
    );
}

#[test]
#[ignore = "writes include/nvkv.h"]
fn write_the_header() {
    fs::write(path(), header()).unwrap();
}
