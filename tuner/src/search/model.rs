//! The model of a guided search: the logarithm of a time is the generator's prediction, plus a ridge regression on what
//! was timed before (other problems and shapes), plus a Gaussian process on what was timed at the shape at hand.
//!
//! Ridge regression as a Bayesian prior, and the process's scale in closed form: Rasmussen and Williams, Gaussian
//! Processes for Machine Learning (2006), sections 2.1 and 2.7.

use super::features::Point;
use nalgebra::{Cholesky, DMatrix, DVector};

/// Ridge penalty, in squared units of the features.
const PENALTY: f64 = 30.0;
/// Distance of launches (units of the features) at which their deviations have little in common.
const LENGTH: f64 = 4.0;
/// Noise of a measured median and of what the features do not say, as a share of the process's deviation.
const NOISE: f64 = 0.1;
/// Deviation of a trial from the regression before anything is timed, in ln; counts as [`TRUST`] trials.
const DEVIATION: f64 = 0.05;
const TRUST: f64 = 4.0;

/// What timed trials of any problem and shape say: sums of a least-squares fit, to which trials are added one case at a
/// time. Only differences within a case count, so that no case needs a level of its own.
#[derive(Clone, Debug)]
pub struct Knowledge {
    gram: DMatrix<f64>,
    moment: DVector<f64>,
    trials: usize,
}

impl Default for Knowledge {
    fn default() -> Self {
        let n = Point::TERMS;
        Self { gram: DMatrix::zeros(n, n), moment: DVector::zeros(n), trials: 0 }
    }
}

impl Knowledge {
    /// How many trials it rests on.
    pub fn trials(&self) -> usize {
        self.trials
    }

    /// Adds the trials of one problem at one shape, each with its time, µs.
    pub fn learn(&mut self, timed: &[(&Point, f64)]) {
        if timed.len() < 2 {
            return;
        }
        let mut terms =
            DMatrix::from_row_iterator(timed.len(), Point::TERMS, timed.iter().flat_map(|(point, _)| point.terms()));
        for mut column in terms.column_iter_mut() {
            let mean = column.mean();
            column.add_scalar_mut(-mean);
        }
        let mut beyond = DVector::from_iterator(timed.len(), timed.iter().map(|(p, us)| us.ln() - p.predicted));
        let mean = beyond.mean();
        beyond.add_scalar_mut(-mean);
        self.gram.gemm(1.0, &terms.transpose(), &terms, 1.0);
        self.moment.gemv_tr(1.0, &terms, &beyond, 1.0);
        self.trials += timed.len();
    }

    /// Adds what another one knows.
    pub fn join(&mut self, other: &Self) {
        self.gram += &other.gram;
        self.moment += &other.moment;
        self.trials += other.trials;
    }

    /// The expected ln of each time, up to a constant of the case.
    pub fn expect(&self, points: &[Point]) -> Vec<f64> {
        let mut penalised = self.gram.clone();
        (0..Point::TERMS).for_each(|i| penalised[(i, i)] += PENALTY);
        let weights = Cholesky::new(penalised).map(|factor| factor.solve(&self.moment));
        let beyond = |p: &Point| weights.as_ref().map_or(0.0, |w| p.terms().zip(w).map(|(x, w)| x * w).sum());
        points.iter().map(|point| point.predicted + beyond(point)).collect()
    }
}

/// What the trials timed so far say of the others of their case.
pub struct Posterior<'a> {
    points: &'a [Point],
    /// Of each point, the timed ones' likeness to it, solved by the lower Cholesky factor of their covariance: a row for
    /// each of them.
    solved: DMatrix<f64>,
    /// Of each point the square of that column: the share of its variance that is known.
    known: Vec<f64>,
    /// Expected ln of each time.
    pub mean: Vec<f64>,
    /// Variance of the process.
    variance: f64,
}

