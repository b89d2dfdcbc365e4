//! Without a GPU: the kernels that the bundle will hold are run in the emulator. One that fails there wins nowhere, and
//! the next of its shape takes its place.

use super::cache::Cache;
use super::choices::{self, Choice};
use super::pantry::{Pantry, default_kernel};
use super::progress::{Progress, Step};
use super::recorder::Recorder;
use super::stop::Stop;
use super::{Request, cost};
use crate::verify::{Emulation, Prepared, emulate};
use crate::worker::Depth;
use nvkv_db::{Compiled, KernelKey, KernelRecord};
use nvkv_spec::{KernelId, Outcome, Problem};
use rayon::prelude::*;
use std::collections::HashSet;

/// The part of a run between the trials and the bundle where no GPU is.
pub struct Finalists<'a> {
    /// What is tuned.
    pub request: &'a Request,
    /// Where results go.
    pub recorder: &'a mut Recorder,
    /// Where files come from.
    pub cache: &'a Cache,
    /// Where kernels are counted.
    pub progress: &'a Progress,
    /// When to end early.
    pub stop: &'a Stop,
}

/// A kernel to be emulated.
struct Finalist {
    kernel: KernelRecord,
    ptx: String,
}

impl Finalists<'_> {
    /// Emulates winners until each one is right, or has taken its turn.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let mut seen = HashSet::new();
        loop {
            let finalists = self.unseen(&mut seen)?;
            if finalists.is_empty() {
                return Ok(());
            }
            self.progress.expect(finalists.len() as u64 * cost::EMULATE_MS);
            for of_problem in finalists.chunk_by(|a, b| a.kernel.problem == b.kernel.problem) {
                self.emulate(of_problem)?;
            }
        }
    }

    /// The winners and defaults of this run's problems that neither a GPU nor the emulator has judged, problem by
    /// problem, each once.
    fn unseen(&self, seen: &mut HashSet<KernelKey>) -> anyhow::Result<Vec<Finalist>> {
        let mut pantry = Pantry::new(self.request, self.cache);
        let choices = choices::all(self.recorder.db(), self.request.machine.target, None)?;
        let on_gpu = |c: &Choice| matches!(c, Choice::Timed(_)).then(|| c.kernel().key());
        seen.extend(choices.iter().filter_map(on_gpu));
        let mut finalists = Vec::new();
        // Choices come problem by problem.
        for of_problem in choices.chunk_by(|a, b| a.problem() == b.problem()) {
            let (problem, first) = (of_problem[0].problem(), of_problem[0].kernel());
            if !self.is_asked(&problem) {
                continue;
            }
            let winners = of_problem.iter().map(|choice| choice.kernel().clone());
            for kernel in winners.chain(default_kernel(&problem, first)?) {
                if seen.insert(kernel.key()) && !self.is_judged(&kernel)? {
                    finalists.extend(finalist(&mut pantry, kernel)?);
                }
            }
        }
        Ok(finalists)
    }

    /// Kernels of other problems are not touched: a row of this run would make it the last that tuned them.
    fn is_asked(&self, problem: &Problem) -> bool {
        self.request.cases.iter().any(|(asked, _)| asked == problem)
    }

    fn is_judged(&self, kernel: &KernelRecord) -> anyhow::Result<bool> {
        let (db, key) = (self.recorder.db(), kernel.key());
        Ok(db.emulated(kernel.target, &key)?.is_some() || db.failed_where_run(kernel.target, &key)?)
    }

    /// Emulates kernels of one problem on all cores, and stores what became of them.
    fn emulate(&mut self, finalists: &[Finalist]) -> anyhow::Result<()> {
        if self.stop.reason().is_some() {
            return Ok(());
        }
        let prepared = Prepared::for_emulator(&finalists[0].kernel.problem, Depth::Quick);
        let (progress, stop) = (self.progress, self.stop);
        let judge = |finalist: &Finalist| stop.reason().is_none().then(|| judge(&prepared, finalist, progress));
        let outcomes: Vec<Option<Outcome>> = finalists.par_iter().map(judge).collect();
        for (finalist, outcome) in finalists.iter().zip(outcomes) {
            if let Some(outcome) = outcome {
                self.recorder.judged(finalist.kernel.clone(), outcome)?;
            }
        }
        Ok(())
    }
}

fn judge(prepared: &Prepared, Finalist { kernel, ptx }: &Finalist, progress: &Progress) -> Outcome {
    let symbol = KernelId::new(&kernel.problem, &kernel.variant).symbol();
    let (step, outcome) = match emulate(prepared, &kernel.variant, &symbol, ptx) {
        Ok(Emulation { report, .. }) => {
            (Step::Emulated, Outcome::Emulated { error: report.max_error, cases: report.cases })
        }
        Err(outcome) => (Step::Failed, outcome),
    };
    progress.add(step, 1, cost::EMULATE_MS);
    outcome
}

