//! Every timed trial with its samples: what a search can learn from, and what a replay is made of.

use crate::row::{EnvironmentRow, NumberedKernelRow, target};
use crate::trials::{apart, samples_by_trial};
use crate::{Db, DbError, EnvironmentKey, KernelRecord};
use nvkv_spec::{GpuEnvironment, Shape, SplitPolicy, Target};
use sqlx::FromRow;
use std::collections::HashMap;

/// A target with timed trials, on boards of one model under one driver.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredOn {
    /// Compile target.
    pub target: Target,
    /// One of the boards.
    pub environment: GpuEnvironment,
    /// Timed trials, those of a run-off among them.
    pub trials: u64,
    /// When the last run on it started, UTC, RFC 3339.
    pub last_run: String,
}

/// The timed trials of one target and environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimedTrials {
    /// The kernels that [`TimedTrial::kernel`] counts.
    pub kernels: Vec<KernelRecord>,
    /// In the order recorded; of one launch there may be several.
    pub trials: Vec<TimedTrial>,
}

/// One timed trial.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedTrial {
    /// Index among [`TimedTrials::kernels`].
    pub kernel: usize,
    /// The shape.
    pub shape: Shape,
    /// Split policy of the launch; none for append.
    pub split: Option<SplitPolicy>,
    /// Whether this is the pick of an engineer without a tuner.
    pub is_default: bool,
    /// Times of single calls, µs, in the order taken.
    pub samples: Vec<f64>,
}

#[derive(FromRow)]
struct PlaceRow {
    target: String,
    trials: i64,
    last_run: String,
    #[sqlx(flatten)]
    environment: EnvironmentRow,
}

#[derive(FromRow)]
struct TrialRow {
    id: i64,
    kernel: i64,
    #[sqlx(json)]
    shape: Shape,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    is_default: bool,
}

impl Db {
    /// Where trials were timed, most trials first.
    pub fn measured_on(&self) -> Result<Vec<MeasuredOn>, DbError> {
        self.run(async |connection| {
            let rows: Vec<PlaceRow> = sqlx::query_as(
                "SELECT r.target, count(*) AS trials, max(r.started_at) AS last_run, e.*
                 FROM trials AS t JOIN runs AS r ON r.id = t.run JOIN environments AS e ON e.id = r.environment
                 WHERE t.outcome = 'timed'
                 GROUP BY r.target, e.name, e.sms, e.driver ORDER BY trials DESC, last_run DESC",
            )
            .fetch_all(connection)
            .await?;
            let place = |row: PlaceRow| {
                Ok(MeasuredOn {
                    target: target(&row.target)?,
                    environment: row.environment.into(),
                    trials: row.trials.unsigned_abs(),
                    last_run: row.last_run,
                })
            };
            rows.into_iter().map(place).collect()
        })
    }

    /// Every timed trial of kernels in force on `target`, on boards of one model under one driver, at the shapes that a tune
    /// was asked for: elsewhere only those that win there were timed.
    pub fn timed(&self, target: Target, environment: &EnvironmentKey) -> Result<TimedTrials, DbError> {
        self.run(async |connection| {
            let kernels: Vec<NumberedKernelRow> = sqlx::query_as(
                "SELECT * FROM kernel_records
                 WHERE target = ? AND cubin_hash IS NOT NULL AND kernel IN (SELECT id FROM live_kernels)",
            )
            .bind(target.name())
            .fetch_all(&mut *connection)
            .await?;
            let index: HashMap<i64, usize> = kernels.iter().map(|k| k.kernel).zip(0..).collect();
            let rows: Vec<TrialRow> = sqlx::query_as(
                "SELECT t.id, t.kernel, s.json AS shape, p.json AS split, t.is_default
                 FROM trials AS t
                 JOIN runs AS r ON r.id = t.run
                 JOIN environments AS e ON e.id = r.environment
                 JOIN shapes AS s ON s.id = t.shape
                 JOIN kernels AS k ON k.id = t.kernel
                 JOIN variants AS v ON v.id = k.variant
                 JOIN buckets AS b ON b.target = k.target AND b.problem = v.problem AND b.shape = t.shape
                 LEFT JOIN splits AS p ON p.id = t.split
                 WHERE t.outcome = 'timed' AND b.split_from IS NULL AND r.target = ? AND e.name = ? AND e.sms = ? AND e.driver = ?
                 ORDER BY t.id",
            )
            .bind(target.name())
            .bind(&environment.name)
            .bind(environment.sms)
            .bind(&environment.driver)
            .fetch_all(&mut *connection)
            .await?;
            let mut samples = samples_by_trial(connection, None).await?;
            let trial = |row: TrialRow| {
                let TrialRow { id, kernel, shape, split, is_default } = row;
                let (samples, _) = apart(&samples.remove(&id).unwrap_or_default());
                Some(TimedTrial { kernel: *index.get(&kernel)?, shape, split, is_default, samples })
            };
            let trials = rows.into_iter().filter_map(trial).collect();
            let kernels = kernels.into_iter().map(|k| k.record.record()).collect::<Result<_, _>>()?;
            Ok(TimedTrials { kernels, trials })
        })
    }
}
