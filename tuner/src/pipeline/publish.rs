//! From the database's winners to a bundle: each kernel's files from the cache, or compiled again.

use super::cache::{Artefact, Cache};
use super::choices::{self, Choice};
use super::progress::Progress;
use super::recorder::Recorder;
use super::space::{Candidate, yardstick};
use super::{Request, compile, now, replace};
use crate::bundle::{self, Ingredient, Written};
use crate::worker::CompileWorker;
use nvkv_db::{Db, KernelRecord};
use nvkv_generator::render;
use nvkv_spec::{Evidence, Target, Toolchain};

/// Writes the bundle of everything that the database knows for the target; none where that is nothing.
pub fn bundle(
    request: &Request,
    recorder: &Recorder,
    cache: &Cache,
    toolchain: &Toolchain,
) -> anyhow::Result<Option<Written>> {
    let target = request.machine.target;
    let mut choices = choices::all(recorder.db(), target, request.machine.gpu.as_ref().ok())?;
    let mut kitchen = Kitchen { target, cache, worker: CompileWorker::new(compile::LIMIT), ingredients: Vec::new() };
    let mut available = Vec::new();
    for choice in choices.drain(..) {
        if kitchen.add(choice.kernel(), choice.evidence())? {
            available.push(choice);
        } else {
            eprintln!(
                "note: {} was made by other templates and is in no cache; the bundle goes without it",
                choice.kernel().key().kernel_id
            );
        }
    }
    if available.is_empty() {
        return Ok(None);
    }
    let lost = replace::check(&request.out.join(target.name()), &available)?;
    lost.iter().for_each(|note| eprintln!("note: {note}"));
    // Choices come problem by problem.
    for of_problem in available.chunk_by(|a, b| a.problem() == b.problem()) {
        kitchen.add_fallback(recorder.db(), of_problem)?;
    }
    kitchen.ingredients.sort_by_key(|i| i.kernel.key());
    Ok(Some(bundle::write(&request.out, target, toolchain, &now(), (&kitchen.ingredients, &available))?))
}

/// Collects the kernels of a bundle, each once.
struct Kitchen<'a> {
    target: Target,
    cache: &'a Cache,
    worker: CompileWorker,
    ingredients: Vec<Ingredient>,
}

impl Kitchen<'_> {
    /// Adds a kernel; false where its files cannot be had any more. Timed evidence outweighs a prediction.
    fn add(&mut self, kernel: &KernelRecord, evidence: Evidence) -> anyhow::Result<bool> {
        if let Some(there) = self.ingredients.iter_mut().find(|i| i.kernel.key() == kernel.key()) {
            if there.evidence == Evidence::Predicted {
                there.evidence = evidence;
            }
            return Ok(true);
        }
        let Some(artefact) = self.artefact(kernel)? else { return Ok(false) };
        let is_default = Some(kernel.variant) == yardstick(&kernel.problem, self.target);
        self.ingredients.push(Ingredient { kernel: kernel.clone(), artefact, evidence, is_default });
        Ok(true)
    }

    /// Adds the default variant of the problem of `choices`: it serves shapes that no selection is near to. It counts
    /// as verified where it was timed beside a winner, and is left out where a GPU found it wrong.
    fn add_fallback(&mut self, db: &Db, choices: &[Choice]) -> anyhow::Result<()> {
        let Some(first) = choices.first() else { return Ok(()) };
        let beside = choices.iter().find(|c| matches!(c, Choice::Timed(winner) if winner.default.is_some()));
        let evidence = beside.map_or(Evidence::Predicted, |choice| choice.evidence());
        let problem = first.problem();
        if let Some(there) = self.ingredients.iter().find(|i| i.is_default && i.kernel.problem == problem) {
            let kernel = there.kernel.clone();
            return self.add(&kernel, evidence).map(drop);
        }
        let Some(variant) = yardstick(&problem, self.target) else { return Ok(()) };
        let source = render(&problem, &variant, self.target)?;
        let kernel = KernelRecord { variant, source_hash: source.hash, compiled: None, ..first.kernel().clone() };
        if db.failed_on_gpu(self.target, &kernel.key())? || !self.add(&kernel, evidence)? {
            eprintln!(
                "note: the default variant of {} failed; for shapes far from all that were tuned, the bundle has \
                       no kernel marked is_default",
                problem.key()
            );
        }
        Ok(())
    }

    /// The kernel's files: from the cache, or compiled again where the templates are still the same.
    fn artefact(&mut self, kernel: &KernelRecord) -> anyhow::Result<Option<Artefact>> {
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
