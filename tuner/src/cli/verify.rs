//! `nvkv-tune verify`: hashes and rows agree; with a GPU of the target, the results again.

use super::args::DbArgs;
use super::{Done, NOTHING, print};
use crate::bundle::{self, Kernel, Manifest, Problems, Selection};
use crate::pipeline::compile::reason;
use crate::pipeline::target::{DEVICE, Machine};
use crate::pipeline::timing::LIMITS;
use crate::worker::{CandidateKernel, Depth, GpuWorker, Limits, VerifyRequest};
use nvkv_db::{Db, DbError, KernelKey, WinnerFilter};
use nvkv_spec::SplitPolicy;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long the whole matrix of one kernel may take, its reference attention on the CPU included.
const FULL_LIMIT: Duration = Duration::from_secs(600);

/// Arguments of `verify`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A bundle, or a folder of bundles
    #[arg(long, value_name = "DIR", default_value = "kernels-out")]
    bundle: PathBuf,
    #[command(flatten)]
    db: DbArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let mut sound = true;
    for folder in bundle::find(&args.bundle)? {
        let manifest = bundle::read(&folder)?;
        let mut problems = bundle::check(&folder, &manifest);
        problems.extend(against_database(&args.db.db, &manifest)?);
        // Damaged machine code is not run.
        if problems.is_empty() {
            problems.extend(against_reference(&folder, &manifest)?);
        }
        sound &= problems.is_empty();
        report(&folder, &manifest, &problems)?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
}

fn report(folder: &Path, manifest: &Manifest, problems: &Problems) -> anyhow::Result<()> {
    let verdict = if problems.is_empty() { "sound" } else { "NOT SOUND" };
    let (kernels, selections) = (manifest.kernels.len(), manifest.selections.len());
    print(&format!("{}: {verdict} ({kernels} kernels, {selections} selections)\n", folder.display()))?;
    problems.iter().try_for_each(|problem| print(&format!("  {problem}\n")))
}

/// Kernels whose row in the database names another cubin. A bundle may come from elsewhere, so
/// a kernel that the database does not know is no fault.
fn against_database(path: &Path, manifest: &Manifest) -> anyhow::Result<Problems> {
    let db = match Db::open_read_only(path) {
        Err(DbError::Missing { .. }) => {
            eprintln!("note: no database at {}, so rows are not compared", path.display());
            return Ok(Problems::new());
        }
        db => db?,
    };
    note_newer_winners(&db, manifest)?;
    let mut problems = Problems::new();
    for kernel in &manifest.kernels {
        let key = KernelKey {
            kernel_id: kernel.id.clone(),
            source_hash: kernel.source_hash.clone(),
            nvrtc: kernel.toolchain.nvrtc.clone(),
        };
        let row = db.kernel_by_source(manifest.target, &key)?.and_then(|row| row.compiled);
        if let Some(row) = row.filter(|row| row.cubin_hash != kernel.files.cubin.blake3) {
            problems.push(format!("{}: the database has cubin {}, the bundle another", kernel.id, row.cubin_hash));
        }
    }
    Ok(problems)
}

/// Says where the database meanwhile has another winner than the bundle: no fault, but worth a new bundle.
fn note_newer_winners(db: &Db, manifest: &Manifest) -> anyhow::Result<()> {
    let winners = db.winners(&WinnerFilter::of(manifest.target))?;
    let behind = |s: &&Selection| {
        let mut rivals =
            winners.iter().filter(|w| w.shape == s.shape && w.kernel.problem.key() == s.problem).peekable();
        rivals.peek().is_some() && !rivals.any(|w| w.kernel.key().kernel_id == s.kernel && w.split == s.split)
    };
    let behind = manifest.selections.iter().filter(behind).count();
    if behind > 0 {
        eprintln!("note: the database has other winners for {behind} selections; tune again to write a new bundle");
    }
    Ok(())
}

/// Runs every kernel against the reference, where a GPU of the target is here.
fn against_reference(folder: &Path, manifest: &Manifest) -> anyhow::Result<Problems> {
    if let Err(why) = Machine::find(Some(manifest.target))?.gpu {
        eprintln!("note: results are not checked again: {why}");
        return Ok(Problems::new());
    }
    let mut worker = GpuWorker::new(DEVICE, Limits { verify: FULL_LIMIT, ..LIMITS });
    let mut problems = Problems::new();
    for (index, kernel) in manifest.kernels.iter().enumerate() {
        match worker.verify(&request(folder, kernel)?) {
            Ok(report) => eprintln!(
                "[{}/{}] {}: {} cases, relative error at most {:.1e}",
                index + 1,
                manifest.kernels.len(),
                kernel.id,
                report.cases,
                report.max_error
            ),
            Err(outcome) => problems.push(format!("{}: {}: {}", kernel.id, outcome.kind(), reason(&outcome))),
        }
    }
    Ok(problems)
}

fn request(folder: &Path, kernel: &Kernel) -> anyhow::Result<VerifyRequest> {
    let cubin = fs::read(folder.join(&kernel.files.cubin.path))?;
    let split = SplitPolicy::Even { splits: 1 };
    let kernel_to_run = CandidateKernel { id: kernel.id.clone(), variant: kernel.variant, split, cubin };
    Ok(VerifyRequest { problem: kernel.problem, kernel: kernel_to_run, depth: Depth::Full })
}
