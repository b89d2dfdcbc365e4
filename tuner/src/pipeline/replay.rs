//! Strategies over a recorded exhaustive tune, as if its trials were measured now.
//!
//! A search is told the first samples of what it asks for; of the six best by these, and the default, the run-off's samples
//! decide, where the record has a run-off. The truth is the record's best launch by the same rule over all.

use super::cost::{SAMPLE_MS, TRIAL_MS};
use super::plan::runoff_ms;
use super::timing::RUNOFF;
use crate::search::{Answers, Knowledge, ROUND_SAMPLES, Recorded, Search, Strategy};
use nvkv_spec::{Problem, Shape};
use serde::Serialize;
use std::collections::HashMap;

/// A loss up to this is as good as the winner.
pub const NEAR: f64 = 0.02;

/// What a model knows when a problem's search starts. The problem's own shapes that were searched before count always,
/// as far as the search asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Nothing but the own problem: of no consequence where no model is used.
    Unused,
    /// Every recorded trial of the other problems, none of this one.
    OtherProblems,
    /// An empty database: what this search itself asked for, problem by problem in the order of the record.
    Empty,
}

/// How one strategy did over a record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// The strategy's name.
    pub search: &'static str,
    /// What its model knew.
    pub start: Start,
    /// Problems times shapes.
    pub cases: usize,
    /// Share where the true winner is what it picks.
    pub winner: f64,
    /// Share where its pick is at most [`NEAR`] slower than the true winner.
    pub near: f64,
    /// The worst pick: its time over that of the true winner, minus 1.
    pub worst: f64,
    /// Where that was.
    pub worst_at: String,
    /// Trials that were timed, as a share of all.
    pub trials: f64,
    /// Samples before the run-off, as a share of the exhaustive ones.
    pub samples: f64,
    /// GPU time, run-offs included, as a share of the exhaustive one, by the costs of the plan.
    pub gpu_time: f64,
}

/// Runs `strategy` over `cases`.
pub fn replay(strategy: Strategy, start: Start, cases: &[Recorded]) -> Score {
    let mut of_problem: HashMap<Problem, Knowledge> = HashMap::new();
    if start == Start::OtherProblems {
        cases.iter().for_each(|case| case.teach(of_problem.entry(case.problem).or_default()));
    }
    let mut knowledge = Knowledge::default();
    let mut tally = Tally::default();
    let mut last = None;
    for case in cases {
        if start == Start::OtherProblems && last != Some(case.problem) {
            knowledge = Knowledge::default();
            of_problem.iter().filter(|(p, _)| **p != case.problem).for_each(|(_, other)| knowledge.join(other));
        }
        last = Some(case.problem);
        tally.add(case, &Ran::new(strategy, case, &mut knowledge));
    }
    tally.score(strategy, start)
}

/// One search over one recorded case.
pub(super) struct Ran {
    /// Its pick's time over the true winner's, minus 1.
    loss: f64,
    /// The trials that were timed, by their indices.
    pub(super) timed: Vec<usize>,
    samples: usize,
    asked: usize,
}

impl Ran {
    pub(super) fn new(strategy: Strategy, case: &Recorded, knowledge: &mut Knowledge) -> Self {
        let mut search = Search::new(strategy, &case.points, knowledge);
        let mut answers = Answers::new(case.trials.iter().cloned());
        let mut taken = vec![0; case.points.len()];
        let mut asked = 0;
        while let Some(ask) = search.ask() {
            for &trial in &ask.trials {
                if let Some(us) = answers.next(trial, ask.samples) {
                    search.tell(trial, us);
                    taken[trial] += ask.samples as usize;
                    asked += 1;
                }
            }
        }
        let mut timed: Vec<_> = search.timed().collect();
        knowledge.learn(&timed.iter().map(|&(trial, us)| (&case.points[trial], us)).collect::<Vec<_>>());
        timed.sort_by(|a, b| a.1.total_cmp(&b.1));
        let contends = |(place, (trial, _)): &(usize, (usize, f64))| *place < RUNOFF || case.points[*trial].is_default;
        let picked = timed.into_iter().enumerate().filter(contends).map(|(_, (trial, _))| case.best_known[trial]);
        let fastest = |us: f64, other: f64| us.min(other);
        let loss =
            picked.fold(f64::INFINITY, fastest) / case.best_known.iter().copied().fold(f64::INFINITY, fastest) - 1.0;
        let timed = (0..taken.len()).filter(|&trial| taken[trial] > 0).collect();
        Self { loss, timed, samples: taken.iter().sum(), asked }
    }

