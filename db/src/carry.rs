//! After an upgrade: results of kernels whose machine code stayed the same, and what was best before.

use crate::record::{is_stored, put_samples, put_trial};
use crate::row::{OutcomeRow, kernel_id};
use crate::times::median;
use crate::trials::{Samples, apart};
use crate::{
    Db, DbError, EnvironmentKey, KernelKey, KernelRecord, MeasurementId, RunId, TrialId, TrialKey, TrialRecord,
};
use nvkv_spec::{GpuEnvironment, Outcome, Problem, Shape, SplitPolicy, Target};
use sqlx::{Connection, FromRow, SqliteConnection};
use std::collections::HashMap;

/// What [`Db::carry_over`] stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carried {
    /// The keys of the trials.
    pub keys: Vec<TrialKey>,
    /// The largest error of those that were timed under this very driver: their verification holds.
    pub error: Option<f64>,
    /// The failure that keeps the kernel out under this driver.
    pub failure: Option<Outcome>,
}

/// A time that the database has for a kernel and split at one problem and shape, on boards of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Remembered {
    /// The kernel; maybe of another source or NVRTC than today's.
    pub kernel: KernelKey,
    /// The split policy; none for append.
    pub split: Option<SplitPolicy>,
    /// Median, µs.
    pub median_us: f64,
    /// Number of samples.
    pub samples: u64,
    /// The driver that it was measured under; of a carried trial that of its origin.
    pub driver: String,
}

#[derive(FromRow)]
struct OriginRow {
    origin: i64,
    same_driver: bool,
    #[sqlx(json(nullable))]
    shape: Option<Shape>,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    bytes: i64,
    #[sqlx(flatten)]
    outcome: OutcomeRow,
}

#[derive(FromRow)]
struct RememberedRow {
    kernel_id: String,
    source_hash: String,
    nvrtc: String,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    #[sqlx(json)]
    samples: Vec<f64>,
    driver: String,
}

impl RememberedRow {
    fn remembered(mut self) -> Result<Remembered, sqlx::Error> {
        let kernel_id = kernel_id(self.kernel_id)?;
        let samples = self.samples.len() as u64;
        Ok(Remembered {
            kernel: KernelKey { kernel_id, source_hash: self.source_hash, nvrtc: self.nvrtc },
            split: self.split,
            median_us: median(&mut self.samples).unwrap_or(f64::INFINITY),
            samples,
            driver: self.driver,
        })
    }
}

/// Trials in force of another source, NVRTC or driver, on boards of the model of run `?1`, of the kernel named `?3` for
/// target `?2` where its cubin is `?4`. Times were taken by the run's policy; failures count under the same driver only,
/// since another one may have mended them. The most telling of a shape and split comes last.
const ORIGINS: &str = "
    SELECT coalesce((SELECT origin FROM carried WHERE trial = t.id), t.id) AS origin, e.driver = h.driver AS same_driver,
           s.json AS shape, p.json AS split, t.bytes,
           t.outcome, t.stage, t.message, t.error, t.cases, t.limit_s, t.predicted_us
    FROM runs AS h_run
    JOIN environments AS h ON h.id = h_run.environment
    JOIN environments AS e ON e.name = h.name AND e.sms = h.sms
    JOIN current_trials AS t ON t.environment = e.id
    JOIN runs AS r ON r.id = t.run
    JOIN kernels AS k ON k.id = t.kernel
    JOIN variants AS v ON v.id = k.variant
    LEFT JOIN shapes AS s ON s.id = t.shape
    LEFT JOIN splits AS p ON p.id = t.split
    WHERE h_run.id = ?1 AND k.target = ?2 AND v.kernel_id = ?3 AND k.cubin_hash = ?4
      AND NOT (k.source_hash = ?5 AND k.nvrtc = ?6 AND e.driver = h.driver)
      AND ((t.outcome = 'timed' AND r.measurement_policy IS h_run.measurement_policy)
           OR (t.id IN (SELECT id FROM barring_trials) AND e.driver = h.driver))
    ORDER BY same_driver, (SELECT max(idx) FROM samples WHERE trial = t.id), t.id";

