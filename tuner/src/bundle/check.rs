//! Reading a bundle back: every file is there with the bytes it was written with, and every
//! selection names a kernel that is in it.

use super::manifest::{FILE_NAME, FileEntry, Kernel, Manifest, SCHEMA, parameters};
use crate::folder::{FolderError, failed};
use nvkv_spec::KernelId;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Why a manifest cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// No bundle is there.
    #[error("no bundle in {}: `nvkv-tune --out {}` writes one", .0.display(), .0.display())]
    Missing(PathBuf),
    /// It is not a manifest.
    #[error("{}: not a manifest ({source}); tune again to write a new one", path.display())]
    Malformed {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// It was written by a newer nvkv.
    #[error("{}: schema {found} is newer than {SCHEMA}, which this nvkv-tune reads; use a newer nvkv-tune", path.display())]
    Newer {
        /// Where.
        path: PathBuf,
        /// Its schema.
        found: u32,
    },
}

/// What is wrong with a bundle, each line with the file it is about.
pub type Problems = Vec<String>;

/// The folders of bundles: `folder` itself, or those in it.
pub fn find(folder: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    if folder.join(FILE_NAME).exists() {
        return Ok(vec![folder.to_path_buf()]);
    }
    let Ok(entries) = fs::read_dir(folder) else { return Err(Unreadable::Missing(folder.into())) };
    let visible = entries.flatten().filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut found: Vec<_> = visible.map(|entry| entry.path()).filter(|path| path.join(FILE_NAME).exists()).collect();
    found.sort();
    if found.is_empty() { Err(Unreadable::Missing(folder.into())) } else { Ok(found) }
}

/// Reads the manifest of the bundle in `folder`.
pub fn read(folder: &Path) -> Result<Manifest, Unreadable> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let path = folder.join(FILE_NAME);
    let bytes = fs::read(&path).map_err(failed("read", &path))?;
    let malformed = |source| Unreadable::Malformed { path: path.clone(), source };
    // The schema is read first: a newer manifest may have any other shape.
    let found = serde_json::from_slice::<Version>(&bytes).map_err(malformed)?.schema;
    if found > SCHEMA {
        return Err(Unreadable::Newer { path, found });
    }
    serde_json::from_slice(&bytes).map_err(malformed)
}

/// Compares the files in `folder` with what `manifest` says about them.
pub fn check(folder: &Path, manifest: &Manifest) -> Problems {
    let mut problems: Problems = manifest.kernels.iter().flat_map(|kernel| check_kernel(folder, kernel)).collect();
    for selection in &manifest.selections {
        let kernel = manifest.kernels.iter().find(|k| k.id == selection.kernel);
        let what = format!("selection {} at {}", selection.problem, selection.shape.key());
        match kernel {
            None => problems.push(format!("{what}: its kernel {} is not in the bundle", selection.kernel)),
            Some(kernel) if kernel.problem.key() != selection.problem => {
                problems.push(format!("{what}: its kernel {} solves {}", kernel.id, kernel.problem.key()));
            }
            Some(_) => {}
        }
    }
    problems
}

fn check_kernel(folder: &Path, kernel: &Kernel) -> Problems {
    let mut problems = Problems::new();
    let id = KernelId::new(&kernel.problem, &kernel.variant);
    if kernel.id != id || kernel.symbol != id.symbol() {
        problems.push(format!("{}: named {} by its problem and variant", kernel.id, id));
    }
    if (kernel.parameters.clone(), kernel.parameter_bytes) != parameters(&kernel.problem) {
        problems.push(format!("{}: its parameters are not those of this nvkv-tune", kernel.id));
    }
    let files = [&kernel.files.cu, &kernel.files.ptx, &kernel.files.cubin];
    problems.extend(files.into_iter().filter_map(|file| check_file(folder, file).err()));
    problems
}

fn check_file(folder: &Path, file: &FileEntry) -> Result<(), String> {
    let path = folder.join(&file.path);
    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let hash = blake3::hash(&bytes).to_hex();
    if hash.as_str() == file.blake3 {
        return Ok(());
    }
    Err(format!("{}: changed since it was written (BLAKE3 {hash}, manifest {})", path.display(), file.blake3))
}
