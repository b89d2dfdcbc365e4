//! The trials of one problem at one shape, and which of them go on to the run-off.

use nvkv_spec::SplitPolicy;

/// Trials in the run-off, the default aside.
pub const RUNOFF: usize = 6;

/// A kernel and a split at the shape at hand, with what was measured so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Index among the verified kernels.
    pub kernel: usize,
    /// Split policy of the launch.
    pub split: SplitPolicy,
    /// Median, µs, and number of samples.
    pub timed: Option<(f64, u64)>,
}

impl Trial {
    /// Whether both are the same launch.
    pub fn is(&self, other: &Self) -> bool {
        self.kernel == other.kernel && self.split == other.split
    }
}

/// The best trials by median, and those that `must` be among them, such as the default.
pub fn contenders(trials: &[Trial], must: impl Fn(&Trial) -> bool) -> Vec<Trial> {
    let mut timed: Vec<_> = trials.iter().copied().filter(|t| t.timed.is_some()).collect();
    timed.sort_by(|a, b| us(a).total_cmp(&us(b)));
    let (ahead, rest) = timed.split_at(timed.len().min(RUNOFF));
    let untimed = trials.iter().filter(|t| t.timed.is_none());
    let others = rest.iter().chain(untimed).filter(|t| !ahead.is_empty() && must(t));
    ahead.iter().chain(others).copied().collect()
}

/// The trial of the lowest median.
pub fn best(trials: &[Trial]) -> Option<&Trial> {
    trials.iter().filter(|t| t.timed.is_some()).min_by(|a, b| us(a).total_cmp(&us(b)))
}

fn us(trial: &Trial) -> f64 {
    trial.timed.map_or(f64::INFINITY, |(median, _)| median)
}

/// Notes newer results in `trials`; a failure takes the old time away.
pub fn merge(trials: &mut [Trial], newer: &[Trial]) {
    for trial in trials {
        if let Some(new) = newer.iter().find(|n| n.is(trial)) {
            trial.timed = new.timed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(kernel: usize, timed: Option<(f64, u64)>) -> Trial {
        Trial { kernel, split: SplitPolicy::Even { splits: 4 }, timed }
    }

    #[test]
    fn the_default_is_in_every_run_off_once() {
        let mut trials: Vec<_> = (0..10).map(|k| trial(k, Some((10.0 + k as f64, 7)))).collect();
        let kernels = |picked: Vec<Trial>| picked.iter().map(|t| t.kernel).collect::<Vec<_>>();
        assert_eq!(kernels(contenders(&trials, |t| t.kernel == 9)), [0, 1, 2, 3, 4, 5, 9]);
        assert_eq!(kernels(contenders(&trials, |t| t.kernel == 2)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kernels(contenders(&trials, |t| t.kernel >= 8)), [0, 1, 2, 3, 4, 5, 8, 9]);
        // A default that an earlier run timed has no median here; it is timed again.
        trials[9].timed = None;
        assert_eq!(kernels(contenders(&trials, |t| t.kernel == 9)), [0, 1, 2, 3, 4, 5, 9]);
    }

    #[test]
    fn a_failure_in_the_run_off_takes_the_old_time_away() {
        let mut trials = vec![trial(0, Some((1.0, 7))), trial(1, Some((2.0, 7)))];
        merge(&mut trials, &[trial(0, None)]);
        assert_eq!(best(&trials).map(|t| t.kernel), Some(1));
    }
}