impl<'a> Posterior<'a> {
    /// Of `points` whose times are `expected` up to a constant, where those in `timed` (index, ln µs) are known.
    pub fn new(points: &'a [Point], expected: &[f64], timed: &[(usize, f64)]) -> Self {
        let mut posterior = Self {
            points,
            solved: DMatrix::zeros(0, points.len()),
            known: vec![0.0; points.len()],
            mean: expected.to_vec(),
            variance: DEVIATION * DEVIATION,
        };
        let like = DMatrix::from_fn(timed.len(), points.len(), |i, j| likeness(&points[timed[i].0], &points[j]));
        let covariance = DMatrix::from_fn(timed.len(), timed.len(), |i, j| {
            like[(i, timed[j].0)] + if i == j { NOISE * NOISE } else { 0.0 }
        });
        let Some(factor) = Cholesky::new(covariance).filter(|_| !timed.is_empty()) else { return posterior };
        let beyond = DVector::from_iterator(timed.len(), timed.iter().map(|&(i, ln)| ln - expected[i]));
        // The case's level by generalised least squares.
        let ones = DVector::from_element(timed.len(), 1.0);
        let of_ones = factor.solve(&ones);
        let level = of_ones.dot(&beyond) / of_ones.sum();
        let rest = beyond.add_scalar(-level);
        let weights = factor.solve(&rest);
        posterior.variance = (TRUST * DEVIATION * DEVIATION + rest.dot(&weights)) / (timed.len() as f64 + TRUST - 1.0);
        for (mean, alike) in posterior.mean.iter_mut().zip(like.column_iter()) {
            *mean += level + alike.dot(&weights);
        }
        if let Some(solved) = factor.l().solve_lower_triangular(&like) {
            posterior.known = solved.column_iter().map(|column| column.norm_squared()).collect();
            posterior.solved = solved;
        }
        posterior
    }

    /// Counts `trial` among the timed ones, as far as uncertainty goes: another row of the factor.
    pub fn suppose(&mut self, trial: usize) {
        let rows = self.solved.nrows();
        let of_trial = self.solved.column(trial).clone_owned();
        let pivot = (1.0 + NOISE * NOISE - self.known[trial]).sqrt();
        let mut solved = std::mem::replace(&mut self.solved, DMatrix::zeros(0, 0)).insert_row(rows, 0.0);
        for (i, known) in self.known.iter_mut().enumerate() {
            let rest = likeness(&self.points[trial], &self.points[i]) - of_trial.dot(&solved.view((0, i), (rows, 1)));
            solved[(rows, i)] = rest / pivot;
            *known += solved[(rows, i)].powi(2);
        }
        self.solved = solved;
    }

    /// Standard deviation of the ln of the time of `trial`.
    pub fn deviation(&self, trial: usize) -> f64 {
        (self.variance * (1.0 - self.known[trial]).max(0.0)).sqrt()
    }
}

fn likeness(a: &Point, b: &Point) -> f64 {
    (-a.apart(b) / (2.0 * LENGTH * LENGTH)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::features::{CASE, LAUNCH};

    fn point(n: usize) -> Point {
        let mut launch = [0.0; LAUNCH];
        (0..LAUNCH).for_each(|i| launch[i] = ((n * 31 + i * 17) % 13) as f64 / 6.0);
        Point { launch, case: [0.0; CASE], predicted: 0.0, is_default: n == 0 }
    }

    /// Rasmussen and Williams, (2.26), the prior variance being that of the process.
    #[test]
    fn a_deviation_is_that_of_the_process_given_the_trials_timed_and_supposed() {
        let points: Vec<_> = (0..9).map(point).collect();
        let timed = [(1, 0.3), (4, 0.1), (7, 0.2)];
        let mut posterior = Posterior::new(&points, &[0.0; 9], &timed);
        let given = [1, 4, 7, 2, 5];
        given[timed.len()..].iter().for_each(|&trial| posterior.suppose(trial));
        let like = |i: usize, j: usize| likeness(&points[i], &points[j]);
        let covariance = DMatrix::from_fn(5, 5, |i, j| like(given[i], given[j]) + if i == j { 0.01 } else { 0.0 });
        for i in 0..points.len() {
            let to_given = DVector::from_iterator(5, given.iter().map(|&j| like(i, j)));
            let known = to_given.dot(&(covariance.clone().try_inverse().unwrap() * &to_given));
            let expected = (posterior.variance * (1.0 - known)).sqrt();
            assert!((posterior.deviation(i) - expected).abs() < 1e-9, "{i}: {} for {expected}", posterior.deviation(i));
        }
        assert!(posterior.deviation(2) < 0.2 * posterior.deviation(3), "what is supposed is hardly uncertain");
    }
}
