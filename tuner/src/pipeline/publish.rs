//! From the database's winners to a bundle: each kernel's files from the cache, or compiled again.

use super::cache::Cache;
use super::choices::{self, Choice};
use super::pantry::{Pantry, default_kernel};
use super::recorder::Recorder;
use super::space::yardstick;
use super::{Request, now, replace};
use crate::bundle::{self, Ingredient, Written};
use nvkv_db::{Db, KernelRecord};
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
    let mut kitchen = Kitchen { target, pantry: Pantry::new(request, cache), ingredients: Vec::new() };
    let mut available = Vec::new();
    kitchen.pantry.stock(choices.iter().map(Choice::kernel))?;
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
    pantry: Pantry<'a>,
    ingredients: Vec<Ingredient>,
}

impl Kitchen<'_> {
    /// Adds a kernel; false where its files cannot be had any more. The stronger evidence holds.
    fn add(&mut self, kernel: &KernelRecord, evidence: Evidence) -> anyhow::Result<bool> {
        if let Some(there) = self.ingredients.iter_mut().find(|i| i.kernel.key() == kernel.key()) {
            if strength(&evidence) > strength(&there.evidence) {
                there.evidence = evidence;
            }
            return Ok(true);
        }
        let Some(artefact) = self.pantry.artefact(kernel)? else { return Ok(false) };
        let is_default = Some(kernel.variant) == yardstick(&kernel.problem, self.target);
        self.ingredients.push(Ingredient { kernel: kernel.clone(), artefact, evidence, is_default });
        Ok(true)
    }

    /// Adds the default variant of the problem of `choices`: it serves shapes that no selection is near to. It counts
    /// as verified where it was timed beside a winner, and is left out where a GPU found it wrong.
    fn add_fallback(&mut self, db: &Db, choices: &[Choice]) -> anyhow::Result<()> {
        let Some(first) = choices.first() else { return Ok(()) };
        let problem = first.problem();
        let beside = choices.iter().find(|c| matches!(c, Choice::Timed(winner) if winner.default.is_some()));
        if let Some(there) = self.ingredients.iter().find(|i| i.is_default && i.kernel.problem == problem) {
            let kernel = there.kernel.clone();
            return self.add(&kernel, beside.map_or(Evidence::Predicted, Choice::evidence)).map(drop);
        }
        let Some(kernel) = default_kernel(&problem, first.kernel())? else { return Ok(()) };
        let evidence = match beside {
            Some(choice) => choice.evidence(),
            None => choices::of_emulated(db.emulated(self.target, &kernel.key())?),
        };
        if db.failed_where_run(self.target, &kernel.key())? || !self.add(&kernel, evidence)? {
            eprintln!(
                "note: the default variant of {} failed; for shapes far from all that were tuned, the bundle has \
                       no kernel marked is_default",
                problem.key()
            );
        }
        Ok(())
    }
}

/// Evidence in order: what ran on a GPU outweighs what was emulated, and that a prediction.
fn strength(evidence: &Evidence) -> u8 {
    match evidence {
        Evidence::Predicted => 0,
        Evidence::Emulated { .. } => 1,
        Evidence::VerifiedOnGpu { .. } => 2,
    }
}
