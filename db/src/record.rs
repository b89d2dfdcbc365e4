//! Writing: runs, the kernels in force, and trials, each in one transaction.

use crate::row::OutcomeRow;
use crate::{Db, DbError, KernelKey, KernelRecord, Measurement, MeasurementId, NewRun, RunId, TrialId, TrialRecord};
use nvkv_spec::{GpuEnvironment, KernelId, Outcome, Shape, SplitPolicy};
use sqlx::types::Json;
use sqlx::{Connection, SqliteConnection};

impl Db {
    /// Starts a run.
    pub fn begin_run(&mut self, run: &NewRun) -> Result<RunId, DbError> {
        self.run(async |connection| {
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            let environment = match &run.environment {
                Some(environment) => Some(put_environment(&mut transaction, environment).await?),
                None => None,
            };
            let id = put_run(&mut transaction, run, environment).await?;
            transaction.commit().await?;
            Ok(RunId(id))
        })
    }

    /// Stores what the run saw of its GPU: the read ceiling (GB/s) and the state (clocks, throttle
    /// reasons, temperature, other processes). Called again, the later values hold.
    pub fn note_gpu(&mut self, run: RunId, read_ceiling_gbps: f64, state: &serde_json::Value) -> Result<(), DbError> {
        self.run(async |connection| {
            sqlx::query("UPDATE runs SET read_ceiling_gbps = ?2, gpu_state = ?3 WHERE id = ?1")
                .bind(run.0)
                .bind(read_ceiling_gbps)
                .bind(Json(state))
                .execute(connection)
                .await
                .map(drop)
        })
    }

    /// Stores a round of measuring; the trials that it timed refer to it.
    pub fn record_measurement(&mut self, run: RunId, measurement: &Measurement) -> Result<MeasurementId, DbError> {
        let Measurement { round, read_ceiling_gbps, sentinel_us, retaken, missing, state_before, state_after } =
            measurement;
        self.run(async |connection| {
            sqlx::query_scalar(
                "INSERT INTO measurements (run, number, round, read_ceiling_gbps, sentinel_us, retaken, missing,
                                           state_before, state_after)
                 VALUES (?1, (SELECT count(*) FROM measurements WHERE run = ?1), ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                 RETURNING id",
            )
            .bind(run.0)
            .bind(round)
            .bind(read_ceiling_gbps)
            .bind(sentinel_us)
            .bind(retaken)
            .bind(missing)
            .bind(Json(state_before))
            .bind(Json(state_after))
            .fetch_one(connection)
            .await
            .map(MeasurementId)
        })
    }

    /// Stores how long the GPU's part of a run took, and how much of that it waited for compilers, s.
    pub fn note_pace(&mut self, run: RunId, gpu_seconds: f64, idle_seconds: f64) -> Result<(), DbError> {
        self.run(async |connection| {
            sqlx::query("UPDATE runs SET gpu_seconds = ?2, gpu_idle_seconds = ?3 WHERE id = ?1")
                .bind(run.0)
                .bind(gpu_seconds)
                .bind(idle_seconds)
                .execute(connection)
                .await
                .map(drop)
        })
    }

    /// Ends a run; `finished_at` in UTC, RFC 3339.
    pub fn finish_run(&mut self, run: RunId, finished_at: &str) -> Result<(), DbError> {
        self.run(async |connection| {
            sqlx::query("UPDATE runs SET finished_at = ?2 WHERE id = ?1")
                .bind(run.0)
                .bind(finished_at)
                .execute(connection)
                .await
                .map(drop)
        })
    }

    /// Says which kernels the run's space consists of now. Kernels of the same id with another
    /// source or NVRTC become stale: they stay, and win nothing. Call it before [`Self::winners`],
    /// or a resumed run that records nothing new leaves the last run's kernels in force. Kernels
    /// that were never recorded are left out: recording them is enough.
    pub fn adopt(&mut self, run: RunId, kernels: &[KernelKey]) -> Result<(), DbError> {
        self.run(async |connection| {
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            for key in kernels {
                sqlx::query(
                    "UPDATE kernels SET seen_run = ?1
                     WHERE target = (SELECT target FROM runs WHERE id = ?1)
                       AND variant = (SELECT id FROM variants WHERE kernel_id = ?2)
                       AND source_hash = ?3 AND nvrtc = ?4 AND seen_run < ?1",
                )
                .bind(run.0)
                .bind(key.kernel_id.as_str())
                .bind(&key.source_hash)
                .bind(&key.nvrtc)
                .execute(&mut *transaction)
                .await?;
            }
            transaction.commit().await
        })
    }

