//! With a GPU: each compiled kernel is verified, then those of a problem that the search asks for are timed against each
//! other at each shape, and the best of them beside the default once more, in several rounds.

#[cfg(test)]
mod faults;
#[cfg(test)]
mod guided;
pub mod held_out;
mod pace;
mod search;
mod trials;

use super::cache::Artefact;
use super::compile::Built;
use super::progress::{Progress, Step};
use super::recorder::Recorder;
use super::space::{Candidate, Case, splits};
use super::target::Board;
use super::{Request, cost, stop::Stop};
use crate::search::{History, ROUND_SAMPLES, Strategy, name};
use crate::verify::seeded;
use crate::worker::{CandidateKernel, Depth, GpuWorker, Limits, MeasureReport, MeasureRequest, VerifyRequest};
use anyhow::Context;
use nvkv_db::{EnvironmentKey, Measurement, MeasurementId, WinnerFilter, median};
use nvkv_spec::{GpuEnvironment, Outcome, Problem, Shape, SplitPolicy, Target};
pub use pace::{Pace, Summary};
use rand::seq::SliceRandom;
use std::collections::HashSet;
use std::sync::mpsc::Receiver;
use std::time::Duration;
pub use trials::RUNOFF;
use trials::{Trial, best, contenders, merge};

/// How times are taken, as stored with each run: a change of any part makes them incomparable.
pub const POLICY: &str = "graph-replay,cold-l2,interleaved,sentinel,rounds,median,v2";
/// How long one call to the GPU worker may take. Healthy ones take seconds; a hang costs this much a few times over,
/// until halving the batch has found the kernel.
pub const LIMITS: Limits =
    Limits { device: Duration::from_secs(60), verify: Duration::from_secs(60), measure: Duration::from_secs(60) };
/// Trials timed interleaved: few enough that all see the same clocks, enough that inputs are made seldom.
const BATCH: usize = 24;
/// Rounds of a run-off: each loads the kernels anew, with other workspaces, and times them in another order.
pub const RUNOFF_ROUNDS: u32 = 5;
/// Samples of a trial in each of them.
pub const RUNOFF_SAMPLES: u32 = 8;
/// Run-offs at most: another one is due while a trial of the first look is still ahead.
const RUNOFFS: usize = 3;

/// The GPU part of a run.
pub struct Timing<'a> {
    request: &'a Request,
    target: Target,
    gpu: GpuEnvironment,
    worker: GpuWorker,
    recorder: &'a mut Recorder,
    progress: &'a Progress,
    stop: &'a Stop,
    history: History,
    pace: Pace,
}

/// A kernel that compiled.
struct Ready<'a> {
    candidate: &'a Candidate,
    artefact: Artefact,
    /// Its error where this machine code was verified under this driver before.
    carried: Option<f64>,
    /// None until it is to be run.
    verified: Option<Verified>,
}

/// What agreed with the reference.
struct Verified {
    cubin: Vec<u8>,
    error: f64,
}

/// Kernels of one problem at one shape.
#[derive(Clone, Copy)]
struct Heat<'k, 'a> {
    problem: Problem,
    shape: Shape,
    kernels: &'k [Ready<'a>],
    /// At a shape that is held out the launches that serve it, which are in every run-off; none at a bucket.
    held_out: Option<&'k [Launched]>,
}

/// A kernel by its index, and its split.
type Launched = (usize, SplitPolicy);

/// What measuring gave for one trial: samples, µs, and the measurement of each, or a failure.
#[derive(Default)]
struct Taken {
    samples: Vec<f64>,
    measurements: Vec<MeasurementId>,
    failed: Option<Outcome>,
}

impl Taken {
    fn new(result: Result<Vec<f64>, Outcome>, measurement: MeasurementId) -> Self {
        match result {
            Ok(samples) if samples.is_empty() => {
                let error = "no sample was undisturbed: the sentinel beside each was slowed down or sped up".into();
                Self { failed: Some(Outcome::LaunchFailed { error }), ..Self::default() }
            }
            Ok(samples) => Self { measurements: vec![measurement; samples.len()], samples, failed: None },
            Err(outcome) => Self { failed: Some(outcome), ..Self::default() },
        }
    }