    fn ms(shape: Shape, asked: usize, samples: usize) -> u64 {
        asked as u64 * TRIAL_MS + samples as u64 * SAMPLE_MS + runoff_ms(&[shape])
    }
}

#[derive(Default)]
struct Tally {
    cases: usize,
    winner: usize,
    near: usize,
    worst: f64,
    worst_at: String,
    /// Of the search, and of an exhaustive one.
    trials: [usize; 2],
    samples: [usize; 2],
    ms: [u64; 2],
}

impl Tally {
    fn add(&mut self, case: &Recorded, ran: &Ran) {
        self.cases += 1;
        self.winner += usize::from(ran.loss <= 0.0);
        self.near += usize::from(ran.loss <= NEAR);
        if ran.loss > self.worst {
            (self.worst, self.worst_at) = (ran.loss, format!("{} at {}", case.problem.key(), case.shape.key()));
        }
        let all = case.points.len();
        let samples = all * ROUND_SAMPLES as usize;
        let sums = [[ran.timed.len(), all], [ran.samples, samples]];
        (0..2).for_each(|i| self.trials[i] += sums[0][i]);
        (0..2).for_each(|i| self.samples[i] += sums[1][i]);
        self.ms[0] += Ran::ms(case.shape, ran.asked, ran.samples);
        self.ms[1] += Ran::ms(case.shape, all, samples);
    }

