//! How fast the GPU goes through trials, and how long it waits for compilers meanwhile.

use serde::Serialize;
use std::time::{Duration, Instant};

/// Of one GPU in a run, from the first kernel that was built to the last trial.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    first_built: Option<Instant>,
    ended: Option<Instant>,
    idle: Duration,
    total: Duration,
    trials: u64,
}

/// The same in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Trials that ended, timed or failed; run-offs count again.
    pub trials: u64,
    /// Time since the first kernel was built, s.
    pub seconds: f64,
    /// Trials an hour of it.
    pub trials_an_hour: f64,
    /// Share of it that a GPU waited for compilers, 0 to 1: of several GPUs the mean.
    pub idle_share: f64,
}

impl Pace {
    /// Waits for the next kernel by `receive`. Waiting for the first one does not count: nothing could be timed yet.
    pub fn wait<T>(&mut self, receive: impl FnOnce() -> Option<T>) -> Option<T> {
        let since = Instant::now();
        let built = receive();
        // Nor does waiting to hear that there is no more.
        if built.is_some() {
            match self.first_built {
                Some(_) => self.idle += since.elapsed(),
                None => self.first_built = Some(Instant::now()),
            }
        }
        built
    }

    /// Goes on after an end: the time between was spent waiting.
    pub fn resume(&mut self) {
        if let Some(ended) = self.ended.take() {
            self.idle += ended.elapsed();
        }
    }

    /// Counts a trial.
    pub fn count(&mut self) {
        self.trials += 1;
    }

    /// Ends the time.
    pub fn end(&mut self) {
        self.ended = Some(Instant::now());
        self.total = self.first_built.map_or(Duration::ZERO, |first| first.elapsed());
    }

    /// Time since the first kernel was built, and how much of it the GPU waited, s.
    pub fn seconds(&self) -> (f64, f64) {
        // The sum of parts may be above the whole by a rounding.
        (self.total.as_secs_f64(), self.idle.min(self.total).as_secs_f64())
    }

    /// What is said of GPUs that work side by side; none where nothing was tried.
    pub fn together(all: &[Self]) -> Option<Summary> {
        let trials = all.iter().map(|pace| pace.trials).sum();
        let (worked, idle) = all.iter().map(Self::seconds).fold((0.0, 0.0), |(t, i), (of, idle)| (t + of, i + idle));
        let seconds = all.iter().map(|pace| pace.seconds().0).fold(0.0, f64::max);
        let summary =
            || Summary { trials, seconds, trials_an_hour: 3600.0 * trials as f64 / seconds, idle_share: idle / worked };
        (trials > 0 && seconds > 0.0).then(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ms: u64, answer: Option<()>) -> impl FnOnce() -> Option<()> {
        move || {
            std::thread::sleep(Duration::from_millis(ms));
            answer
        }
    }

    #[test]
    fn waiting_counts_from_the_first_kernel_to_the_last() {
        let mut pace = Pace::default();
        pace.wait(after(30, Some(())));
        std::thread::sleep(Duration::from_millis(20)); // at work
        pace.wait(after(20, Some(())));
        pace.count();
        pace.wait(after(30, None));
        pace.end();
        let (total, idle) = pace.seconds();
        assert!((0.02..0.03).contains(&idle) || idle < total / 2.0, "{idle} of {total}");
        let summary = Pace::together(&[pace]).unwrap();
        assert!((summary.idle_share - idle / total).abs() < 1e-12 && summary.trials == 1);
        assert!((summary.trials_an_hour - 3600.0 / total).abs() < 1e-6);
    }

    #[test]
    fn nothing_tried_has_no_pace() {
        let mut pace = Pace::default();
        pace.wait(after(0, None));
        pace.end();
        assert_eq!((pace.seconds(), Pace::together(&[pace])), ((0.0, 0.0), None));
    }
}
