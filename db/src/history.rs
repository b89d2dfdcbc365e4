//! What was tried on boards of one model, in the order recorded: what a search learns from, and goes on from.

use crate::row::NumberedKernelRow;
use crate::trials::{apart, samples_by_trial};
use crate::{Db, DbError, EnvironmentKey, KernelRecord, Moment, RunId, TrialId};
use nvkv_spec::{Shape, SplitPolicy, Target};
use sqlx::FromRow;
use std::collections::HashMap;
use std::sync::Arc;

/// A trial at one shape that counts.
#[derive(Clone, Debug, PartialEq)]
pub struct PastTrial {
    /// Its row.
    pub id: TrialId,
    /// When it was recorded; of a carried trial, when its origin was.
    pub moment: Moment,
    /// Whether it was taken from a trial of an identical cubin, and not run.
    pub carried: bool,
    /// The kernel.
    pub kernel: Arc<KernelRecord>,
    /// The shape.
    pub shape: Shape,
    /// The split policy; none for append.
    pub split: Option<SplitPolicy>,
    /// Whether this is the pick of an engineer without a tuner.
    pub is_default: bool,
    /// Driver of its run.
    pub driver: String,
    /// Times of single calls, µs, in the order taken; none where it failed.
    pub samples: Vec<f64>,
}

#[derive(FromRow)]
struct PastRow {
    id: i64,
    kernel: i64,
    #[sqlx(json)]
    shape: Shape,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    is_default: bool,
    driver: String,
    carried: bool,
    run: i64,
    began: i64,
    clock: i64,
}

impl Db {
    /// Now, in the history of `run`.
    pub fn now(&self, run: RunId) -> Result<Moment, DbError> {
        self.run(async |connection| {
            let (began, clock) = sqlx::query_as(
                "SELECT (SELECT clock FROM runs WHERE id = ?), (SELECT coalesce(max(clock), 0) + 1 FROM trials)",
            )
            .bind(run.0)
            .fetch_one(connection)
            .await?;
            Ok(Moment { run, began, clock })
        })
    }

    /// The trials at single shapes recorded after `after` (all where none is given), timed or failed, of every source and
    /// compiler, on boards of the model of `board` under any driver.
    pub fn past(
        &self,
        target: Target,
        board: &EnvironmentKey,
        after: Option<TrialId>,
    ) -> Result<Vec<PastTrial>, DbError> {
        self.run(async |connection| {
            let rows: Vec<PastRow> = sqlx::query_as(
                "SELECT t.id, t.kernel, s.json AS shape, p.json AS split, t.is_default, e.driver,
                        c.origin IS NOT NULL AS carried, r.id AS run, r.clock AS began, coalesce(o.clock, t.clock) AS clock
                 FROM standing_trials AS t
                 JOIN environments AS e ON e.id = t.environment
                 JOIN shapes AS s ON s.id = t.shape
                 LEFT JOIN splits AS p ON p.id = t.split
                 LEFT JOIN carried AS c ON c.trial = t.id
                 LEFT JOIN trials AS o ON o.id = c.origin
                 JOIN runs AS r ON r.id = coalesce(o.run, t.run)
                 WHERE t.id > coalesce(?1, 0) AND r.target = ?2 AND e.name = ?3 AND e.sms = ?4
                   AND t.outcome NOT IN ('compiled_only', 'emulated')
                 ORDER BY t.id",
            )
            .bind(after.map(|trial| trial.0))
            .bind(target.name())
            .bind(&board.name)
            .bind(board.sms)
            .fetch_all(&mut *connection)
            .await?;
            let kernels: Vec<NumberedKernelRow> = sqlx::query_as(
                "SELECT * FROM kernel_records
                 WHERE target = ?2 AND kernel IN (SELECT kernel FROM trials WHERE id > coalesce(?1, 0))",
            )
            .bind(after.map(|trial| trial.0))
            .bind(target.name())
            .fetch_all(&mut *connection)
            .await?;
            let kernels = kernels
                .into_iter()
                .map(|row| Ok((row.kernel, Arc::new(row.record.record()?))))
                .collect::<Result<HashMap<_, _>, sqlx::Error>>()?;
            let mut samples = samples_by_trial(connection, after).await?;
            let trial = |row: PastRow| {
                let (samples, _) = apart(&samples.remove(&row.id).unwrap_or_default());
                Some(PastTrial {
                    id: TrialId(row.id),
                    moment: Moment { run: RunId(row.run), began: row.began, clock: row.clock },
                    carried: row.carried,
                    kernel: kernels.get(&row.kernel)?.clone(),
                    shape: row.shape,
                    split: row.split,
                    is_default: row.is_default,
                    driver: row.driver,
                    samples,
                })
            };
            Ok(rows.into_iter().filter_map(trial).collect())
        })
    }
}
