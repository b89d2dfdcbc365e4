//! Which trials of one problem at one shape are timed, with how many samples, given what was timed. Pure: no GPU, no SQL.
//!
//! A search is a function of its launches, of what its model knows and of the answers, in whatever order they come. A tune
//! that goes on asks it again, answers from the database what was answered before, and so comes to where it stopped.

mod features;
mod history;
mod model;
mod recorded;

pub use features::Point;
pub use history::{History, Launch};
pub use model::Knowledge;
use model::Posterior;
use nvkv_spec::{SplitPolicy, Variant};
pub use recorded::{Answers, Recorded, recorded};

/// How the launches to time are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// Every feasible variant with every split
    #[default]
    Exhaustive,
    /// One sample of all, twice as many of the better half, and so on
    Halving,
    /// A model of what was timed before picks the next ones, and learns from them: a fifth at most, once it knows 800 trials
    Model,
}

impl Strategy {
    /// All, in the order of a table.
    pub const ALL: [Self; 3] = [Self::Exhaustive, Self::Halving, Self::Model];

    /// Its name, as on the command line and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exhaustive => "exhaustive",
            Self::Halving => "halving",
            Self::Model => "model",
        }
    }
}

/// The name of a launch of one problem at one shape. Launches are in this order wherever they are searched, so that ties are
/// broken the same way.
pub fn name(variant: &Variant, split: SplitPolicy) -> String {
    format!("{} {split}", variant.key())
}

/// What a search at one problem and shape times at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Timings: a launch may be timed in several rounds.
    pub timings: usize,
    /// Samples of all of them.
    pub samples: usize,
}

/// Of a search among so many launches, where its model rests on `known` trials.
pub fn effort(strategy: Strategy, launches: usize, known: usize) -> Effort {
    let of = |timings| Effort { timings, samples: timings * ROUND_SAMPLES as usize };
    match strategy {
        Strategy::Exhaustive => of(launches),
        Strategy::Halving => Effort {
            timings: (0..ROUNDS).map(|round| kept(launches, round)).sum(),
            samples: (0..ROUNDS).map(|round| kept(launches, round) << round).sum(),
        },
        Strategy::Model if guides(launches, known) => of(share(launches)),
        Strategy::Model => of(launches),
    }
}

/// Launches in a round of successive halving.
fn kept(launches: usize, round: u32) -> usize {
    launches.div_ceil(1 << round)
}

/// Whether a model chooses among so many launches.
fn guides(launches: usize, known: usize) -> bool {
    launches > FEW && known >= ENOUGH
}

/// The most that a model chooses.
fn share(launches: usize) -> usize {
    ((launches as f64 * SHARE) as usize).max(FEW)
}

/// Samples of a trial before the run-off.
pub const ROUND_SAMPLES: u32 = 7;

/// Rounds of successive halving: 1, 2 and 4 samples of all, a half and a quarter, so that each round costs the same
/// (Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016).
const ROUNDS: u32 = 3;

/// Trials that a guided search starts with, the default aside.
const SEEDS: usize = 3;
/// Trials that it adds at a time.
const STEP: usize = 4;
/// The most that it times: a share of all, but never fewer than [`FEW`].
const SHARE: f64 = 0.2;
/// So few trials are all timed.
const FEW: usize = 16;
/// Standard deviations by which a time may be lower than expected.
const OPTIMISM: f64 = 1.5;
/// Trials that a model must rest on before it guides: about a problem of the standard preset.
pub const ENOUGH: usize = 800;

/// What to time next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Indices of trials.
    pub trials: Vec<usize>,
    /// Samples of each.
    pub samples: u32,
}

/// The search at one problem and shape.
pub struct Search<'a> {
    strategy: Strategy,
    points: &'a [Point],
    /// By [`Knowledge::expect`]; none where the strategy needs no model.
    expected: Vec<f64>,
    /// Of each trial, whether it was asked for or known before, and its latest median, µs.
    asked: Vec<bool>,
    us: Vec<Option<f64>>,
    round: u32,
}

