//! What samples say of a time, how far they can be trusted, and whether two of them differ. The only place that decides
//! it: winners, near ties, the verdict on the default and the comparison of databases all ask here.

use serde::Serialize;

/// Standard deviation between rounds of measuring the same kernel, as a share of its time, where nothing else is known.
/// Measured on an H200: of 3,300 kernels and splits timed twice in one process, more than 1 % of the pairs differ by
/// more than 3.29 standard errors with half of it, and less than 0.7 % do with this.
const ROUND_SPREAD: f64 = 0.01;
/// How many observed degrees of freedom [`ROUND_SPREAD`] is worth.
const ROUND_SPREAD_WEIGHT: f64 = 2.0;
/// Step of the event clock, µs: times on an H200 are multiples of it.
const CLOCK_STEP: f64 = 0.032;
/// Standard errors that a difference of two times must pass to be more than noise: two-sided 95 %.
const NOISE: f64 = 1.96;
/// Standard errors within which a repetition may still turn a difference round. The same difference measured again
/// errs by one standard error too, so the two results differ by sqrt(2) of them, and in 99 % of cases not by more than
/// 2.33 * sqrt(2) one way; what lies within [`NOISE`] there lies within that much more here. (Two limits, for one result
/// and for the difference of two, as the repeatability limit of ISO 5725-6, 4.1.)
const NEAR: f64 = NOISE + 2.33 * std::f64::consts::SQRT_2;

/// Standard deviation between runs of measuring the same kernel, as a share of its time and in µs: another process has
/// other pages of memory and another place in them, which no round shows. Measured on an H200: two standard tunes, one after
/// the other on one board, with 261 winners in common; 2.7 % of the pairs differ by more than 1.96 standard errors with
/// these, one of them by more than 3.29; without them 25 % and 8 %.
const RUN_SPREAD: f64 = 0.005;
const RUN_SPREAD_US: f64 = 0.25;
/// Standard errors that a difference of two runs must pass: two-sided 99.9 %, since hundreds of rows are compared at once,
/// and of these one in twenty would differ by [`NOISE`].
const RUN_NOISE: f64 = 3.29;

/// The samples of one trial, summed up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Median of all samples, µs.
    pub median_us: f64,
    /// Its standard error, µs.
    pub error_us: f64,
    /// Fastest sample, µs.
    pub min_us: f64,
    /// Interquartile range of all samples (nearest rank), µs.
    pub iqr_us: f64,
    /// Samples.
    pub samples: u64,
    /// Rounds of measuring.
    pub rounds: u64,
}

impl Times {
    /// Of samples, µs, in rounds; none where there is no sample.
    ///
    /// One-way random effects: a sample is the true time, plus what its round is off by, plus scatter within the round.
    /// With R rounds and n samples, the variance of the median is `between / R + within`, where
    ///
    /// - `within` is a median's variance, `pi / 2 * sigma^2 / n`, with sigma = IQR / 1.349 of the deviations from the
    ///   median of each round; the clock's step, uniform, adds `step^2 / 12`;
    /// - `between` is the variance of the rounds' medians, less what their scatter within explains (the method of
    ///   moments: Searle, Casella, McCulloch, *Variance Components*, 3.6), moderated by a prior, since few rounds say
    ///   little: `(d0 s0^2 + (R - 1) s^2) / (d0 + R - 1)` (Smyth 2004, doi:10.2202/1544-6115.1027, 3). One round has the
    ///   prior alone. It is a floor too: rounds of one process share what another process will not, such as the
    ///   physical pages of the cache.
    pub fn of(rounds: &[Vec<f64>]) -> Option<Self> {
        let mut all: Vec<f64> = rounds.iter().flatten().copied().collect();
        let median_us = median(&mut all)?;
        let medians: Vec<f64> = rounds.iter().filter_map(|round| median(&mut round.clone())).collect();
        let (r, n) = (medians.len() as f64, all.len() as f64);
        let mut deviations: Vec<f64> = rounds
            .iter()
            .filter_map(|round| median(&mut round.clone()).map(|m| round.iter().map(move |x| x - m)))
            .flatten()
            .collect();
        deviations.sort_by(f64::total_cmp);
        let scatter = std::f64::consts::FRAC_PI_2 * (iqr(&deviations) / 1.349).powi(2);
        let mean = medians.iter().sum::<f64>() / r;
        let squares: f64 = medians.iter().map(|m| (m - mean).powi(2)).sum();
        let excess = if r > 1.0 { (squares / (r - 1.0) - scatter * r / n).max(0.0) } else { 0.0 };
        let prior = (ROUND_SPREAD * median_us).powi(2);
        let between = (ROUND_SPREAD_WEIGHT * prior + (r - 1.0) * excess) / (ROUND_SPREAD_WEIGHT + r - 1.0);
        let within = scatter / n + CLOCK_STEP.powi(2) / 12.0;
        Some(Self {
            median_us,
            error_us: (between / r + within).sqrt(),
            min_us: all.first().copied()?, // `median` sorted them
            iqr_us: iqr(&all),
            samples: all.len() as u64,
            rounds: medians.len() as u64,
        })
    }