impl Db {
    /// Stores for `kernel`, in `run`, the results of kernels of its name whose cubin is the same, byte for byte, as carried
    /// over from their trials: those of another source or NVRTC, and times of another driver too. What the kernel has
    /// results for is left alone. `is_default` says whether the launch at a shape and split is the yardstick by now.
    ///
    /// A cubin is machine code: neither the source nor the compiler that it came from has a part in how it runs. A driver
    /// may (clocks, launches), so times of another driver are a start, not an end: see [`Self::is_of_another_driver`].
    pub fn carry_over(
        &mut self,
        run: RunId,
        kernel: &KernelRecord,
        is_default: impl Fn(Shape, Option<SplitPolicy>) -> bool,
    ) -> Result<Carried, DbError> {
        let Some(compiled) = &kernel.compiled else { return Ok(Carried::default()) };
        let key = kernel.key();
        self.run(async |connection| {
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            let rows: Vec<OriginRow> = sqlx::query_as(ORIGINS)
                .bind(run.0)
                .bind(kernel.target.name())
                .bind(key.kernel_id.as_str())
                .bind(&compiled.cubin_hash)
                .bind(&key.source_hash)
                .bind(&key.nvrtc)
                .fetch_all(&mut *transaction)
                .await?;
            let origins: HashMap<_, _> = rows.into_iter().map(|row| ((row.shape, row.split), row)).collect();
            let mut carried = Carried::default();
            let mut origins: Vec<_> = origins.into_values().collect();
            origins.sort_by_key(|row| row.origin);
            for row in origins {
                let (origin, same_driver) = (row.origin, row.same_driver);
                let (samples, measurements) = samples(&mut transaction, origin).await?;
                let trial = TrialRecord {
                    kernel: kernel.clone(),
                    shape: row.shape,
                    split: row.split,
                    is_default: row.shape.is_some_and(|shape| is_default(shape, row.split)),
                    outcome: row.outcome.outcome()?,
                    bytes: row.bytes.unsigned_abs(),
                    samples,
                    measurements,
                };
                if is_stored(&mut transaction, run, &trial).await? {
                    continue;
                }
                let id = put_trial(&mut transaction, run, &trial).await?;
                put_samples(&mut transaction, id, &trial).await?;
                sqlx::query("INSERT INTO carried (trial, origin) VALUES (?, ?)")
                    .bind(id)
                    .bind(origin)
                    .execute(&mut *transaction)
                    .await?;
                carried.keys.push(trial.key());
                match trial.outcome {
                    Outcome::Timed { error } if same_driver => {
                        carried.error = Some(carried.error.map_or(error, |largest| largest.max(error)));
                    }
                    Outcome::Timed { .. } => {}
                    failure => carried.failure = Some(failure),
                }
            }
            transaction.commit().await?;
            Ok(carried)
        })
    }

    /// Whether the trial's times were taken under another driver than that of its run, and carried over.
    pub fn is_of_another_driver(&self, trial: TrialId) -> Result<bool, DbError> {
        self.run(async |connection| {
            sqlx::query_scalar(
                "SELECT EXISTS (
                     SELECT 1
                     FROM carried AS c
                     JOIN trials AS t ON t.id = c.trial JOIN runs AS r ON r.id = t.run
                     JOIN trials AS o ON o.id = c.origin JOIN runs AS o_run ON o_run.id = o.run
                     JOIN environments AS e ON e.id = r.environment JOIN environments AS o_e ON o_e.id = o_run.environment
                     WHERE c.trial = ? AND o_e.driver <> e.driver)",
            )
            .bind(trial.0)
            .fetch_one(connection)
            .await
        })
    }

    /// Every time in force of one problem and shape on boards of the model of `environment`, fastest first: of all sources
    /// and compilers, under its driver, or under any where `any_driver`.
    pub fn remembered(
        &self,
        target: Target,
        (problem, shape): (&Problem, Shape),
        environment: &GpuEnvironment,
        any_driver: bool,
    ) -> Result<Vec<Remembered>, DbError> {
        let here = EnvironmentKey::from(environment);
        self.run(async |connection| {
            let rows: Vec<RememberedRow> = sqlx::query_as(
                "SELECT v.kernel_id, k.source_hash, k.nvrtc, p.json AS split,
                        (SELECT json_group_array(microseconds) FROM samples WHERE trial = t.id) AS samples,
                        coalesce((SELECT o_e.driver FROM carried AS c JOIN trials AS o ON o.id = c.origin
                                  JOIN runs AS o_run ON o_run.id = o.run
                                  JOIN environments AS o_e ON o_e.id = o_run.environment
                                  WHERE c.trial = t.id), e.driver) AS driver
                 FROM variants AS v
                 JOIN kernels AS k ON k.variant = v.id
                 JOIN current_trials AS t ON t.kernel = k.id
                 JOIN environments AS e ON e.id = t.environment
                 LEFT JOIN splits AS p ON p.id = t.split
                 WHERE v.problem = (SELECT id FROM problems WHERE key = ?1) AND k.target = ?2
                   AND t.shape = (SELECT id FROM shapes WHERE key = ?3) AND t.outcome = 'timed'
                   AND e.name = ?4 AND e.sms = ?5 AND (?6 OR e.driver = ?7)
                   AND (t.kernel, t.environment) NOT IN (
                       SELECT kernel, environment FROM quarantined WHERE environment IS NOT NULL)
                 ORDER BY v.kernel_id, p.key, t.id",
            )
            .bind(problem.key())
            .bind(target.name())
            .bind(shape.key())
            .bind(&here.name)
            .bind(here.sms)
            .bind(any_driver)
            .bind(&here.driver)
            .fetch_all(connection)
            .await?;
            let mut times = rows.into_iter().map(RememberedRow::remembered).collect::<Result<Vec<_>, _>>()?;
            times.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
            Ok(times)
        })
    }
}

/// Samples of a trial with the measurements they are of; none where they were taken before rounds were kept.
async fn samples(c: &mut SqliteConnection, trial: i64) -> Result<(Vec<f64>, Vec<MeasurementId>), sqlx::Error> {
    let rows: Samples = sqlx::query_as("SELECT measurement, microseconds FROM samples WHERE trial = ? ORDER BY idx")
        .bind(trial)
        .fetch_all(c)
        .await?;
    Ok(apart(&rows))
}
