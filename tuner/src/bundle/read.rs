//! Finding bundles and reading their manifests.

use super::manifest::{FILE_NAME, Manifest, SCHEMA};
use crate::folder::{FolderError, failed};
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