    fn score(self, strategy: Strategy, start: Start) -> Score {
        let share = |[part, all]: [usize; 2]| part as f64 / all.max(1) as f64;
        Score {
            search: strategy.name(),
            start,
            cases: self.cases,
            winner: share([self.winner, self.cases]),
            near: share([self.near, self.cases]),
            worst: self.worst,
            worst_at: self.worst_at,
            trials: share(self.trials),
            samples: share(self.samples),
            gpu_time: self.ms[0] as f64 / self.ms[1].max(1) as f64,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::search::recorded;
    use nvkv_db::{Compiled, Db, EnvironmentKey, KernelRecord, NewRun, TimedTrial, TimedTrials, TrialRecord};
    use nvkv_generator::{Preset, feasible, predicted_us, problems, shapes, splits, variants};
    use nvkv_spec::{
        CompileFacts, DecodeProblem, GpuEnvironment, Numerics, Operation, Outcome, SplitPolicy, Target, Variant,
    };

    pub(in crate::pipeline) const TARGET: Target = Target::Sm90a;

    fn kernel(problem: Problem, variant: Variant) -> KernelRecord {
        let facts = CompileFacts { registers: 96, instructions: 2000, ..CompileFacts::default() };
        KernelRecord {
            target: TARGET,
            problem,
            variant,
            source_hash: variant.key(),
            nvrtc: "13.0".into(),
            generator: "0.1.0".into(),
            compiled: Some(Compiled { cubin_hash: "c".into(), facts }),
        }
    }

    /// A made-up GPU: the generator's prediction, but wide blocks and deep tiles are better than that says.
    pub(in crate::pipeline) fn us(kernel: &KernelRecord, shape: &nvkv_spec::Shape, split: SplitPolicy) -> f64 {
        let facts = &kernel.compiled.as_ref().unwrap().facts;
        let predicted = predicted_us(&kernel.problem, &kernel.variant, split, shape, TARGET, facts);
        let Variant::Decode(v) = kernel.variant else { return predicted };
        predicted * (1.0 + 0.8 / f64::from(v.warps) + 4.0 / f64::from(v.tile_tokens))
    }

    pub(in crate::pipeline) fn record(problems: &[Problem]) -> TimedTrials {
        let mut all = TimedTrials::default();
        for &problem in problems {
            let feasible = |v: &Variant| feasible(&problem, v, TARGET).is_ok();
            for variant in variants(&problem, Preset::Standard).into_iter().filter(feasible) {
                all.kernels.push(kernel(problem, variant));
            }
        }
        for &problem in problems {
            for shape in shapes(&problem, Preset::Standard).into_iter().take(6) {
                for (index, kernel) in all.kernels.iter().enumerate().filter(|(_, k)| k.problem == problem) {
                    for split in splits(&problem, &kernel.variant, &shape, TARGET, Preset::Standard) {
                        let samples = vec![us(kernel, &shape, split); 7];
                        let is_default = split == SplitPolicy::Even { splits: 1 };
                        let split = Some(split);
                        all.trials.push(TimedTrial { kernel: index, shape, split, is_default, samples });
                    }
                }
            }
        }
        all
    }

    #[test]
    fn a_model_of_another_problem_finds_the_winner_with_few_trials_and_knows_nothing_of_its_own() {
        let [_, small, ..] = problems(Preset::Quick, &[Operation::Decode])[..] else { panic!("two problems") };
        let Problem::Decode(base) = small else { panic!("a decode") };
        let large = Problem::Decode(DecodeProblem { group: 16, numerics: Numerics::Fp8, ..base });
        let cases = recorded(&record(&[small, large]), TARGET);
        let exhaustive = replay(Strategy::Exhaustive, Start::Unused, &cases);
        assert_eq!((exhaustive.winner, exhaustive.worst, exhaustive.trials), (1.0, 0.0, 1.0));
        let halving = replay(Strategy::Halving, Start::Unused, &cases);
        assert_eq!((halving.winner, halving.trials), (1.0, 1.0), "without noise one sample is as good as seven");
        assert!(halving.samples < 0.5 && halving.gpu_time > halving.samples, "{halving:?}");
        let (small, large): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.problem == small);
        let mut knowledge = Knowledge::default();
        large.iter().for_each(|case| case.teach(&mut knowledge));
        assert!(knowledge.trials() >= crate::search::ENOUGH, "{}", knowledge.trials());
        let mut tally = Tally::default();
        small.iter().take(3).for_each(|case| tally.add(case, &Ran::new(Strategy::Model, case, &mut knowledge)));
        let guided = tally.score(Strategy::Model, Start::OtherProblems);
        assert!(guided.near == 1.0 && guided.trials < 0.5, "{guided:?}");
        // Nothing else was recorded, so it times all until it knows enough of what it asked for itself.
        let alone = replay(Strategy::Model, Start::OtherProblems, &large);
        let all: usize = large.iter().map(|case| case.points.len()).sum();
        assert!(alone.trials * all as f64 >= crate::search::ENOUGH as f64, "it saw its own record: {alone:?}");
    }

    #[test]
    fn a_database_gives_each_launch_once_with_its_first_samples_and_its_longest_median() {
        let folder = tempfile::tempdir().unwrap();
        let mut db = Db::open(&folder.path().join("db.sqlite")).unwrap();
        let problem = problems(Preset::Quick, &[Operation::Append])[0];
        let shape = nvkv_spec::Shape::Append { tokens: 64, kv_heads: 8 };
        let environment = GpuEnvironment { name: "H200".into(), uuid: "GPU-1".into(), ..GpuEnvironment::default() };
        let run = NewRun {
            started_at: "2026-11-30T10:00:00Z".into(),
            command: "nvkv-tune".into(),
            target: TARGET,
            preset: "quick".into(),
            search: "exhaustive".into(),
            generator: "0.1.0".into(),
            nvrtc: "13.0".into(),
            environment: Some(environment.clone()),
            measurement_policy: None,
        };
        let run = db.begin_run(&run).unwrap();
        let of = |variant: &Variant, samples: Vec<f64>| TrialRecord {
            kernel: kernel(problem, *variant),
            shape: Some(shape),
            split: None,
            is_default: false,
            outcome: Outcome::Timed { error: 0.0 },
            bytes: 1,
            measurements: Vec::new(),
            samples,
        };
        let variants = variants(&problem, Preset::Quick);
        for (variant, samples) in [(0, vec![3.0; 7]), (1, vec![2.0; 7]), (0, vec![1.0; 41])] {
            db.record(run, &of(&variants[variant], samples)).unwrap();
        }
        let [place] = &db.measured_on().unwrap()[..] else { panic!("one GPU") };
        assert_eq!((place.target, &place.environment, place.trials), (TARGET, &environment, 3));
        let cases = recorded(&db.timed(TARGET, &EnvironmentKey::from(&environment)).unwrap(), TARGET);
        let [case] = &cases[..] else { panic!("one problem, one shape") };
        let mut launches =
            [(variants[0].key(), vec![vec![3.0; 7], vec![1.0; 41]], 1.0), (variants[1].key(), vec![vec![2.0; 7]], 2.0)];
        launches.sort_by(|a, b| a.0.cmp(&b.0));
        let [(_, a, best_a), (_, b, best_b)] = launches;
        let (trials, best) = (vec![a, b], vec![best_a, best_b]);
        assert_eq!((case.trials.clone(), case.best_known.clone()), (trials, best));
        let elsewhere = EnvironmentKey { name: "another".into(), sms: 1, driver: String::new() };
        assert!(db.timed(TARGET, &elsewhere).unwrap().trials.is_empty());
    }
}
