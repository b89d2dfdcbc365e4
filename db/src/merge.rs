//! Merging: the union of several databases, as one.

use crate::aside::{self, Aside};
use crate::open::{Access, QUICK_TIMEOUT, check_pages, open_with, read_any_version};
use crate::{Db, DbError, filesystem};
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What a merge made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Merged {
    /// Trials of each input, in the order given.
    pub inputs: Vec<u64>,
    /// Trials of the result; fewer than those of the inputs together where inputs share some.
    pub trials: u64,
    /// Runs of the result.
    pub runs: u64,
}

/// How the rows of one table are told apart. A table without a column `id` is referred to by none.
struct Table {
    name: &'static str,
    /// Columns that identify a row across databases, references resolved; a unique index holds them.
    key: &'static [&'static str],
    /// The order of the result's rows, by `key` where it is empty.
    order: &'static str,
    /// Which of two versions of a row holds, as a whole: the first in this order. It is total, so that the result
    /// does not depend on the order of the inputs.
    prefer: &'static str,
}

/// Every table of the schema, each after those it refers to.
const TABLES: [Table; 13] = [
    // The facts of a board are the same wherever it was seen.
    table(
        "environments",
        &["uuid", "driver"],
        "",
        "name, capability_major, capability_minor, sms, l2_bytes DESC, \
           memory_bytes DESC, max_sm_clock DESC, max_memory_clock DESC",
    ),
    // A copy that was taken while a run went on does not know its end.
    table("runs", &["identity"], "clock, identity", "finished_at DESC, read_ceiling_gbps DESC, gpu_state DESC"),
    table("measurements", &["run", "number"], "", "round, state_before, state_after"),
    table("problems", &["key"], "", "json"),
    table("variants", &["kernel_id"], "", "json"),
    // One source under two compilers of one version number may give two cubins: any, but always the same one.
    table("kernels", &["target", "variant", "source_hash", "nvrtc"], "", "cubin_hash DESC, generator, registers DESC"),
    table("shapes", &["key"], "", "json"),
    table("splits", &["key"], "", "json"),
    // What any tune was asked for (null, which comes first) is no split.
    table("buckets", &["target", "problem", "shape"], "", "split_from"),
    table("trials", &["run", "clock"], "clock, run", "created_at"),
    table("samples", &["trial", "idx"], "", "microseconds"),
    table("releases", &["trial"], "", "released_at, command"),
    table("carried", &["trial"], "", "origin"),
];

