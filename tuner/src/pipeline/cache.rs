//! Compiled kernels on disk by what they were made from, so that a resumed run does not compile again.

use crate::folder::{self, FolderError, failed};
use crate::worker::Compiled;
use nvkv_spec::{CompileFacts, Target, Toolchain};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// What an entry says about its files. The source's hash is the entry's name.
#[derive(Serialize, Deserialize)]
struct Facts {
    ptx_blake3: String,
    cubin_blake3: String,
    compile: CompileFacts,
    toolchain: Toolchain,
}

/// [`Facts`], and the hash of their JSON: they are not taken from a damaged file either.
#[derive(Serialize, Deserialize)]
struct Sealed {
    facts: Facts,
    blake3: String,
}

impl Facts {
    fn seal(self) -> serde_json::Result<Sealed> {
        let blake3 = hash(&serde_json::to_vec(&self)?);
        Ok(Sealed { facts: self, blake3 })
    }
}

impl Sealed {
    fn open(self) -> Option<Facts> {
        let whole = hash(&serde_json::to_vec(&self.facts).ok()?) == self.blake3;
        whole.then_some(self.facts)
    }
}

/// BLAKE3, hex.
fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// File names of a kernel, in the cache and in a bundle.
pub const CU: &str = "kernel.cu";
/// PTX text.
pub const PTX: &str = "kernel.ptx";
/// Machine code.
pub const CUBIN: &str = "kernel.cubin";
const FACTS: &str = "facts.json";
/// How often a waiting tuner looks again.
const POLL: Duration = Duration::from_millis(10);

/// Shows that kernels of `target` can be kept under `out`.
pub fn require_place(out: &Path, target: Target) -> Result<(), FolderError> {
    folder::require_writable(&out.join(".cache").join(target.name()))
}

impl Cache {
    /// The cache of one target and compiler under `out`.
    pub fn new(out: &Path, target: Target, nvrtc: &str) -> Self {
        Self { root: out.join(".cache").join(target.name()).join(format!("nvrtc-{nvrtc}")) }
    }

    /// The kernel of this source, if it was compiled before and every byte of it is still what it was.
    pub fn find(&self, source_hash: &str) -> Option<Artefact> {
        let folder = self.root.join(source_hash);
        let sealed: Sealed = serde_json::from_slice(&fs::read(folder.join(FACTS)).ok()?).ok()?;
        let facts = sealed.open()?;
        let files = [(CU, source_hash), (PTX, &facts.ptx_blake3), (CUBIN, &facts.cubin_blake3)];
        let whole = |(name, blake3): (&str, &str)| fs::read(folder.join(name)).is_ok_and(|b| hash(&b) == blake3);
        if !files.into_iter().all(whole) {
            return None;
        }
        let Facts { cubin_blake3, compile, toolchain, .. } = facts;
        Some(Artefact { folder, cubin_hash: cubin_blake3, facts: compile, toolchain })
    }

    /// Waits up to `limit` while another tuner compiles this source, and keeps others waiting until the turn is
    /// dropped. None where the file system has no locks, or the other is too slow: then both compile it.
    pub fn turn(&self, source_hash: &str, limit: Duration) -> Option<Turn> {
        fs::create_dir_all(&self.root).ok()?;
        let path = self.root.join(format!(".{source_hash}.lock"));
        let file = File::create(&path).ok()?;
        let deadline = Instant::now() + limit;
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Turn { path, _file: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err(_) => return None,
            }
        }
    }

    /// Keeps a compiled kernel. A damaged entry of the same name is replaced.
    pub fn store(&self, source_hash: &str, source: &str, compiled: &Compiled) -> Result<Artefact, FolderError> {
        fs::create_dir_all(&self.root).map_err(failed("create the folder", &self.root))?;
        let aside = tempfile::Builder::new().prefix(".new-").tempdir_in(&self.root);
        let aside = aside.map_err(failed("write to the folder", &self.root))?;
        let facts = Facts {
            ptx_blake3: hash(compiled.ptx.as_bytes()),
            cubin_blake3: hash(&compiled.cubin),
            compile: compiled.facts.clone(),
            toolchain: compiled.toolchain.clone(),
        };
        let sealed = facts.seal().map_err(|e| failed("write", aside.path())(e.into()))?;
        let text = serde_json::to_vec_pretty(&sealed).map_err(|e| failed("write", aside.path())(e.into()))?;
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
        let Facts { cubin_blake3, compile, toolchain, .. } = sealed.facts;
        Ok(Artefact { folder, cubin_hash: cubin_blake3, facts: compile, toolchain })
    }
}

/// The right to compile one source, held against other tuners; ends with the process at the latest.
pub struct Turn {
    path: PathBuf,
    _file: File,
}

impl Drop for Turn {
    /// Whoever waits for the removed file gets it all the same, and finds the kernel in the cache.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Artefact {
    /// The PTX text.
    pub fn ptx(&self) -> Result<String, FolderError> {
        let path = self.folder.join(PTX);
        fs::read_to_string(&path).map_err(failed("read", &path))
    }

    /// The machine code.
    pub fn cubin(&self) -> Result<Vec<u8>, FolderError> {
        let path = self.folder.join(CUBIN);
        fs::read(&path).map_err(failed("read", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tuner_at_a_time_compiles_a_source() {
        let out = tempfile::tempdir().unwrap();
        let cache = || Cache::new(out.path(), Target::Sm90a, "13.0");
        let first = cache().turn("a", Duration::ZERO).unwrap();
        assert!(cache().turn("a", Duration::from_millis(30)).is_none());
        assert!(cache().turn("b", Duration::ZERO).is_some(), "another source");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| cache().turn("a", Duration::from_secs(60)).is_some());
            std::thread::sleep(Duration::from_millis(30));
            drop(first);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn a_damaged_entry_is_not_found_and_is_replaced() {
        let out = tempfile::tempdir().unwrap();
        let cache = Cache::new(out.path(), Target::Sm90a, "13.0");
        let source = "extern \"C\" __global__ void k() {}";
        let compiled = Compiled {
            ptx: ".target sm_90a".into(),
            cubin: b"machine code".to_vec(),
            facts: CompileFacts { registers: 96, ..CompileFacts::default() },
            log: String::new(),
            toolchain: Toolchain { nvrtc: "13.0".into(), generator: "0.1.0".into() },
        };
        let stored = cache.store(&hash(source.as_bytes()), source, &compiled).unwrap();
        assert_eq!(cache.find(&hash(source.as_bytes())), Some(stored.clone()));
        for (name, from, to) in
            [(CU, "void", "vojd"), (PTX, "sm_90a", "sm_91a"), (CUBIN, "machine", "Machine"), (FACTS, "96", "97")]
        {
            let path = stored.folder.join(name);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{name} was not stored anew");
            fs::write(&path, text.replacen(from, to, 1)).unwrap();
            assert_eq!(cache.find(&hash(source.as_bytes())), None, "{name}");
            assert_eq!(cache.store(&hash(source.as_bytes()), source, &compiled).unwrap(), stored);
            assert_eq!(cache.find(&hash(source.as_bytes())), Some(stored.clone()), "{name}");
        }
    }
}
