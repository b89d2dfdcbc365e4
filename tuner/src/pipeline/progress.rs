//! Progress on stderr: a bar with ETA on a terminal, a plain line now and then elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What is counted, in the order of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Kernels compiled now.
    Compiled,
    /// Kernels found in the cache.
    Cached,
    /// Kernels that agreed with the reference.
    Verified,
    /// Trials timed.
    Timed,
    /// Trials predicted.
    Predicted,
    /// Kernels that agreed with the reference in the emulator.
    Emulated,
    /// Trials that the database already had.
    Known,
    /// Trials whose results were carried over from an identical cubin.
    Carried,
    /// Failures of any kind, each recorded with its reason.
    Failed,
}

impl Step {
    fn word(self) -> &'static str {
        match self {
            Self::Compiled => "compiled",
            Self::Cached => "from cache",
            Self::Verified => "verified",
            Self::Timed => "timed",
            Self::Predicted => "predicted",
            Self::Emulated => "emulated",
            Self::Known => "already known",
            Self::Carried => "carried over",
            Self::Failed => "failed",
        }
    }
}

/// Progress of one run; its unit is estimated work in milliseconds, so that steps of different
/// cost give one honest ETA.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    counts: BTreeMap<Step, usize>,
    last_line: Instant,
}

impl Progress {
    /// Of a run of `total_ms` estimated milliseconds of work.
    pub fn new(total_ms: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_ms), target);
        if let Ok(style) = ProgressStyle::with_template("[{elapsed_precise}] {bar:32} {percent:>3} %  ETA {eta}  {msg}")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, terminal, state: Mutex::new(State { counts: BTreeMap::new(), last_line: Instant::now() }) }
    }

    /// Adds work that was not known before, in estimated milliseconds.
    pub fn expect(&self, work_ms: u64) {
        self.bar.inc_length(work_ms);
    }

    /// Counts `n` steps that were worth `work_ms` together.
    pub fn add(&self, step: Step, n: usize, work_ms: u64) {
        self.bar.inc(work_ms);
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *state.counts.entry(step).or_default() += n;
        self.bar.set_message(state.summary());
        if !self.terminal && state.last_line.elapsed() >= LINE_EVERY {
            state.last_line = Instant::now();
            eprintln!("{:>3} %  ETA {}  {}", self.percent(), self.eta(), state.summary());
        }
    }

    /// How often `step` was counted.
    pub fn count(&self, step: Step) -> usize {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.counts.get(&step).copied().unwrap_or(0)
    }

    /// A line of its own, above the bar where there is one.
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Takes the bar away and leaves the counts.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        eprintln!("{} in {}", state.summary(), seconds(self.bar.elapsed()));
    }

    fn percent(&self) -> u64 {
        (100 * self.bar.position() / self.bar.length().unwrap_or(1).max(1)).min(100)
    }

    /// Time left if the rest goes as fast as what is done; not told from less than a hundredth of it.
    fn eta(&self) -> String {
        let (done, total) = (self.bar.position().max(1), self.bar.length().unwrap_or(1));
        if self.percent() == 0 {
            return "unknown".into();
        }
        seconds(self.bar.elapsed().mul_f64(total.saturating_sub(done) as f64 / done as f64)).to_string()
    }
}

impl State {
    fn summary(&self) -> String {
        let parts: Vec<_> = self.counts.iter().map(|(step, n)| format!("{n} {}", step.word())).collect();
        if parts.is_empty() { "nothing to do".into() } else { parts.join(", ") }
    }
}

/// A duration in whole seconds, as people write it.
pub fn seconds(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(duration.as_secs_f64().round() as u64))
}
