//! Opening: a bundle, and the winners of a database beside it, checked and in memory.

use crate::bundle::{self, Changed, FILE_NAME, Kernel, Manifest, Selection, Trust, Unreadable, parameters};
use crate::index::{self, Row, Rows};
use crate::launch::Contexts;
use crate::log::{Histogram, Log};
use foldhash::fast::RandomState;
use nvkv_spec::{KernelId, Problem, Shape, SplitPolicy, Target};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, thread};

/// The file of a kernel that is loaded.
const CUBIN: &str = "kernel.cubin";

/// Why a bundle or a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The manifest cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// A file is not as it was written.
    #[error("{0}; copy the bundle again, or tune again to write a new one")]
    Changed(#[from] Changed),
    /// The manifest contradicts itself.
    #[error("{path}: {what}; tune again to write a new one", path = path.display())]
    Inconsistent {
        /// The manifest.
        path: PathBuf,
        /// The entry, by name, and what is wrong with it.
        what: String,
    },
    /// The database cannot be read.
    #[cfg(feature = "db")]
    #[error(transparent)]
    Database(#[from] nvkv_db::DbError),
    /// This build reads no database.
    #[error("{}: this nvkv was built without databases (feature `db`); open the bundle alone", .0.display())]
    NoDatabases(PathBuf),
}

/// A row of the database that cannot serve.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Its kernel.
    pub kernel: KernelId,
    /// Its shape.
    pub shape: Shape,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}: the bundle has no such kernel of the same source", self.kernel, self.shape.key())
    }
}

/// What the runtime has for one problem.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Its kernels, those with the fewest row tiles first.
    pub kernels: Vec<u32>,
    /// The default variant.
    pub default: Option<u32>,
    /// Timed shapes.
    pub timed: Rows,
    /// Predicted shapes.
    pub predicted: Rows,
}

/// The kernels of one bundle, ready to be found and launched. Shared by reference between threads.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) folder: PathBuf,
    pub(crate) target: Target,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) entries: HashMap<Problem, Entry, RandomState>,
    pub(crate) log: Log,
    pub(crate) contexts: Contexts,
    sms: AtomicU32,
    refused: Vec<Refused>,
}

impl Runtime {
    /// Opens the bundle in `folder` (`<out>/<target>`), with the winners of the database at `db` beside its own where one
    /// is given: these come first at the shapes that they have. Everything is checked: schema, digest, the hash of each
    /// cubin, that no shape of a problem is there twice, and that each kernel takes the parameters that this runtime passes.
    ///
    /// # Errors
    /// Names the file or the entry that is wrong, and the next step.
    pub fn open(folder: impl AsRef<Path>, db: Option<&Path>) -> Result<Self, OpenError> {
        let folder = folder.as_ref();
        let path = folder.join(FILE_NAME);
        let bytes = read(folder, &path)?;
        let manifest = checked(folder, &path, &bytes)?;
        let inconsistent = |what: String| OpenError::Inconsistent { path: path.clone(), what };
        let Manifest { target, mut kernels, .. } = manifest;
        kernels.iter().try_for_each(|kernel| check_kernel(kernel).map_err(inconsistent))?;
        check_files(folder, &kernels)?;
        let rows = take_rows(&mut kernels).map_err(inconsistent)?;
        let (winners, refused) = match db {
            None => (Vec::new(), Vec::new()),
            #[cfg(feature = "db")]
            Some(db) => crate::database::winners(db, target, &kernels)?,
            #[cfg(not(feature = "db"))]
            Some(db) => return Err(OpenError::NoDatabases(db.into())),
        };
        Ok(Self {
            folder: folder.into(),
            target,
            entries: entries(&kernels, rows, winners).map_err(inconsistent)?,
            kernels,
            log: Log::default(),
            contexts: Contexts::default(),
            sms: AtomicU32::new(target.facts().sms),
            refused,
        })
    }

    /// What the cubins are compiled for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The kernels of the bundle, without their selections: [`Self::find`] has these.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The problems that have a kernel, in order of their keys.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<_> = self.entries.keys().copied().collect();
        problems.sort_by_key(Problem::key);
        problems
    }

    /// Rows of the database that were left out, since the bundle lacks their kernel.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Which shapes were asked for, and how they were served.
    pub fn shape_histogram(&self) -> Histogram {
        self.log.histogram(self.target)
    }

    /// Multiprocessors of the device: a typical one of the target until a context is prepared.
    pub(crate) fn sms(&self) -> u32 {
        self.sms.load(Ordering::Relaxed)
    }

    /// Default splits follow the device that is there.
    pub(crate) fn set_sms(&self, sms: u32) {
        if self.sms.swap(sms, Ordering::Relaxed) != sms {
            self.log.forget();
        }
    }

    /// The bytes of a kernel's cubin, found again to be those that were written.
    pub(crate) fn cubin(&self, kernel: &Kernel) -> Result<Vec<u8>, Changed> {
        bundle::read_file(&self.folder, &cubin_path(kernel), &kernel.files.cubin)
    }
}

fn cubin_path(kernel: &Kernel) -> String {
    format!("{}/{CUBIN}", kernel.id)
}

fn read(folder: &Path, path: &Path) -> Result<Vec<u8>, Unreadable> {
    if !path.exists() {
        return Err(Unreadable::Missing(folder.into()));
    }
    fs::read(path).map_err(|source| Unreadable::Io { path: path.into(), source })
}

