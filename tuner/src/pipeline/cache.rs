//! Compiled kernels on disk by what they were made from, so that a resumed run does not compile again.

use crate::folder::{self, FolderError, failed};
use crate::worker::Compiled;
use nvkv_spec::{CompileFacts, Target, Toolchain};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// `OUT/.cache/<target>/nvrtc-<version>/<source hash>/`: outside the bundle's folder, which is
/// replaced as a whole. An entry is written aside and renamed, so one that is there is whole.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A compiled kernel in the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Artefact {
    /// Folder with `kernel.cu`, `kernel.ptx` and `kernel.cubin`.
    pub folder: PathBuf,
    /// BLAKE3 of the cubin, hex.
    pub cubin_hash: String,
    /// What the compiler says about it.
    pub facts: CompileFacts,
    /// What compiled it.
    pub toolchain: Toolchain,
}

/// What an entry says about its files.
#[derive(Serialize, Deserialize)]
struct Facts {
    cubin_blake3: String,
    compile: CompileFacts,
    toolchain: Toolchain,
}

/// File names of a kernel, in the cache and in a bundle.
pub const CU: &str = "kernel.cu";
/// PTX text.
pub const PTX: &str = "kernel.ptx";
/// Machine code.
pub const CUBIN: &str = "kernel.cubin";
const FACTS: &str = "facts.json";

impl Cache {
    /// The cache of one target and compiler under `out`.
    pub fn new(out: &Path, target: Target, nvrtc: &str) -> Self {
        Self { root: out.join(".cache").join(target.name()).join(format!("nvrtc-{nvrtc}")) }
    }

    /// The kernel of this source, if it was compiled before and its bytes are still what they were.
    pub fn find(&self, source_hash: &str) -> Option<Artefact> {
        let folder = self.root.join(source_hash);
        let facts: Facts = serde_json::from_slice(&fs::read(folder.join(FACTS)).ok()?).ok()?;
        let cubin = fs::read(folder.join(CUBIN)).ok()?;
        (blake3::hash(&cubin).to_hex().as_str() == facts.cubin_blake3).then_some(Artefact {
            folder,
            cubin_hash: facts.cubin_blake3,
            facts: facts.compile,
            toolchain: facts.toolchain,
        })
    }

    /// Keeps a compiled kernel. A damaged entry of the same name is replaced.
    pub fn store(&self, source_hash: &str, source: &str, compiled: &Compiled) -> Result<Artefact, FolderError> {
        fs::create_dir_all(&self.root).map_err(failed("create the folder", &self.root))?;
        let aside = tempfile::Builder::new().prefix(".new-").tempdir_in(&self.root);
        let aside = aside.map_err(failed("write to the folder", &self.root))?;
        let facts = Facts {
            cubin_blake3: blake3::hash(&compiled.cubin).to_hex().to_string(),
            compile: compiled.facts.clone(),
            toolchain: compiled.toolchain.clone(),
        };
        let text = serde_json::to_vec_pretty(&facts).map_err(|e| failed("write", aside.path())(e.into()))?;
        let files = [(CU, source.as_bytes()), (PTX, compiled.ptx.as_bytes()), (CUBIN, &compiled.cubin), (FACTS, &text)];
        for (name, bytes) in files {
            folder::write_synced(&aside.path().join(name), bytes)?;
        }
        let folder = self.root.join(source_hash);
        if self.find(source_hash).is_none() {
            let _ = fs::remove_dir_all(&folder);
            // Another tuner may have stored the same kernel meanwhile: then its entry is as good.
            if let Err(error) = fs::rename(aside.path(), &folder)
                && self.find(source_hash).is_none()
            {
                return Err(failed("store", &folder)(error));
            }
        }
        Ok(Artefact { folder, cubin_hash: facts.cubin_blake3, facts: facts.compile, toolchain: facts.toolchain })
    }
}

impl Artefact {
    /// The machine code.
    pub fn cubin(&self) -> Result<Vec<u8>, FolderError> {
        let path = self.folder.join(CUBIN);
        fs::read(&path).map_err(failed("read", &path))
    }
}