impl<'a> Search<'a> {
    /// A search among `points`. A model that knows too little times everything.
    pub fn new(strategy: Strategy, points: &'a [Point], knowledge: &Knowledge) -> Self {
        let guided = guides(points.len(), knowledge.trials());
        let (strategy, expected) = match (strategy, guided) {
            (Strategy::Model, false) => (Strategy::Exhaustive, Vec::new()),
            (Strategy::Model, true) => (strategy, knowledge.expect(points)),
            _ => (strategy, Vec::new()),
        };
        let (asked, us) = (vec![false; points.len()], vec![None; points.len()]);
        Self { strategy, points, expected, asked, us, round: 0 }
    }

    /// Says how a trial came out, in this search or before it: its median, µs, or none where it failed.
    pub fn tell(&mut self, trial: usize, us: Option<f64>) {
        self.asked[trial] = true;
        self.us[trial] = us;
    }

    /// The trials that were asked for or known, with their times.
    pub fn timed(&self) -> impl Iterator<Item = (usize, f64)> {
        self.us.iter().enumerate().filter_map(|(trial, us)| Some((trial, (*us)?)))
    }

    /// What to time next; none where the search is done.
    pub fn ask(&mut self) -> Option<Ask> {
        let (trials, samples) = match self.strategy {
            Strategy::Exhaustive => (self.unasked().collect(), ROUND_SAMPLES),
            Strategy::Halving => self.halve(),
            Strategy::Model => (self.promising(), ROUND_SAMPLES),
        };
        trials.iter().for_each(|&trial: &usize| self.asked[trial] = true);
        (!trials.is_empty()).then_some(Ask { trials, samples })
    }

    fn unasked(&self) -> impl Iterator<Item = usize> {
        (0..self.points.len()).filter(|&trial| !self.asked[trial])
    }

    /// The next round: those ahead, or the default and all others in the first.
    fn halve(&mut self) -> (Vec<usize>, u32) {
        let round = self.round;
        self.round += 1;
        let samples = 1 << round;
        if round == 0 {
            return (self.unasked().collect(), samples);
        }
        if round >= ROUNDS {
            return (Vec::new(), samples);
        }
        let mut timed: Vec<_> = self.timed().collect();
        timed.sort_by(|a, b| a.1.total_cmp(&b.1));
        (timed.into_iter().take(kept(self.points.len(), round)).map(|(trial, _)| trial).collect(), samples)
    }

    /// The unasked trials of the lowest likely times; none where no likely time is below the best measured one, or
    /// enough were timed.
    fn promising(&self) -> Vec<usize> {
        let left = share(self.points.len()).saturating_sub(self.asked.iter().filter(|asked| **asked).count());
        let timed: Vec<_> = self.timed().map(|(trial, us)| (trial, us.ln())).collect();
        let best = timed.iter().map(|&(_, ln)| ln).fold(f64::INFINITY, f64::min);
        let starts = self.asked.iter().all(|asked| !asked);
        let mut posterior = Posterior::new(self.points, &self.expected, &timed);
        let mut picked: Vec<usize> =
            if starts { self.unasked().filter(|&t| self.points[t].is_default).collect() } else { Vec::new() };
        picked.iter().for_each(|&trial| posterior.suppose(trial));
        let step = if starts { picked.len() + SEEDS } else { STEP };
        while picked.len() < step.min(left) {
            let likely = |t: usize| posterior.mean[t] - OPTIMISM * posterior.deviation(t);
            let others = self.unasked().filter(|t| !picked.contains(t)).map(|t| (t, likely(t)));
            let Some((next, ln)) = others.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            if picked.is_empty() && ln >= best {
                break;
            }
            posterior.suppose(next);
            picked.push(next);
        }
        picked
    }
}
