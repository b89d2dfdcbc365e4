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

/// Bytes of SQLite's smallest page, and so of its smallest file.
const SMALLEST: u64 = 512;

/// How long another process may hold the file before that is an error.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// The same where nobody else has business with the file.
pub(crate) const QUICK_TIMEOUT: Duration = Duration::from_secs(2);

/// How a database is held open.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) busy_timeout: Duration,
    /// The write-ahead log lets readers and another tuner in, but needs memory that all processes
    /// share. Without it: a rollback journal, and the file held by one process at a time.
    pub(crate) shared: bool,
    /// Whether each commit waits for the disk. Not for a file that is put in its place when it is whole.
    pub(crate) synced: bool,
}

impl Db {
    /// Opens the database at `path` for tuning: makes the file and its folder where they are
    /// missing, checks an existing file, and brings its schema up to date.
    ///
    /// # Errors
    /// [`DbError::Corrupt`], [`DbError::Foreign`] and [`DbError::NewerSchema`] leave the file as it
    /// was; [`DbError::NotAFile`], [`DbError::CannotOpen`], [`DbError::ReadOnly`], [`DbError::Busy`], [`DbError::DiskFull`].
    pub fn open(path: &Path) -> Result<Self, DbError> {
        crate::error::require_file(path)?;
        let folder = filesystem::folder(path);
        std::fs::create_dir_all(folder).map_err(|e| DbError::CannotOpen {
            path: path.to_path_buf(),
            reason: format!("cannot make the folder {}: {e}", folder.display()),
        })?;
        let network = filesystem::network(folder);
        let mut db = open_with(path, Access { busy_timeout: BUSY_TIMEOUT, shared: network.is_none(), synced: true })?;
        db.notices.extend(network.map(|name| filesystem::notice(path, name)));
        Ok(db)
    }

    /// Opens the database at `path` to look things up; nothing is written to it.
    ///
    /// # Errors
    /// [`DbError::Missing`], [`DbError::OlderSchema`] (only tuning migrates), [`DbError::UnfinishedLog`],
    /// and those of [`Self::open`].
    pub fn open_read_only(path: &Path) -> Result<Self, DbError> {
        let db = read_any_version(path)?;
        let (found, known) = (db.check(async |c| check_identity(path, c).await)?, newest_known());
        if found < known {
            return Err(DbError::OlderSchema { path: path.to_path_buf(), found, known });
        }
        Ok(db)
    }
}

/// Opens the database at `path` for reading, whatever its schema's version up to this binary's.
pub(crate) fn read_any_version(path: &Path) -> Result<Db, DbError> {
    crate::error::require_file(path)?;
    if !path.exists() {
        return Err(DbError::Missing { path: path.to_path_buf() });
    }
    check_size(path, Empty::Damaged)?;
    let options = options(path, BUSY_TIMEOUT).read_only(true);
    match Db::connect(path, async || read_checked(path, &options).await) {
        // A log-mode file wants files beside it even to be read, unless it cannot change.
        Err(DbError::CannotOpen { .. } | DbError::ReadOnly { .. })
            if !filesystem::writable(filesystem::folder(path)) =>
        {
            if log_is_pending(path) {
                return Err(DbError::UnfinishedLog { path: path.to_path_buf() });
            }
            let options = options.immutable(true);
            Db::connect(path, async || read_checked(path, &options).await)
        }
        result => result,
    }
}

