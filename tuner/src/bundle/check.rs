//! Whether a bundle is what this nvkv-tune would write: the files have the bytes they were written with, and all that
//! follows from a problem, a variant and a shape is worked out again.

mod kernel;
mod selection;

use nvkv_runtime::bundle::{FILE_NAME, Manifest, check_digest};
use nvkv_spec::Target;
use std::collections::HashSet;
use std::fs;
use std::hash::Hash;
use std::path::Path;

/// What is wrong with a bundle, each line with the file or the entry it is about.
pub type Problems = Vec<String>;

/// Compares `manifest` with the files in `folder`, and with what its problems, variants and shapes make of it.
pub fn check(folder: &Path, manifest: &Manifest) -> Problems {
    let mut problems = check_manifest(folder, manifest);
    problems.extend(manifest.kernels.iter().flat_map(|kernel| kernel::check(folder, manifest, kernel)));
    problems.extend(manifest.selections().flat_map(|(kernel, selection)| selection::check(kernel, selection)));
    problems
}

fn check_manifest(folder: &Path, manifest: &Manifest) -> Problems {
    let mut problems = Problems::new();
    let mut claim = |wrong: bool, what: String| problems.extend(wrong.then(|| format!("{FILE_NAME}: {what}")));
    claim(manifest.kernels.is_empty(), "it has no kernels".into());
    claim(manifest.selections().next().is_none(), "it has no selections".into());
    for id in repeated(manifest.kernels.iter().map(|k| &k.id)) {
        claim(true, format!("kernel {id} is there twice"));
    }
    for (problem, shape) in repeated(manifest.selections().map(|(kernel, s)| (kernel.problem, s.shape))) {
        claim(true, format!("the selection of {} at {} is there twice", problem.key(), shape.key()));
    }
    let target = manifest.target;
    if let Some(named) = named_target(folder).filter(|named| *named != target) {
        claim(true, format!("it is for {target}, in a folder named as for {named}"));
    }
    problems.extend(changed(folder).err());
    problems
}

/// A bundle may be copied under any name, but not under that of another target.
fn named_target(folder: &Path) -> Option<Target> {
    fs::canonicalize(folder).ok()?.file_name()?.to_str()?.parse().ok()
}

fn changed(folder: &Path) -> Result<(), String> {
    let path = folder.join(FILE_NAME);
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    check_digest(folder, &bytes).map_err(|changed| changed.to_string())
}

/// The values that come more than once, each time after the first.
fn repeated<T: Hash + Eq + Clone>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    values.filter(|value| !seen.insert(value.clone())).collect()
}
