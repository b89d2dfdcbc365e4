//! The whole flow on one screen; each stage is a file below.
//!
//! cases → space → feasible → render → compile → verify → measure → record → winners (→ held out) → (emulate) → bundle

pub mod cache;
pub mod choices;
pub mod compile;
pub mod cost;
pub mod devices;
mod finalists;
pub mod limits;
mod pantry;
mod pending;
pub mod plan;
mod predict;
pub mod progress;
mod publish;
pub mod recorder;
mod replace;
pub mod replay;
pub mod shard;
pub mod space;
mod stale;
pub mod stop;
pub mod target;
pub mod timing;

use crate::bundle::{self, Written};
use crate::report::regret::Summary;
use crate::search::Strategy;
use choices::Choice;
use compile::Built;
use finalists::Finalists;
use nvkv_db::{Db, DbError, EnvironmentKey, Failure, NewRun, WinnerFilter};
use nvkv_generator::Preset;
use nvkv_spec::{GpuEnvironment, Target, Toolchain};
use progress::Progress;
use recorder::Recorder;
use space::{Candidate, Case, Space};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::SystemTime;
use stop::Stop;
use target::{Board, Machine};
use timing::Timing;

/// What a run is asked to do.
#[derive(Clone, Debug)]
pub struct Request {
    /// Target, and the GPU where one is.
    pub machine: Machine,
    /// Problems and their shapes.
    pub cases: Vec<Case>,
    /// How much of each problem's space.
    pub preset: Preset,
    /// Which launches of it are timed.
    pub search: Strategy,
    /// Database of trials.
    pub db: PathBuf,
    /// Folder of bundles.
    pub out: PathBuf,
    /// Whether the buckets are measured between the tuned shapes, and split where they serve badly.
    pub held_out: bool,
    /// Compilers at a time.
    pub jobs: usize,
    /// Which part of the cases, `cases` being that part; then no bundle is written.
    pub shard: Option<shard::Shard>,
    /// The command line, as typed.
    pub command: String,
}

