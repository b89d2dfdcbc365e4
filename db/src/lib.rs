//! Trials in SQLite: what was compiled, verified and timed, and which kernel won.

mod db;
mod error;
mod model;
mod query;
mod winners;

pub use db::Db;
pub use error::DbError;
pub use model::{
    Compiled, EnvironmentKey, Failure, KernelKey, KernelRecord, NewRun, RunId, TrialId, TrialKey, TrialRecord,
};
pub use query::{Answer, Query, distance};
pub use winners::{DefaultTimes, PredictedWinner, Times, Winner, WinnerFilter};
