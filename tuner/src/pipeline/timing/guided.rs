//! Tunes that choose what they time, on a fake GPU whose times follow a formula: what is asked for, once and no more,
//! however often the tune is ended and started again.

use super::faults::built;
use super::*;
use crate::pipeline::cache::Cache;
use crate::pipeline::new_run;
use crate::pipeline::replay::tests::{TARGET, record, us};
use crate::pipeline::replay::{NEAR, Ran};
use crate::pipeline::space::{Space, render_all};
use crate::pipeline::target::Machine;
use crate::search::{Knowledge, recorded};
use crate::worker::fake::{self, At, Fault};
use nvkv_db::{Compiled as Facts, Db, KernelRecord, PastTrial, TrialRecord};
use nvkv_generator::{Preset, problems};
use nvkv_spec::{CompileFacts, DecodeProblem, KernelId, Lengths, Numerics, Operation, Toolchain};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;

const CONTEXTS: [u32; 2] = [4096, 65536];

/// A database that knows another problem well, made once.
static TAUGHT: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let of = |_: usize, us: f64| us;
    assert!(teach(&request(Strategy::Exhaustive, folder.path()), 16, of) >= crate::search::ENOUGH);
    folder
});

fn shape(context: u32) -> Shape {
    Shape::Decode { batch: 4, context, kv_heads: 8, lengths: Lengths::Equal }
}

fn facts() -> CompileFacts {
    CompileFacts { registers: 96, instructions: 2000, ..CompileFacts::default() }
}

fn toolchain() -> Toolchain {
    Toolchain { nvrtc: "13.0".into(), generator: "0".into() }
}

fn request(search: Strategy, folder: &Path) -> Request {
    let gpu = GpuEnvironment { name: "H200".into(), uuid: "GPU-1".into(), sms: 132, ..GpuEnvironment::default() };
    let machine = Machine { target: TARGET, gpu: Ok(gpu), device: 0, beside: Vec::new() };
    let problem = problems(Preset::Quick, &[Operation::Decode])[1];
    Request {
        cases: vec![(problem, CONTEXTS.map(shape).to_vec())],
        preset: Preset::Standard,
        search,
        ..Request::of_appends(machine, folder, Vec::new())
    }
}

fn run_of(request: &Request) -> nvkv_db::NewRun {
    new_run(request, &toolchain(), request.machine.gpu.as_ref().ok())
}

/// Records an exhaustive tune of the problem with another `group`, where kernel n takes `of(n, us)`; gives its trials.
fn teach(request: &Request, group: u32, of: impl Fn(usize, f64) -> f64) -> usize {
    let Problem::Decode(problem) = request.cases[0].0 else { panic!("a decode") };
    let other = Problem::Decode(DecodeProblem { group, numerics: Numerics::Fp8, ..problem });
    let all = record(&[other]);
    let count = all.trials.len();
    let mut db = Db::open(&request.db).unwrap();
    let run = db.begin_run(&run_of(request)).unwrap();
    for trial in all.trials {
        let kernel = all.kernels[trial.kernel].clone();
        let trial = TrialRecord {
            bytes: trial.shape.bytes(&kernel.problem),
            kernel,
            shape: Some(trial.shape),
            split: trial.split,
            is_default: trial.is_default,
            outcome: Outcome::Timed { error: 0.0 },
            samples: vec![of(trial.kernel, trial.samples[0])],
            measurements: Vec::new(),
        };
        db.record(run, &trial).unwrap();
    }
    count
}

/// A tune of one problem on a fake GPU, in a database that knows another problem well.
struct Tune {
    folder: TempDir,
    request: Request,
    candidates: Vec<Candidate>,
    /// Time of every launch, µs: kernel, split, shape.
    times: BTreeMap<(KernelId, String, String), f64>,
}

