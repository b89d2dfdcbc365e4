//! Reading back: what a resumed tune can skip, and how a run went.

use crate::row::{KernelRow, OutcomeRow, kernel_id};
use crate::{Db, DbError, Failure, KernelKey, KernelRecord, RunId, TrialKey};
use nvkv_spec::{GpuEnvironment, Outcome, Shape, SplitPolicy, Target};
use sqlx::FromRow;
use std::collections::{BTreeMap, HashMap, HashSet};

#[derive(FromRow)]
struct KeyRow {
    kernel_id: String,
    source_hash: String,
    nvrtc: String,
    #[sqlx(json(nullable))]
    shape: Option<Shape>,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
}

impl KeyRow {
    fn key(self) -> Result<TrialKey, sqlx::Error> {
        let kernel =
            KernelKey { kernel_id: kernel_id(self.kernel_id)?, source_hash: self.source_hash, nvrtc: self.nvrtc };
        Ok(TrialKey { kernel, shape: self.shape, split: self.split })
    }
}

#[derive(FromRow)]
struct FailureRow {
    kernel_id: String,
    #[sqlx(json(nullable))]
    shape: Option<Shape>,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    #[sqlx(flatten)]
    outcome: OutcomeRow,
}

/// A failure of a whole kernel.
#[derive(FromRow)]
struct KernelFailureRow {
    kernel_id: String,
    source_hash: String,
    nvrtc: String,
    #[sqlx(flatten)]
    outcome: OutcomeRow,
}

impl Db {
    /// The trials that need not be run again on this target and GPU, failures included: those of
    /// the same platform (of no GPU where `environment` is none), and failed compiles of any,
    /// since no GPU has a part in them. Compilers that crashed or were late are not among them: the
    /// machine may have been at fault (no memory left, too much to do), so they run again.
    pub fn done(&self, target: Target, environment: Option<&GpuEnvironment>) -> Result<HashSet<TrialKey>, DbError> {
        self.run(async |connection| {
            let rows: Vec<KeyRow> = sqlx::query_as(
                "SELECT DISTINCT k.kernel_id, k.source_hash, k.nvrtc, s.json AS shape, p.json AS split
                 FROM standing_trials AS t
                 JOIN kernel_records AS k ON k.kernel = t.kernel
                 LEFT JOIN environments AS e ON e.id = t.environment
                 LEFT JOIN shapes AS s ON s.id = t.shape
                 LEFT JOIN splits AS p ON p.id = t.split
                 WHERE k.target = ?1 AND ((e.name IS ?2 AND e.sms IS ?3 AND e.driver IS ?4) OR t.outcome = 'compile_failed')
                   AND NOT (t.outcome IN ('crashed', 'timeout') AND t.stage = 'compile')",
            )
            .bind(target.name())
            .bind(environment.map(|e| &e.name))
            .bind(environment.map(|e| e.sms))
            .bind(environment.map(|e| &e.driver))
            .fetch_all(connection)
            .await?;
            rows.into_iter().map(KeyRow::key).collect()
        })
    }

    /// The kernels that failed at every shape, at compiling or against the reference, and how they did the
    /// last time: those of [`Self::done`] that have no shape.
    pub fn failed_kernels(
        &self,
        target: Target,
        environment: Option<&GpuEnvironment>,
    ) -> Result<HashMap<KernelKey, Outcome>, DbError> {
        self.run(async |connection| {
            let rows: Vec<KernelFailureRow> = sqlx::query_as(
                "SELECT k.kernel_id, k.source_hash, k.nvrtc,
                        t.outcome, t.stage, t.message, t.error, t.cases, t.limit_s, t.predicted_us
                 FROM standing_trials AS t
                 JOIN kernel_records AS k ON k.kernel = t.kernel
                 LEFT JOIN environments AS e ON e.id = t.environment
                 WHERE k.target = ?1 AND t.shape IS NULL AND t.outcome <> 'emulated'
                   AND ((e.name IS ?2 AND e.sms IS ?3 AND e.driver IS ?4) OR t.outcome = 'compile_failed')
                   AND NOT (t.outcome IN ('crashed', 'timeout') AND t.stage = 'compile')
                 ORDER BY t.id",
            )
            .bind(target.name())
            .bind(environment.map(|e| &e.name))
            .bind(environment.map(|e| e.sms))
            .bind(environment.map(|e| &e.driver))
            .fetch_all(connection)
            .await?;
            rows.into_iter().map(kernel_failure).collect()
        })
    }

    /// The kernel of this source and NVRTC, if it was ever recorded.
    pub fn kernel_by_source(&self, target: Target, key: &KernelKey) -> Result<Option<KernelRecord>, DbError> {
        self.run(async |connection| {
            let row: Option<KernelRow> = sqlx::query_as(
                "SELECT * FROM kernel_records
                 WHERE target = ? AND kernel_id = ? AND source_hash = ? AND nvrtc = ?",
            )
            .bind(target.name())
            .bind(key.kernel_id.as_str())
            .bind(&key.source_hash)
            .bind(&key.nvrtc)
            .fetch_optional(connection)
            .await?;
            row.map(KernelRow::record).transpose()
        })
    }

    /// How many trials of a run ended how, by [`nvkv_spec::Outcome::kind`].
    pub fn outcomes(&self, run: RunId) -> Result<BTreeMap<String, u64>, DbError> {
        self.run(async |connection| {
            let rows: Vec<(String, i64)> =
                sqlx::query_as("SELECT outcome, count(*) FROM trials WHERE run = ? GROUP BY outcome")
                    .bind(run.0)
                    .fetch_all(connection)
                    .await?;
            Ok(rows.into_iter().map(|(kind, n)| (kind, n.unsigned_abs())).collect())
        })
    }

    /// The failed trials of a run in the order recorded, with their reasons.
    pub fn failures(&self, run: RunId) -> Result<Vec<Failure>, DbError> {
        self.run(async |connection| {
            let rows: Vec<FailureRow> = sqlx::query_as(
                "SELECT k.kernel_id, s.json AS shape, p.json AS split,
                        t.outcome, t.stage, t.message, t.error, t.cases, t.limit_s, t.predicted_us
                 FROM trials AS t
                 JOIN kernel_records AS k ON k.kernel = t.kernel
                 LEFT JOIN shapes AS s ON s.id = t.shape
                 LEFT JOIN splits AS p ON p.id = t.split
                 WHERE t.run = ? AND t.outcome NOT IN ('timed', 'compiled_only', 'emulated')
                 ORDER BY t.id",
            )
            .bind(run.0)
            .fetch_all(connection)
            .await?;
            rows.into_iter().map(failure).collect()
        })
    }
}

fn failure(row: FailureRow) -> Result<Failure, sqlx::Error> {
    Ok(Failure {
        kernel_id: kernel_id(row.kernel_id)?,
        shape: row.shape,
        split: row.split,
        outcome: row.outcome.outcome()?,
    })
}

fn kernel_failure(row: KernelFailureRow) -> Result<(KernelKey, Outcome), sqlx::Error> {
    let kernel_id = kernel_id(row.kernel_id)?;
    let key = KernelKey { kernel_id, source_hash: row.source_hash, nvrtc: row.nvrtc };
    Ok((key, row.outcome.outcome()?))
}
