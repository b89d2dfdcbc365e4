//! The database of one run: what is known already, and each trial as it ends.

use super::cache::Artefact;
use super::space::Candidate;
use super::timing::Pace;
use crate::search::Launch;
use nvkv_db::{
    Carried, Compiled, Db, DbError, KernelKey, KernelRecord, Measurement, MeasurementId, NewRun, RunId, TrialKey,
    TrialRecord,
};
use nvkv_spec::{Outcome, Problem, Shape, SplitPolicy, Target};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// An open run.
pub struct Recorder {
    db: Db,
    run: RunId,
    done: HashSet<TrialKey>,
    failed_before: HashMap<KernelKey, Outcome>,
    target: Target,
    generator: String,
    nvrtc: String,
    ceiling: f64,
}

impl Recorder {
    /// Opens the database, starts `run`, and says which kernels it consists of.
    pub fn begin(path: &Path, run: &NewRun, candidates: &[Candidate]) -> Result<Self, DbError> {
        let mut db = Db::open(path)?;
        let id = db.begin_run(run)?;
        let done = db.done(run.target, run.environment.as_ref())?;
        let failed_before = db.failed_kernels(run.target, run.environment.as_ref())?;
        let (target, generator, nvrtc) = (run.target, run.generator.clone(), run.nvrtc.clone());
        let mut recorder = Self { db, run: id, done, failed_before, target, generator, nvrtc, ceiling: 0.0 };
        let keys: Vec<_> = candidates.iter().map(|candidate| recorder.kernel_key(candidate)).collect();
        recorder.db.adopt(id, &keys)?;
        Ok(recorder)
    }

    /// The database.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// How the candidate failed as a whole before now, at compiling or against the reference, if it did.
    pub fn failed_before(&self, candidate: &Candidate) -> Option<&Outcome> {
        self.failed_before.get(&self.kernel_key(candidate))
    }

    /// Whether the candidate was tried at this shape and split before.
    pub fn is_done(&self, candidate: &Candidate, shape: Shape, split: SplitPolicy) -> bool {
        let split = stored_split(&candidate.problem, split);
        self.done.contains(&TrialKey { kernel: self.kernel_key(candidate), shape: Some(shape), split })
    }

    /// The candidate with a split, as it is recorded.
    pub fn launch(&self, candidate: &Candidate, split: SplitPolicy) -> Launch {
        (self.kernel_key(candidate), stored_split(&candidate.problem, split))
    }

    /// Takes over what kernels of the same cubin have results for; see [`Db::carry_over`].
    pub fn carry_over(&mut self, candidate: &Candidate, artefact: &Artefact) -> Result<Carried, DbError> {
        let kernel = self.kernel(candidate, Some(artefact));
        let target = self.target;
        let is_default = |shape, split: Option<SplitPolicy>| {
            candidate.is_default_launch(shape, split.unwrap_or(SplitPolicy::WHOLE), target)
        };
        let carried = self.db.carry_over(self.run, &kernel, is_default)?;
        self.done.extend(carried.keys.iter().cloned());
        if let Some(failure) = &carried.failure {
            self.failed_before.insert(kernel.key(), failure.clone());
        }
        Ok(carried)
    }

    /// Stores a failure of the candidate at every shape.
    pub fn failed(
        &mut self,
        candidate: &Candidate,
        artefact: Option<&Artefact>,
        outcome: Outcome,
    ) -> Result<(), DbError> {
        let kernel = self.kernel(candidate, artefact);
        self.failed_before.insert(kernel.key(), outcome.clone());
        self.judged(kernel, outcome)
    }

    /// Stores an outcome of the kernel at every shape.
    pub fn judged(&mut self, kernel: KernelRecord, outcome: Outcome) -> Result<(), DbError> {
        self.store(TrialRecord {
            kernel,
            shape: None,
            split: None,
            is_default: false,
            outcome,
            bytes: 0,
            samples: vec![],
            measurements: vec![],
        })
    }

    /// Stores what became of the candidate at one shape and split; the samples and the measurement of each.
    pub fn tried(
        &mut self,
        kernel: (&Candidate, &Artefact),
        place: (Shape, SplitPolicy),
        outcome: Outcome,
        (samples, measurements): (Vec<f64>, Vec<MeasurementId>),
    ) -> Result<(), DbError> {
        self.store(TrialRecord { samples, measurements, ..self.trial(kernel, place, outcome) })
    }

