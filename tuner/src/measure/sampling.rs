//! Which samples count: a sentinel of fixed work runs before and after each, and tells whether something else had the
//! GPU, or its clocks moved. No GPU here: times come in, decisions go out.

use std::collections::VecDeque;

/// How far a sentinel may be from its running median. Kernels of its length (10 to 20 µs on an H200) scatter by 1.2 %,
/// standard deviation, and 95 % of them by less than 2 %: this is five times that, and a process that shares the GPU or
/// a step of the clocks under throttling changes times by more.
const TOLERANCE: f64 = 0.1;
/// Sentinels that the running median is over: more than one measurement takes, retakes included, so that a disturbance
/// of that length does not become the norm; one that lasts longer is the state of this machine.
const WINDOW: usize = 1024;
/// Sentinels to see before any is judged.
const ENOUGH: usize = 31;

/// The running median of a sentinel's time.
#[derive(Debug, Default)]
pub(super) struct Sentinel {
    recent: VecDeque<f64>,
}

impl Sentinel {
    /// Whether there is no norm yet to judge by.
    pub(super) fn is_new(&self) -> bool {
        self.recent.len() < ENOUGH
    }

    /// Notes a time, µs, and says whether it is a disturbed one.
    pub(super) fn is_disturbed(&mut self, us: f64) -> bool {
        let disturbed = !self.is_new() && self.median().is_some_and(|median| (us / median - 1.0).abs() > TOLERANCE);
        self.recent.push_back(us);
        if self.recent.len() > WINDOW {
            self.recent.pop_front();
        }
        disturbed
    }

    /// The median of the recent times, µs.
    pub(super) fn median(&self) -> Option<f64> {
        let mut times: Vec<f64> = self.recent.iter().copied().collect();
        let middle = times.len().checked_sub(1)? / 2;
        Some(*times.select_nth_unstable_by(middle, f64::total_cmp).1)
    }
}

/// The samples of some candidates, taken interleaved: A B C, A B C, … A sample counts if the sentinels before and after
/// it are undisturbed; another is taken again at the end, when the disturbance may be over. As many may be taken again
/// as were asked for: then it is left with fewer.
#[derive(Debug)]
pub(super) struct Sampling {
    /// Candidates still to be timed, in order.
    due: VecDeque<usize>,
    kept: Vec<Vec<f64>>,
    retakes_left: usize,
    /// The sample that waits for the sentinel after it: candidate, µs, whether the sentinel before was disturbed.
    open: Option<(usize, f64, bool)>,
    /// Whether the last sentinel was disturbed.
    disturbed: bool,
    retaken: usize,
    missing: usize,
}

/// What came of a [`Sampling`].
#[derive(Debug, PartialEq)]
pub(super) struct Sampled {
    /// Samples of each candidate that count, µs.
    pub(super) samples: Vec<Vec<f64>>,
    /// Samples thrown away and taken again.
    pub(super) retaken: usize,
    /// Samples thrown away and not replaced.
    pub(super) missing: usize,
}

impl Sampling {
    /// Of `candidates` candidates, `samples` times each.
    pub(super) fn new(candidates: usize, samples: usize) -> Self {
        Self {
            due: (0..samples).flat_map(|_| 0..candidates).collect(),
            kept: vec![Vec::with_capacity(samples); candidates],
            retakes_left: candidates * samples,
            open: None,
            disturbed: false,
            retaken: 0,
            missing: 0,
        }
    }

    /// Takes note of a sentinel, which judges the sample before it, and says which candidate to time now: none, and it
    /// is done.
    pub(super) fn next(&mut self, disturbed: bool) -> Option<usize> {
        if let Some((candidate, us, before)) = self.open.take() {
            self.judge(candidate, us, before || disturbed);
        }
        self.disturbed = disturbed;
        self.due.front().copied()
    }

    /// Takes the time of the candidate that [`Self::next`] named, µs.
    pub(super) fn take(&mut self, us: f64) {
        self.open = self.due.pop_front().map(|candidate| (candidate, us, self.disturbed));
    }

    fn judge(&mut self, candidate: usize, us: f64, disturbed: bool) {
        if !disturbed {
            self.kept[candidate].push(us);
        } else if self.retakes_left > 0 {
            self.retakes_left -= 1;
            self.retaken += 1;
            self.due.push_back(candidate);
        } else {
            self.missing += 1;
        }
    }

