//! Strategies over a recorded exhaustive tune, as if its trials were measured now.
//!
//! A search is told the first samples of what it asks for; of the six best by these, and the default, the run-off's samples
//! decide, where the record has a run-off. The truth is the record's best launch by the same rule over all.

use super::{Knowledge, Recorded, Search, Strategy};
use crate::pipeline::cost::{SAMPLE_MS, TRIAL_MS};
use crate::pipeline::timing::{RUNOFF, RUNOFF_SAMPLES, median};
use nvkv_spec::Problem;
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
struct Ran {
    /// Its pick's time over the true winner's, minus 1.
    loss: f64,
    trials: usize,
    samples: usize,
    asked: usize,
}

impl Ran {
    fn new(strategy: Strategy, case: &Recorded, knowledge: &mut Knowledge) -> Self {
        let mut search = Search::new(strategy, &case.points, knowledge);
        let mut taken = vec![0; case.points.len()];
        let mut asked = 0;
        while let Some(ask) = search.next() {
            for &trial in &ask.trials {
                let samples = &case.first[trial];
                // Fresh samples each time, as far as there are.
                let from = taken[trial].min(samples.len().saturating_sub(ask.samples as usize));
                let to = (from + ask.samples as usize).min(samples.len());
                search.tell(trial, median(&samples[from..to]));
                taken[trial] += to - from;
                asked += 1;
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
        let (trials, samples) = (taken.iter().filter(|n| **n > 0).count(), taken.iter().sum());
        Self { loss, trials, samples, asked }
    }

    fn ms(asked: usize, samples: usize) -> u64 {
        let runoff = (RUNOFF + 1) as u64 * (TRIAL_MS + u64::from(RUNOFF_SAMPLES) * SAMPLE_MS);
        asked as u64 * TRIAL_MS + samples as u64 * SAMPLE_MS + runoff
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
        let (all, samples) = (case.points.len(), case.first.iter().map(Vec::len).sum());
        let sums = [[ran.trials, all], [ran.samples, samples]];
        (0..2).for_each(|i| self.trials[i] += sums[0][i]);
        (0..2).for_each(|i| self.samples[i] += sums[1][i]);
        self.ms[0] += Ran::ms(ran.asked, ran.samples);
        self.ms[1] += Ran::ms(all, samples);
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
