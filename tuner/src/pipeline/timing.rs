//! With a GPU: each compiled kernel is verified, then all of a problem are timed against each other
//! at each shape, and the best of them once more, longer, beside the default.

mod trials;

use super::cache::Artefact;
use super::compile::Built;
use super::progress::{Progress, Step};
use super::recorder::Recorder;
use super::space::{Candidate, Case, splits};
use super::target::DEVICE;
use super::{Request, cost, stop::Stop};
pub use crate::search::ROUND_SAMPLES;
use crate::worker::{CandidateKernel, Depth, GpuWorker, Limits, MeasureReport, MeasureRequest, VerifyRequest};
use anyhow::Context;
use nvkv_db::{EnvironmentKey, WinnerFilter};
use nvkv_spec::{GpuEnvironment, KernelId, Outcome, Problem, Shape, SplitPolicy, Target};
use std::collections::HashSet;
use std::sync::mpsc::Receiver;
use std::time::Duration;
pub use trials::{RUNOFF, median};
use trials::{Trial, best, contenders, merge};

/// How times are taken, as stored with each run: a change of any part makes them incomparable.
pub const POLICY: &str = "graph-replay,cold-l2,interleaved,median,v1";
/// How long one call to the GPU worker may take. Healthy ones take seconds; a hang costs this much a few times over,
/// until halving the batch has found the kernel.
pub const LIMITS: Limits =
    Limits { device: Duration::from_secs(60), verify: Duration::from_secs(60), measure: Duration::from_secs(60) };
/// Trials timed interleaved: few enough that all see the same clocks, enough that inputs are made seldom.
const BATCH: usize = 24;
/// Samples of a trial in the run-off.
pub const RUNOFF_SAMPLES: u32 = 41;
/// Run-offs at most: another one is due while a trial of the first round is still ahead.
const RUNOFFS: usize = 3;

/// The GPU part of a run.
pub struct Timing<'a> {
    request: &'a Request,
    target: Target,
    gpu: &'a GpuEnvironment,
    worker: GpuWorker,
    recorder: &'a mut Recorder,
    progress: &'a Progress,
    stop: &'a Stop,
    /// Kernels that crashed, hung or were wrong while they were timed: not run again.
    quarantined: HashSet<KernelId>,
}

/// A kernel that agreed with the reference.
struct Verified<'a> {
    candidate: &'a Candidate,
    artefact: Artefact,
    cubin: Vec<u8>,
    error: f64,
}

/// Kernels of one problem at one shape.
#[derive(Clone, Copy)]
struct Heat<'k, 'a> {
    problem: Problem,
    shape: Shape,
    kernels: &'k [Verified<'a>],
}

impl<'a> Heat<'_, 'a> {
    fn candidate(&self, trial: &Trial) -> &'a Candidate {
        self.kernels[trial.kernel].candidate
    }

    fn is_default(&self, trial: &Trial, target: Target) -> bool {
        self.candidate(trial).is_default_launch(self.shape, trial.split, target)
    }
}

impl<'a> Timing<'a> {
    /// Of `request` on `gpu`.
    pub fn new(
        request: &'a Request,
        gpu: &'a GpuEnvironment,
        recorder: &'a mut Recorder,
        (progress, stop): (&'a Progress, &'a Stop),
    ) -> Self {
        let (target, worker) = (request.machine.target, GpuWorker::new(DEVICE, LIMITS));
        Self { request, target, gpu, worker, recorder, progress, stop, quarantined: HashSet::new() }
    }