impl Tune {
    fn new(search: Strategy) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let request = request(search, folder.path());
        let problem = request.cases[0].0;
        std::fs::copy(TAUGHT.path().join(request.db.file_name().unwrap()), &request.db).unwrap();
        let candidates = render_all(&[Space::new(problem, TARGET, Preset::Standard)], TARGET).unwrap();
        let mut tune = Self { folder, request, candidates, times: BTreeMap::new() };
        tune.set_times();
        tune
    }

    /// Tells the fake GPU what each launch takes.
    fn set_times(&mut self) {
        let mut told = serde_json::Map::new();
        for candidate in &self.candidates {
            let kernel = KernelRecord {
                target: TARGET,
                problem: candidate.problem,
                variant: candidate.variant,
                source_hash: String::new(),
                nvrtc: String::new(),
                generator: String::new(),
                compiled: Some(Facts { cubin_hash: String::new(), facts: facts() }),
            };
            for shape in CONTEXTS.map(shape) {
                for split in splits(&candidate.problem, &candidate.variant, &shape, TARGET, Preset::Standard) {
                    let us = us(&kernel, &shape, split);
                    let json = [serde_json::to_string(&split).unwrap(), serde_json::to_string(&shape).unwrap()];
                    told.insert(format!("{} {}", candidate.source.id, json.join(" ")), us.into());
                    self.times.insert((candidate.source.id.clone(), split.to_string(), shape.key()), us);
                }
            }
        }
        let file = self.folder.path().join("times.json");
        std::fs::write(file, serde_json::to_string(&told).unwrap()).unwrap();
    }

    /// Runs it with these faults; gives the end of the run, and its recorder.
    fn run(&self, faults: &[(At, Fault)]) -> (anyhow::Result<()>, Recorder) {
        let (progress, stop) = (Progress::new(0), Stop::new(None));
        let board = self.request.machine.boards().remove(0);
        let mut recorder = Recorder::begin(&self.request.db, &run_of(&self.request), &self.candidates).unwrap();
        let cache = Cache::new(&self.request.out, TARGET, "13.0");
        // In another order than they are named.
        let pending: Vec<_> = self.candidates.iter().rev().collect();
        let built = built(&pending, &cache, (&facts(), &toolchain()));
        let worker = fake::worker(self.folder.path(), &board.environment, faults);
        let end =
            Timing::with_worker((&self.request, board), worker, &mut recorder, (&progress, &stop)).run(built, &pending);
        (end, recorder)
    }

    /// The trials of its problem before the run-off, in the order recorded.
    fn looks(&self) -> Vec<PastTrial> {
        let gpu = self.request.machine.gpu.as_ref().unwrap();
        let mut past = Db::open(&self.request.db).unwrap().past(TARGET, &gpu.into(), None).unwrap();
        past.retain(|t| t.kernel.problem == self.request.cases[0].0 && t.samples.len() <= ROUND_SAMPLES as usize);
        past
    }

    /// The launches of them, with the samples of each trial.
    fn timed(&self) -> BTreeMap<(KernelId, String, String), Vec<usize>> {
        let mut timed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for trial in self.looks() {
            let split = trial.split.unwrap().to_string();
            let launch = (trial.kernel.key().kernel_id, split, trial.shape.key());
            timed.entry(launch).or_default().push(trial.samples.len());
        }
        timed
    }

    /// Time of what was chosen at each shape over the fastest there.
    fn losses(&self, recorder: &Recorder) -> Vec<f64> {
        let filter = WinnerFilter { problems: vec![self.request.cases[0].0], ..WinnerFilter::of(TARGET) };
        let winners = recorder.db().winners(&filter).unwrap();
        assert_eq!(winners.len(), CONTEXTS.len());
        let loss = |winner: &nvkv_db::Winner| {
            let at = winner.shape.key();
            let fastest = self.times.iter().filter(|((_, _, shape), _)| *shape == at).map(|(_, us)| *us);
            winner.times.median_us / fastest.fold(f64::INFINITY, f64::min)
        };
        winners.iter().map(loss).collect()
    }
}

#[test]
fn a_model_times_a_fraction_finds_near_winners_and_asks_for_nothing_again() {
    let tune = Tune::new(Strategy::Model);
    let (end, recorder) = tune.run(&[]);
    end.unwrap();
    let timed = tune.timed();
    assert!(!timed.is_empty() && timed.len() * 2 < tune.times.len(), "{} of {}", timed.len(), tune.times.len());
    assert!(timed.values().all(|samples| *samples == [ROUND_SAMPLES as usize]), "each once");
    let losses = tune.losses(&recorder);
    assert!(losses.iter().all(|loss| *loss < 1.0 + NEAR), "{losses:?}");
    let default = tune.candidates.iter().find(|c| c.is_default).unwrap();
    for shape in CONTEXTS.map(shape) {
        let is = |(id, split, at): &(KernelId, String, String)| {
            let usual = nvkv_generator::default_split(&default.problem, &default.variant, &shape, TARGET);
            *id == default.source.id && *at == shape.key() && *split == usual.to_string()
        };
        assert_eq!(timed.keys().filter(|launch| is(launch)).count(), 1, "the default at {}", shape.key());
    }
    let winner = &recorder.db().winners(&WinnerFilter::of(TARGET)).unwrap()[0];
    assert_eq!(winner.search, "model");
    drop(recorder);
    // What is learned later, and against what was known, changes nothing.
    teach(&tune.request, 4, |n, us| 1e4 / us * (1.0 + n as f64));
    // The GPU would be gone at the first request: none is made.
    let (end, recorder) = tune.run(&[(At::Verify(default.source.id.clone()), Fault::Gone)]);
    end.unwrap();
    assert!(recorder.db().outcomes(recorder.run()).unwrap().is_empty());
    assert_eq!(tune.timed(), timed);
}