    /// By how many standard errors of the difference it is faster than `other`.
    pub fn lead_over(&self, other: &Self) -> f64 {
        (other.median_us - self.median_us) / self.error_us.hypot(other.error_us)
    }

    /// Whether it is faster than `other` beyond noise.
    pub fn beats(&self, other: &Self) -> bool {
        self.lead_over(other) > NOISE
    }

    /// Whether it takes the place of `default`: it beats it, or is surely faster than `default` was in any sample of as many
    /// rounds. (Samples that scatter upwards alone make the error of a median large, which says nothing of its other side.)
    pub fn beats_default(&self, default: &Self) -> bool {
        self.beats(default) || (default.rounds >= self.rounds && self.upper_us() < default.min_us)
    }

    /// Whether a repetition of both measurements may find that `self`, the faster one here, does not beat `other`.
    pub fn is_near(&self, other: &Self) -> bool {
        self.lead_over(other) <= NEAR
    }

    /// Whether it is faster than `other`, of another run, beyond noise.
    pub fn beats_in_another_run(&self, other: &Self) -> bool {
        other.median_us - self.median_us > RUN_NOISE * self.error_between_runs(other)
    }

    /// How far apart the true times of two runs may well be, µs: the difference and its noise.
    pub fn largest_gap(&self, other: &Self) -> f64 {
        (other.median_us - self.median_us).abs() + NOISE * self.error_between_runs(other)
    }

    /// Standard error of the difference from `other`, of another run, µs.
    fn error_between_runs(&self, other: &Self) -> f64 {
        let of_run = |times: &Self| (RUN_SPREAD * times.median_us).powi(2) + RUN_SPREAD_US.powi(2);
        [self, other].iter().map(|times| times.error_us.powi(2) + of_run(times)).sum::<f64>().sqrt()
    }

    /// A time that the true one is hardly above, µs: few or scattered samples make it long.
    pub fn upper_us(&self) -> f64 {
        self.median_us + NOISE * self.error_us
    }
}

/// The median, of an even number the mean of the middle two; it sorts `values`. None of none.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let upper = *values.get(n / 2)?;
    Some(if n % 2 == 1 { upper } else { (values[n / 2 - 1] + upper) / 2.0 })
}