    /// Takes kernels as they are compiled: each of `pending` will come, unless the run ends early.
    pub fn run(&mut self, built: Receiver<Built<'a>>, pending: &[&Candidate]) -> anyhow::Result<()> {
        let mut waiting = vec![0; self.request.cases.len()];
        pending.iter().for_each(|candidate| waiting[candidate.case] += 1);
        let mut ready: Vec<Vec<Verified<'a>>> = waiting.iter().map(|_| Vec::new()).collect();
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
        request: &Request,
        gpu: &GpuEnvironment,
        recorder: &Recorder,
        (problem, shapes): &Case,
        candidates: &[&Candidate],
    ) -> anyhow::Result<bool> {
        let (target, preset) = (request.machine.target, request.preset);
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
                if !matches!(outcome, Outcome::Wrong { .. }) {
                    self.require_gpu()?;
                }
                self.fail(candidate, Some(&artefact), outcome).map(|()| None)
            }
        }
    }

    fn fail(&mut self, candidate: &Candidate, artefact: Option<&Artefact>, outcome: Outcome) -> anyhow::Result<()> {
        self.progress.add(Step::Failed, 1, cost::VERIFY_MS);
        Ok(self.recorder.failed(candidate, artefact, outcome)?)
    }

    fn time_case(&mut self, case: usize, kernels: &[Verified<'a>]) -> anyhow::Result<()> {
        let (problem, shapes) = &self.request.cases[case];
        shapes.iter().try_for_each(|&shape| self.time(Heat { problem: *problem, shape, kernels }))
    }

    /// Times what was not timed yet, in batches, then the best of all beside the default.
    fn time(&mut self, heat: Heat<'_, 'a>) -> anyhow::Result<()> {
        let Heat { problem, shape, .. } = heat;
        let mut trials = self.trials(heat);
        let mut fresh = trials.clone();
        fresh.retain(|t| !self.recorder.is_done(heat.candidate(t), shape, t.split));
        if fresh.is_empty() && had_runoff(self.recorder, problem, shape, self.target, self.gpu)? {
            return Ok(());
        }
        self.recall_winner(&mut trials, heat)?;
        for batch in fresh.chunks(BATCH) {
            let timed = self.measure(heat, batch.to_vec(), ROUND_SAMPLES)?;
            merge(&mut trials, &timed);
        }
        self.run_off(heat, trials)
    }

    /// Every verified kernel with every split.
    fn trials(&self, heat: Heat<'_, 'a>) -> Vec<Trial> {
        let of = |(kernel, verified): (usize, &Verified<'a>)| {
            let splits =
                splits(&heat.problem, &verified.candidate.variant, &heat.shape, self.target, self.request.preset);
            splits.into_iter().map(move |split| Trial { kernel, split, timed: None })
        };
        heat.kernels.iter().enumerate().flat_map(of).collect()
    }

    /// What an earlier, interrupted run found best takes part in the run-off.
    fn recall_winner(&self, trials: &mut [Trial], heat: Heat<'_, 'a>) -> anyhow::Result<()> {
        let filter = filter(heat.problem, heat.shape, self.target, self.gpu);
        for winner in self.recorder.db().winners(&filter)? {
            let is_it = |t: &&mut Trial| {
                heat.candidate(t).variant == winner.kernel.variant && winner.split.is_none_or(|split| split == t.split)
            };
            if let Some(trial) = trials.iter_mut().find(is_it) {
                trial.timed = Some((winner.times.median_us, winner.times.samples));
            }
        }
        Ok(())
    }

    /// Times the best once more beside the default, until the best has as many samples as the others.
    fn run_off(&mut self, heat: Heat<'_, 'a>, mut trials: Vec<Trial>) -> anyhow::Result<()> {
        for _ in 0..RUNOFFS {
            trials.retain(|t| self.may_run(heat, t));
            let chosen = contenders(&trials, |t| heat.is_default(t, self.target));
            let timed = self.measure(heat, chosen, RUNOFF_SAMPLES)?;
            merge(&mut trials, &timed);
            let settled = |t: &Trial| t.timed.is_some_and(|(_, samples)| samples > u64::from(ROUND_SAMPLES));
            if timed.is_empty() || best(&trials).is_none_or(settled) {
                break;
            }
        }
        Ok(())
    }

    fn may_run(&self, heat: Heat<'_, 'a>, trial: &Trial) -> bool {
        !self.quarantined.contains(&heat.candidate(trial).source.id)
    }

    /// Times `trials` against each other, records each, and gives them back with their medians.
    fn measure(&mut self, heat: Heat<'_, 'a>, mut trials: Vec<Trial>, samples: u32) -> anyhow::Result<Vec<Trial>> {
        trials.retain(|t| self.may_run(heat, t));
        if self.stop.reason().is_some() || trials.is_empty() {
            return Ok(Vec::new());
        }
        let candidate = |t: &Trial| CandidateKernel {
            id: heat.candidate(t).source.id.clone(),
            variant: heat.candidate(t).variant,
            split: t.split,
            cubin: heat.kernels[t.kernel].cubin.clone(),
        };
        let Heat { problem, shape, .. } = heat;
        let request = MeasureRequest { problem, shape, candidates: trials.iter().map(candidate).collect(), samples };
        match self.worker.measure(&request) {
            Ok(report) => self.take(heat, &mut trials, report, samples)?,
            Err(outcome) => {
                self.require_gpu()?;
                // Alone, or refused before any kernel ran (no memory for this shape): the outcome is theirs.
                if trials.len() == 1 || matches!(outcome, Outcome::LaunchFailed { .. }) {
                    trials.iter_mut().try_for_each(|t| self.record(heat, t, Err(outcome.clone()), samples))?;
                    return Ok(trials);
                }
                // One bad kernel must not cost the others their result: halve until it stands alone.
                let right = trials.split_off(trials.len() / 2);
                trials = self.measure(heat, trials, samples)?;
                trials.extend(self.measure(heat, right, samples)?);
            }
        }
        Ok(trials)
    }

    fn take(
        &mut self,
        heat: Heat<'_, 'a>,
        trials: &mut [Trial],
        report: MeasureReport,
        asked: u32,
    ) -> anyhow::Result<()> {
        let state = serde_json::json!({ "before": report.before, "after": report.after });
        self.recorder.note_gpu(report.read_ceiling_gbps, &state)?;
        trials.iter_mut().zip(report.candidates).try_for_each(|(trial, result)| self.record(heat, trial, result, asked))
    }

    fn record(
        &mut self,
        heat: Heat<'_, 'a>,
        trial: &mut Trial,
        result: Result<Vec<f64>, Outcome>,
        asked: u32,
    ) -> anyhow::Result<()> {
        let Verified { candidate, artefact, error, .. } = &heat.kernels[trial.kernel];
        let (step, outcome, samples) = match result {
            Ok(samples) if !samples.is_empty() => (Step::Timed, Outcome::Timed { error: *error }, samples),
            Ok(_) => (Step::Failed, Outcome::LaunchFailed { error: "no sample was undisturbed".into() }, Vec::new()),
            Err(outcome) => (Step::Failed, outcome, Vec::new()),
        };
        trial.timed = median(&samples).map(|median| (median, samples.len() as u64));
        self.progress.add(step, 1, cost::TRIAL_MS + u64::from(asked) * cost::SAMPLE_MS);
        if matches!(outcome, Outcome::Wrong { .. } | Outcome::Crashed { .. } | Outcome::Timeout { .. }) {
            // Such a kernel is not run again, at any shape.
            self.quarantined.insert(candidate.source.id.clone());
            let outcome = at(outcome, heat.shape, trial.split);
            return Ok(self.recorder.failed(candidate, Some(artefact), outcome)?);
        }
        Ok(self.recorder.tried((candidate, artefact), (heat.shape, trial.split), outcome, samples)?)
    }

    /// A worker that died or hung is a failed trial, unless the GPU itself is gone: that ends the run.
    fn require_gpu(&mut self) -> anyhow::Result<()> {
        let gone = "the GPU no longer answers; what was timed is stored. When it is back, the same command goes on";
        self.worker.environment().map(drop).context(gone)
    }
}

/// The outcome with the place where it happened.
fn at(outcome: Outcome, shape: Shape, split: SplitPolicy) -> Outcome {
    let place = |detail| format!("timed at {}, {split}: {detail}", shape.key());
    match outcome {
        Outcome::Wrong { error, detail } => Outcome::Wrong { error, detail: place(detail) },
        Outcome::Crashed { stage, detail } => Outcome::Crashed { stage, detail: place(detail) },
        other => other,
    }
}

/// Whether the run-off at this shape took place: its winner has more samples than the first round takes.
fn had_runoff(
    recorder: &Recorder,
    problem: Problem,
    shape: Shape,
    target: Target,
    gpu: &GpuEnvironment,
) -> anyhow::Result<bool> {
    let winners = recorder.db().winners(&filter(problem, shape, target, gpu))?;
    Ok(winners.iter().any(|w| w.times.samples > u64::from(ROUND_SAMPLES)))
}

/// Winners of one problem at one shape on this GPU.
fn filter(problem: Problem, shape: Shape, target: Target, gpu: &GpuEnvironment) -> WinnerFilter {
    let environment = Some(EnvironmentKey::from(gpu));
    WinnerFilter { environment, problems: vec![problem], shape: Some(shape), ..WinnerFilter::of(target) }
}
