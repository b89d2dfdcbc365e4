//! A database's timed trials, problem by problem and shape by shape, as a search sees them.

use super::features::Point;
use super::model::Knowledge;
use super::name;
use nvkv_db::{TimedTrials, median};
use nvkv_spec::{Problem, Shape, SplitPolicy, Target};
use std::collections::{HashMap, VecDeque};

/// The trials of one problem at one shape.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The problem.
    pub problem: Problem,
    /// The shape.
    pub shape: Shape,
    /// Each launch once, in order of their names.
    pub points: Vec<Point>,
    /// Of each its trials in the order recorded, with their samples, µs.
    pub trials: Vec<Vec<Vec<f64>>>,
    /// Of each its median when most samples were taken, µs.
    pub best_known: Vec<f64>,
}

impl Recorded {
    /// Of each launch the samples of its first trial.
    pub fn first(&self) -> impl Iterator<Item = &Vec<f64>> {
        self.trials.iter().filter_map(|trials| trials.first())
    }

    /// Adds its first times to `knowledge`.
    pub fn teach(&self, knowledge: &mut Knowledge) {
        let timed = self.points.iter().zip(self.first());
        let first = |(point, samples): (_, &Vec<f64>)| Some((point, median(&mut samples.clone())?));
        knowledge.learn(&timed.filter_map(first).collect::<Vec<_>>());
    }
}

/// A launch of a case while it is read.
struct Launch {
    name: String,
    point: Point,
    trials: Vec<Vec<f64>>,
    best_known: f64,
    most: usize,
}

/// The cases of `trials`, in the order in which they were first timed.
pub fn recorded(trials: &TimedTrials, target: Target) -> Vec<Recorded> {
    let mut cases: Vec<(Problem, Shape, Vec<Launch>)> = Vec::new();
    let mut place: HashMap<(Problem, Shape), usize> = HashMap::new();
    let mut launches: HashMap<(usize, Shape, Option<SplitPolicy>), usize> = HashMap::new();
    for trial in &trials.trials {
        let kernel = &trials.kernels[trial.kernel];
        let (Some(compiled), Some(median)) = (&kernel.compiled, median(&mut trial.samples.clone())) else { continue };
        let (problem, shape) = (kernel.problem, trial.shape);
        let case = *place.entry((problem, shape)).or_insert_with(|| {
            cases.push((problem, shape, Vec::new()));
            cases.len() - 1
        });
        let of_case = &mut cases[case].2;
        let at = *launches.entry((trial.kernel, shape, trial.split)).or_insert_with(|| {
            let split = trial.split.unwrap_or(SplitPolicy::WHOLE);
            let kernel = (&problem, &kernel.variant, &compiled.facts);
            let point = Point::new(kernel, (&shape, split), target, trial.is_default);
            of_case.push(Launch { name: name(kernel.1, split), point, trials: vec![], best_known: median, most: 0 });
            of_case.len() - 1
        });
        let launch = &mut of_case[at];
        launch.trials.push(trial.samples.clone());
        if trial.samples.len() >= launch.most {
            (launch.best_known, launch.most) = (median, trial.samples.len());
        }
    }
    let in_order = |(problem, shape, mut launches): (Problem, Shape, Vec<Launch>)| {
        launches.sort_by(|a, b| a.name.cmp(&b.name));
        let best_known = launches.iter().map(|launch| launch.best_known).collect();
        let (points, trials) = launches.into_iter().map(|launch| (launch.point, launch.trials)).unzip();
        Recorded { problem, shape, points, trials, best_known }
    };
    cases.into_iter().map(in_order).collect()
}

/// Recorded trials as answers to a search: each answer is of samples that no earlier one was of.
#[derive(Clone, Debug)]
pub struct Answers(Vec<VecDeque<Vec<f64>>>);

impl Answers {
    /// Of launches, each with its trials in the order recorded: samples, µs, none where a trial failed.
    pub fn new(trials: impl IntoIterator<Item = Vec<Vec<f64>>>) -> Self {
        Self(trials.into_iter().map(VecDeque::from).collect())
    }

    /// The median of the next `samples` of a launch, or of as many as its trial has left, none where that failed; and
    /// none at all where nothing more is recorded.
    pub fn next(&mut self, launch: usize, samples: u32) -> Option<Option<f64>> {
        let trials = self.0.get_mut(launch)?;
        let trial = trials.front_mut()?;
        let mut taken: Vec<f64> = trial.drain(..trial.len().min(samples as usize)).collect();
        if trial.is_empty() {
            trials.pop_front();
        }
        Some(median(&mut taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_fresh_samples_of_one_trial_each() {
        let mut answers = Answers::new([vec![vec![3.0, 1.0, 2.0, 9.0, 9.0, 7.0, 8.0], vec![5.0; 40]], vec![vec![]]]);
        // Rounds of successive halving over a trial of an exhaustive tune.
        let halving: Vec<_> = [1, 2, 4].map(|samples| answers.next(0, samples)).into();
        assert_eq!(halving, [Some(Some(3.0)), Some(Some(1.5)), Some(Some(8.5))]);
        assert_eq!(answers.next(0, 7), Some(Some(5.0)), "then the run-off's");
        assert_eq!((answers.next(1, 7), answers.next(1, 7)), (Some(None), None), "a failure, and nothing");
        // Trials of a tune by successive halving, one of which lost a sample.
        let mut answers = Answers::new([vec![vec![3.0], vec![1.0], vec![9.0; 4]]]);
        let halving: Vec<_> = [1, 2, 4].map(|samples| answers.next(0, samples)).into();
        assert_eq!(halving, [Some(Some(3.0)), Some(Some(1.0)), Some(Some(9.0))]);
    }
}
