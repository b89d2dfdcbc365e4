//! Writing a bundle: the whole new folder aside, on the disk, then in the place of the old one.

use super::launch_rule;
use crate::folder::{self, FolderError, failed};
use crate::pipeline::cache::{Artefact, CU, CUBIN, PTX};
use crate::pipeline::choices::Choice;
use nvkv_db::KernelRecord;
use nvkv_generator::launch;
use nvkv_runtime::bundle::{
    DIGEST_NAME, FILE_NAME, FileEntry, Files, Kernel, Manifest, SCHEMA, Selection, digest, numerics, parameters,
};
use nvkv_spec::{Evidence, KernelId, SplitPolicy, Target, Toolchain};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A kernel that goes into a bundle.
#[derive(Clone, Debug)]
pub struct Ingredient {
    /// The kernel.
    pub kernel: KernelRecord,
    /// Its files.
    pub artefact: Artefact,
    /// Why it may be trusted.
    pub evidence: Evidence,
    /// Whether it is the default variant: it serves shapes that no selection is near to.
    pub is_default: bool,
}

/// A bundle on the disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Its folder.
    pub folder: PathBuf,
    /// Kernels in it.
    pub kernels: usize,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Shows that the bundle of `target` can be written under `out`, so that a long run does not find out at its end.
pub fn require_place(out: &Path, target: Target) -> Result<(), FolderError> {
    folder::require_writable(out)?;
    lock_file(out)?;
    let current = out.join(target.name());
    match fs::read_dir(&current) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("use the folder", &current)(error)),
        _ => Ok(()),
    }
}

/// Writes the bundle of `target` under `out`. Readers see the old bundle until the new one is whole.
pub fn write(
    out: &Path,
    target: Target,
    toolchain: &Toolchain,
    created_at: &str,
    (ingredients, choices): (&[Ingredient], &[Choice]),
) -> Result<Written, FolderError> {
    folder::require_writable(out)?;
    let _lock = lock(out)?;
    let current = out.join(target.name());
    folder::recover(&current)?;
    remove_leftovers(out, target)?;
    let aside = tempfile::Builder::new().prefix(&aside_prefix(target)).tempdir_in(out);
    let aside = aside.map_err(failed("write to the folder", out))?;
    let mut selections = HashMap::<_, Vec<Selection>>::new();
    choices.iter().for_each(|choice| selections.entry(choice.kernel().key()).or_default().push(selection(choice)));
    let kernel = |i: &Ingredient| kernel(aside.path(), i, selections.remove(&i.kernel.key()).unwrap_or_default());
    let kernels = ingredients.iter().map(kernel).collect::<Result<Vec<_>, _>>()?;
    let bytes: u64 = kernels.iter().flat_map(|k| [&k.files.cu, &k.files.ptx, &k.files.cubin]).map(|f| f.bytes).sum();
    let manifest =
        Manifest { schema: SCHEMA, target, toolchain: toolchain.clone(), created_at: created_at.into(), kernels };
    let path = aside.path().join(FILE_NAME);
    let text = manifest.to_json().map_err(|e| failed("write", &path)(e.into()))?;
    folder::write_synced(&path, &text)?;
    folder::write_synced(&aside.path().join(DIGEST_NAME), digest(&text).as_bytes())?;
    folder::sync(aside.path())?;
    publish(out, aside, &current)?;
    Ok(Written { folder: current, kernels: manifest.kernels.len(), bytes: bytes + text.len() as u64 })
}

/// Makes the folder readable for others, as folders usually are, and puts it in place.
fn publish(out: &Path, aside: tempfile::TempDir, current: &Path) -> Result<(), FolderError> {
    use std::os::unix::fs::PermissionsExt;
    let path = aside.keep();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&path, open).map_err(failed("set permissions of", &path))?;
    folder::replace(out, &path, current)
}

/// One writer at a time; the lock goes with the process.
fn lock(out: &Path) -> Result<File, FolderError> {
    let (file, path) = lock_file(out)?;
    file.lock().map_err(failed("lock", &path))?;
    Ok(file)
}

fn lock_file(out: &Path) -> Result<(File, PathBuf), FolderError> {
    let path = out.join(".lock");
    let file = File::create(&path).map_err(failed("write", &path))?;
    Ok((file, path))
}

fn aside_prefix(target: Target) -> String {
    format!(".{target}.new-")
}

/// Folders that a killed writer left behind; the lock says that none is being written.
fn remove_leftovers(out: &Path, target: Target) -> Result<(), FolderError> {
    for entry in fs::read_dir(out).map_err(failed("read the folder", out))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&aside_prefix(target)) {
            fs::remove_dir_all(entry.path()).map_err(failed("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Copies one kernel's files into the bundle and describes it.
fn kernel(bundle: &Path, ingredient: &Ingredient, selections: Vec<Selection>) -> Result<Kernel, FolderError> {
    let Ingredient { kernel, artefact, evidence, is_default } = ingredient;
    let id = KernelId::new(&kernel.problem, &kernel.variant);
    let to = bundle.join(id.as_str());
    fs::create_dir(&to).map_err(failed("create the folder", &to))?;
    let file = |name: &str| {
        let from = artefact.folder.join(name);
        let bytes = fs::read(&from).map_err(failed("read", &from))?;
        folder::write_synced(&to.join(name), &bytes)?;
        Ok(FileEntry {
            path: format!("{id}/{name}"),
            blake3: blake3::hash(&bytes).to_hex().to_string(),
            bytes: bytes.len() as u64,
        })
    };
    let files = Files { cu: file(CU)?, ptx: file(PTX)?, cubin: file(CUBIN)? };
    folder::sync(&to)?;
    let (parameters, parameter_bytes) = parameters(&kernel.problem);
    Ok(Kernel {
        symbol: id.symbol(),
        id,
        problem: kernel.problem,
        variant: kernel.variant,
        numerics: numerics(&kernel.problem),
        launch: launch_rule(&kernel.problem, &kernel.variant),
        parameters,
        parameter_bytes,
        source_hash: kernel.source_hash.clone(),
        files,
        compile: artefact.facts.clone(),
        toolchain: artefact.toolchain.clone(),
        evidence: evidence.clone(),
        is_default: *is_default,
        selections,
    })
}

/// One choice as the manifest says it.
fn selection(choice: &Choice) -> Selection {
    let shape = choice.shape();
    let split = choice.split().unwrap_or(SplitPolicy::WHOLE);
    let launch = launch(&choice.problem(), &choice.kernel().variant, &shape, split);
    let (timed, predicted) = match choice {
        Choice::Timed(winner) => (Some(winner), None),
        Choice::Predicted(winner) => (None, Some(winner.predicted_us)),
    };
    Selection {
        shape,
        split: choice.split(),
        workspace_bytes: launch.workspace_bytes,
        trust: choice.trust(),
        median_us: timed.map(|w| w.times.median_us),
        gbps: timed.map(|w| w.gbps()),
        share_of_read_ceiling: timed.and_then(|w| w.ceiling_share()),
        default_median_us: timed.and_then(|w| w.default).map(|d| d.median_us),
        near_ties: timed.map(|w| w.near_ties.len()),
        regret: timed.and_then(|w| w.regret),
        predicted_us: predicted,
    }
}
