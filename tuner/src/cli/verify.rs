//! `nvkv-tune verify`: hashes and rows agree; with a GPU of the target, the results again.

use super::args::DbArgs;
use super::{Done, NOTHING, cause, print, print_json};
use crate::bundle::{self, Kernel, Manifest, Problems, Selection};
use crate::pipeline::choices::Choice;
use crate::pipeline::compile::reason;
use crate::pipeline::target::{DEVICE, Machine};
use crate::pipeline::timing::LIMITS;
use crate::worker::{CandidateKernel, Depth, GpuWorker, Limits, VerifyRequest};
use nvkv_db::{Db, DbError, KernelKey, WinnerFilter};
use nvkv_spec::{SplitPolicy, Target};
use serde::Serialize;
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
    /// On a GPU, a handful of cases a kernel instead of some 300: for slow launches, as under compute-sanitizer
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn depth(&self) -> Depth {
        if self.quick { Depth::Quick } else { Depth::Full }
    }
}

/// What is found about one bundle.
#[derive(Serialize)]
struct Verdict {
    folder: PathBuf,
    target: Target,
    sound: bool,
    kernels: usize,
    selections: usize,
    /// Kernels that the database knows, and whose machine code and compiler facts were compared.
    kernels_in_database: usize,
    problems: Problems,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let folders = bundle::find(&args.bundle)?;
    let verdicts = folders.into_iter().map(|folder| verify(args, folder)).collect::<anyhow::Result<Vec<_>>>()?;
    if args.json {
        print_json(&verdicts)?
    } else {
        verdicts.iter().try_for_each(report)?
    }
    let sound = verdicts.iter().all(|verdict| verdict.sound);
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
}

fn verify(args: &Args, folder: PathBuf) -> anyhow::Result<Verdict> {
    let manifest = bundle::read(&folder)?;
    let mut problems = bundle::check(&folder, &manifest);
    let kernels_in_database = against_database(&args.db.db, &manifest, &mut problems)?;
    // Damaged machine code is not run.
    if problems.is_empty() {
        problems.extend(against_reference(&folder, &manifest, args.depth())?);
    }
    Ok(Verdict {
        sound: problems.is_empty(),
        target: manifest.target,
        kernels: manifest.kernels.len(),
        selections: manifest.selections.len(),
        folder,
        kernels_in_database,
        problems,
    })
}

fn report(verdict: &Verdict) -> anyhow::Result<()> {
    let Verdict { kernels, selections, kernels_in_database, .. } = verdict;
    print(&format!(
        "{}: {} ({kernels} kernels, {selections} selections; {kernels_in_database} kernels compared with the database)\n",
        verdict.folder.display(),
        if verdict.sound { "sound" } else { "NOT SOUND" },
    ))?;
    verdict.problems.iter().try_for_each(|problem| print(&format!("  {problem}\n")))
}

/// Adds the kernels whose row in the database names another cubin or other facts; gives the number of rows compared.
/// A bundle may come from elsewhere, so a kernel that the database does not know is no fault.
fn against_database(path: &Path, manifest: &Manifest, problems: &mut Problems) -> anyhow::Result<usize> {
    let db = match Db::open_read_only(path) {
        Err(DbError::Missing { .. }) => {
            eprintln!("note: no database at {}, so rows are not compared", path.display());
            return Ok(0);
        }
        db => db?,
    };
    note_other_winners(&db, manifest)?;
    let mut compared = 0;
    for kernel in &manifest.kernels {
        let key = KernelKey {
            kernel_id: kernel.id.clone(),
            source_hash: kernel.source_hash.clone(),
            nvrtc: kernel.toolchain.nvrtc.clone(),
        };
        let Some(row) = db.kernel_by_source(manifest.target, &key)?.and_then(|row| row.compiled) else { continue };
        compared += 1;
        if row.cubin_hash != kernel.files.cubin.blake3 {
            problems.push(format!("{}: the database has cubin {}, the bundle another", kernel.id, row.cubin_hash));
        } else if row.facts != kernel.compile {
            problems.push(format!("{}: the database has other compiler facts: {:?}", kernel.id, row.facts));
        }
    }
    Ok(compared)
}

/// Says where the database has another winner than the bundle, or another time: no fault, since a bundle may come
/// from another machine or be older, but worth a look.
fn note_other_winners(db: &Db, manifest: &Manifest) -> anyhow::Result<()> {
    let filter = WinnerFilter::of(manifest.target);
    let timed = db.winners(&filter)?.into_iter().map(|winner| Choice::Timed(Box::new(winner)));
    let predicted = db.predicted_winners(&filter)?.into_iter().map(|winner| Choice::Predicted(Box::new(winner)));
    let winners: Vec<_> = timed.chain(predicted).collect();
    let differs = |s: &&Selection| {
        let here = winners.iter().filter(|w| w.shape() == s.shape && w.problem().key() == s.problem);
        let mut here = here.filter(|w| w.trust() == s.trust).peekable();
        here.peek().is_some() && !here.any(|w| agrees(s, w))
    };
    let differing = manifest.selections.iter().filter(differs).count();
    if differing > 0 {
        eprintln!(
            "note: the database has other winners or times for {differing} selections: the bundle is older, from \
             another machine, or was changed; tune again to write a new one"
        );
    }
    Ok(())
}

fn agrees(selection: &Selection, winner: &Choice) -> bool {
    let us = selection.median_us.or(selection.predicted_us);
    winner.kernel().key().kernel_id == selection.kernel
        && winner.split() == selection.split
        && us.is_some_and(|us| (us - winner.us()).abs() <= 1e-9 * us)
}

/// Runs every kernel against the reference, where a GPU of the target is here.
fn against_reference(folder: &Path, manifest: &Manifest, depth: Depth) -> anyhow::Result<Problems> {
    if let Err(why) = Machine::find(Some(manifest.target))?.gpu {
        eprintln!("note: results are not checked again: {}", cause(&why));
        return Ok(Problems::new());
    }
    let mut worker = GpuWorker::new(DEVICE, Limits { verify: FULL_LIMIT, ..LIMITS });
    let mut problems = Problems::new();
    for (index, kernel) in manifest.kernels.iter().enumerate() {
        match worker.verify(&request(folder, kernel, depth)?) {
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

fn request(folder: &Path, kernel: &Kernel, depth: Depth) -> anyhow::Result<VerifyRequest> {
    let cubin = fs::read(folder.join(&kernel.files.cubin.path))?;
    let split = SplitPolicy::Even { splits: 1 };
    let kernel_to_run = CandidateKernel { id: kernel.id.clone(), variant: kernel.variant, split, cubin };
    Ok(VerifyRequest { problem: kernel.problem, kernel: kernel_to_run, depth })
}