const fn table(name: &'static str, key: &'static [&'static str], order: &'static str, prefer: &'static str) -> Table {
    Table { name, key, order, prefer }
}

impl Db {
    /// Writes the union of the databases `inputs` to `output`: associative, commutative and idempotent, in the rows
    /// themselves and so in the winners. The inputs stay as they are, may be in use, and may be of an older schema; the
    /// output appears whole, or not at all. One that exists is replaced where `replace` says so (it may be an input too).
    /// What a killed merge left beside the output is removed, on a local file system.
    ///
    /// Nothing is dropped: both sides of a conflict are in the result, and the views decide by evidence, as they do in
    /// a database that was never merged. Of the trials of one key (kernel, shape, split, platform):
    /// 1. a failure holds until it is released;
    /// 2. a measured trial holds before one that was carried over, and both before a prediction;
    /// 3. more rounds of measuring before fewer, then more samples before fewer (`0008_rounds.sql`);
    /// 4. the later before the earlier, by the hybrid logical clock of `0005_history.sql`, then by the run's identity.
    ///
    /// Of two versions of one row (a copy was taken while its run went on) the later one holds.
    ///
    /// # Errors
    /// [`DbError::Exists`], also where another process makes the output meanwhile; [`DbError::Changed`] where it does so
    /// although it may be replaced, or records in one that is to be replaced; [`DbError::Busy`] where that is in use; those of
    /// [`Self::open`] and [`Self::open_read_only`], each with the path of the file at fault.
    pub fn merge(inputs: &[PathBuf], output: &Path, replace: bool) -> Result<Merged, DbError> {
        crate::error::require_file(output)?;
        // A link stays one: what it names is replaced. (One that names nothing is in the way.)
        let named = if output.is_symlink() { output.canonicalize().ok() } else { None };
        let output = named.as_deref().unwrap_or(output);
        let before = match (output.exists(), replace) {
            (true, false) => return Err(DbError::Exists { path: output.to_path_buf() }),
            (true, true) => Some(read_any_version(output)?.size()?),
            (false, _) => None,
        };
        let folder = filesystem::folder(output);
        let cannot = |action: &str| {
            let reason = format!("cannot {action} the folder {}", folder.display());
            move |e: std::io::Error| DbError::CannotOpen {
                path: output.to_path_buf(),
                reason: format!("{reason}: {e}"),
            }
        };
        std::fs::create_dir_all(folder).map_err(cannot("make"))?;
        aside::remove_stale(folder);
        let aside = Aside::new(folder).map_err(cannot("write to"))?;
        let merged = aside.path().join("merged.sqlite");
        let told = |e| at(output, e);
        let result = open_with(&merged, ALONE).map_err(told)?;
        for (number, input) in (0i64..).zip(inputs) {
            let copy = aside.path().join("input.sqlite");
            snapshot(input, &copy, output)?;
            result.run(async |c| stage(c, number, &copy).await).map_err(told)?;
            std::fs::remove_file(&copy).map_err(cannot("write to"))?;
        }
        let counts = result.run(async |c| unite(c, inputs.len()).await).map_err(told)?;
        drop(result); // closed: it is in one file now
        File::open(&merged).and_then(|file| file.sync_all()).map_err(cannot("write to"))?;
        let placed = put_in_place(&merged, output, before).map_err(|e| match e {
            DbError::Exists { path } if replace => DbError::Changed { path },
            e => e,
        });
        placed?.map_err(cannot("write to"))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot("sync"))?;
        Ok(counts)
    }
}

/// Renames `merged` to `output`: one that was there with these rows is replaced, if nothing was recorded in it since; where
/// none was, none that appeared since is.
fn put_in_place(merged: &Path, output: &Path, before: Option<Size>) -> Result<std::io::Result<()>, DbError> {
    let path = || output.to_path_buf();
    let Some(before) = before else {
        let placed = tempfile::TempPath::try_from_path(merged).and_then(|m| Ok(m.persist_noclobber(output)?));
        return match placed {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(DbError::Exists { path: path() }),
            other => Ok(other),
        };
    };
    // Held for itself while it is replaced: who uses it would write into a file without a name.
    let held = open_with(output, ALONE)?;
    if held.size()? != before {
        return Err(DbError::Changed { path: path() });
    }
    let placed = std::fs::rename(merged, output);
    drop(held);
    Ok(placed)
}

/// Runs, trials and samples of a database: each only ever grows.
type Size = (i64, i64, i64);

impl Db {
    fn size(&self) -> Result<Size, DbError> {
        let counts =
            "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM trials), (SELECT count(*) FROM samples)";
        self.run(async |c| sqlx::query_as(counts).fetch_one(c).await)
    }
}

/// No other process has a part in these files, and the result is synced before it is put in place.
const ALONE: Access = Access { busy_timeout: QUICK_TIMEOUT, shared: false, synced: false };

/// The error with the path that the user knows.
fn at(path: &Path, error: DbError) -> DbError {
    match error {
        DbError::DiskFull { .. } => DbError::DiskFull { path: path.to_path_buf() },
        DbError::Disk { detail, .. } => DbError::Disk { path: path.to_path_buf(), detail },
        DbError::Sql { source, .. } => DbError::Sql { path: path.to_path_buf(), source },
        other => other,
    }
}

