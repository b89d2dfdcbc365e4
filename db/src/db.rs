//! The handle: one connection and the runtime that drives it.

use crate::DbError;
use sqlx::{Connection, SqliteConnection};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// An open database. Methods block: don't call them from async code. It may move between threads,
/// and be shared behind a mutex.
pub struct Db {
    pub(crate) path: PathBuf,
    runtime: Runtime,
    /// Gone only while the handle is dropped.
    connection: RefCell<Option<SqliteConnection>>,
    pub(crate) notices: Vec<String>,
}

impl Db {
    /// A handle of the database at `path` whose connection `connect` makes.
    pub(crate) fn connect(
        path: &Path,
        connect: impl AsyncFnOnce() -> Result<SqliteConnection, DbError>,
    ) -> Result<Self, DbError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| DbError::CannotOpen { path: path.to_path_buf(), reason: e.to_string() })?;
        let connection = runtime.block_on(connect())?;
        Ok(Self { path: path.to_path_buf(), runtime, connection: RefCell::new(Some(connection)), notices: Vec::new() })
    }

    /// Runs `work` on the connection.
    pub(crate) fn run<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, DbError> {
        self.check(async |connection| work(connection).await.map_err(|e| DbError::new(&self.path, e)))
    }

    /// The same for work that says itself what is wrong.
    pub(crate) fn check<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, DbError>,
    ) -> Result<T, DbError> {
        match self.connection.borrow_mut().as_mut() {
            Some(connection) => self.runtime.block_on(work(connection)),
            None => Err(DbError::new(&self.path, sqlx::Error::WorkerCrashed)),
        }
    }

    /// What the user should be told about this database (it is on a network file system).
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

impl Drop for Db {
    /// Waits for SQLite to close the file, so that its log is folded in when the process goes on.
    fn drop(&mut self) {
        if let Some(connection) = self.connection.get_mut().take() {
            // What was recorded is on disk already: an error here loses nothing.
            let _ = self.runtime.block_on(connection.close());
        }
    }
}
