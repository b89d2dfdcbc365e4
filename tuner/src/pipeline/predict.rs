//! Without a GPU: each compiled kernel gets its place from the generator's model, and a row that
//! says so. Nothing here is a measurement.

use super::compile::Built;
use super::progress::{Progress, Step};
use super::recorder::Recorder;
use super::space::{Candidate, splits};
use super::{Request, cost};
use nvkv_generator::predicted_us;
use nvkv_spec::{Shape, SplitPolicy};
use std::sync::mpsc::Receiver;

/// The part of a run after the compiler where no GPU is.
pub struct Prediction<'a> {
    /// What is tuned.
    pub request: &'a Request,
    /// Where trials go.
    pub recorder: &'a mut Recorder,
    /// Where they are counted.
    pub progress: &'a Progress,
}

impl Prediction<'_> {
    /// Takes kernels as they are compiled. All of them are taken, also when the run ends early:
    /// a prediction costs nothing beside the compile that it would waste.
    pub fn run(&mut self, built: Receiver<Built<'_>>) -> anyhow::Result<()> {
        for one in built {
            self.take(one)?;
        }
        Ok(())
    }

    fn take(&mut self, built: Built<'_>) -> anyhow::Result<()> {
        let candidate = built.candidate;
        let artefact = match built.result? {
            Ok(artefact) => artefact,
            Err(outcome) => {
                self.progress.add(Step::Failed, 1, cost::COMPILE_MS);
                return Ok(self.recorder.failed(candidate, None, outcome)?);
            }
        };
        let (problem, shapes) = &self.request.cases[candidate.case];
        for &shape in shapes {
            let time = |split| {
                predicted_us(problem, &candidate.variant, split, &shape, self.request.machine.target, &artefact.facts)
            };
            for split in self.worth_a_row(candidate, shape, &time) {
                if self.recorder.is_done(candidate, shape, split) {
                    self.progress.add(Step::Known, 1, cost::PREDICT_MS);
                    continue;
                }
                let is_new = self.recorder.predicted((candidate, &artefact), (shape, split), time(split))?;
                self.progress.add(if is_new { Step::Predicted } else { Step::Known }, 1, cost::PREDICT_MS);
            }
        }
        Ok(())
    }

    /// The best split by the model, and the default's split where this is the default variant.
    fn worth_a_row(&self, candidate: &Candidate, shape: Shape, time: &impl Fn(SplitPolicy) -> f64) -> Vec<SplitPolicy> {
        let all =
            splits(&candidate.problem, &candidate.variant, &shape, self.request.machine.target, self.request.preset);
        let best = all.iter().copied().min_by(|&a, &b| time(a).total_cmp(&time(b)));
        let usual =
            all.iter().copied().find(|&split| candidate.is_default_launch(shape, split, self.request.machine.target));
        best.into_iter().chain(usual.filter(|usual| Some(*usual) != best)).collect()
    }
}