/// Copies the database at `from` to `to` as of one moment, and brings the copy's schema up to date. A disk that is full is
/// that of `output`, beside which `to` lies.
fn snapshot(from: &Path, to: &Path, output: &Path) -> Result<(), DbError> {
    let of_disk = |path, error| match error {
        DbError::DiskFull { .. } => at(output, error),
        error => at(path, error),
    };
    let input = read_any_version(from)?;
    let path = to.to_string_lossy().into_owned();
    input.check(async |c| check_pages(from, c).await)?;
    input.run(async |c| sqlx::query("VACUUM INTO ?").bind(path).execute(c).await).map_err(|e| of_disk(from, e))?;
    drop(input);
    open_with(to, ALONE).map(drop).map_err(|e| of_disk(from, e))
}

/// Reads the rows of one input as they are, under its number.
async fn stage(c: &mut SqliteConnection, number: i64, input: &Path) -> Result<(), sqlx::Error> {
    sqlx::query("ATTACH ? AS input").bind(input.to_string_lossy().into_owned()).execute(&mut *c).await?;
    for Table { name, .. } in &TABLES {
        let columns = columns(c, name).await?.join(", ");
        if number == 0 {
            let empty =
                format!("CREATE TEMP TABLE staged_{name} AS SELECT 0 AS input, {columns} FROM main.{name} WHERE 0");
            execute(c, empty).await?;
        }
        let rows = format!("INSERT INTO staged_{name} SELECT {number}, {columns} FROM input.{name}");
        execute(c, rows).await?;
    }
    execute(c, "DETACH input".into()).await
}

/// Makes one database of what is staged, table by table; rows get their ids in an order that depends on them alone.
async fn unite(connection: &mut SqliteConnection, inputs: usize) -> Result<Merged, sqlx::Error> {
    let mut c = connection.begin_with("BEGIN IMMEDIATE").await?;
    for table in &TABLES {
        unite_table(&mut c, table).await?;
    }
    // Only in this a kernel's versions differ as a rule: the last run whose space held it.
    let seen = "UPDATE kernels SET seen_run =
                    (SELECT max(r.seen_run) FROM resolved_kernels AS r
                     JOIN ids_kernels AS i ON i.input = r.input AND i.old = r.id WHERE i.new = kernels.id)";
    execute(&mut c, seen.into()).await?;
    let mut counts = Merged { inputs: Vec::new(), trials: 0, runs: 0 };
    for input in 0..inputs {
        counts.inputs.push(count(&mut c, format!("staged_trials WHERE input = {input}")).await?);
    }
    counts.trials = count(&mut c, "main.trials".into()).await?;
    counts.runs = count(&mut c, "main.runs".into()).await?;
    c.commit().await?;
    Ok(counts)
}

/// Resolves the references of a table's staged rows, stores each row once, and notes which id each row got.
async fn unite_table(c: &mut SqliteConnection, Table { name, key, order, prefer }: &Table) -> Result<(), sqlx::Error> {
    let columns = columns(c, name).await?;
    let references: Vec<(String, String)> =
        sqlx::query_as("SELECT \"from\", \"table\" FROM pragma_foreign_key_list(?)")
            .bind(name)
            .fetch_all(&mut *c)
            .await?;
    let target = |column: &str| references.iter().find(|(from, _)| from == column).map(|(_, table)| table);
    let resolved = columns.iter().map(|column| match target(column) {
        Some(table) => {
            format!("(SELECT new FROM ids_{table} AS i WHERE i.input = s.input AND i.old = s.{column}) AS {column}")
        }
        None => column.clone(),
    });
    let resolved = resolved.collect::<Vec<_>>().join(", ");
    execute(c, format!("CREATE TEMP TABLE resolved_{name} AS SELECT input, {resolved} FROM staged_{name} AS s"))
        .await?;
    let stored = columns.iter().filter(|column| *column != "id").cloned().collect::<Vec<_>>().join(", ");
    let key_list = key.join(", ");
    let order = if order.is_empty() { &key_list } else { *order };
    let insert = format!(
        "INSERT INTO main.{name} ({stored}) SELECT {stored} FROM resolved_{name} WHERE true
         ORDER BY {order}, {prefer} ON CONFLICT ({key_list}) DO NOTHING"
    );
    execute(c, insert).await?;
    if columns.iter().any(|column| column == "id") {
        let same = key.iter().map(|column| format!("m.{column} = r.{column}")).collect::<Vec<_>>().join(" AND ");
        let ids = format!(
            "CREATE TEMP TABLE ids_{name} AS SELECT r.input, r.id AS old, m.id AS new
             FROM resolved_{name} AS r JOIN main.{name} AS m ON {same}"
        );
        execute(c, ids).await?;
        execute(c, format!("CREATE UNIQUE INDEX temp.ids_{name}_old ON ids_{name} (input, old)")).await?;
    }
    Ok(())
}

