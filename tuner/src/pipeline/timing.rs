//! With a GPU: each compiled kernel is verified, then all of a problem are timed against each other
//! at each shape, and the best of them once more, longer, beside the default.

mod trials;

use super::cache::Artefact;
use super::compile::Built;
use super::progress::{Progress, Step};
use super::recorder::{Recorder, is_default};
use super::space::{Candidate, Case, splits};
use super::{cost, stop::Stop};
use crate::worker::{CandidateKernel, Depth, GpuWorker, Limits, MeasureReport, MeasureRequest, VerifyRequest};
use anyhow::Context;
use nvkv_db::{EnvironmentKey, WinnerFilter};
use nvkv_generator::Preset;
use nvkv_spec::{GpuEnvironment, Outcome, Problem, Shape, SplitPolicy, Target};
use std::sync::mpsc::Receiver;
use std::time::Duration;
pub use trials::RUNOFF;
use trials::{Trial, best, contenders, median, merge};

/// How times are taken, as stored with each run: a change of any part makes them incomparable.
pub const POLICY: &str = "graph-replay,cold-l2,interleaved,median,v1";
/// How long one call to the GPU worker may take.
pub const LIMITS: Limits =
    Limits { device: Duration::from_secs(60), verify: Duration::from_secs(120), measure: Duration::from_secs(300) };
/// Trials timed interleaved: few enough that all see the same clocks, enough that inputs are made seldom.
const BATCH: usize = 24;
/// Samples of a trial in the first round.
pub const ROUND_SAMPLES: u32 = 7;
/// Samples of a trial in the run-off.
pub const RUNOFF_SAMPLES: u32 = 41;
/// Run-offs at most: another one is due while a trial of the first round is still ahead.
const RUNOFFS: usize = 3;

/// The GPU part of a run.
pub struct Timing<'a> {
    /// What is tuned at which shapes.
    pub cases: &'a [Case],
    /// Target and the GPU of it.
    pub target: Target,
    /// The GPU.
    pub gpu: &'a GpuEnvironment,
    /// Preset, for the split policies.
    pub preset: Preset,
    /// The process that owns the GPU.
    pub worker: GpuWorker,
    /// Where trials go.
    pub recorder: &'a mut Recorder,
    /// Where they are counted.
    pub progress: &'a Progress,
    /// When to end early.
    pub stop: &'a Stop,
}

/// A kernel that agreed with the reference.
struct Verified<'a> {
    candidate: &'a Candidate,
    artefact: Artefact,
    cubin: Vec<u8>,
    error: f64,
}

impl<'a> Timing<'a> {
    /// Takes kernels as they are compiled; `waiting` says how many of each case will come.
    pub fn run(&mut self, built: Receiver<Built<'a>>, mut waiting: Vec<usize>) -> anyhow::Result<()> {
        let mut ready: Vec<Vec<Verified<'a>>> = self.cases.iter().map(|_| Vec::new()).collect();
        for one in built {
            if self.stop.reason().is_some() {
                break;
            }
            let case = one.candidate.case;
            ready[case].extend(self.verify(one)?);
            waiting[case] -= 1;
            if waiting[case] == 0 {
                self.time_case(case, &std::mem::take(&mut ready[case]))?;
            }
        }
        Ok(())
    }

