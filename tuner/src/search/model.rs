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
    seen: Vec<usize>,
    factor: Option<Cholesky<f64, nalgebra::Dyn>>,
    /// Expected ln of each time.
    pub mean: Vec<f64>,
    /// Variance of the process.
    variance: f64,
}

impl<'a> Posterior<'a> {
    /// Of `points` whose times are `expected` up to a constant, where those in `timed` (index, ln µs) are known.
    pub fn new(points: &'a [Point], expected: &[f64], timed: &[(usize, f64)]) -> Self {
        let seen: Vec<usize> = timed.iter().map(|&(i, _)| i).collect();
        let factor = factor(points, &seen);
        let beyond = DVector::from_iterator(timed.len(), timed.iter().map(|&(i, ln)| ln - expected[i]));
        let mut posterior = Self { points, seen, factor, mean: expected.to_vec(), variance: DEVIATION * DEVIATION };
        let Some(factor) = &posterior.factor else { return posterior };
        // The case's level by generalised least squares.
        let ones = DVector::from_element(timed.len(), 1.0);
        let of_ones = factor.solve(&ones);
        let level = of_ones.dot(&beyond) / of_ones.sum();
        let rest = beyond.add_scalar(-level);
        let weights = factor.solve(&rest);
        posterior.variance = (TRUST * DEVIATION * DEVIATION + rest.dot(&weights)) / (timed.len() as f64 + TRUST - 1.0);
        for (i, mean) in posterior.mean.iter_mut().enumerate() {
            let alike = posterior.seen.iter().zip(&weights).map(|(&j, w)| w * likeness(&points[i], &points[j]));
            *mean += level + alike.sum::<f64>();
        }
        posterior
    }

    /// Counts `trial` among the timed ones, as far as uncertainty goes.
    pub fn suppose(&mut self, trial: usize) {
        self.seen.push(trial);
        self.factor = factor(self.points, &self.seen);
    }

    /// Standard deviation of the ln of the time of `trial`.
    pub fn deviation(&self, trial: usize) -> f64 {
        let Some(factor) = &self.factor else { return self.variance.sqrt() };
        let alike = self.seen.iter().map(|&j| likeness(&self.points[trial], &self.points[j]));
        let alike = DVector::from_iterator(self.seen.len(), alike);
        let known = alike.dot(&factor.solve(&alike));
        (self.variance * (1.0 - known).max(0.0)).sqrt()
    }
}

fn likeness(a: &Point, b: &Point) -> f64 {
    (-a.apart(b) / (2.0 * LENGTH * LENGTH)).exp()
}

fn factor(points: &[Point], seen: &[usize]) -> Option<Cholesky<f64, nalgebra::Dyn>> {
    let with_noise =
        |i: usize, j: usize| likeness(&points[seen[i]], &points[seen[j]]) + if i == j { NOISE * NOISE } else { 0.0 };
    (!seen.is_empty()).then(|| Cholesky::new(DMatrix::from_fn(seen.len(), seen.len(), with_noise))).flatten()
}
