//! Winners: what `contest` decides and the view `predicted_winners` says, each with its record.

use crate::contest::{Contender, Contest, contenders, decide};
use crate::regret;
use crate::row::{EnvironmentRow, KernelRow};
use crate::{Db, DbError, EnvironmentKey, KernelKey, KernelRecord, RunId, Times, TrialId};
use nvkv_spec::{GpuEnvironment, KernelId, Problem, Shape, SplitPolicy, Target};
use serde::Serialize;
use sqlx::types::Json;
use sqlx::{FromRow, SqliteConnection};
use std::collections::HashMap;

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

/// The default variant at the winner's shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DefaultTimes {
    /// Its median, µs.
    pub median_us: f64,
    /// Whether the winner is faster beyond noise (95 %). If nothing is, the default is the winner.
    pub beaten: bool,
}

/// A kernel and split that another tune of the same thing on the same GPU might find to be the winner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NearTie {
    /// The kernel.
    pub kernel_id: KernelId,
    /// The split policy; none for append.
    pub split: Option<SplitPolicy>,
    /// Its times.
    pub times: Times,
}

/// The verified kernel to use for one target, environment, problem and shape: within noise of the fastest, and never
/// one that does not beat the default beyond noise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Winner {
    /// The trial it rests on.
    pub trial: TrialId,
    /// The run of that trial.
    pub run: RunId,
    /// When the trial was recorded, UTC, RFC 3339.
    pub created_at: String,
    /// The trial of an identical cubin that its times are from, where it was not run itself.
    pub carried_from: Option<TrialId>,
    /// Where it was measured; of several boards of this model and driver the first.
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
    /// Which launches the run of the trial timed, as in [`crate::NewRun`]: the winner is one of those.
    pub search: String,
    /// The default variant at this shape; none where it was not timed.
    pub default: Option<DefaultTimes>,
    /// Near ties, the winner aside, fastest first.
    pub near_ties: Vec<NearTie>,
    /// How much slower than the best kernel it was, as a share, at the worst of the shapes that its bucket serves and that
    /// were measured ([`crate::Regret`]); none where none was.
    pub regret: Option<f64>,
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

/// A kernel that agreed with the reference in the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Emulated {
    /// Cases that were run.
    pub cases: u32,
    /// Largest relative L2 error over them.
    pub error: f64,
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
    /// What the emulator said of the kernel; none where it was compiled only.
    pub emulated: Option<Emulated>,
    /// The default's time by the same model, µs; none where it did not compile.
    pub default_predicted_us: Option<f64>,
}

impl Db {
    /// The winners that `filter` lets through, in order of problem, shape and environment.
    pub fn winners(&self, filter: &WinnerFilter) -> Result<Vec<Winner>, DbError> {
        self.run(async |connection| {
            let field = contenders(connection, filter).await?;
            let contests = decide(&field.at_buckets);
            let regrets = regret::worst(connection, &field, &contests).await?;
            let contests: HashMap<_, _> = contests.into_iter().map(|c| (c.winner.trial, c)).collect();
            let rows: Vec<WinnerRow> = sqlx::query_as(WINNERS)
                .bind(Json(contests.keys().collect::<Vec<_>>()))
                .bind(filter.shape.map(|s| s.key()))
                .fetch_all(connection)
                .await?;
            let winner = |row: WinnerRow| {
                let (contest, regret) = (contests.get(&row.trial)?, regrets.get(&row.trial).copied());
                Some(row.winner(contest, regret))
            };
            rows.into_iter().filter_map(winner).collect()
        })
    }

