//! Finding bundles and reading them: nothing is used that changed since it was written.

use super::manifest::{DIGEST_NAME, FILE_NAME, FileEntry, Manifest, OLDEST_SCHEMA, SCHEMA, digest};
use nvkv_spec::Target;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Why a manifest cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It cannot be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// No bundle is there.
    #[error("no bundle in {}: `nvkv-tune --out {}` writes one", .0.display(), out(.0).display())]
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
    /// It was written by another nvkv.
    #[error(
        "{}: schema {found} is none that this nvkv reads (it reads {SCHEMA}); use {} nvkv, or tune again",
        path.display(),
        if *found > SCHEMA { "a newer" } else { "the older" }
    )]
    Schema {
        /// Where.
        path: PathBuf,
        /// Its schema.
        found: u32,
    },
}

/// A file of a bundle that is not as it was written.
#[derive(Debug, thiserror::Error)]
pub enum Changed {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Its entry names another place, which is not followed.
    #[error("{}: its file is there, not {entry}", path.display())]
    Elsewhere {
        /// Where bundles have it.
        path: PathBuf,
        /// What the entry says.
        entry: String,
    },
    /// Its bytes are others.
    #[error("{}: changed since it was written ({found})", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What it is now.
        found: String,
    },
}

/// The folder to give as `--out` for a bundle in `folder`: bundles lie in folders of their targets' names.
fn out(folder: &Path) -> &Path {
    let is_target = Target::ALL.iter().any(|target| folder.ends_with(target.name()));
    folder.parent().filter(|out| is_target && !out.as_os_str().is_empty()).unwrap_or(folder)
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

/// Reads the manifest of the bundle in `folder`; whether it is as it was written, [`check_digest`] says.
pub fn read(folder: &Path) -> Result<Manifest, Unreadable> {
    let path = folder.join(FILE_NAME);
    match fs::read(&path) {
        Ok(bytes) => parse(&path, &bytes),
        Err(source) => Err(Unreadable::Io { path, source }),
    }
}

/// The manifest of these bytes; `path` is for errors.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Manifest, Unreadable> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    // A manifest of another schema may have any other shape: that is the better answer.
    let unreadable = |source| match serde_json::from_slice::<Version>(bytes) {
        Ok(Version { schema: found }) if !(OLDEST_SCHEMA..=SCHEMA).contains(&found) => {
            Unreadable::Schema { path: path.into(), found }
        }
        _ => Unreadable::Malformed { path: path.into(), source },
    };
    // Checked as a whole, UTF-8 need not be checked text by text.
    let manifest: Manifest = match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    }
    .map_err(unreadable)?;
    match manifest.schema {
        OLDEST_SCHEMA..=SCHEMA => Ok(manifest),
        found => Err(Unreadable::Schema { path: path.into(), found }),
    }
}

/// Whether `manifest`, the bytes of the manifest in `folder`, are those that were written.
pub fn check_digest(folder: &Path, manifest: &[u8]) -> Result<(), Changed> {
    let path = folder.join(DIGEST_NAME);
    let stated = fs::read(&path).map_err(|source| Changed::Io { path, source })?;
    if stated == digest(manifest).into_bytes() {
        return Ok(());
    }
    let found = format!("{DIGEST_NAME} has another BLAKE3");
    Err(Changed::Content { path: folder.join(FILE_NAME), found })
}

/// The bytes of the file that `entry` describes, found to be those that were written. It must be at `path`, where
/// bundles have it: no other path is followed.
pub fn read_file(folder: &Path, path: &str, entry: &FileEntry) -> Result<Vec<u8>, Changed> {
    let place = folder.join(path);
    if entry.path != path {
        return Err(Changed::Elsewhere { path: place, entry: entry.path.clone() });
    }
    let bytes = match fs::read(&place) {
        Ok(bytes) => bytes,
        Err(source) => return Err(Changed::Io { path: place, source }),
    };
    let hash = blake3::hash(&bytes).to_hex();
    if hash.as_str() == entry.blake3 && bytes.len() as u64 == entry.bytes {
        return Ok(bytes);
    }
    Err(Changed::Content { path: place, found: format!("BLAKE3 {hash}, {} bytes", bytes.len()) })
}