/// Opens for writing. Everything up to the migration is one transaction, so that two processes
/// that open a new file at once agree on who makes its tables.
pub(crate) fn open_with(path: &Path, access: Access) -> Result<Db, DbError> {
    check_size(path, Empty::New)?;
    let mut options = options(path, access.busy_timeout).create_if_missing(true);
    if !access.synced {
        options = options.synchronous(SqliteSynchronous::Off);
    }
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
    check_identity(path, &mut connection).await?;
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

/// What a file without a byte is.
#[derive(PartialEq)]
enum Empty {
    /// A database to be made.
    New,
    /// What a full disk leaves of one.
    Damaged,
}

/// A file of a few bytes: SQLite would take it for an empty one and write over it.
fn check_size(path: &Path, empty: Empty) -> Result<(), DbError> {
    let detail = match std::fs::metadata(path).map(|m| m.len()) {
        Ok(0) if empty == Empty::Damaged => "it is empty",
        Ok(1..SMALLEST) => "it is too short",
        _ => return Ok(()),
    };
    Err(DbError::Corrupt { path: path.to_path_buf(), detail: detail.into() })
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
pub(crate) async fn check_pages(path: &Path, connection: &mut SqliteConnection) -> Result<(), DbError> {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::NewRun;
    use nvkv_spec::Target;
    use std::path::PathBuf;

    const QUICK: Access = Access { busy_timeout: Duration::from_millis(100), shared: true, synced: true };

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvkv.sqlite");
        (folder, path)
    }

    /// A run on no GPU.
    pub(crate) fn run(command: String) -> NewRun {
        NewRun {
            started_at: "2026-11-29T10:00:00Z".into(),
            command,
            target: Target::Sm90a,
            preset: "quick".into(),
            search: "exhaustive".into(),
            generator: "0.1.0".into(),
            nvrtc: "13.0".into(),
            environment: None,
            measurement_policy: None,
        }
    }

    fn execute(db: &Db, statement: &'static str) {
        db.run(async |connection| sqlx::query(statement).execute(connection).await.map(drop)).unwrap();
    }

    fn text(db: &Db, query: &'static str) -> String {
        db.run(async |connection| sqlx::query_scalar(query).fetch_one(connection).await).unwrap()
    }

    fn runs(db: &Db) -> i64 {
        db.run(async |connection| sqlx::query_scalar("SELECT count(*) FROM runs").fetch_one(connection).await).unwrap()
    }

    #[test]
    fn a_held_file_is_busy_and_free_again_later() {
        let (_folder, path) = place();
        let holder = Db::open(&path).unwrap();
        let mut other = open_with(&path, QUICK).unwrap();
        execute(&holder, "BEGIN IMMEDIATE");
        let error = other.begin_run(&run(String::new())).unwrap_err();
        assert!(matches!(error, DbError::Busy { .. }) && error.to_string().contains("another process"), "{error}");
        assert!(matches!(open_with(&path, QUICK), Err(DbError::Busy { .. })));
        execute(&holder, "ROLLBACK");
        other.begin_run(&run(String::new())).unwrap();
    }

    #[test]
    fn a_full_disk_is_said_and_loses_nothing_that_was_stored() {
        let (_folder, path) = place();
        let mut db = Db::open(&path).unwrap();
        execute(&db, "PRAGMA max_page_count = 100"); // SQLite's own way to run out of space
        let mut stored = 0;
        let error = loop {
            match db.begin_run(&run("x".repeat(10_000))) {
                Ok(_) => stored += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(error, DbError::DiskFull { .. }) && error.to_string().contains("no space left"), "{error}");
        assert!(stored > 3, "{stored}");
        drop(db);
        let mut db = Db::open(&path).unwrap();
        assert_eq!(runs(&db), stored);
        db.begin_run(&run(String::new())).unwrap();
    }

    #[test]
    fn without_shared_memory_the_log_goes_and_one_process_holds_the_file() {
        let (_folder, path) = place();
        let mut db = Db::open(&path).unwrap();
        assert_eq!(text(&db, "PRAGMA journal_mode"), "wal");
        db.begin_run(&run(String::new())).unwrap();
        drop(db);

        let alone = Access { shared: false, ..QUICK };
        let mut db = open_with(&path, alone).unwrap();
        assert_eq!(text(&db, "PRAGMA journal_mode"), "delete");
        db.begin_run(&run(String::new())).unwrap();
        assert!(matches!(open_with(&path, alone), Err(DbError::Busy { .. })));
        drop(db);
        assert_eq!(runs(&Db::open_read_only(&path).unwrap()), 2);
    }

    #[test]
    fn commits_are_synced() {
        let (_folder, path) = place();
        let db = Db::open(&path).unwrap();
        let level: i64 = db.run(async |c| sqlx::query_scalar("PRAGMA synchronous").fetch_one(c).await).unwrap();
        assert_eq!(level, 2, "FULL");
    }

    fn is_send<T: Send>() {}

    #[test]
    fn a_database_may_be_shared_behind_a_mutex() {
        is_send::<Db>();
    }
}