    fn add(&mut self, more: Self) {
        self.samples.extend(more.samples);
        self.measurements.extend(more.measurements);
    }
}

impl<'k, 'a> Heat<'k, 'a> {
    /// At a bucket.
    fn new((problem, shape): (Problem, Shape), kernels: &'k [Ready<'a>]) -> Self {
        Self { problem, shape, kernels, held_out: None }
    }

    fn candidate(&self, trial: &Trial) -> &'a Candidate {
        self.kernels[trial.kernel].candidate
    }

    /// None where it was not verified.
    fn kernel(&self, trial: &Trial) -> Option<CandidateKernel> {
        let Candidate { source, variant, .. } = self.candidate(trial);
        let cubin = self.kernels[trial.kernel].verified.as_ref()?.cubin.clone();
        Some(CandidateKernel { id: source.id.clone(), variant: *variant, split: trial.split, cubin })
    }

    fn serves(&self, trial: &Trial) -> bool {
        self.held_out.is_some_and(|servers| servers.contains(&(trial.kernel, trial.split)))
    }

    fn is_default(&self, trial: &Trial, target: Target) -> bool {
        self.candidate(trial).is_default_launch(self.shape, trial.split, target)
    }
}

impl<'a> Timing<'a> {
    /// Of `request` on `board`.
    pub fn new(
        request: &'a Request,
        board: Board,
        recorder: &'a mut Recorder,
        (progress, stop): (&'a Progress, &'a Stop),
    ) -> Self {
        let worker = GpuWorker::new(board.device, LIMITS);
        Self::with_worker((request, board), worker, recorder, (progress, stop))
    }

    /// The same by `worker`.
    fn with_worker(
        (request, board): (&'a Request, Board),
        worker: GpuWorker,
        recorder: &'a mut Recorder,
        (progress, stop): (&'a Progress, &'a Stop),
    ) -> Self {
        let (target, gpu) = (request.machine.target, board.environment);
        let history = History::new(target, &gpu.driver);
        Self { request, target, gpu, worker, recorder, progress, stop, history, pace: Pace::default() }
    }

    /// Takes kernels as they are compiled: each of `pending` will come, unless the run ends early.
    pub fn run(&mut self, built: Receiver<Built<'a>>, pending: &[&Candidate]) -> anyhow::Result<()> {
        self.pace.resume();
        let mut waiting = vec![0; self.request.cases.len()];
        pending.iter().for_each(|candidate| waiting[candidate.case] += 1);
        let mut ready: Vec<Vec<Ready<'a>>> = waiting.iter().map(|_| Vec::new()).collect();
        while let Some(one) = self.pace.wait(|| built.recv().ok()) {
            if self.stop.reason().is_some() {
                break;
            }
            let case = one.candidate.case;
            if let Some(mut kernel) = self.receive(one)? {
                // A model asks for few of them: these are verified when it does.
                if self.request.search != Strategy::Model {
                    self.verify(&mut kernel)?;
                }
                ready[case].push(kernel);
            }
            waiting[case] -= 1;
            if waiting[case] == 0 {
                self.time_case(case, &mut std::mem::take(&mut ready[case]))?;
            }
        }
        self.pace.end();
        Ok(self.recorder.note_pace(&self.pace)?)
    }

    /// How fast it went so far.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Whether nothing is left to do for `candidates`, all those of one case. Of a search that chooses nothing is known
    /// before it is asked again, which needs the compiler's facts of all of them.
    pub fn is_settled(
        request: &Request,
        gpu: &GpuEnvironment,
        recorder: &Recorder,
        (problem, shapes): &Case,
        candidates: &[&Candidate],
    ) -> anyhow::Result<bool> {
        if request.search != Strategy::Exhaustive {
            return Ok(false);
        }
        let (target, preset) = (request.machine.target, request.preset);
        let is_done = |&shape: &Shape| {
            candidates.iter().all(|c| {
                splits(problem, &c.variant, &shape, target, preset).into_iter().all(|s| recorder.is_done(c, shape, s))
            })
        };
        if !shapes.iter().all(is_done) {
            return Ok(false);
        }
        let run_off = run_off_at(recorder, *problem, target, gpu)?;
        Ok(shapes.iter().all(|shape| run_off.contains(shape)))
    }

    /// Takes over what is known of a compiled kernel; none where it did not compile.
    fn receive(&mut self, built: Built<'a>) -> anyhow::Result<Option<Ready<'a>>> {
        let candidate = built.candidate;
        let artefact = match built.result? {
            Ok(artefact) => artefact,
            Err(outcome) => return self.fail(candidate, None, outcome).map(|()| None),
        };
        let carried = self.recorder.carry_over(candidate, &artefact)?;
        if !carried.keys.is_empty() {
            self.progress.add(Step::Carried, carried.keys.len(), 0);
        }
        Ok(Some(Ready { candidate, artefact, carried: carried.error, verified: None }))
    }

    /// Verifies a kernel that was neither verified nor found to fail.
    fn verify(&mut self, kernel: &mut Ready<'a>) -> anyhow::Result<()> {
        let Ready { candidate, artefact, carried, verified } = kernel;
        if verified.is_some() || self.recorder.failed_before(candidate).is_some() {
            return Ok(());
        }
        let cubin = artefact.cubin()?;
        if let Some(error) = *carried {
            *verified = Some(Verified { cubin, error });
            return Ok(());
        }
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
                *verified = Some(Verified { cubin, error: report.max_error });
                Ok(())
            }
            Err(outcome) => {
                if !matches!(outcome, Outcome::Wrong { .. }) {
                    self.require_gpu()?;
                }
                self.fail(candidate, Some(artefact), outcome)
            }
        }
    }

