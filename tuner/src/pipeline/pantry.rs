//! Kernels' files by their rows in the database: from the cache, or compiled again.

use super::cache::{Artefact, Cache};
use super::compile::MachineError;
use super::progress::Progress;
use super::space::{Candidate, yardstick};
use super::{Request, compile, cost};
use crate::worker::CompileWorker;
use nvkv_db::KernelRecord;
use nvkv_generator::{RenderError, render};
use nvkv_spec::{Problem, Target};
use rayon::prelude::*;

/// Hands out files.
pub struct Pantry<'a> {
    target: Target,
    cache: &'a Cache,
    jobs: usize,
    worker: CompileWorker,
}

impl<'a> Pantry<'a> {
    /// That of a run.
    pub fn new(request: &Request, cache: &'a Cache) -> Self {
        let Request { jobs, .. } = *request;
        Self { target: request.machine.target, cache, jobs, worker: CompileWorker::new(compile::LIMIT) }
    }

    /// The kernel's files; none where they are in no cache and the templates are others by now, or do not compile.
    pub fn artefact(&mut self, kernel: &KernelRecord) -> anyhow::Result<Option<Artefact>> {
        if let Some(artefact) = self.cache.find(&kernel.source_hash) {
            return Ok(Some(artefact));
        }
        let Some(candidate) = self.candidate(kernel)? else { return Ok(None) };
        let built = compile::one(&mut self.worker, &candidate, self.target, self.cache, &Progress::new(0))?;
        Ok(built.ok())
    }

    /// Compiles those of `kernels` that are in no cache here, on all cores at once: a database may know many that were
    /// compiled on another machine.
    pub fn stock<'k>(&self, kernels: impl Iterator<Item = &'k KernelRecord>) -> anyhow::Result<()> {
        let mut missing: Vec<Candidate> = Vec::new();
        for kernel in kernels.filter(|kernel| self.cache.find(&kernel.source_hash).is_none()) {
            if missing.iter().all(|known| known.source.hash != kernel.source_hash) {
                missing.extend(self.candidate(kernel)?);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        eprintln!("note: {} kernels of earlier runs are in no cache here, and are compiled again", missing.len());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.jobs.clamp(1, missing.len())).build()?;
        let (target, cache) = (self.target, self.cache);
        let progress = Progress::new(missing.len() as u64 * cost::COMPILE_MS);
        let build = |worker: &mut CompileWorker, candidate: &Candidate| {
            compile::one(worker, candidate, target, cache, &progress).map(drop)
        };
        let work = missing.par_iter().map_init(|| CompileWorker::new(compile::LIMIT), build);
        let compiled: Result<(), MachineError> = pool.install(|| work.collect());
        Ok(compiled?)
    }

    /// The kernel as this run's templates render it; none where they render another source.
    fn candidate(&self, kernel: &KernelRecord) -> anyhow::Result<Option<Candidate>> {
        let KernelRecord { problem, variant, .. } = *kernel;
        let source = render(&problem, &variant, self.target)?;
        let same = source.hash == kernel.source_hash;
        Ok(same.then_some(Candidate { case: 0, problem, variant, is_default: false, source }))
    }
}

/// The default kernel of `problem`, by the compiler and generator of `like`; none where no variant is feasible.
pub fn default_kernel(problem: &Problem, like: &KernelRecord) -> Result<Option<KernelRecord>, RenderError> {
    let Some(variant) = yardstick(problem, like.target) else { return Ok(None) };
    let source = render(problem, &variant, like.target)?;
    let (problem, source_hash) = (*problem, source.hash);
    Ok(Some(KernelRecord { problem, variant, source_hash, compiled: None, ..like.clone() }))
}
