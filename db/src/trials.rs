//! Every trial in force with its samples, and the runs they come from: what reports and exports are made of.

use crate::row::{EnvironmentRow, KernelRow, OutcomeRow, target};
use crate::{Db, DbError, MeasurementId, NewRun, RunId, Times, TrialId, TrialRecord};
use nvkv_spec::{GpuEnvironment, Shape, SplitPolicy, Target};
use sqlx::types::Json;
use sqlx::{FromRow, SqliteConnection};
use std::collections::{BTreeMap, HashMap};

/// A trial in force of its key (the view `current_trials`), of a kernel that is not stale.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Its row.
    pub id: TrialId,
    /// The run that recorded it.
    pub run: RunId,
    /// When, UTC, RFC 3339.
    pub created_at: String,
    /// What was recorded.
    pub record: TrialRecord,
    /// Its samples summed up; none unless it was timed.
    pub times: Option<Times>,
    /// Whether its kernel failed somewhere on the same GPU (the view `quarantined`), so that it wins at no shape.
    pub quarantined: bool,
}

/// One invocation of the tuner, as far as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its row.
    pub id: RunId,
    /// How it started.
    pub start: NewRun,
    /// When it ended, UTC, RFC 3339; none while it runs, or where it was killed.
    pub finished_at: Option<String>,
    /// Highest read bandwidth that a plain read reached, GB/s; none where nothing was measured.
    pub read_ceiling_gbps: Option<f64>,
    /// What the GPU was doing, as [`Db::note_gpu`] stored it.
    pub gpu_state: Option<serde_json::Value>,
}

impl Db {
    /// The trials in force of one target, or of all, in the order recorded.
    pub fn trials(&self, of: Option<Target>) -> Result<Vec<Trial>, DbError> {
        self.run(async |connection| {
            let mut samples = samples_by_trial(connection, None).await?;
            let rows: Vec<TrialRow> = sqlx::query_as(
                "SELECT t.id, t.run, t.created_at, s.json AS shape, p.json AS split, t.is_default, t.bytes,
                        t.outcome, t.stage, t.message, t.error, t.cases, t.limit_s, t.predicted_us,
                        (t.kernel, coalesce(t.environment, 0)) IN (
                            SELECT kernel, coalesce(environment, 0) FROM quarantined
                        ) AS quarantined,
                        k.*
                 FROM current_trials AS t
                 JOIN kernel_records AS k ON k.kernel = t.kernel
                 LEFT JOIN shapes AS s ON s.id = t.shape
                 LEFT JOIN splits AS p ON p.id = t.split
                 WHERE t.kernel IN (SELECT id FROM live_kernels) AND (?1 IS NULL OR k.target = ?1)
                 ORDER BY t.id",
            )
            .bind(of.map(Target::name))
            .fetch_all(connection)
            .await?;
            rows.into_iter()
                .map(|row| (samples.remove(&row.id), row))
                .map(|(s, row)| row.trial(s.unwrap_or_default()))
                .collect()
        })
    }

    /// The runs of one target, or of all, the first first.
    pub fn runs(&self, of: Option<Target>) -> Result<Vec<Run>, DbError> {
        self.run(async |connection| {
            let measured: Vec<EnvironmentOfRun> =
                sqlx::query_as("SELECT r.id AS run, e.* FROM runs AS r JOIN environments AS e ON e.id = r.environment")
                    .fetch_all(&mut *connection)
                    .await?;
            let mut environments: HashMap<i64, GpuEnvironment> =
                measured.into_iter().map(|row| (row.run, row.environment.into())).collect();
            let rows: Vec<RunRow> = sqlx::query_as(
                "SELECT id, started_at, finished_at, command, target, preset, search, generator, nvrtc,
                        measurement_policy, read_ceiling_gbps, gpu_state
                 FROM runs WHERE ?1 IS NULL OR target = ?1 ORDER BY id",
            )
            .bind(of.map(Target::name))
            .fetch_all(connection)
            .await?;
            rows.into_iter().map(|row| (environments.remove(&row.id), row)).map(|(e, row)| row.run(e)).collect()
        })
    }
}

