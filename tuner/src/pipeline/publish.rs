//! From the database's winners to a bundle: each kernel's files from the cache, or compiled again.

use super::cache::{Artefact, Cache};
use super::choices::{self, Choice};
use super::progress::Progress;
use super::recorder::Recorder;
use super::space::{Candidate, yardstick};
use super::{Request, compile, now};
use crate::bundle::{self, Ingredient, Written};
use crate::worker::CompileWorker;
use nvkv_db::KernelRecord;
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
            kitchen.add_fallback(&choice)?;
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

    /// Adds the default variant of the choice's problem where it was verified and timed beside it.
    fn add_fallback(&mut self, choice: &Choice) -> anyhow::Result<()> {
        let Choice::Timed(winner) = choice else { return Ok(()) };
        if winner.default.is_none() {
            return Ok(());
        }
        let Some(variant) = yardstick(&winner.kernel.problem, self.target) else { return Ok(()) };
        let source = render(&winner.kernel.problem, &variant, self.target)?;
        let kernel = KernelRecord { variant, source_hash: source.hash, compiled: None, ..winner.kernel.clone() };
        self.add(&kernel, choice.evidence()).map(drop)
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