    fn fail(&mut self, candidate: &Candidate, artefact: Option<&Artefact>, outcome: Outcome) -> anyhow::Result<()> {
        self.progress.add(Step::Failed, 1, cost::VERIFY_MS);
        Ok(self.recorder.failed(candidate, artefact, outcome)?)
    }

    fn time_case(&mut self, case: usize, kernels: &mut [Ready<'a>]) -> anyhow::Result<()> {
        let (problem, shapes) = &self.request.cases[case];
        shapes.iter().try_for_each(|&shape| self.time((*problem, shape), kernels))
    }

    /// Times what the search asks for and was not timed yet, then the best of all beside the default.
    fn time(&mut self, case: (Problem, Shape), kernels: &mut [Ready<'a>]) -> anyhow::Result<()> {
        let (problem, shape) = case;
        let mut trials = self.trials(Heat::new(case, kernels));
        let timed = self.search(case, kernels, &trials)?;
        if timed == 0 && run_off_at(self.recorder, problem, self.target, &self.gpu)?.contains(&shape) {
            return Ok(());
        }
        self.recall(&mut trials, Heat::new(case, kernels))?;
        self.run_off(case, kernels, None, trials)
    }

    /// Every kernel that compiled with every split, in order of their names.
    fn trials(&self, heat: Heat<'_, 'a>) -> Vec<Trial> {
        let of = |(kernel, ready): (usize, &Ready<'a>)| {
            let variant = &ready.candidate.variant;
            let splits = splits(&heat.problem, variant, &heat.shape, self.target, self.request.preset);
            splits.into_iter().map(move |split| Trial { kernel, split, timed: None })
        };
        let mut trials: Vec<_> = heat.kernels.iter().enumerate().flat_map(of).collect();
        trials.sort_by_cached_key(|trial| name(&heat.candidate(trial).variant, trial.split));
        trials
    }

    /// What an earlier run found, or one of an identical cubin, takes part in the run-off. Times of another driver have
    /// no samples of this one: a run-off is due.
    fn recall(&self, trials: &mut [Trial], heat: Heat<'_, 'a>) -> anyhow::Result<()> {
        let case = (&heat.problem, heat.shape);
        for time in self.recorder.db().remembered(self.target, case, &self.gpu, false)? {
            let is_it = |t: &&mut Trial| {
                self.recorder.kernel_key(heat.candidate(t)) == time.kernel
                    && time.split.is_none_or(|split| split == t.split)
            };
            if let Some(trial) = trials.iter_mut().find(is_it) {
                let samples = if time.driver == self.gpu.driver { time.samples } else { 0 };
                trial.timed = Some((time.median_us, samples));
            }
        }
        Ok(())
    }

    /// Times the best once more beside the default, until the best was in a run-off.
    fn run_off(
        &mut self,
        case: (Problem, Shape),
        kernels: &mut [Ready<'a>],
        held_out: Option<&[Launched]>,
        mut trials: Vec<Trial>,
    ) -> anyhow::Result<()> {
        for _ in 0..RUNOFFS {
            if self.stop.reason().is_some() {
                break;
            }
            let heat = Heat { held_out, ..Heat::new(case, kernels) };
            trials.retain(|t| self.recorder.failed_before(heat.candidate(t)).is_none());
            let chosen = contenders(&trials, |t| heat.is_default(t, self.target) || heat.serves(t));
            chosen.iter().try_for_each(|trial| self.verify(&mut kernels[trial.kernel]))?;
            let timed = self.rounds(Heat { held_out, ..Heat::new(case, kernels) }, chosen)?;
            merge(&mut trials, &timed);
            let settled = |t: &Trial| t.timed.is_some_and(|(_, samples)| samples > u64::from(ROUND_SAMPLES));
            if timed.is_empty() || best(&trials).is_none_or(settled) {
                break;
            }
        }
        Ok(())
    }

    /// Whether its kernel was verified, and did not crash, hang or go wrong since.
    fn may_run(&self, heat: Heat<'_, 'a>, trial: &Trial) -> bool {
        let Ready { candidate, verified, .. } = &heat.kernels[trial.kernel];
        verified.is_some() && self.recorder.failed_before(candidate).is_none()
    }

    /// Times `trials` against each other before the run-off, records each, and gives them back with their medians.
    fn first_look(&mut self, heat: Heat<'_, 'a>, trials: Vec<Trial>, samples: u32) -> anyhow::Result<Vec<Trial>> {
        let mut timed = Vec::new();
        self.measure(heat, trials, (0, samples), |timing, mut trial, taken| {
            timing.record(heat, &mut trial, taken)?;
            timed.push(trial);
            Ok(())
        })?;
        Ok(timed)
    }

    /// Times `trials` in the rounds of a run-off, records each with the samples of all rounds, and gives them back with
    /// their medians. One that fails is recorded at once, and in no later round.
    fn rounds(&mut self, heat: Heat<'_, 'a>, trials: Vec<Trial>) -> anyhow::Result<Vec<Trial>> {
        let Heat { problem, shape, .. } = heat;
        let mut running: Vec<(Trial, Taken)> = trials.into_iter().map(|t| (t, Taken::default())).collect();
        let mut ended = Vec::new();
        for round in 1..=RUNOFF_ROUNDS {
            running.retain(|(t, _)| self.may_run(heat, t));
            let mut order: Vec<Trial> = running.iter().map(|(t, _)| *t).collect();
            order.shuffle(&mut seeded(&format!("{}/{}/{round}", problem.key(), shape.key())));
            self.measure(heat, order, (round, RUNOFF_SAMPLES), |timing, mut trial, taken| {
                let Some(at) = running.iter().position(|(t, _)| t.is(&trial)) else { return Ok(()) };
                if taken.failed.is_none() {
                    running[at].1.add(taken);
                    return Ok(());
                }
                running.remove(at);
                timing.record(heat, &mut trial, taken)?;
                ended.push(trial);
                Ok(())
            })?;
        }
        for (mut trial, taken) in running {
            self.record(heat, &mut trial, taken)?;
            ended.push(trial);
        }
        Ok(ended)
    }

    /// Times `trials` against each other, and hands each to `take` with what came of it.
    fn measure(
        &mut self,
        heat: Heat<'_, 'a>,
        trials: Vec<Trial>,
        (round, samples): (u32, u32),
        mut take: impl FnMut(&mut Self, Trial, Taken) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Heat { problem, shape, .. } = heat;
        let mut groups = vec![trials];
        while let Some(mut group) = groups.pop() {
            group.retain(|t| self.may_run(heat, t));
            if group.is_empty() {
                continue;
            }
            let candidates = group.iter().filter_map(|t| heat.kernel(t)).collect();
            match self.worker.measure(&MeasureRequest { problem, shape, candidates, samples }) {
                Ok(report) => {
                    let measurement = self.note(round, &report)?;
                    for (trial, result) in group.into_iter().zip(report.candidates) {
                        take(self, trial, Taken::new(result, measurement))?;
                    }
                }
                Err(outcome) => {
                    self.require_gpu()?;
                    // Alone, or refused before any kernel ran (no memory for this shape): the outcome is theirs.
                    if group.len() == 1 || matches!(outcome, Outcome::LaunchFailed { .. }) {
                        for trial in group {
                            take(self, trial, Taken { failed: Some(outcome.clone()), ..Taken::default() })?;
                        }
                    } else {
                        // One bad kernel must not cost the others their result: halve until it stands alone.
                        let right = group.split_off(group.len() / 2);
                        groups.extend([right, group]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Stores a round of measuring.
    fn note(&mut self, round: u32, report: &MeasureReport) -> anyhow::Result<MeasurementId> {
        let MeasureReport { read_ceiling_gbps, before, after, sentinel_us, retaken, missing, .. } = report;
        if *missing > 0 {
            self.progress.note(&format!(
                "note: the GPU was disturbed, and {missing} samples are missing: is another process using it, or are its \
                 clocks held down?"
            ));
        }
        Ok(self.recorder.measured(&Measurement {
            round,
            read_ceiling_gbps: *read_ceiling_gbps,
            sentinel_us: *sentinel_us,
            retaken: *retaken,
            missing: *missing,
            state_before: serde_json::to_value(before)?,
            state_after: serde_json::to_value(after)?,
        })?)
    }

    /// Stores what became of `trial`, and notes its median.
    fn record(&mut self, heat: Heat<'_, 'a>, trial: &mut Trial, taken: Taken) -> anyhow::Result<()> {
        let Ready { candidate, artefact, verified, .. } = &heat.kernels[trial.kernel];
        let Some(Verified { error, .. }) = verified else { return Ok(()) };
        let Taken { samples, measurements, failed } = taken;
        trial.timed =
            median(&mut samples.clone()).filter(|_| failed.is_none()).map(|median| (median, samples.len() as u64));
        let outcome = failed.unwrap_or(Outcome::Timed { error: *error });
        let timed = matches!(outcome, Outcome::Timed { .. });
        self.progress.add(
            if timed { Step::Timed } else { Step::Failed },
            1,
            cost::TRIAL_MS + cost::SAMPLE_MS * samples.len() as u64,
        );
        self.pace.count();
        if matches!(outcome, Outcome::Wrong { .. } | Outcome::Crashed { .. } | Outcome::Timeout { .. }) {
            // Such a kernel is not run again, at any shape.
            let outcome = at(outcome, heat.shape, trial.split);
            return Ok(self.recorder.failed(candidate, Some(artefact), outcome)?);
        }
        let place = (heat.shape, trial.split);
        let store = if heat.held_out.is_some() { Recorder::tried_held_out } else { Recorder::tried };
        Ok(store(self.recorder, (candidate, artefact), place, outcome, (samples, measurements))?)
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

/// The shapes of a problem at which the run-off took place, under this driver: their winners have samples of several
/// rounds. Who wins at one shape depends on the others, so that all are worked out at once anyway.
fn run_off_at(
    recorder: &Recorder,
    problem: Problem,
    target: Target,
    gpu: &GpuEnvironment,
) -> anyhow::Result<HashSet<Shape>> {
    let environment = Some(EnvironmentKey::from(gpu));
    let filter = WinnerFilter { environment, problems: vec![problem], ..WinnerFilter::of(target) };
    let mut shapes = HashSet::new();
    for winner in recorder.db().winners(&filter)?.iter().filter(|w| w.times.rounds > 1) {
        if !recorder.db().is_of_another_driver(winner.trial)? {
            shapes.insert(winner.shape);
        }
    }
    Ok(shapes)
}
