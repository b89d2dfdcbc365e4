//! A database's timed trials, problem by problem and shape by shape, as a search sees them.

use super::features::Point;
use super::model::Knowledge;
use crate::pipeline::timing::median;
use nvkv_db::TimedTrials;
use nvkv_spec::{Problem, Shape, SplitPolicy, Target};
use std::collections::HashMap;

/// The trials of one problem at one shape.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The problem.
    pub problem: Problem,
    /// The shape.
    pub shape: Shape,
    /// Each launch once.
    pub points: Vec<Point>,
    /// Of each its samples when it was first timed, µs.
    pub first: Vec<Vec<f64>>,
    /// Of each its median when most samples were taken, µs.
    pub best_known: Vec<f64>,
}

impl Recorded {
    /// Adds its first times to `knowledge`.
    pub fn teach(&self, knowledge: &mut Knowledge) {
        let timed = self.points.iter().zip(&self.first);
        knowledge.learn(&timed.filter_map(|(point, us)| Some((point, median(us)?))).collect::<Vec<_>>());
    }
}

/// The cases of `trials`, in the order in which they were first timed.
pub fn recorded(trials: &TimedTrials, target: Target) -> Vec<Recorded> {
    let mut cases: Vec<Recorded> = Vec::new();
    let mut place: HashMap<(Problem, Shape), usize> = HashMap::new();
    let mut launches: HashMap<(usize, Shape, Option<SplitPolicy>), (usize, usize)> = HashMap::new();
    for trial in &trials.trials {
        let kernel = &trials.kernels[trial.kernel];
        let (Some(compiled), Some(median)) = (&kernel.compiled, median(&trial.samples)) else { continue };
        let (problem, shape) = (kernel.problem, trial.shape);
        let case = *place.entry((problem, shape)).or_insert_with(|| {
            let (points, first, best_known) = (Vec::new(), Vec::new(), Vec::new());
            cases.push(Recorded { problem, shape, points, first, best_known });
            cases.len() - 1
        });
        let key = (trial.kernel, shape, trial.split);
        let Recorded { points, first, best_known, .. } = &mut cases[case];
        let (at, most) = *launches.entry(key).or_insert_with(|| {
            let split = trial.split.unwrap_or(SplitPolicy::Even { splits: 1 });
            let kernel = (&problem, &kernel.variant, &compiled.facts);
            points.push(Point::new(kernel, (&shape, split), target, trial.is_default));
            first.push(trial.samples.clone());
            best_known.push(median);
            (points.len() - 1, trial.samples.len())
        });
        if trial.samples.len() >= most {
            best_known[at] = median;
            launches.insert(key, (at, trial.samples.len()));
        }
    }
    cases
}
