//! Opening: what is there is checked before anything is written, then brought up to date.

use crate::{Db, DbError, filesystem};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteLockingMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use std::path::Path;
use std::time::{Duration, Instant};

static MIGRATIONS: Migrator = sqlx::migrate!();

/// `PRAGMA application_id` of the first migration: 'nvkv'.
const APPLICATION_ID: i32 = 0x6e76_6b76;

/// How long another process may hold the file before that is an error.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// How a database is held open.
#[derive(Clone, Copy)]
struct Access {
    busy_timeout: Duration,
    /// The write-ahead log lets readers and another tuner in, but needs memory that all processes
    /// share. Without it: a rollback journal, and the file held by one process at a time.
    shared: bool,
}

impl Db {
    /// Opens the database at `path` for tuning: makes the file and its folder where they are
    /// missing, checks an existing file, and brings its schema up to date.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::Foreign`] and [`DbError::NewerSchema`] leave the file as it
    /// was; [`DbError::CannotOpen`], [`DbError::ReadOnly`], [`DbError::Busy`], [`DbError::DiskFull`].
    pub fn open(path: &Path) -> Result<Self, DbError> {
        let folder = filesystem::folder(path);
        std::fs::create_dir_all(folder).map_err(|e| DbError::CannotOpen {
            path: path.to_path_buf(),
            reason: format!("cannot make the folder {}: {e}", folder.display()),
        })?;
        let network = filesystem::network(folder);
        let mut db = open_with(path, Access { busy_timeout: BUSY_TIMEOUT, shared: network.is_none() })?;
        db.notices.extend(network.map(|name| {
            format!(
                "{} is on {name}, which has no reliable locks: one process at a time may use it. A local --db is \
                 faster and can be shared.",
                path.display()
            )
        }));
        Ok(db)
    }

    /// Opens the database at `path` to look things up; nothing is written to it.
    ///
    /// # Errors
    /// [`DbError::Missing`], [`DbError::OlderSchema`] (only tuning migrates), [`DbError::UnfinishedLog`],
    /// and those of [`Self::open`].
    pub fn open_read_only(path: &Path) -> Result<Self, DbError> {
        if !path.exists() {
            return Err(DbError::Missing { path: path.to_path_buf() });
        }
        let options = options(path, BUSY_TIMEOUT).read_only(true);
        match Self::connect(path, async || read_checked(path, &options).await) {
            // A log-mode file wants files beside it even to be read, unless it cannot change.
            Err(DbError::CannotOpen { .. } | DbError::ReadOnly { .. })
                if !filesystem::writable(filesystem::folder(path)) =>
            {
                if log_is_pending(path) {
                    return Err(DbError::UnfinishedLog { path: path.to_path_buf() });
                }
                let options = options.immutable(true);
                Self::connect(path, async || read_checked(path, &options).await)
            }
            result => result,
        }
    }
}

/// Opens for writing. Everything up to the migration is one transaction, so that two processes
/// that open a new file at once agree on who makes its tables.
fn open_with(path: &Path, access: Access) -> Result<Db, DbError> {
    let mut options = options(path, access.busy_timeout).create_if_missing(true);
    if !access.shared {
        options = options.locking_mode(SqliteLockingMode::Exclusive);
    }
    Db::connect(path, async || {
        let mut connection = options.connect().await.map_err(|e| DbError::new(path, e))?;
        match prepare(path, &mut connection, access).await {
            Ok(()) => Ok(connection),
            Err(e) => {
                let _ = connection.close().await; // the first error is the one to report
                Err(e)
            }
        }
    })
}

async fn prepare(path: &Path, connection: &mut SqliteConnection, access: Access) -> Result<(), DbError> {
    let sql = |e| DbError::new(path, e);
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(sql)?;
    check_identity(path, &mut transaction).await?;
    check_pages(path, &mut transaction).await?;
    MIGRATIONS.run(&mut *transaction).await.map_err(|e| DbError::migration(path, newest_known(), e))?;
    transaction.commit().await.map_err(sql)?;
    set_journal(connection, access).await.map_err(sql)
}

async fn read_checked(path: &Path, options: &SqliteConnectOptions) -> Result<SqliteConnection, DbError> {
    let mut connection = options.connect().await.map_err(|e| DbError::new(path, e))?;
    let (found, known) = (check_identity(path, &mut connection).await?, newest_known());
    if found < known {
        return Err(DbError::OlderSchema { path: path.to_path_buf(), found, known });
    }
    Ok(connection)
}

fn options(path: &Path, busy_timeout: Duration) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .foreign_keys(true)
        .busy_timeout(busy_timeout)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
}

fn newest_known() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

/// The schema version of an nvkv database, 0 for an empty file; an error for anything else.
async fn check_identity(path: &Path, connection: &mut SqliteConnection) -> Result<i64, DbError> {
    let sql = |e| DbError::new(path, e);
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&mut *connection).await.map_err(sql)?;
    if tables == 0 {
        return Ok(0);
    }
    let id: i32 = sqlx::query_scalar("PRAGMA application_id").fetch_one(&mut *connection).await.map_err(sql)?;
    if id != APPLICATION_ID {
        return Err(DbError::Foreign { path: path.to_path_buf() });
    }
    let found: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(connection)
        .await
        .map_err(sql)?;
    let known = newest_known();
    if found > known {
        return Err(DbError::NewerSchema { path: path.to_path_buf(), found, known });
    }
    Ok(found)
}

/// Reads every page once (half a second for a million samples): damage is found before it spreads.
async fn check_pages(path: &Path, connection: &mut SqliteConnection) -> Result<(), DbError> {
    let detail: String =
        sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(connection).await.map_err(|e| DbError::new(path, e))?;
    if detail == "ok" { Ok(()) } else { Err(DbError::Corrupt { path: path.to_path_buf(), detail }) }
}

/// Switches the journal mode. SQLite does not wait for others there, so this does.
async fn set_journal(connection: &mut SqliteConnection, access: Access) -> Result<(), sqlx::Error> {
    let statement = if access.shared { "PRAGMA journal_mode = WAL" } else { "PRAGMA journal_mode = DELETE" };
    let deadline = Instant::now() + access.busy_timeout;
    loop {
        match sqlx::query(statement).execute(&mut *connection).await {
            Err(e) if crate::error::is_busy(&e) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result.map(drop),
        }
    }
}

/// Whether a write-ahead log with content lies beside `path`.
fn log_is_pending(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).is_ok_and(|m| m.len() > 0)
}
