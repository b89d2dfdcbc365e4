//! What a report says, from the database: winners, what comes near them, what the axes gave, what failed.

use crate::pipeline::compile::reason_line;
use nvkv_db::{
    Db, DbError, EnvironmentKey, NearTie, PredictedWinner, Regret, Run, RunId, Times, Trial, Winner, WinnerFilter,
};
use nvkv_spec::{GpuEnvironment, Outcome, Problem, Shape, Target};
use std::collections::{BTreeMap, HashMap};

/// What the database knows, a part for each target, GPU and driver.
pub struct Report {
    /// What was timed.
    pub measured: Vec<Measured>,
    /// What was compiled only: winners by a model, never measurements.
    pub predicted: Vec<PredictedWinner>,
    /// What failed, most often first.
    pub failures: Vec<FailureGroup>,
    /// The runs behind all of it, the first first.
    pub runs: Vec<Run>,
    /// Trials in force.
    pub trials: usize,
}

/// What was timed for one target on one GPU with one driver.
pub struct Measured {
    /// Compile target.
    pub target: Target,
    /// The board and its driver.
    pub environment: GpuEnvironment,
    /// Highest read ceiling of its runs, GB/s.
    pub ceiling_gbps: Option<f64>,
    /// A cell for each problem and shape, in order of operation, problem, then shape.
    pub cells: Vec<Cell>,
    /// What the winners cost at shapes between theirs.
    pub regrets: Vec<Regret>,
}

/// One problem at one shape.
pub struct Cell {
    /// The fastest trial.
    pub winner: Winner,
    /// Every timed trial that may win here, the fastest first.
    pub candidates: Vec<Candidate>,
}

/// One timed trial of a cell.
pub struct Candidate {
    /// The trial.
    pub trial: Trial,
    /// Its samples, summed up.
    pub times: Times,
}

/// Failures of one kind with one reason.
pub struct FailureGroup {
    /// Compile target.
    pub target: Target,
    /// Name of the outcome.
    pub kind: &'static str,
    /// The first line that says what went wrong.
    pub reason: String,
    /// How many trials ended so.
    pub count: usize,
    /// One of them: kernel, and shape where it failed at one.
    pub example: String,
}

impl Cell {
    /// What is solved.
    pub fn problem(&self) -> Problem {
        self.winner.kernel.problem
    }

    /// The candidates that another tune might find to win ([`Winner::near_ties`]).
    pub fn near_ties(&self) -> impl Iterator<Item = &Candidate> {
        let is = |c: &Candidate, tie: &NearTie| {
            c.trial.record.kernel.key().kernel_id == tie.kernel_id && c.trial.record.split == tie.split
        };
        self.candidates.iter().filter(move |c| self.winner.near_ties.iter().any(|tie| is(c, tie)))
    }
}

/// The name of a row: its problem, and its shape where it has one.
pub fn name(problem: &Problem, shape: Option<&Shape>) -> String {
    shape.map_or_else(|| problem.key(), |shape| format!("{} at {}", problem.key(), shape.key()))
}

/// A shape's place among others: by batch (or tokens), context, KV heads, then lengths.
pub fn order(shape: &Shape) -> (u32, u32, u32, bool) {
    match *shape {
        Shape::Decode { batch, context, kv_heads, lengths } => {
            (batch, context, kv_heads, lengths != nvkv_spec::Lengths::Equal)
        }
        Shape::Append { tokens, kv_heads } => (tokens, 0, kv_heads, false),
    }
}

/// What a report is made of, as the database has it.
pub struct Records {
    /// The runs, the first first.
    pub runs: Vec<Run>,
    /// The trials in force, in the order recorded.
    pub trials: Vec<Trial>,
    /// The fastest of them.
    pub winners: Vec<Winner>,
    /// The first by a model where nothing was timed.
    pub predicted: Vec<PredictedWinner>,
    /// What the winners cost at shapes between theirs.
    pub regrets: Vec<Regret>,
}