    /// The same at a shape that is held out.
    pub fn tried_held_out(
        &mut self,
        kernel: (&Candidate, &Artefact),
        place: (Shape, SplitPolicy),
        outcome: Outcome,
        (samples, measurements): (Vec<f64>, Vec<MeasurementId>),
    ) -> Result<(), DbError> {
        let trial = TrialRecord { samples, measurements, ..self.trial(kernel, place, outcome) };
        self.db.record_held_out(self.run, &trial)?;
        self.done.insert(trial.key());
        Ok(())
    }

    /// Makes `shape` a bucket, split from `bucket`.
    pub fn split_bucket(&mut self, problem: &Problem, shape: &Shape, bucket: &Shape) -> Result<(), DbError> {
        self.db.split_bucket(self.target, problem, shape, bucket)
    }

    /// Stores a prediction; false where another tuner stored it meanwhile.
    pub fn predicted(
        &mut self,
        kernel: (&Candidate, &Artefact),
        place: (Shape, SplitPolicy),
        predicted_us: f64,
    ) -> Result<bool, DbError> {
        let trial = self.trial(kernel, place, Outcome::CompiledOnly { predicted_us });
        let stored = self.db.record_once(self.run, &trial)?;
        self.done.insert(trial.key());
        Ok(stored.is_some())
    }

    fn trial(
        &self,
        (candidate, artefact): (&Candidate, &Artefact),
        (shape, split): (Shape, SplitPolicy),
        outcome: Outcome,
    ) -> TrialRecord {
        let problem = &candidate.problem;
        TrialRecord {
            kernel: self.kernel(candidate, Some(artefact)),
            shape: Some(shape),
            split: stored_split(problem, split),
            is_default: candidate.is_default_launch(shape, split, self.target),
            outcome,
            bytes: shape.bytes(problem),
            samples: vec![],
            measurements: vec![],
        }
    }

    /// Stores a round of measuring, and the read ceiling of the run: the highest seen, GB/s.
    pub fn measured(&mut self, measurement: &Measurement) -> Result<MeasurementId, DbError> {
        self.ceiling = self.ceiling.max(measurement.read_ceiling_gbps);
        let state = serde_json::json!({ "before": measurement.state_before, "after": measurement.state_after });
        self.db.note_gpu(self.run, self.ceiling, &state)?;
        self.db.record_measurement(self.run, measurement)
    }

    /// Stores how long the GPU was at work and waited.
    pub fn note_pace(&mut self, pace: &Pace) -> Result<(), DbError> {
        let (seconds, idle) = pace.seconds();
        self.db.note_pace(self.run, seconds, idle)
    }

    /// Ends the run.
    pub fn finish(&mut self) -> Result<(), DbError> {
        self.db.finish_run(self.run, &super::now())
    }

    fn store(&mut self, trial: TrialRecord) -> Result<(), DbError> {
        self.db.record(self.run, &trial)?;
        self.done.insert(trial.key());
        Ok(())
    }

    /// The candidate's identity in the database.
    pub fn kernel_key(&self, candidate: &Candidate) -> KernelKey {
        KernelKey {
            kernel_id: candidate.source.id.clone(),
            source_hash: candidate.source.hash.clone(),
            nvrtc: self.nvrtc.clone(),
        }
    }

    fn kernel(&self, candidate: &Candidate, artefact: Option<&Artefact>) -> KernelRecord {
        KernelRecord {
            target: self.target,
            problem: candidate.problem,
            variant: candidate.variant,
            source_hash: candidate.source.hash.clone(),
            nvrtc: self.nvrtc.clone(),
            generator: self.generator.clone(),
            compiled: artefact.map(|a| Compiled { cubin_hash: a.cubin_hash.clone(), facts: a.facts.clone() }),
        }
    }
}

/// Append kernels have no split.
fn stored_split(problem: &Problem, split: SplitPolicy) -> Option<SplitPolicy> {
    matches!(problem, Problem::Decode(_)).then_some(split)
}
