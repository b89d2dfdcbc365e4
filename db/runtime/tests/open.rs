//! A bundle is opened as a whole, or refused with the name of what is wrong.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use nvkv_runtime::bundle::{FILE_NAME, Manifest};
use nvkv_runtime::{Runtime, fixture};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn written(manifest: &Manifest) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fixture::write(folder.path(), manifest).unwrap();
    folder
}

fn refusal(folder: &Path) -> String {
    Runtime::open(folder, None).unwrap_err().to_string()
}

/// The small fixture with something changed, its digest with it.
fn refusal_of(change: impl FnOnce(&mut Manifest)) -> String {
    let mut manifest = fixture::small();
    change(&mut manifest);
    refusal(written(&manifest).path())
}

#[test]
fn a_whole_bundle_opens() {
    let runtime = Runtime::open(written(&fixture::small()).path(), None).unwrap();
    assert_eq!(runtime.target().name(), "sm_90a");
    assert_eq!((runtime.kernels().len(), runtime.problems().len()), (5, 4));
    assert!(runtime.refused().is_empty());
}

#[test]
fn what_is_no_bundle_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let said = refusal(folder.path());
    assert!(said.contains("no bundle in") && said.contains("nvkv-tune --out"), "{said}");
    let said = refusal(&folder.path().join("nowhere"));
    assert!(said.contains("nowhere"), "{said}");
    let said = refusal(&folder.path().join("out/sm_90a"));
    assert!(said.ends_with("out` writes one"), "{said}");
}

#[test]
fn a_changed_manifest_is_refused() {
    let folder = written(&fixture::small());
    let path = folder.path().join(FILE_NAME);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("12.5", "11.5")).unwrap();
    let said = refusal(folder.path());
    assert!(said.contains("manifest.json") && said.contains("changed since"), "{said}");
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert!(refusal(folder.path()).contains("changed since"));
    fs::remove_file(folder.path().join("manifest.b3")).unwrap();
    assert!(refusal(folder.path()).contains("manifest.b3"));
}

#[test]
fn a_changed_or_missing_cubin_is_refused_by_name() {
    let folder = written(&fixture::small());
    let kernel = &fixture::small().kernels[1];
    let cubin = folder.path().join(&kernel.files.cubin.path);
    fs::write(&cubin, "other").unwrap();
    assert!(refusal(folder.path()).contains(kernel.id.as_str()));
    fs::remove_file(&cubin).unwrap();
    let said = refusal(folder.path());
    assert!(said.contains(kernel.id.as_str()) && said.contains("copy the bundle again"), "{said}");
}

#[test]
fn a_manifest_of_another_schema_is_refused_whatever_its_shape() {
    let folder = written(&fixture::small());
    for (schema, rest) in [(99, ""), (0, ""), (2, ""), (99, r#", "kernels": 7"#)] {
        let text = format!(r#"{{"schema": {schema}{rest}}}"#);
        fs::write(folder.path().join(FILE_NAME), text).unwrap();
        let said = refusal(folder.path());
        let other = if schema == 99 { "a newer nvkv" } else { "the older nvkv" };
        assert!(said.contains(&format!("schema {schema}")) && said.contains(other), "{said}");
    }
}

#[test]
fn a_manifest_has_a_selection_a_line_within_its_kernel() {
    let manifest = fixture::small();
    let text = String::from_utf8(manifest.to_json().unwrap()).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains(r#""trust":"timed""#)).collect();
    assert_eq!(lines.len(), 10);
    assert!(lines[1].trim().starts_with(r#"{"shape":{"batch":1,"context":8192,"kv_heads":8},"split""#), "{}", lines[1]);
    assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest);
}

#[test]
fn two_selections_of_one_problem_and_shape_are_refused_by_name() {
    let said = refusal_of(|m| {
        let of_another_kernel = m.kernels[0].selections[4].clone();
        m.kernels[1].selections.push(of_another_kernel);
    });
    assert!(said.contains("two selections of decode-nvfp4-fp8-d128-g8-q1-p16-bf16-linear at b8-c8192-h8"), "{said}");
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let said = refusal_of(|m| m.kernels[0].selections[0].shape = m.kernels[2].selections[0].shape);
    assert!(said.contains("another operation"), "{said}");
    let said = refusal_of(|m| m.kernels[0].selections[4].split = None);
    assert!(said.contains("another operation") && said.contains("b8-c8192-h8"), "{said}");
    let said = refusal_of(|m| m.kernels[0].parameters[3].offset = 8);
    assert!(said.contains("other parameters") && said.contains("decode-nvfp4"), "{said}");
    let said = refusal_of(|m| m.kernels[0].launch.row_tiles = 0);
    assert!(said.contains("launch is empty"), "{said}");
    let said = refusal_of(|m| m.kernels[2].files.cubin.path = "../../etc/hostname".into());
    assert!(said.contains("its file is there, not ../../etc/hostname"), "{said}");
}

#[test]
fn a_kernel_is_named_by_what_it_is() {
    let mut manifest = fixture::small();
    let folder = written(&manifest);
    manifest.kernels[0].id = serde_json::from_str(r#""../../etc""#).unwrap();
    let bytes = serde_json::to_vec(&manifest).unwrap();
    fs::write(folder.path().join(FILE_NAME), &bytes).unwrap();
    fs::write(folder.path().join("manifest.b3"), nvkv_runtime::bundle::digest(&bytes)).unwrap();
    assert!(refusal(folder.path()).contains("by its problem and variant it is decode-nvfp4"));
}

#[cfg(feature = "db")]
#[test]
fn a_database_that_is_not_there_is_an_error() {
    let folder = written(&fixture::small());
    let said = Runtime::open(folder.path(), Some(&folder.path().join("none.sqlite"))).unwrap_err().to_string();
    assert!(said.contains("none.sqlite"), "{said}");
}
