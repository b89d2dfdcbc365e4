//! Kernels' files by their rows in the database: from the cache, or compiled again.

use super::cache::{Artefact, Cache};
use super::progress::Progress;
use super::space::{Candidate, yardstick};
use super::{Request, compile};
use crate::worker::CompileWorker;
use nvkv_db::KernelRecord;
use nvkv_generator::{RenderError, render};
use nvkv_spec::{Problem, Target};

/// Hands out files.
pub struct Pantry<'a> {
    target: Target,
    cache: &'a Cache,
    worker: CompileWorker,
}

impl<'a> Pantry<'a> {
    /// That of a run.
    pub fn new(request: &Request, cache: &'a Cache) -> Self {
        Self { target: request.machine.target, cache, worker: CompileWorker::new(compile::LIMIT) }
    }

    /// The kernel's files; none where they are in no cache and the templates are others by now, or do not compile.
    pub fn artefact(&mut self, kernel: &KernelRecord) -> anyhow::Result<Option<Artefact>> {
        if let Some(artefact) = self.cache.find(&kernel.source_hash) {
            return Ok(Some(artefact));
        }
        let source = render(&kernel.problem, &kernel.variant, self.target)?;
        if source.hash != kernel.source_hash {
            return Ok(None);
        }
        let candidate =
            Candidate { case: 0, problem: kernel.problem, variant: kernel.variant, is_default: false, source };
        let built = compile::one(&mut self.worker, &candidate, self.target, self.cache, &Progress::new(0))?;
        Ok(built.ok())
    }
}

/// The default kernel of `problem`, by the compiler and generator of `like`; none where no variant is feasible.
pub fn default_kernel(problem: &Problem, like: &KernelRecord) -> Result<Option<KernelRecord>, RenderError> {
    let Some(variant) = yardstick(problem, like.target) else { return Ok(None) };
    let source = render(problem, &variant, like.target)?;
    let (problem, source_hash) = (*problem, source.hash);
    Ok(Some(KernelRecord { problem, variant, source_hash, compiled: None, ..like.clone() }))
}