/// Measurement, which is a round, and time of each call, µs, in the order taken.
pub(crate) type Samples = Vec<(Option<i64>, f64)>;

/// The samples of every trial after `after`. Apart from the trials, as numbers: JSON would round them.
pub(crate) async fn samples_by_trial(
    c: &mut SqliteConnection,
    after: Option<TrialId>,
) -> Result<HashMap<i64, Samples>, sqlx::Error> {
    let rows: Vec<(i64, Option<i64>, f64)> = sqlx::query_as(
        "SELECT trial, measurement, microseconds FROM samples WHERE trial > coalesce(?, 0) ORDER BY trial, idx",
    )
    .bind(after.map(|trial| trial.0))
    .fetch_all(c)
    .await?;
    let mut samples: HashMap<i64, Samples> = HashMap::new();
    for (trial, measurement, microseconds) in rows {
        samples.entry(trial).or_default().push((measurement, microseconds));
    }
    Ok(samples)
}

/// Samples as a [`TrialRecord`] has them: times, and their measurements where these are known.
pub(crate) fn apart(samples: &Samples) -> (Vec<f64>, Vec<MeasurementId>) {
    let measurements = samples.iter().map_while(|(measurement, _)| measurement.map(MeasurementId)).collect();
    (samples.iter().map(|(_, microseconds)| *microseconds).collect(), measurements)
}

#[derive(FromRow)]
struct TrialRow {
    id: i64,
    run: i64,
    created_at: String,
    #[sqlx(json(nullable))]
    shape: Option<Shape>,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    is_default: bool,
    bytes: i64,
    #[sqlx(flatten)]
    outcome: OutcomeRow,
    quarantined: bool,
    #[sqlx(flatten)]
    kernel: KernelRow,
}

impl TrialRow {
    fn trial(self, samples: Samples) -> Result<Trial, sqlx::Error> {
        let mut rounds: BTreeMap<Option<i64>, Vec<f64>> = BTreeMap::new();
        samples.iter().for_each(|&(round, microseconds)| rounds.entry(round).or_default().push(microseconds));
        let times = Times::of(&rounds.into_values().collect::<Vec<_>>());
        let (samples, measurements) = apart(&samples);
        Ok(Trial {
            id: TrialId(self.id),
            run: RunId(self.run),
            created_at: self.created_at,
            record: TrialRecord {
                kernel: self.kernel.record()?,
                shape: self.shape,
                split: self.split,
                is_default: self.is_default,
                outcome: self.outcome.outcome()?,
                bytes: self.bytes.unsigned_abs(),
                samples,
                measurements,
            },
            times,
            quarantined: self.quarantined,
        })
    }
}

#[derive(FromRow)]
struct EnvironmentOfRun {
    run: i64,
    #[sqlx(flatten)]
    environment: EnvironmentRow,
}

#[derive(FromRow)]
struct RunRow {
    id: i64,
    started_at: String,
    finished_at: Option<String>,
    command: String,
    target: String,
    preset: String,
    search: String,
    generator: String,
    nvrtc: String,
    measurement_policy: Option<String>,
    read_ceiling_gbps: Option<f64>,
    gpu_state: Option<Json<serde_json::Value>>,
}

impl RunRow {
    fn run(self, environment: Option<GpuEnvironment>) -> Result<Run, sqlx::Error> {
        let start = NewRun {
            started_at: self.started_at,
            command: self.command,
            target: target(&self.target)?,
            preset: self.preset,
            search: self.search,
            generator: self.generator,
            nvrtc: self.nvrtc,
            environment,
            measurement_policy: self.measurement_policy,
        };
        Ok(Run {
            id: RunId(self.id),
            start,
            finished_at: self.finished_at,
            read_ceiling_gbps: self.read_ceiling_gbps,
            gpu_state: self.gpu_state.map(|state| state.0),
        })
    }
}