    /// What the model predicts for kernels that were compiled only, in order of problem and shape;
    /// `filter.environment` is ignored. A problem may have winners and predictions both.
    pub fn predicted_winners(&self, filter: &WinnerFilter) -> Result<Vec<PredictedWinner>, DbError> {
        self.run(async |connection| {
            let mut winners = Vec::new();
            for problem in problem_ids(connection, filter).await? {
                let rows: Vec<PredictedRow> = sqlx::query_as(PREDICTED_WINNERS)
                    .bind(filter.target.name())
                    .bind(problem)
                    .bind(filter.shape.map(|s| s.key()))
                    .fetch_all(&mut *connection)
                    .await?;
                winners.extend(rows.into_iter().map(PredictedRow::winner).collect::<Result<Vec<_>, _>>()?);
            }
            Ok(winners)
        })
    }
}

impl Db {
    /// Whether a kernel was no good on some GPU or in the emulator: wrong, at fault, crashed or hung there (the view
    /// `quarantined`), or refused by the driver at every shape.
    pub fn failed_where_run(&self, target: Target, key: &KernelKey) -> Result<bool, DbError> {
        self.run(async |connection| {
            sqlx::query_scalar(
                "SELECT EXISTS (
                    SELECT 1 FROM current_trials AS t JOIN kernel_records AS k ON k.kernel = t.kernel
                    WHERE k.target = ? AND k.kernel_id = ? AND k.source_hash = ? AND k.nvrtc = ?
                      AND (t.kernel IN (SELECT kernel FROM quarantined)
                           OR (t.outcome = 'launch_failed' AND t.shape IS NULL)))",
            )
            .bind(target.name())
            .bind(key.kernel_id.as_str())
            .bind(&key.source_hash)
            .bind(&key.nvrtc)
            .fetch_one(connection)
            .await
        })
    }
}

impl Db {
    /// What the emulator said of a kernel, the last time it agreed with the reference there.
    pub fn emulated(&self, target: Target, key: &KernelKey) -> Result<Option<Emulated>, DbError> {
        self.run(async |connection| {
            let row: Option<(u32, f64)> = sqlx::query_as(
                "SELECT t.cases, t.error
                 FROM trials AS t JOIN kernel_records AS k ON k.kernel = t.kernel
                 WHERE k.target = ? AND k.kernel_id = ? AND k.source_hash = ? AND k.nvrtc = ? AND t.outcome = 'emulated'
                 ORDER BY t.id DESC LIMIT 1",
            )
            .bind(target.name())
            .bind(key.kernel_id.as_str())
            .bind(&key.source_hash)
            .bind(&key.nvrtc)
            .fetch_optional(connection)
            .await?;
            Ok(row.map(|(cases, error)| Emulated { cases, error }))
        })
    }
}

const WINNERS: &str = "
    SELECT t.id AS trial, t.run, t.created_at,
           (SELECT origin FROM carried WHERE trial = t.id) AS carried_from, s.json AS shape, p.json AS split, t.is_default, t.error, t.bytes,
           r.read_ceiling_gbps, r.measurement_policy, r.search, k.*, e.*
    FROM json_each(?1) AS w
    JOIN trials AS t ON t.id = w.value
    JOIN runs AS r ON r.id = t.run
    JOIN shapes AS s ON s.id = t.shape
    JOIN kernel_records AS k ON k.kernel = t.kernel
    JOIN environments AS e ON e.id = r.environment
    LEFT JOIN splits AS p ON p.id = t.split
    WHERE ?2 IS NULL OR s.key = ?2
    ORDER BY k.problem_key, s.batch, s.context, s.tokens, s.kv_heads, e.name, e.uuid, e.driver";

const PREDICTED_WINNERS: &str = "
    SELECT w.trial, w.run, t.created_at, s.json AS shape, p.json AS split, w.is_default, w.predicted_us, t.bytes,
           w.default_predicted_us, m.cases AS emulated_cases, m.error AS emulated_error, k.*
    FROM predicted_winners AS w
    JOIN trials AS t ON t.id = w.trial
    JOIN shapes AS s ON s.id = w.shape
    JOIN kernel_records AS k ON k.kernel = w.kernel
    LEFT JOIN splits AS p ON p.id = w.split
    LEFT JOIN trials AS m
        ON m.id = (SELECT max(id) FROM trials WHERE kernel = w.kernel AND shape IS NULL AND outcome = 'emulated')
    WHERE w.target = ?1 AND (?2 IS NULL OR w.problem = ?2) AND (?3 IS NULL OR s.key = ?3)
    ORDER BY k.problem_key, s.batch, s.context, s.tokens, s.kv_heads";