    /// Stores one trial with its kernel and samples, in one transaction: durable when it returns. Its shape is a bucket of
    /// its problem from then on.
    pub fn record(&mut self, run: RunId, trial: &TrialRecord) -> Result<TrialId, DbError> {
        self.store(run, trial, true)
    }

    /// The same at a shape that is held out, to measure how the buckets serve there; one that is a bucket stays one.
    pub fn record_held_out(&mut self, run: RunId, trial: &TrialRecord) -> Result<TrialId, DbError> {
        self.store(run, trial, false)
    }

    fn store(&mut self, run: RunId, trial: &TrialRecord, asked: bool) -> Result<TrialId, DbError> {
        if let Some(problem) = contradiction(trial) {
            return Err(DbError::InvalidTrial { kernel: trial.kernel.key().kernel_id, problem });
        }
        self.run(async |connection| {
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            let id = put_trial(&mut transaction, run, trial).await?;
            put_samples(&mut transaction, id, trial).await?;
            if asked {
                put_bucket(&mut transaction, trial).await?;
            }
            transaction.commit().await?;
            Ok(TrialId(id))
        })
    }

    /// [`Self::record`], unless a trial of its key is there already, from whichever run on the same platform (or on no GPU): then nothing is stored. Several tuners at once store each prediction once this way.
    pub fn record_once(&mut self, run: RunId, trial: &TrialRecord) -> Result<Option<TrialId>, DbError> {
        if let Some(problem) = contradiction(trial) {
            return Err(DbError::InvalidTrial { kernel: trial.kernel.key().kernel_id, problem });
        }
        self.run(async |connection| {
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            if is_stored(&mut transaction, run, trial).await? {
                return Ok(None);
            }
            let id = put_trial(&mut transaction, run, trial).await?;
            put_samples(&mut transaction, id, trial).await?;
            put_bucket(&mut transaction, trial).await?;
            transaction.commit().await?;
            Ok(Some(TrialId(id)))
        })
    }
}

/// Whether a trial of this key was stored by a run on the platform of `run`.
pub(crate) async fn is_stored(c: &mut SqliteConnection, run: RunId, trial: &TrialRecord) -> Result<bool, sqlx::Error> {
    let key = trial.key();
    sqlx::query_scalar(
        "SELECT EXISTS (
             SELECT 1
             FROM standing_trials AS t
             JOIN kernels AS k ON k.id = t.kernel
             JOIN variants AS v ON v.id = k.variant
             WHERE v.kernel_id = ?2 AND k.target = ?3 AND k.source_hash = ?4 AND k.nvrtc = ?5
               AND t.shape IS (SELECT id FROM shapes WHERE key = ?6)
               AND t.split IS (SELECT id FROM splits WHERE key = ?7)
               AND t.environment IS (SELECT p.environment FROM runs AS r LEFT JOIN platforms AS p
                                     ON p.board = r.environment WHERE r.id = ?1)
         )",
    )
    .bind(run.0)
    .bind(key.kernel.kernel_id.as_str())
    .bind(trial.kernel.target.name())
    .bind(&key.kernel.source_hash)
    .bind(&key.kernel.nvrtc)
    .bind(key.shape.map(|shape| shape.key()))
    .bind(key.split.map(|split| split.to_string()))
    .fetch_one(c)
    .await
}

/// What the tables cannot check, or would refuse without saying why.
fn contradiction(trial: &TrialRecord) -> Option<&'static str> {
    let timed = matches!(trial.outcome, Outcome::Timed { .. });
    let compiled_only = matches!(trial.outcome, Outcome::CompiledOnly { .. });
    let emulated = matches!(trial.outcome, Outcome::Emulated { .. });
    if timed == trial.samples.is_empty() {
        Some("a timed trial has samples, another has none")
    } else if !trial.samples.iter().all(|us| us.is_finite() && *us > 0.0) {
        Some("a sample is not a positive time")
    } else if !trial.measurements.is_empty() && trial.measurements.len() != trial.samples.len() {
        Some("each sample has a measurement, or none has")
    } else if (timed || compiled_only) && trial.shape.is_none() {
        Some("a timed or predicted trial has a shape")
    } else if emulated && trial.shape.is_some() {
        Some("an emulated trial is about the kernel at every shape")
    } else if (timed || compiled_only || emulated) && trial.kernel.compiled.is_none() {
        Some("a timed, predicted or emulated trial has a compiled kernel")
    } else {
        None
    }
}

