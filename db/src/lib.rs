//! Trials in SQLite: what was compiled, verified and timed, and which kernel won.
//!
//! The only crate that knows SQL. sqlx is async; its runtime stays inside, behind blocking methods.
//!
//! **History.** Trials are added, never changed or deleted. A trial's key is its kernel (target, id,
//! source, NVRTC), shape, split and platform (boards of one model under one driver, or none); the view
//! `current_trials` keeps one of each key: a failure, else what was measured in the most rounds, then with the most
//! samples, else the latest.
//! Later means by a hybrid logical clock (`0005_history.sql`), not by the machine's. A kernel whose id has
//! since been rendered to another source, or compiled by another NVRTC, is stale: its trials stay, and win
//! nothing.
//!
//! **Winners** follow from the single samples each time they are asked for; no median is stored. What is noise is said
//! in `times`, who wins in `contest`. A kernel that was wrong, crashed or hung at any shape wins at none on that GPU.
//!
//! **Buckets** are the shapes that have a winner (table `buckets`). Trials at other shapes, held out, say how well the
//! buckets serve there: `regret`.
//!
//! **Durability.** `synchronous=FULL`: the log is synced at each commit, so a recorded trial
//! survives `kill -9` (for which `NORMAL` would do) and a power cut (for which it would not). A
//! sync takes milliseconds, a trial a tenth of a second or more.
//!
//! **Statements** are checked when they run, not by sqlx's macros: these would need a database or
//! committed metadata for every build, and cannot infer which columns of a view are null. Every
//! statement is run by a test instead.

mod aside;
mod carry;
mod contest;
mod db;
mod diff;
mod error;
mod filesystem;
mod history;
mod merge;
mod model;
mod open;
mod quarantine;
mod query;
mod record;
mod regret;
mod resume;
mod row;
mod timed;
mod times;
mod trials;
mod winners;

pub use carry::{Carried, Remembered};
pub use db::Db;
pub use diff::{Difference, Pairing, Side, Verdict, diff};
pub use error::DbError;
pub use history::PastTrial;
pub use merge::Merged;
pub use model::{
    Compiled, EnvironmentKey, Failure, KernelKey, KernelRecord, Measurement, MeasurementId, Moment, NewRun, RunId,
    TrialId, TrialKey, TrialRecord,
};
pub use quarantine::{Place, Quarantined, Release};
pub use query::{Answer, Query};
pub use regret::{Buckets, Measured, Part, Regret, Serving};
pub use timed::{MeasuredOn, TimedTrial, TimedTrials};
pub use times::{Times, median};
pub use trials::{Run, Trial};
pub use winners::{DefaultTimes, Emulated, NearTie, PredictedWinner, Winner, WinnerFilter};
