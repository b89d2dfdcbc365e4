//! What can go wrong with a database file: each with its cause and the next step.

use std::path::PathBuf;

/// A database cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// Nothing is there to read.
    #[error("no database at {path}; `nvkv-tune --db {path}` makes one", path = path.display())]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// SQLite refused.
    #[error("{path}: {source}", path = path.display())]
    Sql {
        /// The database.
        path: PathBuf,
        /// SQLite's words.
        #[source]
        source: sqlx::Error,
    },
}