async fn put_environment(c: &mut SqliteConnection, e: &GpuEnvironment) -> Result<i64, sqlx::Error> {
    sqlx::query(
        "INSERT INTO environments (uuid, driver, name, capability_major, capability_minor, sms, l2_bytes,
                                   memory_bytes, max_sm_clock, max_memory_clock)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    )
    .bind(&e.uuid)
    .bind(&e.driver)
    .bind(&e.name)
    .bind(e.capability.0)
    .bind(e.capability.1)
    .bind(e.sms)
    .bind(e.l2_bytes.cast_signed())
    .bind(e.memory_bytes.cast_signed())
    .bind(e.max_sm_clock)
    .bind(e.max_memory_clock)
    .execute(&mut *c)
    .await?;
    sqlx::query_scalar("SELECT id FROM environments WHERE uuid = ? AND driver = ?")
        .bind(&e.uuid)
        .bind(&e.driver)
        .fetch_one(c)
        .await
}

async fn put_run(c: &mut SqliteConnection, run: &NewRun, environment: Option<i64>) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO runs (started_at, command, target, preset, search, generator, nvrtc, environment,
                           measurement_policy, identity, clock)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, lower(hex(randomblob(16))),
                 max(CAST(1e6 * unixepoch('subsec') AS INTEGER), (SELECT coalesce(max(clock), 0) + 1 FROM runs)))
         RETURNING id",
    )
    .bind(&run.started_at)
    .bind(&run.command)
    .bind(run.target.name())
    .bind(&run.preset)
    .bind(&run.search)
    .bind(&run.generator)
    .bind(&run.nvrtc)
    .bind(environment)
    .bind(&run.measurement_policy)
    .fetch_one(c)
    .await
}

pub(crate) async fn put_trial(c: &mut SqliteConnection, run: RunId, trial: &TrialRecord) -> Result<i64, sqlx::Error> {
    let kernel = put_kernel(c, run, &trial.kernel).await?;
    if let Some(shape) = &trial.shape {
        put_shape(c, shape).await?;
    }
    if let Some(split) = &trial.split {
        put_split(c, split).await?;
    }
    let outcome = OutcomeRow::from(&trial.outcome);
    sqlx::query_scalar(
        "INSERT INTO trials (run, kernel, shape, split, is_default, outcome, stage, message, error, cases, limit_s,
                             predicted_us, bytes, clock)
         VALUES (?, ?, (SELECT id FROM shapes WHERE key = ?), (SELECT id FROM splits WHERE key = ?),
                 ?, ?, ?, ?, ?, ?, ?, ?, ?,
                 max(CAST(1e6 * unixepoch('subsec') AS INTEGER), (SELECT coalesce(max(clock), 0) + 1 FROM trials)))
         RETURNING id",
    )
    .bind(run.0)
    .bind(kernel)
    .bind(trial.shape.map(|s| s.key()))
    .bind(trial.split.map(|s| s.to_string()))
    .bind(trial.is_default)
    .bind(outcome.outcome)
    .bind(outcome.stage)
    .bind(outcome.message)
    .bind(outcome.error)
    .bind(outcome.cases)
    .bind(outcome.limit_s)
    .bind(outcome.predicted_us)
    .bind(trial.bytes.cast_signed())
    .fetch_one(c)
    .await
}

/// The trial's shape as a bucket that was asked for, also where it was split from another before.
async fn put_bucket(c: &mut SqliteConnection, trial: &TrialRecord) -> Result<(), sqlx::Error> {
    let Some(shape) = &trial.shape else { return Ok(()) };
    sqlx::query(
        "INSERT INTO buckets (target, problem, shape)
         VALUES (?, (SELECT id FROM problems WHERE key = ?), (SELECT id FROM shapes WHERE key = ?))
         ON CONFLICT DO UPDATE SET split_from = NULL WHERE split_from IS NOT NULL",
    )
    .bind(trial.kernel.target.name())
    .bind(trial.kernel.problem.key())
    .bind(shape.key())
    .execute(c)
    .await
    .map(drop)
}

