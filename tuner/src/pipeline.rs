//! The whole flow on one screen; each stage is a file below.
//!
//! cases → space → feasible → render → compile → verify → measure → record → winners → (emulate) → bundle

pub mod cache;
pub mod choices;
pub mod compile;
pub mod cost;
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
pub mod space;
pub mod stop;
pub mod target;
pub mod timing;

use crate::bundle::{self, Written};
use choices::Choice;
use finalists::Finalists;
use nvkv_db::{Failure, NewRun};
use nvkv_generator::Preset;
use nvkv_spec::{Target, Toolchain};
use progress::Progress;
use recorder::Recorder;
use space::{Candidate, Case, Space};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::SystemTime;
use stop::Stop;
use target::Machine;
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
    /// Database of trials.
    pub db: PathBuf,
    /// Folder of bundles.
    pub out: PathBuf,
    /// Compilers at a time.
    pub jobs: usize,
    /// The command line, as typed.
    pub command: String,
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
    let mut recorder = Recorder::begin(&request.db, &new_run(request, &toolchain), &candidates)?;
    recorder.db().notices().iter().for_each(|notice| eprintln!("note: {notice}"));
    replace::check_before(request, recorder.db())?;
    let cache = cache::Cache::new(&request.out, machine.target, &toolchain.nvrtc);
    let pending = pending::pending(request, &recorder, &candidates)?;
    pending::left_out(&recorder, &candidates).iter().for_each(|note| eprintln!("note: {note}"));
    let progress = Progress::new(plan::work_ms(request, &pending));
    let pace = build_and_try(request, &pending, &cache, &mut recorder, (&progress, stop))?;
    if machine.gpu.is_err() {
        let (recorder, cache, progress) = (&mut recorder, &cache, &progress);
        Finalists { request, recorder, cache, progress, stop }.run()?;
    }
    progress.finish();
    recorder.finish()?;
    let written = publish::bundle(request, &recorder, &cache, &toolchain)?;
    Ok(Tuned {
        choices: choices::of_cases(choices::all(recorder.db(), machine.target, machine.gpu.as_ref().ok())?, cases),
        failures: recorder.db().failures(recorder.run())?,
        bundle: written,
        stopped: stop.reason(),
        pace,
    })
}

/// Compiles on all cores, and verifies and times (or predicts) what is compiled meanwhile.
fn build_and_try(
    request: &Request,
    pending: &[&Candidate],
    cache: &cache::Cache,
    recorder: &mut Recorder,
    (progress, stop): (&Progress, &Stop),
) -> anyhow::Result<Option<timing::Summary>> {
    let (target, jobs) = (request.machine.target, request.jobs);
    let (sender, built) = mpsc::channel();
    std::thread::scope(|scope| {
        let compiling = scope.spawn(move || compile::all(pending, target, (cache, jobs), (progress, stop), &sender));
        let tried = match &request.machine.gpu {
            Ok(gpu) => {
                Timing::new(request, gpu, recorder, (progress, stop)).run(built, pending).map(|pace| pace.summary())
            }
            Err(_) => predict::Prediction { request, recorder, progress }.run(built).map(|()| None),
        };
        let compiled = compiling.join();
        compiled.map_err(|_| anyhow::anyhow!("the compiling thread panicked; this is a defect of nvkv-tune"))??;
        tried
    })
}

fn new_run(request: &Request, toolchain: &Toolchain) -> NewRun {
    let gpu = request.machine.gpu.as_ref().ok();
    NewRun {
        started_at: now(),
        command: request.command.clone(),
        target: request.machine.target,
        preset: format!("{:?}", request.preset).to_lowercase(),
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
