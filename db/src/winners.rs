//! Winners: the views `winners` and `predicted_winners`, read.

use crate::{Db, DbError, EnvironmentKey, KernelRecord, RunId, TrialId};
use nvkv_spec::{GpuEnvironment, Problem, Shape, SplitPolicy, Target};
use serde::Serialize;

/// Which winners are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct WinnerFilter {
    /// Compile target.
    pub target: Target,
    /// Where it was measured; every environment where none is given.
    pub environment: Option<EnvironmentKey>,
    /// Problems; every problem where the list is empty.
    pub problems: Vec<Problem>,
    /// The shape; every shape where none is given.
    pub shape: Option<Shape>,
}

impl WinnerFilter {
    /// Every winner of a target.
    pub fn of(target: Target) -> Self {
        Self { target, environment: None, problems: Vec::new(), shape: None }
    }
}

/// The samples of one trial, summed up by the view `trial_times`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Median, µs.
    pub median_us: f64,
    /// Fastest sample, µs.
    pub min_us: f64,
    /// Interquartile range (nearest rank), µs.
    pub iqr_us: f64,
    /// Number of samples.
    pub samples: u64,
}

/// The default variant at the winner's shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DefaultTimes {
    /// Its median, µs.
    pub median_us: f64,
    /// Whether the winner's median is lower beyond noise (95 %; see the view `winners`).
    pub beaten: bool,
}

/// The fastest verified kernel of one target, environment, problem and shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Winner {
    /// The trial it rests on.
    pub trial: TrialId,
    /// The run of that trial.
    pub run: RunId,
    /// When the trial was recorded, UTC, RFC 3339.
    pub created_at: String,
    /// Where it was measured.
    pub environment: GpuEnvironment,
    /// The kernel.
    pub kernel: KernelRecord,
    /// The shape it won at.
    pub shape: Shape,
    /// The split policy it won with; none for append.
    pub split: Option<SplitPolicy>,
    /// Whether the winner is the default itself.
    pub is_default: bool,
    /// Its times.
    pub times: Times,
    /// Largest relative L2 error over the verification cases.
    pub error: f64,
    /// Bytes a call must move at least.
    pub bytes: u64,
    /// Read ceiling measured in the same run, GB/s.
    pub read_ceiling_gbps: Option<f64>,
    /// How the times were taken.
    pub measurement_policy: Option<String>,
    /// The default variant at this shape; none where it was not timed.
    pub default: Option<DefaultTimes>,
}

impl Winner {
    /// Bytes over the median, GB/s (10^9 bytes).
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 / self.times.median_us / 1e3
    }

    /// [`Self::gbps`] over the read ceiling of the same run, where that was measured.
    pub fn ceiling_share(&self) -> Option<f64> {
        self.read_ceiling_gbps.map(|ceiling| self.gbps() / ceiling)
    }
}

/// The kernel that a model puts first where nothing was timed. A prediction, never a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedWinner {
    /// The trial it rests on.
    pub trial: TrialId,
    /// The run of that trial.
    pub run: RunId,
    /// When the trial was recorded, UTC, RFC 3339.
    pub created_at: String,
    /// The kernel.
    pub kernel: KernelRecord,
    /// The shape it is predicted for.
    pub shape: Shape,
    /// The split policy; none for append.
    pub split: Option<SplitPolicy>,
    /// Whether it is the default itself.
    pub is_default: bool,
    /// Time by the generator's model, µs.
    pub predicted_us: f64,
    /// Bytes a call must move at least.
    pub bytes: u64,
    /// The default's time by the same model, µs; none where it did not compile.
    pub default_predicted_us: Option<f64>,
}

impl Db {
    /// The winners that `filter` lets through, in order of problem, shape and environment.
    pub fn winners(&self, _filter: &WinnerFilter) -> Result<Vec<Winner>, DbError> {
        todo!()
    }

    /// What the model predicts where nothing was timed; `filter.environment` is ignored.
    pub fn predicted_winners(&self, _filter: &WinnerFilter) -> Result<Vec<PredictedWinner>, DbError> {
        todo!()
    }
}
