//! When a run ends before its work does: Ctrl-C, or the time limit. The trial at hand is finished
//! and recorded; the same command goes on from there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Set by Ctrl-C or a termination signal.
static SIGNALLED: AtomicBool = AtomicBool::new(false);

/// The reason where it was a signal.
pub const INTERRUPTED: &str = "interrupted";
/// The exit code then: what starts a run again, such as a scheduler, must not take this one for done.
pub const EXIT_CODE: u8 = 130;

/// Whether a run should end now.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    deadline: Option<Instant>,
}

impl Stop {
    /// Ends at Ctrl-C, or after `limit`. A second Ctrl-C ends the process at once.
    pub fn new(limit: Option<Duration>) -> Self {
        // A handler may be set once a process; if one is there already, it is this one.
        let _ = ctrlc::set_handler(|| {
            if SIGNALLED.swap(true, Ordering::Relaxed) {
                std::process::exit(EXIT_CODE.into());
            }
            eprintln!("stopping after the trial at hand; once more ends at once");
        });
        Self { deadline: limit.map(|limit| Instant::now() + limit) }
    }

    /// The reason to end, if there is one.
    pub fn reason(&self) -> Option<&'static str> {
        if SIGNALLED.load(Ordering::Relaxed) {
            return Some(INTERRUPTED);
        }
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline).then_some("time limit reached")
    }
}