/// The rows of the filter's problems, in order of their names; one `None` where it wants them all. A problem is filtered
/// by its row's id, a constant that SQLite carries into a view: by a name that is joined to it, the view would be
/// worked out for every problem first.
pub(crate) async fn problem_ids(
    c: &mut SqliteConnection,
    filter: &WinnerFilter,
) -> Result<Vec<Option<i64>>, sqlx::Error> {
    if filter.problems.is_empty() {
        return Ok(vec![None]);
    }
    let keys: Vec<String> = filter.problems.iter().map(Problem::key).collect();
    sqlx::query_scalar("SELECT id FROM problems WHERE key IN (SELECT value FROM json_each(?)) ORDER BY key")
        .bind(Json(keys))
        .fetch_all(c)
        .await
}

#[derive(FromRow)]
struct WinnerRow {
    trial: i64,
    run: i64,
    created_at: String,
    carried_from: Option<i64>,
    #[sqlx(json)]
    shape: Shape,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    is_default: bool,
    error: f64,
    bytes: i64,
    read_ceiling_gbps: Option<f64>,
    measurement_policy: Option<String>,
    search: String,
    #[sqlx(flatten)]
    kernel: KernelRow,
    #[sqlx(flatten)]
    environment: EnvironmentRow,
}

impl WinnerRow {
    fn winner(self, contest: &Contest, regret: Option<f64>) -> Result<Winner, sqlx::Error> {
        let times = contest.winner.times;
        let beaten = |default: &Contender| DefaultTimes {
            median_us: default.times.median_us,
            beaten: times.beats_default(&default.times),
        };
        let others = contest.near.iter().filter(|near| near.trial != self.trial);
        Ok(Winner {
            trial: TrialId(self.trial),
            run: RunId(self.run),
            created_at: self.created_at,
            carried_from: self.carried_from.map(TrialId),
            environment: self.environment.into(),
            kernel: self.kernel.record()?,
            shape: self.shape,
            split: self.split,
            is_default: self.is_default,
            times,
            error: self.error,
            bytes: self.bytes.unsigned_abs(),
            read_ceiling_gbps: self.read_ceiling_gbps,
            measurement_policy: self.measurement_policy,
            search: self.search,
            default: contest.default.map(beaten),
            near_ties: others.map(|near| near_tie(near)).collect::<Result<_, _>>()?,
            regret,
        })
    }
}

fn near_tie(near: &Contender) -> Result<NearTie, sqlx::Error> {
    Ok(NearTie { kernel_id: near.kernel_id.clone(), split: near.split_policy()?, times: near.times })
}

#[derive(FromRow)]
struct PredictedRow {
    trial: i64,
    run: i64,
    created_at: String,
    #[sqlx(json)]
    shape: Shape,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    is_default: bool,
    predicted_us: f64,
    bytes: i64,
    default_predicted_us: Option<f64>,
    emulated_cases: Option<u32>,
    emulated_error: Option<f64>,
    #[sqlx(flatten)]
    kernel: KernelRow,
}

impl PredictedRow {
    fn winner(self) -> Result<PredictedWinner, sqlx::Error> {
        Ok(PredictedWinner {
            trial: TrialId(self.trial),
            run: RunId(self.run),
            created_at: self.created_at,
            kernel: self.kernel.record()?,
            shape: self.shape,
            split: self.split,
            is_default: self.is_default,
            predicted_us: self.predicted_us,
            bytes: self.bytes.unsigned_abs(),
            emulated: self.emulated_cases.zip(self.emulated_error).map(|(cases, error)| Emulated { cases, error }),
            default_predicted_us: self.default_predicted_us,
        })
    }
}