#[cfg(test)]
impl Request {
    /// Appends of the quick preset at `shapes`, with everything in `folder`.
    pub(crate) fn of_appends(machine: Machine, folder: &std::path::Path, shapes: Vec<nvkv_spec::Shape>) -> Self {
        let problem = nvkv_generator::problems(Preset::Quick, &[nvkv_spec::Operation::Append])[0];
        Self {
            machine,
            cases: vec![(problem, shapes)],
            preset: Preset::Quick,
            search: Strategy::Exhaustive,
            db: folder.join("db.sqlite"),
            out: folder.join("out"),
            held_out: false,
            jobs: 1,
            shard: None,
            command: String::new(),
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The best kernel of each case and shape that has one.
    pub choices: Vec<Choice>,
    /// What failed in this run.
    pub failures: Vec<Failure>,
    /// The bundle; none where nothing usable came out.
    pub bundle: Option<Written>,
    /// Why the run ended before its work was done.
    pub stopped: Option<&'static str>,
    /// What the buckets of its problems cost; none where that was not asked for.
    pub regret: Option<Summary>,
    /// How fast it was; none where nothing was timed.
    pub pace: Option<timing::Summary>,
}

/// Runs the whole job. What was done before, by this command or another, is not done again.
pub fn tune(request: &Request, stop: &Stop) -> anyhow::Result<Tuned> {
    let Request { machine, cases, preset, .. } = request;
    let toolchain = compile::toolchain(machine.target)?;
    bundle::require_place(&request.out, machine.target)?;
    cache::require_place(&request.out, machine.target)?;
    let spaces: Vec<_> = cases.iter().map(|(problem, _)| Space::new(*problem, machine.target, *preset)).collect();
    spaces.iter().filter(|space| space.feasible.is_empty()).for_each(|space| {
        eprintln!("note: {} has no feasible variant: {:?}", space.problem.key(), space.rejected);
    });
    let candidates = space::render_all(&spaces, machine.target)?;
    let gpu = request.machine.gpu.as_ref().ok();
    let mut recorder = Recorder::begin(&request.db, &new_run(request, &toolchain, gpu), &candidates)?;
    recorder.db().notices().iter().for_each(|notice| eprintln!("note: {notice}"));
    replace::check_before(request, recorder.db())?;
    let cache = cache::Cache::new(&request.out, machine.target, &toolchain.nvrtc);
    let pending = pending::pending(request, &recorder, &candidates)?;
    pending::left_out(&recorder, &candidates).iter().for_each(|note| eprintln!("note: {note}"));
    let progress = Progress::new(plan::work_ms(request, &pending));
    // A run each, so that every trial says on which board it ran.
    let beside = |board: &Board| {
        Recorder::begin(&request.db, &new_run(request, &toolchain, Some(&board.environment)), &candidates)
    };
    let mut paces = Vec::new();
    let mut beside = request.machine.beside.iter().map(beside).collect::<Result<Vec<_>, _>>()?;
    if let Some(gpu) = gpu {
        let first = stale::first(request, &recorder, gpu, &pending)?;
        if !first.is_empty() {
            eprintln!("note: after an upgrade; the {} kernels that were best before come first", first.len());
            progress.expect(plan::work_ms(request, &first));
            paces = build_and_try(request, &first, &cache, (&mut recorder, &mut beside), (&progress, stop))?;
        }
    }
    let left_out = |c: &&Candidate| beside.iter().chain([&recorder]).any(|r| pending::is_left_out(request, r, c));
    let pending: Vec<_> = pending.iter().copied().filter(|c| !left_out(c)).collect();
    paces.extend(build_and_try(request, &pending, &cache, (&mut recorder, &mut beside), (&progress, stop))?);
    if request.held_out && stop.reason().is_none() {
        timing::held_out::measure(request, &cache, (&mut recorder, &mut beside), (&progress, stop))?;
    }
    if machine.gpu.is_err() {
        let (recorder, cache, progress) = (&mut recorder, &cache, &progress);
        Finalists { request, recorder, cache, progress, stop }.run()?;
    }
    progress.finish();
    beside.iter_mut().chain([&mut recorder]).try_for_each(Recorder::finish)?;
    let written = match request.shard {
        None => publish::bundle(request, &recorder, &cache, &toolchain)?,
        Some(_) => None,
    };
    let runs = [recorder.run()].into_iter().chain(beside.iter().map(Recorder::run));
    let failures = runs.map(|run| recorder.db().failures(run)).collect::<Result<Vec<_>, _>>()?.concat();
    Ok(Tuned {
        choices: choices::of_cases(choices::all(recorder.db(), machine.target, machine.gpu.as_ref().ok())?, cases),
        failures,
        bundle: written,
        stopped: stop.reason(),
        regret: request.held_out.then(|| regret(request, recorder.db())).transpose()?,
        pace: timing::Pace::together(&paces),
    })
}

/// Compiles on all cores, and verifies and times (or predicts) what is compiled meanwhile. Gives the pace of each GPU.
fn build_and_try(
    request: &Request,
    pending: &[&Candidate],
    cache: &cache::Cache,
    (recorder, beside): (&mut Recorder, &mut [Recorder]),
    (progress, stop): (&Progress, &Stop),
) -> anyhow::Result<Vec<timing::Pace>> {
    let (target, jobs) = (request.machine.target, request.jobs);
    let (sender, built) = mpsc::channel();
    std::thread::scope(|scope| {
        let compiling = scope.spawn(move || compile::all(pending, target, (cache, jobs), (progress, stop), &sender));
        let tried = match &request.machine.gpu {
            Ok(_) => time(request, pending, built, (recorder, beside), (progress, stop)),
            Err(_) => predict::Prediction { request, recorder, progress }.run(built).map(|()| Vec::new()),
        };
        let compiled = compiling.join();
        compiled.map_err(|_| anyhow::anyhow!("the compiling thread panicked; this is a defect of nvkv-tune"))??;
        tried
    })
}

/// Verifies and times kernels as they are built, on the GPU or on whichever is free.
fn time<'a>(
    request: &'a Request,
    pending: &[&'a Candidate],
    built: mpsc::Receiver<Built<'a>>,
    (recorder, beside): (&'a mut Recorder, &'a mut [Recorder]),
    progress: (&'a Progress, &'a Stop),
) -> anyhow::Result<Vec<timing::Pace>> {
    let recorders = [recorder].into_iter().chain(beside);
    let on = |(board, recorder): (Board, &'a mut Recorder)| Timing::new(request, board, recorder, progress);
    let mut timings: Vec<_> = request.machine.boards().into_iter().zip(recorders).map(on).collect();
    if let [timing] = &mut timings[..] {
        timing.run(built, pending)?;
        return Ok(vec![timing.pace()]);
    }
    let mut waiting = HashMap::new();
    pending.iter().for_each(|candidate| *waiting.entry(candidate.case).or_default() += 1);
    let (sender, ready) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || devices::by_case(built, waiting, &sender));
        devices::share(ready, timings.iter_mut().collect(), |timing, case: Vec<Built<'a>>| {
            let candidates: Vec<_> = case.iter().map(|built| built.candidate).collect();
            let (sender, built) = mpsc::channel();
            case.into_iter().for_each(|one| drop(sender.send(one)));
            drop(sender);
            timing.run(built, &candidates)
        })
    })?;
    Ok(timings.iter().map(Timing::pace).collect())
}

/// What the buckets of the problems of `request` cost on its GPU.
fn regret(request: &Request, db: &Db) -> Result<Summary, DbError> {
    let environment = request.machine.gpu.as_ref().ok().map(EnvironmentKey::from);
    let problems = request.cases.iter().map(|(problem, _)| *problem).collect();
    let filter = WinnerFilter { environment, problems, ..WinnerFilter::of(request.machine.target) };
    Ok(Summary::new(&db.winners(&filter)?, &db.regrets(&filter)?))
}

fn new_run(request: &Request, toolchain: &Toolchain, gpu: Option<&GpuEnvironment>) -> NewRun {
    NewRun {
        started_at: now(),
        command: request.command.clone(),
        target: request.machine.target,
        preset: format!("{:?}", request.preset).to_lowercase(),
        // Predictions are made of all.
        search: gpu.map_or(Strategy::Exhaustive, |_| request.search).name().to_string(),
        generator: toolchain.generator.clone(),
        nvrtc: toolchain.nvrtc.clone(),
        environment: gpu.cloned(),
        measurement_policy: gpu.map(|_| timing::POLICY.to_string()),
    }
}

/// The time now, UTC, RFC 3339.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Version of nvkv and its target, for the first line that a user reads.
pub fn headline(target: Target) -> String {
    format!("nvkv-tune {}, target {target}", env!("CARGO_PKG_VERSION"))
}