/// The row of `kernel`: new, or known and now part of `run`'s space. Compiler's facts that were
/// missing (an earlier compile crashed) are filled in; facts are never taken away.
async fn put_kernel(c: &mut SqliteConnection, run: RunId, kernel: &KernelRecord) -> Result<i64, sqlx::Error> {
    let variant = put_variant(c, kernel).await?;
    let facts = kernel.compiled.as_ref().map(|c| &c.facts);
    sqlx::query_scalar(
        "INSERT INTO kernels (target, variant, source_hash, nvrtc, generator, seen_run, cubin_hash, registers,
                              static_shared, spill_stores, spill_loads, stack, cubin_bytes, instructions)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (target, variant, source_hash, nvrtc) DO UPDATE SET
             seen_run = max(seen_run, excluded.seen_run),
             cubin_hash = coalesce(excluded.cubin_hash, cubin_hash),
             registers = coalesce(excluded.registers, registers),
             static_shared = coalesce(excluded.static_shared, static_shared),
             spill_stores = coalesce(excluded.spill_stores, spill_stores),
             spill_loads = coalesce(excluded.spill_loads, spill_loads),
             stack = coalesce(excluded.stack, stack),
             cubin_bytes = coalesce(excluded.cubin_bytes, cubin_bytes),
             instructions = coalesce(excluded.instructions, instructions)
         RETURNING id",
    )
    .bind(kernel.target.name())
    .bind(variant)
    .bind(&kernel.source_hash)
    .bind(&kernel.nvrtc)
    .bind(&kernel.generator)
    .bind(run.0)
    .bind(kernel.compiled.as_ref().map(|c| &c.cubin_hash))
    .bind(facts.map(|f| f.registers))
    .bind(facts.map(|f| f.static_shared))
    .bind(facts.map(|f| f.spill_stores))
    .bind(facts.map(|f| f.spill_loads))
    .bind(facts.map(|f| f.stack))
    .bind(facts.map(|f| f.cubin_bytes))
    .bind(facts.map(|f| f.instructions))
    .fetch_one(c)
    .await
}

async fn put_variant(c: &mut SqliteConnection, kernel: &KernelRecord) -> Result<i64, sqlx::Error> {
    let (problem, id) = (kernel.problem.key(), KernelId::new(&kernel.problem, &kernel.variant));
    sqlx::query("INSERT INTO problems (key, json) VALUES (?, ?) ON CONFLICT DO NOTHING")
        .bind(&problem)
        .bind(Json(&kernel.problem))
        .execute(&mut *c)
        .await?;
    sqlx::query(
        "INSERT INTO variants (problem, key, kernel_id, json)
         VALUES ((SELECT id FROM problems WHERE key = ?), ?, ?, ?) ON CONFLICT DO NOTHING",
    )
    .bind(&problem)
    .bind(kernel.variant.key())
    .bind(id.as_str())
    .bind(Json(&kernel.variant))
    .execute(&mut *c)
    .await?;
    sqlx::query_scalar("SELECT id FROM variants WHERE kernel_id = ?").bind(id.as_str()).fetch_one(c).await
}

async fn put_shape(c: &mut SqliteConnection, shape: &Shape) -> Result<(), sqlx::Error> {
    let (batch, context, tokens) = match *shape {
        Shape::Decode { batch, context, .. } => (Some(batch), Some(context), None),
        Shape::Append { tokens, .. } => (None, None, Some(tokens)),
    };
    sqlx::query(
        "INSERT INTO shapes (key, json, batch, context, tokens, kv_heads)
         VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    )
    .bind(shape.key())
    .bind(Json(shape))
    .bind(batch)
    .bind(context)
    .bind(tokens)
    .bind(shape.kv_heads())
    .execute(c)
    .await
    .map(drop)
}

async fn put_split(c: &mut SqliteConnection, split: &SplitPolicy) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO splits (key, json) VALUES (?, ?) ON CONFLICT DO NOTHING")
        .bind(split.to_string())
        .bind(Json(split))
        .execute(c)
        .await
        .map(drop)
}

pub(crate) async fn put_samples(c: &mut SqliteConnection, id: i64, trial: &TrialRecord) -> Result<(), sqlx::Error> {
    let measurements = trial.measurements.iter().map(|m| Some(m.0)).chain(std::iter::repeat(None));
    for ((idx, microseconds), measurement) in (0i64..).zip(&trial.samples).zip(measurements) {
        sqlx::query("INSERT INTO samples (trial, idx, microseconds, measurement) VALUES (?, ?, ?, ?)")
            .bind(id)
            .bind(idx)
            .bind(microseconds)
            .bind(measurement)
            .execute(&mut *c)
            .await?;
    }
    Ok(())
}