impl Records {
    /// Reads the records of one target, or of all; only those whose name (`problem at shape`) contains `only`.
    pub fn read(db: &Db, target: Option<Target>, only: &str) -> Result<Self, DbError> {
        let runs = db.runs(target)?;
        let mut trials = db.trials(target)?;
        trials.retain(|t| name(&t.record.kernel.problem, t.record.shape.as_ref()).contains(only));
        let mut targets: Vec<Target> = trials.iter().map(|t| t.record.kernel.target).collect();
        targets.sort();
        targets.dedup();
        let (mut winners, mut predicted, mut regrets) = (Vec::new(), Vec::new(), Vec::new());
        for target in targets {
            winners.extend(db.winners(&WinnerFilter::of(target))?);
            predicted.extend(db.predicted_winners(&WinnerFilter::of(target))?);
            regrets.extend(db.regrets(&WinnerFilter::of(target))?);
        }
        winners.retain(|w| name(&w.kernel.problem, Some(&w.shape)).contains(only));
        predicted.retain(|w| name(&w.kernel.problem, Some(&w.shape)).contains(only));
        regrets.retain(|r| name(&r.problem, Some(&r.bucket)).contains(only));
        Ok(Self { runs, trials, winners, predicted, regrets })
    }
}

impl From<Records> for Report {
    fn from(Records { runs, trials, winners, predicted, regrets }: Records) -> Self {
        Self {
            failures: failures(&trials),
            trials: trials.len(),
            measured: measured(winners, trials, regrets, &runs),
            predicted,
            runs,
        }
    }
}

/// The cells of each target, GPU and driver.
fn measured(winners: Vec<Winner>, trials: Vec<Trial>, regrets: Vec<Regret>, runs: &[Run]) -> Vec<Measured> {
    let places: HashMap<RunId, EnvironmentKey> =
        runs.iter().filter_map(|run| Some((run.id, run.start.environment.as_ref()?.into()))).collect();
    let mut candidates: HashMap<(Target, EnvironmentKey, Problem, Shape), Vec<Candidate>> = HashMap::new();
    for trial in trials {
        let (Some(place), Some(shape), Some(times)) = (places.get(&trial.run), trial.record.shape, trial.times) else {
            continue;
        };
        if !trial.quarantined {
            let key = (trial.record.kernel.target, place.clone(), trial.record.kernel.problem, shape);
            candidates.entry(key).or_default().push(Candidate { trial, times });
        }
    }
    let mut all: Vec<Measured> = Vec::new();
    for winner in winners {
        let (target, place) = (winner.kernel.target, EnvironmentKey::from(&winner.environment));
        let mut of_cell =
            candidates.remove(&(target, place.clone(), winner.kernel.problem, winner.shape)).unwrap_or_default();
        of_cell.sort_by(|a, b| a.times.median_us.total_cmp(&b.times.median_us).then(a.trial.id.cmp(&b.trial.id)));
        let here = |m: &Measured| m.target == target && EnvironmentKey::from(&m.environment) == place;
        let at = all.iter().position(here).unwrap_or_else(|| {
            let of_run = |run: &&Run| run.start.target == target && places.get(&run.id) == Some(&place);
            let ceilings = runs.iter().filter(of_run).filter_map(|run| run.read_ceiling_gbps);
            let (environment, ceiling_gbps) = (winner.environment.clone(), ceilings.reduce(f64::max));
            all.push(Measured { target, environment, ceiling_gbps, cells: Vec::new(), regrets: Vec::new() });
            all.len() - 1
        });
        all[at].cells.push(Cell { winner, candidates: of_cell });
    }
    for regret in regrets {
        let place = EnvironmentKey::from(&regret.environment);
        let here = |m: &&mut Measured| m.target == regret.target && EnvironmentKey::from(&m.environment) == place;
        if let Some(measured) = all.iter_mut().find(here) {
            measured.regrets.push(regret);
        }
    }
    for measured in &mut all {
        measured
            .cells
            .sort_by_key(|cell| (cell.problem().operation(), cell.problem().key(), order(&cell.winner.shape)));
    }
    all
}

/// The failed trials by target, kind and reason.
fn failures(trials: &[Trial]) -> Vec<FailureGroup> {
    let mut groups: BTreeMap<(Target, &str, String), FailureGroup> = BTreeMap::new();
    let passed =
        |o: &Outcome| matches!(o, Outcome::Timed { .. } | Outcome::CompiledOnly { .. } | Outcome::Emulated { .. });
    for trial in trials.iter().filter(|t| !passed(&t.record.outcome)) {
        let line = reason_line(&trial.record.outcome);
        let (target, kind) = (trial.record.kernel.target, trial.record.outcome.kind());
        let group = groups.entry((target, kind, line.clone())).or_insert_with(|| {
            let at = trial.record.shape.map_or(String::new(), |shape| format!(" at {}", shape.key()));
            let example = format!("{}{at}", trial.record.kernel.key().kernel_id);
            FailureGroup { target, kind, reason: line, count: 0, example }
        });
        group.count += 1;
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}
