//! Sources to cubins on all cores, each once: what the cache has is not compiled again.

use super::cache::{Artefact, Cache};
use super::progress::{Progress, Step};
use super::space::Candidate;
use super::{cost, stop::Stop};
use crate::folder::FolderError;
use crate::gpu::{self, NvrtcError};
use crate::worker::{CompileRequest, CompileWorker, NoKernel};
use nvkv_spec::{Outcome, Target, Toolchain};
use rayon::prelude::*;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// How long one compile may take: a healthy one takes seconds.
pub const LIMIT: Duration = Duration::from_secs(180);

/// A candidate after the compiler: its artefact, or why there is none.
pub struct Built<'a> {
    /// The candidate.
    pub candidate: &'a Candidate,
    /// What came of it. An error of the machine ends the run, a failed compile does not.
    pub result: Result<Result<Artefact, Outcome>, MachineError>,
}

/// Why nothing can be compiled here, whatever the source.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The disk.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The compiler.
    #[error("{0}")]
    NoCompiler(String),
}

/// The compiler that workers will use: a missing or broken NVRTC is told before anything else is done.
pub fn toolchain(target: Target) -> Result<Toolchain, NvrtcError> {
    gpu::working_nvrtc(target).map(|nvrtc| gpu::toolchain(&nvrtc))
}

/// Compiles `candidates` with `jobs` processes, in order, and sends each as it is done. Ends early
/// when `stop` says so or the receiver is gone.
pub fn all<'a>(
    candidates: &[&'a Candidate],
    target: Target,
    (cache, jobs): (&Cache, usize),
    (progress, stop): (&Progress, &Stop),
    sender: &Sender<Built<'a>>,
) -> Result<(), rayon::ThreadPoolBuildError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs.clamp(1, candidates.len().max(1))).build()?;
    // `par_bridge` hands candidates out in order, so that the first problem is complete first.
    let work = candidates.iter().copied().par_bridge();
    let build = |worker: &mut CompileWorker, candidate: &'a Candidate| {
        if stop.reason().is_some() {
            return None;
        }
        let result = one(worker, candidate, target, cache, progress);
        if stop.reason().is_some() && matches!(result, Ok(Err(Outcome::Crashed { .. }))) {
            return None;
        }
        sender.send(Built { candidate, result }).ok()
    };
    pool.install(|| work.map_init(|| CompileWorker::new(LIMIT), build).while_some().for_each(drop));
    Ok(())
}

/// Compiles one candidate, or takes it from the cache.
pub fn one(
    worker: &mut CompileWorker,
    candidate: &Candidate,
    target: Target,
    cache: &Cache,
    progress: &Progress,
) -> Result<Result<Artefact, Outcome>, MachineError> {
    let source = &candidate.source;
    // Another tuner may be at this very source: to wait for it costs less than to compile it twice.
    let (found, _turn) = match cache.find(&source.hash) {
        Some(artefact) => (Some(artefact), None),
        None => {
            let turn = cache.turn(&source.hash, LIMIT);
            (cache.find(&source.hash), turn)
        }
    };
    if let Some(artefact) = found {
        progress.add(Step::Cached, 1, cost::COMPILE_MS);
        return Ok(Ok(artefact));
    }
    let request = CompileRequest { target, id: source.id.clone(), source: source.text.clone() };
    match worker.compile(&request) {
        Ok(compiled) => {
            let artefact = cache.store(&source.hash, &source.text, &compiled)?;
            progress.add(Step::Compiled, 1, cost::COMPILE_MS);
            Ok(Ok(artefact))
        }
        Err(NoKernel::Failed(outcome)) => Ok(Err(outcome)),
        Err(NoKernel::NoCompiler(why)) => Err(MachineError::NoCompiler(why)),
    }
}

/// The line of [`reason`] that says most: the first with an error in it, else the first.
pub fn reason_line(outcome: &Outcome) -> String {
    let why = reason(outcome);
    why.lines().find(|line| line.contains("error")).or(why.lines().next()).unwrap_or_default().trim().to_string()
}

/// An outcome's reason in words.
pub fn reason(outcome: &Outcome) -> String {
    match outcome {
        Outcome::CompileFailed { log } => log.trim().to_string(),
        Outcome::LaunchFailed { error } => error.clone(),
        Outcome::Faulted { detail } => detail.clone(),
        Outcome::Wrong { error, detail } => format!("relative error {error:.1e}: {detail}"),
        Outcome::Timeout { stage, seconds } => format!("no answer within {seconds} s ({stage})"),
        Outcome::Crashed { stage, detail } => format!("worker died ({stage}): {detail}"),
        Outcome::CompiledOnly { .. } | Outcome::Emulated { .. } | Outcome::Timed { .. } => outcome.kind().to_string(),
    }
}
