//! Quarantine: the kernels that are left out because they failed, and letting them be tried again.

use crate::row::{OutcomeRow, kernel_id, target};
use crate::{Db, DbError};
use nvkv_spec::{KernelId, Outcome, Target};
use serde::Serialize;
use sqlx::FromRow;

/// A kernel that is left out, and its last failure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quarantined {
    /// The kernel.
    pub kernel: KernelId,
    /// Its target.
    pub target: Target,
    /// BLAKE3 of its source, hex.
    pub source_hash: String,
    /// NVRTC's version.
    pub nvrtc: String,
    /// Where it failed; none for the compiler or the emulator.
    pub place: Option<Place>,
    /// When it failed, UTC, RFC 3339.
    pub created_at: String,
    /// How.
    pub outcome: Outcome,
}

/// A board and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The board's name.
    pub gpu: String,
    /// Its UUID.
    pub uuid: String,
    /// The driver's version.
    pub driver: String,
}

/// Which failures no longer count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// Those of the kernel of this id, on every target and GPU.
    Kernel(String),
    /// Those of one kind, as [`Outcome::kind`] names it, of whichever kernel.
    Kind(String),
}

#[derive(FromRow)]
struct Row {
    kernel_id: String,
    target: String,
    source_hash: String,
    nvrtc: String,
    gpu: Option<String>,
    uuid: Option<String>,
    driver: Option<String>,
    created_at: String,
    #[sqlx(flatten)]
    outcome: OutcomeRow,
}

impl Row {
    fn quarantined(self) -> Result<Quarantined, sqlx::Error> {
        let place = self.gpu.zip(self.uuid).zip(self.driver);
        Ok(Quarantined {
            kernel: kernel_id(self.kernel_id)?,
            target: target(&self.target)?,
            source_hash: self.source_hash,
            nvrtc: self.nvrtc,
            place: place.map(|((gpu, uuid), driver)| Place { gpu, uuid, driver }),
            created_at: self.created_at,
            outcome: self.outcome.outcome()?,
        })
    }
}

impl Db {
    /// The kernels that a tune leaves out, stale ones too, each with its last failure a platform, in order of target and
    /// name: view `barring_trials`.
    pub fn quarantined(&self) -> Result<Vec<Quarantined>, DbError> {
        self.run(async |connection| {
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT k.kernel_id, k.target, k.source_hash, k.nvrtc, e.name AS gpu, e.uuid, e.driver, t.created_at,
                        t.outcome, t.stage, t.message, t.error, t.cases, t.limit_s, t.predicted_us
                 FROM trials AS t
                 JOIN kernel_records AS k ON k.kernel = t.kernel
                 JOIN runs AS r ON r.id = t.run
                 LEFT JOIN environments AS e ON e.id = r.environment
                 WHERE t.id IN (SELECT max(id) FROM barring_trials GROUP BY kernel, environment)
                 ORDER BY k.target, k.kernel_id, t.id",
            )
            .fetch_all(connection)
            .await?;
            rows.into_iter().map(Row::quarantined).collect()
        })
    }

    /// Lets kernels be tried again: their failures stay, and no longer count. Gives the number of kernels; one that fails
    /// again is left out again. `released_at` in UTC, RFC 3339.
    pub fn release(&mut self, which: &Release, released_at: &str, command: &str) -> Result<u64, DbError> {
        let (kernel, kind) = match which {
            Release::Kernel(id) => (Some(id.as_str()), None),
            Release::Kind(kind) => (None, Some(kind.as_str())),
        };
        self.run(async |connection| {
            use sqlx::Connection;
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            let chosen = "FROM barring_trials AS t
                          JOIN kernels AS k ON k.id = t.kernel
                          JOIN variants AS v ON v.id = k.variant
                          WHERE (?1 IS NULL OR v.kernel_id = ?1) AND (?2 IS NULL OR t.outcome = ?2)";
            let count = sqlx::AssertSqlSafe(format!("SELECT count(DISTINCT t.kernel) {chosen}"));
            let kernels: i64 = sqlx::query_scalar(count).bind(kernel).bind(kind).fetch_one(&mut *transaction).await?;
            let insert = format!("INSERT INTO releases (trial, released_at, command) SELECT t.id, ?3, ?4 {chosen}");
            sqlx::query(sqlx::AssertSqlSafe(insert))
                .bind(kernel)
                .bind(kind)
                .bind(released_at)
                .bind(command)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
            Ok(kernels.unsigned_abs())
        })
    }
}