/// Interquartile range by nearest rank, of sorted values.
fn iqr(sorted: &[f64]) -> f64 {
    let rank = |quarter: usize| sorted.get((quarter * sorted.len()).div_ceil(4).saturating_sub(1)).copied();
    rank(3).zip(rank(1)).map_or(0.0, |(high, low)| high - low)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Variance of the clock's step, µs².
    const CLOCK: f64 = 0.032 * 0.032 / 12.0;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs().max(1.0)
    }

    #[test]
    fn the_error_of_one_calm_round_is_the_prior_and_the_clock() {
        let one = Times::of(&[vec![100.0; 7]]).unwrap();
        assert!(close(one.error_us, (1.0 + CLOCK).sqrt()), "{one:?}");
    }

    #[test]
    fn rounds_that_agree_shorten_the_error_and_rounds_that_differ_lengthen_it() {
        let of = |medians: [f64; 5]| Times::of(&medians.map(|m| vec![m; 9])).unwrap().error_us;
        // The prior's two degrees of freedom of six, over five rounds.
        assert!(close(of([100.0; 5]), (2.0f64 / 6.0 / 5.0 + CLOCK).sqrt()));
        // Medians of variance 10, with four degrees of freedom of six.
        let apart = [96.0, 98.0, 100.0, 102.0, 104.0];
        assert!(close(of(apart), ((2.0f64 + 4.0 * 10.0) / 6.0 / 5.0 + CLOCK).sqrt()));
    }

    #[test]
    fn scatter_within_rounds_is_not_counted_between_them_again() {
        // Medians differ by less than the scatter within explains.
        let scattered = |middle: f64| vec![80.0, 90.0, middle, 110.0, 120.0];
        let times = Times::of(&[scattered(99.0), scattered(100.0), scattered(101.0)]).unwrap();
        let deviations_iqr = 22.0; // nearest ranks 4 and 12 of 15: -11 and 11
        let within = std::f64::consts::FRAC_PI_2 * (deviations_iqr / 1.349f64).powi(2) / 15.0;
        let expected = (2.0f64 / 4.0 / 3.0 + within + CLOCK).sqrt();
        assert!(close(times.error_us, expected), "{} for {expected}", times.error_us);
    }

    #[test]
    fn no_sample_has_no_time() {
        assert_eq!(Times::of(&[]), None);
        assert_eq!(Times::of(&[vec![]]), None);
    }

    /// Normal deviates without a crate: the sum of twelve uniform ones, less 6.
    pub(crate) fn normal(state: &mut u64) -> f64 {
        let mut uniform = || {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    /// A measurement of five rounds of eight samples: rounds off by 0.4 %, samples by 1 %.
    pub(crate) fn measured(true_us: f64, state: &mut u64) -> Times {
        let rounds: Vec<Vec<f64>> = (0..5)
            .map(|_| {
                let off = 0.004 * normal(state);
                (0..8).map(|_| true_us * (1.0 + off + 0.01 * normal(state))).collect()
            })
            .collect();
        Times::of(&rounds).unwrap()
    }

    #[test]
    fn of_equal_times_few_beat_each_other() {
        let mut state = 7;
        let beaten = (0..2000).filter(|_| measured(50.0, &mut state).beats(&measured(50.0, &mut state))).count();
        assert!(beaten <= 2000 / 40, "{beaten} of 2,000: 2.5 % are allowed");
    }

    #[test]
    fn what_one_measurement_does_not_separate_is_near_in_a_second_one_in_99_of_100() {
        let (mut state, mut misses, mut cases) = (11, 0, 0);
        for step in 0..4000 {
            let slower = 50.0 * (1.0 + 0.03 * f64::from(step) / 4000.0);
            let mut once = || (measured(50.0, &mut state), measured(slower, &mut state));
            let ((a, b), (c, d)) = (once(), once());
            if !a.beats(&b) {
                cases += 1;
                misses += usize::from(!c.is_near(&d));
            }
        }
        assert!(cases > 500 && misses * 100 <= cases, "{misses} of {cases}");
        // The test can fail: differences that are no noise are told.
        assert!(measured(50.0, &mut state).beats(&measured(52.0, &mut state)));
        assert!(!measured(50.0, &mut state).is_near(&measured(53.0, &mut state)));
    }

    proptest! {
        #[test]
        fn no_time_beats_itself_and_two_never_beat_each_other(
            a in prop::collection::vec(prop::collection::vec(0.01f64..1e6, 1..9), 1..6),
            b in prop::collection::vec(prop::collection::vec(0.01f64..1e6, 1..9), 1..6),
        ) {
            let (a, b) = (Times::of(&a).unwrap(), Times::of(&b).unwrap());
            prop_assert!(!a.beats(&a) && a.is_near(&a));
            prop_assert!(!(a.beats(&b) && b.beats(&a)));
            prop_assert!(a.error_us > 0.0 && a.upper_us() > a.median_us);
        }
    }
}