async fn columns(c: &mut SqliteConnection, table: &str) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT name FROM pragma_table_info(?)").bind(table).fetch_all(c).await
}

async fn count(c: &mut SqliteConnection, of: String) -> Result<u64, sqlx::Error> {
    let n: i64 = sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {of}"))).fetch_one(c).await?;
    Ok(n.unsigned_abs())
}

/// A statement made of names of this file and of the schema, no user's text.
async fn execute(c: &mut SqliteConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(statement)).execute(c).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::tests::run;

    /// What another process recorded while a merge was at work is not replaced by it.
    #[test]
    fn an_output_that_changed_or_appeared_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let merged = || {
            drop(Db::open(&at("merged.sqlite")).unwrap());
            at("merged.sqlite")
        };
        let output = at("output.sqlite");
        let mut db = Db::open(&output).unwrap();
        let before = db.size().unwrap();
        db.begin_run(&run(String::new())).unwrap();
        let recorded = db.size().unwrap();
        drop(db);
        let error = put_in_place(&merged(), &output, Some(before)).unwrap_err();
        assert!(matches!(error, DbError::Changed { .. }), "{error}");
        let error = put_in_place(&merged(), &output, None).unwrap_err();
        assert!(matches!(error, DbError::Exists { .. }), "{error}");
        assert_eq!(Db::open(&output).unwrap().size().unwrap(), recorded);
        put_in_place(&merged(), &output, Some(recorded)).unwrap().unwrap();
        assert_eq!(Db::open(&output).unwrap().size().unwrap(), before);
        put_in_place(&merged(), &at("new.sqlite"), None).unwrap().unwrap();
        assert!(at("new.sqlite").exists() && !at("merged.sqlite").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_as_output_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [input, output, link] =
            ["input.sqlite", "output.sqlite", "link.sqlite"].map(|name| folder.path().join(name));
        Db::open(&input).unwrap().begin_run(&run(String::new())).unwrap();
        drop(Db::open(&output).unwrap());
        std::os::unix::fs::symlink("output.sqlite", &link).unwrap();
        Db::merge(&[input], &link, true).unwrap();
        assert!(link.is_symlink() && output.is_file());
        assert_eq!(Db::open(&output).unwrap().size().unwrap().0, 1, "what the link names has the result");
    }

    /// A table or a reference that a migration adds must be told to this file, or a merge would lose its rows.
    #[test]
    fn every_table_is_merged_by_a_unique_key_after_those_it_refers_to() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&folder.path().join("db.sqlite")).unwrap();
        let names: Vec<String> = db
            .run(async |c| {
                let sql = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'
                           AND name NOT LIKE 'sqlite!_%' ESCAPE '!' AND name NOT LIKE '!_%' ESCAPE '!'";
                sqlx::query_scalar(sql).fetch_all(c).await
            })
            .unwrap();
        let mut merged: Vec<_> = TABLES.iter().map(|table| table.name.to_string()).collect();
        for (index, table) in TABLES.iter().enumerate() {
            let referred: Vec<String> = db
                .run(async |c| {
                    let sql = "SELECT \"table\" FROM pragma_foreign_key_list(?)";
                    sqlx::query_scalar(sql).bind(table.name).fetch_all(c).await
                })
                .unwrap();
            for other in referred {
                assert!(TABLES[..index].iter().any(|t| t.name == other), "{} before {other}", table.name);
            }
        }
        let mut names = names;
        names.sort();
        merged.sort();
        assert_eq!(merged, names);
    }
}