    /// Whether nothing is left to do for `candidates`, all those of one case.
    pub fn is_settled(
        recorder: &Recorder,
        (problem, shapes): &Case,
        candidates: &[&Candidate],
        (target, preset, gpu): (Target, Preset, &GpuEnvironment),
    ) -> anyhow::Result<bool> {
        for &shape in shapes {
            let all_done = candidates.iter().all(|c| {
                splits(problem, &c.variant, &shape, target, preset).into_iter().all(|s| recorder.is_done(c, shape, s))
            });
            if !all_done || !had_runoff(recorder, *problem, shape, target, gpu)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn verify(&mut self, built: Built<'a>) -> anyhow::Result<Option<Verified<'a>>> {
        let candidate = built.candidate;
        let artefact = match built.result? {
            Ok(artefact) => artefact,
            Err(outcome) => return self.fail(candidate, None, outcome).map(|()| None),
        };
        let cubin = artefact.cubin()?;
        let kernel = CandidateKernel {
            id: candidate.source.id.clone(),
            variant: candidate.variant,
            split: SplitPolicy::Even { splits: 1 },
            cubin: cubin.clone(),
        };
        let request = VerifyRequest { problem: candidate.problem, kernel, depth: Depth::Quick };
        match self.worker.verify(&request) {
            Ok(report) => {
                self.progress.add(Step::Verified, 1, cost::VERIFY_MS);
                Ok(Some(Verified { candidate, artefact, cubin, error: report.max_error }))
            }
            Err(outcome) => {
                self.require_gpu(&outcome)?;
                self.fail(candidate, Some(&artefact), outcome).map(|()| None)
            }
        }
    }

    fn fail(&mut self, candidate: &Candidate, artefact: Option<&Artefact>, outcome: Outcome) -> anyhow::Result<()> {
        self.progress.add(Step::Failed, 1, cost::VERIFY_MS);
        Ok(self.recorder.failed(candidate, artefact, outcome)?)
    }

    fn time_case(&mut self, case: usize, kernels: &[Verified<'a>]) -> anyhow::Result<()> {
        let cases = self.cases;
        let (problem, shapes) = &cases[case];
        for &shape in shapes {
            let mut trials = self.trials(problem, shape, kernels);
            let known = |t: &Trial| self.recorder.is_done(kernels[t.kernel].candidate, shape, t.split);
            let (_, mut fresh): (Vec<_>, Vec<_>) = trials.iter().copied().partition(known);
            if fresh.is_empty() && had_runoff(self.recorder, *problem, shape, self.target, self.gpu)? {
                continue;
            }
            self.recall_winner(&mut trials, *problem, shape, kernels)?;
            for batch in fresh.chunks_mut(BATCH) {
                self.measure(*problem, shape, kernels, batch, ROUND_SAMPLES)?;
            }
            merge(&mut trials, &fresh);
            self.run_off(*problem, shape, kernels, &mut trials)?;
        }
        Ok(())
    }

    /// Every verified kernel with every split.
    fn trials(&self, problem: &Problem, shape: Shape, kernels: &[Verified<'a>]) -> Vec<Trial> {
        let of = |(kernel, verified): (usize, &Verified<'a>)| {
            let splits = splits(problem, &verified.candidate.variant, &shape, self.target, self.preset);
            splits.into_iter().map(move |split| Trial { kernel, split, timed: None })
        };
        kernels.iter().enumerate().flat_map(of).collect()
    }

    /// What an earlier, interrupted run found best takes part in the run-off.
    fn recall_winner(
        &self,
        trials: &mut [Trial],
        problem: Problem,
        shape: Shape,
        kernels: &[Verified<'a>],
    ) -> anyhow::Result<()> {
        let environment = Some(EnvironmentKey::from(self.gpu));
        let filter =
            WinnerFilter { environment, problems: vec![problem], shape: Some(shape), ..WinnerFilter::of(self.target) };
        for winner in self.recorder.db().winners(&filter)? {
            let is_it = |t: &&mut Trial| {
                kernels[t.kernel].candidate.variant == winner.kernel.variant
                    && winner.split.is_none_or(|s| s == t.split)
            };
            if let Some(trial) = trials.iter_mut().find(is_it) {
                trial.timed = Some((winner.times.median_us, winner.times.samples));
            }
        }
        Ok(())
    }

    /// Times the best once more beside the default, until the best has as many samples as the others.
    fn run_off(
        &mut self,
        problem: Problem,
        shape: Shape,
        kernels: &[Verified<'a>],
        trials: &mut [Trial],
    ) -> anyhow::Result<()> {
        for _ in 0..RUNOFFS {
            let is_default = |t: &Trial| is_default(kernels[t.kernel].candidate, shape, t.split, self.target);
            let mut contenders = contenders(trials, is_default);
            if contenders.is_empty() || self.stop.reason().is_some() {
                return Ok(());
            }
            self.measure(problem, shape, kernels, &mut contenders, RUNOFF_SAMPLES)?;
            merge(trials, &contenders);
            if best(trials).is_none_or(|t| t.timed.is_some_and(|(_, n)| n >= u64::from(RUNOFF_SAMPLES))) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Times `trials` against each other, records each, and notes the medians.
    fn measure(
        &mut self,
        problem: Problem,
        shape: Shape,
        kernels: &[Verified<'a>],
        trials: &mut [Trial],
        samples: u32,
    ) -> anyhow::Result<()> {
        if self.stop.reason().is_some() || trials.is_empty() {
            return Ok(());
        }
        let candidate = |t: &Trial| CandidateKernel {
            id: kernels[t.kernel].candidate.source.id.clone(),
            variant: kernels[t.kernel].candidate.variant,
            split: t.split,
            cubin: kernels[t.kernel].cubin.clone(),
        };
        let request = MeasureRequest { problem, shape, candidates: trials.iter().map(candidate).collect(), samples };
        match self.worker.measure(&request) {
            Ok(report) => self.take(shape, kernels, trials, report, samples),
            Err(outcome) => {
                self.require_gpu(&outcome)?;
                // One bad kernel must not cost the others their result: halve until it stands alone.
                if let [trial] = trials {
                    return self.record(shape, &kernels[trial.kernel], trial, Err(outcome), samples);
                }
                let (left, right) = trials.split_at_mut(trials.len() / 2);
                self.measure(problem, shape, kernels, left, samples)?;
                self.measure(problem, shape, kernels, right, samples)
            }
        }
    }

    fn take(
        &mut self,
        shape: Shape,
        kernels: &[Verified<'a>],
        trials: &mut [Trial],
        report: MeasureReport,
        samples: u32,
    ) -> anyhow::Result<()> {
        let state = serde_json::json!({ "before": report.before, "after": report.after });
        self.recorder.note_gpu(report.read_ceiling_gbps, &state)?;
        for (trial, result) in trials.iter_mut().zip(report.candidates) {
            self.record(shape, &kernels[trial.kernel], trial, result, samples)?;
        }
        Ok(())
    }

    fn record(
        &mut self,
        shape: Shape,
        kernel: &Verified<'a>,
        trial: &mut Trial,
        result: Result<Vec<f64>, Outcome>,
        asked: u32,
    ) -> anyhow::Result<()> {
        let work = cost::TRIAL_MS + u64::from(asked) * cost::SAMPLE_MS;
        let (step, outcome, samples) = match result {
            Ok(samples) if !samples.is_empty() => (Step::Timed, Outcome::Timed { error: kernel.error }, samples),
            Ok(_) => (Step::Failed, Outcome::LaunchFailed { error: "no sample was undisturbed".into() }, Vec::new()),
            Err(outcome) => (Step::Failed, outcome, Vec::new()),
        };
        trial.timed = median(&samples).map(|median| (median, samples.len() as u64));
        self.progress.add(step, 1, work);
        Ok(self.recorder.tried((kernel.candidate, &kernel.artefact), (shape, trial.split), outcome, samples)?)
    }

    /// A worker that died or hung is one failed trial, unless the GPU itself is gone: that ends the run.
    fn require_gpu(&mut self, outcome: &Outcome) -> anyhow::Result<()> {
        if matches!(outcome, Outcome::Crashed { .. } | Outcome::Timeout { .. }) {
            self.worker.environment().context(
                "the GPU no longer answers; what was timed is stored. When the GPU is back, the same command goes on",
            )?;
        }
        Ok(())
    }
}

/// Whether the run-off at this shape took place: its winner has the samples of one, and the default was timed.
fn had_runoff(
    recorder: &Recorder,
    problem: Problem,
    shape: Shape,
    target: Target,
    gpu: &GpuEnvironment,
) -> anyhow::Result<bool> {
    let environment = Some(EnvironmentKey::from(gpu));
    let filter = WinnerFilter { environment, problems: vec![problem], shape: Some(shape), ..WinnerFilter::of(target) };
    let winners = recorder.db().winners(&filter)?;
    Ok(winners.iter().any(|w| w.times.samples >= u64::from(RUNOFF_SAMPLES)))
}
