//! Trials in SQLite: what was compiled, verified and timed, and which kernel won.
//!
//! The only crate that knows SQL. sqlx is async; its runtime stays inside, behind blocking methods.
//!
//! **History.** Trials are added, never changed or deleted. A trial's key is its kernel (target, id,
//! source, NVRTC), shape, split and environment (board and driver, or none); the view
//! `current_trials` keeps the latest of each key. A kernel whose id has since been rendered to
//! another source, or compiled by another NVRTC, is stale: its trials stay, and win nothing.
//!
//! **Winners** are views over the single samples, never stored medians. A kernel that was wrong,
//! crashed or hung at any shape wins at none on that GPU.
//!
//! **Durability.** `synchronous=FULL`: the log is synced at each commit, so a recorded trial
//! survives `kill -9` (for which `NORMAL` would do) and a power cut (for which it would not). A
//! sync takes milliseconds, a trial a tenth of a second or more.
//!
//! **Statements** are checked when they run, not by sqlx's macros: these would need a database or
//! committed metadata for every build, and cannot infer which columns of a view are null. Every
//! statement is run by a test instead.

mod db;
mod error;
mod filesystem;
mod model;
mod open;
mod query;
mod record;
mod resume;
mod row;
mod timed;
mod winners;

pub use db::Db;
pub use error::DbError;
pub use model::{
    Compiled, EnvironmentKey, Failure, KernelKey, KernelRecord, NewRun, RunId, TrialId, TrialKey, TrialRecord,
};
pub use query::{Answer, Query};
pub use timed::{MeasuredOn, TimedTrial, TimedTrials};
pub use winners::{DefaultTimes, Emulated, PredictedWinner, Times, Winner, WinnerFilter};