/// The manifest of these bytes, while another thread hashes them.
fn checked(folder: &Path, path: &Path, bytes: &[u8]) -> Result<Manifest, OpenError> {
    let (digest, manifest) = thread::scope(|scope| {
        let digest = scope.spawn(|| bundle::check_digest(folder, bytes));
        let manifest = bundle::parse(path, bytes);
        (digest.join(), manifest)
    });
    // A manifest that changed may not even parse: that it changed is the better answer, unless its schema is another.
    match (digest, manifest) {
        (_, Err(schema @ Unreadable::Schema { .. })) => Err(schema.into()),
        (Ok(Err(changed)), _) => Err(changed.into()),
        (Err(panic), _) => std::panic::resume_unwind(panic),
        (Ok(Ok(())), manifest) => Ok(manifest?),
    }
}

/// Every cubin has the bytes it was written with.
fn check_files(folder: &Path, kernels: &[Kernel]) -> Result<(), OpenError> {
    let check = |kernel: &Kernel| bundle::read_file(folder, &cubin_path(kernel), &kernel.files.cubin).map(drop);
    Ok(kernels.iter().try_for_each(check)?)
}

/// The selections, taken out of their kernels.
fn take_rows(kernels: &mut [Kernel]) -> Result<Vec<Row>, String> {
    let mut rows = Vec::with_capacity(kernels.iter().map(|kernel| kernel.selections.len()).sum());
    for (kernel, at) in kernels.iter_mut().zip(0..) {
        for Selection { shape, split, trust, median_us, predicted_us, regret, .. } in
            std::mem::take(&mut kernel.selections)
        {
            let us = median_us.or(predicted_us).unwrap_or(f64::NAN);
            let row = Row { shape, kernel: at, split, trust, us, regret };
            let wrong = |what| format!("the selection of {} at {}: {what}", kernel.id, shape.key());
            check_row(&kernel.problem, &row).map_err(wrong)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// A kernel is named by what it is, takes the parameters that this runtime passes, and has a launch.
fn check_kernel(kernel: &Kernel) -> Result<(), String> {
    let Kernel { id, problem, variant, launch, .. } = kernel;
    let named = KernelId::new(problem, variant);
    if named != *id {
        return Err(format!("kernel {id}: by its problem and variant it is {named}"));
    }
    let passed = parameters(problem);
    let stated = kernel.parameters.iter().map(|p| (&p.name, &p.cuda_type, p.offset));
    if kernel.parameter_bytes != passed.1 || !stated.eq(passed.0.iter().map(|p| (&p.name, &p.cuda_type, p.offset))) {
        return Err(format!("kernel {id} takes other parameters than this nvkv passes"));
    }
    let unit = match problem {
        Problem::Decode(_) => launch.block_tokens,
        Problem::Append(_) => launch.items_per_block,
    };
    if launch.threads == 0 || launch.row_tiles == 0 || unit == 0 {
        return Err(format!("kernel {id}: its launch is empty"));
    }
    Ok(())
}

/// A row has a shape and a split of its operation.
pub(crate) fn check_row(problem: &Problem, row: &Row) -> Result<(), &'static str> {
    match (problem, row.shape, row.split) {
        (_, _, Some(SplitPolicy::Even { splits: 0 } | SplitPolicy::Chunk { tokens: 0, .. })) => {
            Err("its split is empty")
        }
        (Problem::Decode(_), Shape::Decode { .. }, Some(_)) | (Problem::Append(_), Shape::Append { .. }, None) => {
            Ok(())
        }
        _ => Err("its shape or its split is of another operation"),
    }
}

/// Kernels and rows by problem: those of the bundle, no shape twice, and winners of a database over them.
fn entries(
    kernels: &[Kernel],
    rows: Vec<Row>,
    winners: Vec<Row>,
) -> Result<HashMap<Problem, Entry, RandomState>, String> {
    let mut first: HashMap<Problem, usize, RandomState> = HashMap::default();
    let mut entries: HashMap<Problem, Entry, RandomState> = HashMap::default();
    for (at, kernel) in kernels.iter().enumerate() {
        let entry = entries.entry(kernel.problem).or_default();
        entry.kernels.push(at as u32);
        if kernel.is_default {
            entry.default = Some(at as u32);
        }
        first.entry(kernel.problem).or_insert(at);
    }
    let home: Vec<_> = kernels.iter().map(|kernel| first[&kernel.problem]).collect();
    let by_home = |rows: Vec<Row>| {
        let mut of_kernel = vec![Vec::new(); kernels.len()];
        rows.into_iter().for_each(|row| of_kernel[home[row.kernel as usize]].push(row));
        of_kernel
    };
    let (mut rows, mut winners) = (by_home(rows), by_home(winners));
    for (problem, entry) in &mut entries {
        let mut rows = std::mem::take(&mut rows[first[problem]]);
        if let Some(shape) = index::sort(&mut rows) {
            return Err(format!("two selections of {} at {}", problem.key(), shape.key()));
        }
        rows.append(&mut winners[first[problem]]);
        let (timed, predicted) = rows.into_iter().partition(|row| row.trust == Trust::Timed);
        (entry.timed, entry.predicted) = (Rows::new(timed), Rows::new(predicted));
        entry.kernels.sort_by_key(|&kernel| kernels[kernel as usize].launch.row_tiles);
    }
    Ok(entries)
}
