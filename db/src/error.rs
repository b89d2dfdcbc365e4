//! What can go wrong with a database file: each with its cause and the next step. How a file is named is the caller's
//! affair (an option, an argument, a parameter of the runtime), so no option is named.

use std::path::{Path, PathBuf};

/// A database cannot be opened, read or written. `path` is the database file throughout.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// Nothing is there to read.
    #[error("no database at {}; `nvkv-tune --db {0}` makes one", .path.display())]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// The file cannot be opened or made.
    #[error("cannot open the database {}: {reason}; name another file", .path.display())]
    CannotOpen {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A result would take the place of what is there.
    #[error("{} exists; name another file, or replace it with --force", .path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// What is there took up trials while its replacement was made of an older state.
    #[error("{} was written to meanwhile, and stays as it is; merge again when nobody tunes into it", .path.display())]
    Changed {
        /// Where.
        path: PathBuf,
    },
    /// A name that SQLite would take for something else than a file.
    #[error(
        "`{}` names no file, so trials would be lost at the end; give the path of a file (./{0} if that is its name)",
        .path.display()
    )]
    NotAFile {
        /// What was given.
        path: PathBuf,
    },
    /// The file or its folder cannot be written.
    #[error(
        "the database {} is read-only; make the file and its folder writable, or name another file",
        .path.display()
    )]
    ReadOnly {
        /// Where.
        path: PathBuf,
    },
    /// A log with recent trials lies beside the file, and reading it needs a writable folder.
    #[error(
        "the database {} was not closed and its folder is read-only; run `sqlite3 {0} .tables` once where the \
         folder is writable, then copy it again", .path.display()
    )]
    UnfinishedLog {
        /// Where.
        path: PathBuf,
    },
    /// Not SQLite, or damaged.
    #[error(
        "{} is not a database or is damaged ({detail}); nothing was changed. Move it aside to start anew, or try \
         `sqlite3 {0} .recover`", .path.display()
    )]
    Corrupt {
        /// Where.
        path: PathBuf,
        /// What SQLite found.
        detail: String,
    },
    /// A SQLite database of another program.
    #[error("{} is a database of another program; nothing was changed. Name another file", .path.display())]
    Foreign {
        /// Where.
        path: PathBuf,
    },
    /// Made by a newer nvkv.
    #[error(
        "the database {} has schema {found}, this nvkv knows up to {known}; upgrade nvkv, or name another file",
        .path.display()
    )]
    NewerSchema {
        /// Where.
        path: PathBuf,
        /// The file's schema version.
        found: i64,
        /// The newest version this binary knows.
        known: i64,
    },
    /// Made by an older nvkv, and opened for reading only.
    #[error(
        "the database {} has schema {found}, this nvkv reads {known}; `nvkv-tune merge {0} -o NEW.sqlite` writes it \
         anew in that schema, without a GPU, and tuning with `nvkv-tune --db {0}` brings it up to date in its place",
        .path.display()
    )]
    OlderSchema {
        /// Where.
        path: PathBuf,
        /// The file's schema version.
        found: i64,
        /// The version this binary reads.
        known: i64,
    },
    /// The schema could not be brought up to date.
    #[error(
        "cannot bring the schema of {} up to date: {source}; nothing was changed. Name another file, or \
         read it with the nvkv that made it", .path.display()
    )]
    Migration {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    /// No space is left.
    #[error(
        "no space left for the database {}; free some and run the same command again: it goes on from there",
        .path.display()
    )]
    DiskFull {
        /// Where.
        path: PathBuf,
    },
    /// The disk failed to read or write.
    #[error("the disk fails under the database {}: {detail}; what was recorded is kept. Check the disk, quotas and `ulimit -f`, or \
         name a file on another disk", .path.display())]
    Disk {
        /// Where.
        path: PathBuf,
        /// SQLite's words.
        detail: String,
    },
    /// Another process holds the file for longer than the time limit.
    #[error(
        "the database {} is held by another process (another nvkv-tune?); wait for it to end, or name another file",
        .path.display()
    )]
    Busy {
        /// Where.
        path: PathBuf,
    },
    /// The caller gave a trial that contradicts itself: a defect of nvkv.
    #[error("trial of {kernel}: {problem}")]
    InvalidTrial {
        /// The kernel.
        kernel: nvkv_spec::KernelId,
        /// The contradiction.
        problem: &'static str,
    },
    /// Anything else that SQLite or a row's decoding says.
    #[error(
        "the database {} is not as nvkv made it: {source}. If another program changed it, restore a copy or name \
         another file; if none did, this is a defect of nvkv", .path.display()
    )]
    Sql {
        /// Where.
        path: PathBuf,
        /// SQLite's words.
        #[source]
        source: sqlx::Error,
    },
}

/// SQLite's primary result codes, <https://www.sqlite.org/rescode.html>.
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const NOTADB: i32 = 26;

impl DbError {
    /// The error of the database at `path` that SQLite's result code names.
    pub(crate) fn new(path: &Path, source: sqlx::Error) -> Self {
        let path = path.to_path_buf();
        let detail = || source.as_database_error().map_or_else(|| source.to_string(), |e| e.message().to_string());
        match primary_code(&source) {
            _ if is_busy(&source) => Self::Busy { path },
            Some(READONLY) => Self::ReadOnly { path },
            Some(CORRUPT | NOTADB) => Self::Corrupt { detail: detail(), path },
            Some(IOERR) => Self::Disk { detail: detail(), path },
            Some(FULL) => Self::DiskFull { path },
            Some(CANTOPEN) => Self::CannotOpen { reason: cannot_open(&path), path },
            _ => Self::Sql { path, source },
        }
    }

    /// The error of the database at `path` that stopped its migration to version `known`.
    pub(crate) fn migration(path: &Path, known: i64, source: sqlx::migrate::MigrateError) -> Self {
        use sqlx::migrate::MigrateError::{Execute, ExecuteMigration, VersionMissing};
        match source {
            Execute(e) | ExecuteMigration(e, _) => Self::new(path, e),
            VersionMissing(found) => Self::NewerSchema { path: path.to_path_buf(), found, known },
            source => Self::Migration { path: path.to_path_buf(), source },
        }
    }
}

/// Refuses what SQLite reads as a database in memory, or as a URI whose options decide what it is; and a folder, which it
/// opens for reading and then takes for a failing disk.
pub(crate) fn require_file(path: &Path) -> Result<(), DbError> {
    let text = path.to_string_lossy();
    if text.is_empty() || text.starts_with(":memory:") || text.starts_with("file:") {
        return Err(DbError::NotAFile { path: path.to_path_buf() });
    }
    if path.is_dir() {
        return Err(DbError::CannotOpen { path: path.to_path_buf(), reason: "it is a folder".into() });
    }
    Ok(())
}

/// SQLite's result code without its extension.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Whether another process is in the way.
pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(BUSY | LOCKED))
}

/// SQLite says only that it cannot: the file system may know why.
fn cannot_open(path: &Path) -> String {
    match std::fs::metadata(path) {
        Ok(_) => "no permission to read it, or to write its folder".into(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "no permission to make it in its folder".into(),
        Err(e) => e.to_string(),
    }
}
