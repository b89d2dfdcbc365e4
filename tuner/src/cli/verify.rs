//! `nvkv-tune verify`: hashes and rows agree; with a GPU of the target or in the emulator, the results again.

mod results;

use super::args::DbArgs;
use super::{Done, NOTHING, print, print_json};
use crate::bundle::{self, Kernel, Manifest, Problems, Selection, Trust};
use crate::pipeline::choices::Choice;
use crate::worker::Depth;
use nvkv_db::{Db, DbError, KernelKey, WinnerFilter};
use nvkv_spec::Target;
use results::RanOn;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `verify`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A bundle, or a folder of bundles
    #[arg(long, value_name = "DIR", default_value = "kernels-out")]
    bundle: PathBuf,
    #[command(flatten)]
    db: DbArgs,
    /// Run the kernels' PTX in the emulator, on the CPU, whether a GPU is here or not
    #[arg(long)]
    emulate: bool,
    /// A handful of cases a kernel instead of all: for slow launches, as under compute-sanitizer, or for a quick look
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
    /// Where the kernels were run against the reference.
    ran_on: RanOn,
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
    let kernels_in_database = against_database(&args.db.db, &folder, &manifest, &mut problems)?;
    let mut ran_on = RanOn::Nothing;
    // Damaged code is not run.
    if problems.is_empty() {
        let run = if args.emulate { results::in_emulator } else { results::on_gpu };
        (ran_on, problems) = run(&folder, &manifest, args.depth())?;
    }
    Ok(Verdict {
        sound: problems.is_empty(),
        target: manifest.target,
        kernels: manifest.kernels.len(),
        selections: manifest.selections().count(),
        folder,
        kernels_in_database,
        ran_on,
        problems,
    })
}

fn report(verdict: &Verdict) -> anyhow::Result<()> {
    let Verdict { kernels, selections, kernels_in_database, .. } = verdict;
    let ran = match verdict.ran_on {
        RanOn::Gpu => "; run on a GPU",
        RanOn::Emulator => "; run in the emulator",
        RanOn::Nothing => "",
    };
    print(&format!(
        "{}: {} ({kernels} kernels, {selections} selections; {kernels_in_database} kernels compared with the database{ran})\n",
        verdict.folder.display(),
        if verdict.sound { "sound" } else { "NOT SOUND" },
    ))?;
    verdict.problems.iter().try_for_each(|problem| print(&format!("  {problem}\n")))
}

/// Adds the kernels whose row in the database names another cubin or other facts; gives the number of rows compared.
/// A bundle may come from elsewhere, so a kernel that the database does not know is no fault.
fn against_database(path: &Path, folder: &Path, manifest: &Manifest, problems: &mut Problems) -> anyhow::Result<usize> {
    let db = match Db::open_read_only(path) {
        Err(DbError::Missing { .. }) => {
            eprintln!("note: no database at {}, so rows are not compared", path.display());
            return Ok(0);
        }
        db => db?,
    };
    let winners = winners(&db, manifest.target)?;
    note_timed_winners(&winners, path, folder, manifest);
    note_other_winners(&winners, manifest);
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

/// Every winner of the database, by times and by predictions.
fn winners(db: &Db, target: Target) -> Result<Vec<Choice>, DbError> {
    let filter = WinnerFilter::of(target);
    let timed = db.winners(&filter)?.into_iter().map(|winner| Choice::Timed(Box::new(winner)));
    let predicted = db.predicted_winners(&filter)?.into_iter().map(|winner| Choice::Predicted(Box::new(winner)));
    Ok(timed.chain(predicted).collect())
}

/// Those at the problem and shape of a selection, of this trust.
fn at<'a>(
    winners: &'a [Choice],
    (kernel, s): (&'a Kernel, &'a Selection),
    trust: Trust,
) -> impl Iterator<Item = &'a Choice> {
    winners.iter().filter(move |w| w.trust() == trust && w.shape() == s.shape && w.problem() == kernel.problem)
}

/// Says how the bundle comes by the times that the database `db` has where the bundle has predictions.
fn note_timed_winners(winners: &[Choice], db: &Path, folder: &Path, manifest: &Manifest) {
    let is_timed = |place: &(&Kernel, &Selection)| at(winners, *place, Trust::Timed).next().is_some();
    let predicted = manifest.selections().filter(|(_, s)| s.trust == Trust::Predicted);
    let timed = predicted.filter(is_timed).count();
    if timed > 0 {
        let out = folder.parent().filter(|out| !out.as_os_str().is_empty()).unwrap_or(Path::new("."));
        eprintln!(
            "note: {timed} of {} selections are predicted, and the database has timed winners there: `nvkv-tune --arch {} \
             --db {} --out {}` writes the bundle again with them, and needs no GPU for that",
            manifest.selections().count(),
            manifest.target,
            db.display(),
            out.display()
        );
    }
}

/// Says where the database has another winner than the bundle, or another time: no fault, since a bundle may come
/// from another machine or be older, but worth a look.
fn note_other_winners(winners: &[Choice], manifest: &Manifest) {
    let differs = |(kernel, s): &(&Kernel, &Selection)| {
        let mut here = at(winners, (kernel, s), s.trust).peekable();
        here.peek().is_some() && !here.any(|w| agrees(kernel, s, w))
    };
    let differing = manifest.selections().filter(differs).count();
    if differing > 0 {
        eprintln!(
            "note: the database has other winners or times for {differing} selections: the bundle is older, from \
             another machine, or was changed; tune again to write a new one"
        );
    }
}

fn agrees(kernel: &Kernel, selection: &Selection, winner: &Choice) -> bool {
    let us = selection.median_us.or(selection.predicted_us);
    winner.kernel().key().kernel_id == kernel.id
        && winner.split() == selection.split
        && us.is_some_and(|us| (us - winner.us()).abs() <= 1e-9 * us)
}