/// The kernel with its PTX; none where its files cannot be had, and then it is in no bundle either.
fn finalist(pantry: &mut Pantry, kernel: KernelRecord) -> anyhow::Result<Option<Finalist>> {
    let Some(artefact) = pantry.artefact(&kernel)? else { return Ok(None) };
    let ptx = artefact.ptx()?;
    let compiled = Some(Compiled { cubin_hash: artefact.cubin_hash, facts: artefact.facts });
    Ok(Some(Finalist { kernel: KernelRecord { compiled, ..kernel }, ptx }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::Trust;
    use crate::gpu::{self, Nvrtc};
    use crate::pipeline::cache::Artefact;
    use crate::pipeline::new_run;
    use crate::pipeline::space::{Candidate, Space, render_all};
    use crate::pipeline::target::Machine;
    use crate::worker;
    use nvkv_db::RunId;
    use nvkv_generator::Preset;
    use nvkv_spec::{CompileFacts, Evidence, Shape, SplitPolicy, Target, Toolchain};
    use std::path::Path;

    const TARGET: Target = Target::Sm100a;
    const SHAPE: Shape = Shape::Append { tokens: 64, kv_heads: 8 };

    fn request(folder: &Path) -> Request {
        let machine = Machine { target: TARGET, gpu: Err("none".into()), device: 0, beside: Vec::new() };
        Request::of_appends(machine, folder, vec![SHAPE])
    }

    fn stored(cache: &Cache, candidate: &Candidate, ptx: String) -> Artefact {
        let (facts, toolchain) = (CompileFacts::default(), Toolchain { nvrtc: "13.0".into(), generator: "0".into() });
        let compiled = worker::Compiled { ptx, cubin: vec![1], facts, log: String::new(), toolchain };
        cache.store(&candidate.source.hash, &candidate.source.text, &compiled).unwrap()
    }

    #[test]
    fn a_winner_that_fails_in_the_emulator_makes_room_for_the_next_and_none_is_emulated_twice() {
        let folder = tempfile::tempdir().unwrap();
        let request = request(folder.path());
        let candidates = render_all(&[Space::new(request.cases[0].0, TARGET, Preset::Quick)], TARGET).unwrap();
        let default = candidates.iter().find(|candidate| candidate.is_default).unwrap();
        let other = candidates.iter().find(|candidate| !candidate.is_default).unwrap();
        let toolchain = Toolchain { nvrtc: "13.0".into(), generator: "0".into() };
        let mut recorder = Recorder::begin(&request.db, &new_run(&request, &toolchain, None), &candidates).unwrap();
        let cache = Cache::new(&request.out, TARGET, "13.0");
        let nvrtc = Nvrtc::load().unwrap();
        let compile = |Candidate { source, .. }: &Candidate| {
            gpu::compile(&nvrtc, &source.text, TARGET.name(), &source.id.symbol()).unwrap().ptx
        };
        let split = SplitPolicy::Even { splits: 1 };
        // The faster one by the model stores nothing.
        let wrong = compile(other).replace("st.global", "// st.global");
        for (candidate, ptx, us) in [(other, wrong, 1.0), (default, compile(default), 2.0)] {
            let artefact = stored(&cache, candidate, ptx);
            recorder.predicted((candidate, &artefact), (SHAPE, split), us).unwrap();
        }

        for _ in 0..2 {
            let (progress, stop) = (Progress::new(0), Stop::new(None));
            let (recorder, cache) = (&mut recorder, &cache);
            Finalists { request: &request, recorder, cache, progress: &progress, stop: &stop }.run().unwrap();
            let [choice] = &choices::all(recorder.db(), TARGET, None).unwrap()[..] else { panic!("one shape") };
            assert!(choice.is_default() && choice.trust() == Trust::Predicted);
            assert!(matches!(choice.evidence(), Evidence::Emulated { cases: 3, max_error: 0.0 }));
            let failures = recorder.db().failures(RunId(1)).unwrap();
            assert_eq!(failures.iter().map(|f| &f.kernel_id).collect::<Vec<_>>(), [&other.source.id]);
            assert!(
                matches!(&failures[0].outcome, Outcome::Wrong { detail, .. } if detail.contains("the cache differ"))
            );
            assert_eq!(recorder.db().outcomes(RunId(1)).unwrap()["emulated"], 1);
        }
    }
}