#[test]
fn a_search_that_was_cut_short_goes_on_where_it_stopped() {
    for strategy in [Strategy::Model, Strategy::Halving] {
        let whole = Tune::new(strategy);
        whole.run(&[]).0.unwrap();
        let mut kernels = Vec::new();
        for trial in whole.looks() {
            let id = trial.kernel.key().kernel_id;
            if !kernels.contains(&id) {
                kernels.push(id);
            }
        }
        let tune = Tune::new(strategy);
        for part in 1..4 {
            // The GPU is gone when it comes to a kernel that is first asked for after this part of the search.
            let id = kernels[part * kernels.len() / 4].clone();
            tune.run(&[(At::Measure(id), Fault::Gone)]).0.unwrap_err();
        }
        tune.run(&[]).0.unwrap();
        assert_eq!(tune.timed(), whole.timed(), "{strategy:?}: the same launches, none more often");
    }
}

#[test]
fn a_kernel_that_crashes_while_it_is_timed_does_not_change_what_is_asked_next_time() {
    let tune = Tune::new(Strategy::Model);
    tune.run(&[]).0.unwrap();
    let first = tune.timed().into_keys().next().unwrap().0;
    let tune = Tune::new(Strategy::Model);
    tune.run(&[(At::Measure(first.clone()), Fault::Crash)]).0.unwrap();
    let timed = tune.timed();
    assert!(timed.keys().all(|(id, ..)| *id != first));
    let (end, recorder) = tune.run(&[]);
    end.unwrap();
    assert!(recorder.db().outcomes(recorder.run()).unwrap().is_empty());
    assert_eq!(tune.timed(), timed);
}

#[test]
fn halving_takes_one_sample_of_all_two_of_half_and_four_of_a_quarter() {
    let tune = Tune::new(Strategy::Halving);
    let (end, recorder) = tune.run(&[]);
    end.unwrap();
    let timed = tune.timed();
    assert_eq!(timed.len(), tune.times.len());
    for shape in CONTEXTS.map(shape) {
        let at: Vec<_> = timed.iter().filter(|((.., at), _)| *at == shape.key()).map(|(_, samples)| samples).collect();
        for (round, samples) in [vec![1], vec![1, 2], vec![1, 2, 4]].iter().enumerate() {
            let reached = at.iter().filter(|all| all.starts_with(samples)).count();
            assert_eq!(reached, at.len().div_ceil(1 << round), "round {round}");
        }
    }
    assert!(tune.losses(&recorder).iter().all(|loss| *loss < 1.0 + NEAR));
    drop(recorder);
    let (end, recorder) = tune.run(&[]);
    end.unwrap();
    assert!(recorder.db().outcomes(recorder.run()).unwrap().is_empty());
}

#[test]
fn a_tune_asks_for_what_replay_says_over_an_exhaustive_record() {
    let exhaustive = Tune::new(Strategy::Exhaustive);
    let (end, recorder) = exhaustive.run(&[]);
    end.unwrap();
    assert_eq!(exhaustive.timed().len(), exhaustive.times.len());
    let gpu = exhaustive.request.machine.gpu.as_ref().unwrap();
    let cases = recorded(&recorder.db().timed(TARGET, &gpu.into()).unwrap(), TARGET);
    let (of_problem, others): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| case.problem == exhaustive.request.cases[0].0);
    let mut knowledge = Knowledge::default();
    others.iter().for_each(|case| case.teach(&mut knowledge));
    let mut replayed = HashSet::new();
    for case in &of_problem {
        let mut names: Vec<_> = exhaustive.times.keys().filter(|(.., shape)| *shape == case.shape.key()).collect();
        let variant =
            |id: &KernelId| exhaustive.candidates.iter().find(|c| c.source.id == *id).map(|c| c.variant.key()).unwrap();
        names.sort_by_cached_key(|(id, split, _)| format!("{} {split}", variant(id)));
        assert_eq!(names.len(), case.points.len());
        let ran = Ran::new(Strategy::Model, case, &mut knowledge);
        replayed.extend(ran.timed.into_iter().map(|trial| names[trial].clone()));
    }
    let guided = Tune::new(Strategy::Model);
    guided.run(&[]).0.unwrap();
    assert_eq!(guided.timed().into_keys().collect::<HashSet<_>>(), replayed);
}