    /// The outcome.
    pub(super) fn end(self) -> Sampled {
        Sampled { samples: self.kept, retaken: self.retaken, missing: self.missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a sampling where the sentinel before step i is disturbed if `disturbed(i)`, and the sample of step i is i.
    fn run(candidates: usize, samples: usize, disturbed: impl Fn(usize) -> bool) -> (Sampled, Vec<usize>) {
        let mut sampling = Sampling::new(candidates, samples);
        let mut order = Vec::new();
        while let Some(candidate) = sampling.next(disturbed(order.len())) {
            sampling.take(order.len() as f64);
            order.push(candidate);
            assert!(order.len() < 1000, "it ends");
        }
        (sampling.end(), order)
    }

    #[test]
    fn candidates_are_interleaved_and_undisturbed_samples_kept() {
        let (sampled, order) = run(3, 2, |_| false);
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
        assert_eq!(sampled.samples, [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]);
        assert_eq!((sampled.retaken, sampled.missing), (0, 0));
    }

    #[test]
    fn the_samples_on_both_sides_of_a_disturbed_sentinel_are_taken_again_at_the_end() {
        let (sampled, order) = run(3, 2, |step| step == 2); // between the samples of steps 1 and 2
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 1, 2]);
        assert_eq!(sampled.samples, [[0.0, 3.0], [4.0, 6.0], [5.0, 7.0]]);
        assert_eq!((sampled.retaken, sampled.missing), (2, 0));
    }

    #[test]
    fn the_last_sample_is_judged_by_the_sentinel_after_it() {
        // That sentinel stands before the retake too, so there is a second one.
        let (sampled, order) = run(2, 1, |step| step == 2);
        assert_eq!(order, [0, 1, 1, 1]);
        assert_eq!(sampled, Sampled { samples: vec![vec![0.0], vec![3.0]], retaken: 2, missing: 0 });
    }

    #[test]
    fn a_disturbance_without_end_is_given_up_after_as_many_retakes_as_samples() {
        let (sampled, order) = run(2, 5, |_| true);
        assert_eq!(order.len(), 20);
        assert_eq!((sampled.retaken, sampled.missing), (10, 10));
        assert!(sampled.samples.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_long_disturbance_leaves_what_was_taken_before_and_after() {
        let (sampled, _) = run(2, 10, |step| (5..15).contains(&step));
        assert!(sampled.samples.iter().all(|kept| kept.len() == 10));
        assert_eq!((sampled.retaken, sampled.missing), (11, 0)); // steps 4 to 14
    }

    #[test]
    fn a_sentinel_is_judged_against_its_running_median() {
        let mut sentinel = Sentinel::default();
        assert!(
            !(0..ENOUGH).any(|i| sentinel.is_disturbed(if i % 10 == 0 { 90.0 } else { 20.0 })),
            "none is judged yet"
        );
        assert_eq!(sentinel.median(), Some(20.0));
        assert!(sentinel.is_disturbed(22.1) && sentinel.is_disturbed(17.9));
        assert!(!sentinel.is_disturbed(21.9) && !sentinel.is_disturbed(18.1));
        // Slow scatter of 2 % and a drift of 30 % over many measurements are no disturbance.
        let drift =
            (0..20_000).map(|i| 20.0 * (1.0 + 0.3 * f64::from(i) / 20_000.0) * (1.0 + 0.02 * f64::from(i % 3 - 1)));
        assert_eq!(drift.filter(|us| sentinel.is_disturbed(*us)).count(), 0);
    }

    #[test]
    fn what_lasts_for_one_measurement_does_not_become_the_norm_and_what_lasts_for_many_does() {
        let mut sentinel = Sentinel::default();
        (0..WINDOW).for_each(|_| _ = sentinel.is_disturbed(20.0));
        // The largest measurement: 24 trials of 7 samples, all taken twice.
        assert_eq!((0..2 * 24 * 7).filter(|_| sentinel.is_disturbed(30.0)).count(), 2 * 24 * 7);
        (0..WINDOW).for_each(|_| _ = sentinel.is_disturbed(30.0));
        assert!(!sentinel.is_disturbed(30.0));
    }
}
