//! Files: made, migrated, refused, read where nothing can be written.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{calm, failed, place, record_rounds, timed, tuning};
use nvkv_db::{Db, DbError, WinnerFilter};
use nvkv_spec::{Outcome, Target};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Opening for tuning must fail, say something with `words`, and leave the folder as it was; of a
/// damaged file SQLite may leave its empty log behind.
fn refused(path: &Path, words: &[&str]) -> DbError {
    let folder = path.ancestors().find(|folder| folder.is_dir() && *folder != path).unwrap();
    let before = contents(folder);
    let error = Db::open(path).map(|_| ()).unwrap_err();
    for word in words {
        assert!(error.to_string().contains(word), "`{word}` is missing in: {error}");
    }
    let mut after = contents(folder);
    after.retain(|(name, bytes)| !(name.ends_with("-shm") || name.ends_with("-wal") && bytes.is_empty()));
    let sizes = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, b)| (name.clone(), b.len())).collect::<Vec<_>>();
    assert!(after == before, "something was written: {:?}, was {:?}", sizes(&after), sizes(&before));
    error
}

fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// A closed database with some trials, a few hundred KiB.
fn filled(path: &Path) {
    let (mut db, run) = tuning(path);
    for warps in 1..40 {
        db.record(run, &timed(warps, &vec![10.0; 300])).unwrap();
    }
}

#[test]
fn opening_makes_folders_and_the_schema_and_again_changes_nothing() {
    let (folder, _) = place();
    let path = folder.path().join("a/b/nvkv.sqlite");
    drop(Db::open(&path).unwrap());
    let first = contents(path.parent().unwrap());
    assert_eq!(first.len(), 1, "the log is folded in on closing");
    drop(Db::open(&path).unwrap());
    assert!(contents(path.parent().unwrap()) == first);
    assert!(Db::open(&path).unwrap().notices().is_empty());
}

#[test]
fn an_empty_file_is_a_new_database() {
    let (_folder, path) = place();
    std::fs::write(&path, "").unwrap();
    drop(Db::open(&path).unwrap());
    assert!(Db::open_read_only(&path).is_ok());
}

#[test]
fn garbage_is_refused_and_untouched() {
    // xorshift: bytes that no format expects.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut noise = |n: usize| -> Vec<u8> {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..n).map(|_| next()).collect()
    };
    for bytes in [noise(1), noise(10), noise(100), noise(5000), noise(100_000), b"hello, this is text\n".repeat(500)] {
        let (_folder, path) = place();
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(refused(&path, &["nothing was changed", ".recover", "aside"]), DbError::Corrupt { .. }));
        assert!(matches!(Db::open_read_only(&path), Err(DbError::Corrupt { .. })));
    }
}

#[test]
fn a_damaged_database_is_refused_and_untouched() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 4] = [
        ("garbage in the header", |b| b[..16].copy_from_slice(b"not SQLite at al")),
        ("cut in the middle", |b| b.truncate(b.len() / 2)),
        ("cut inside a page", |b| b.truncate(b.len() - 1000)),
        ("a page overwritten in the middle", |b| {
            let page = b.len() / 2 / 4096 * 4096;
            b[page..page + 4096].fill(0xa5);
        }),
    ];
    for (name, damage) in damages {
        let (_folder, path) = place();
        filled(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(refused(&path, &["damaged", ".recover"]), DbError::Corrupt { .. }), "{name}");
    }
}

/// Runs `sql` on the file with another SQLite client.
fn execute(path: &Path, sql: &'static str) {
    use sqlx::{ConnectOptions, Connection, Executor};
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        connection.execute(sql).await.unwrap();
        connection.close().await.unwrap();
    });
}

#[test]
fn a_newer_schema_is_refused_with_both_versions() {
    let (_folder, path) = place();
    filled(&path);
    execute(&path, "INSERT INTO _sqlx_migrations VALUES (900, 'from the future', '2030-01-01', true, x'00', 0)");
    let words = ["schema 900", &format!("up to {}", newest()), "upgrade nvkv", "name another file"];
    assert!(matches!(refused(&path, &words), DbError::NewerSchema { found: 900, .. }));
    assert!(matches!(Db::open_read_only(&path), Err(DbError::NewerSchema { found: 900, .. })));
}

#[test]
fn an_older_schema_is_migrated_by_tuning_or_merging_and_not_by_reading() {
    let (_folder, path) = place();
    filled(&path);
    let whole = Db::open(&path).unwrap().winners(&WinnerFilter::of(Target::Sm90a)).unwrap();
    let (_folder, old) = place();
    with_schema_2(&old, &path);
    let error = Db::open_read_only(&old).map(|_| ()).unwrap_err();
    assert!(matches!(error, DbError::OlderSchema { found: 2, known, .. } if known == newest()), "{error}");
    assert!(error.to_string().contains(&format!("nvkv-tune merge {} -o", old.display())), "{error}");
    let new = old.with_file_name("new.sqlite");
    Db::merge(std::slice::from_ref(&old), &new, false).unwrap();
    assert_eq!(Db::open_read_only(&new).unwrap().winners(&WinnerFilter::of(Target::Sm90a)).unwrap().len(), whole.len());
    assert!(matches!(Db::open_read_only(&old), Err(DbError::OlderSchema { .. })), "an input stays as it is");
    let mut db = Db::open(&old).unwrap();
    assert_eq!(db.winners(&WinnerFilter::of(Target::Sm90a)).unwrap(), whole, "every trial and sample is still there");
    let run = db.begin_run(&common::run(None)).unwrap();
    db.record(run, &failed(1, Outcome::Emulated { error: 1e-4, cases: 3 })).unwrap();
}

/// As a tune records them: a first look at all in one round, then a run-off of some in five.
#[test]
fn the_trials_in_force_of_schema_7_stay_so() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    for warps in 1..9 {
        db.record(run, &timed(warps, &[10.0; 8])).unwrap();
    }
    for warps in 1..4 {
        record_rounds(&mut db, run, timed(warps, &[]), &calm(10.0));
    }
    drop(db);
    let schema_5 = include_str!("../migrations/0005_history.sql");
    let (start, end) =
        (schema_5.find("DROP VIEW current_trials").unwrap(), schema_5.find("-- The failures that").unwrap());
    execute(&path, &schema_5[start..end]);
    execute(&path, "DELETE FROM _sqlx_migrations WHERE version = 8");
    let before = in_force(&path);
    let db = Db::open(&path).unwrap();
    assert_eq!(db.winners(&WinnerFilter::of(Target::Sm90a)).unwrap()[0].times.rounds, 5);
    drop(db);
    assert_eq!((in_force(&path), before.len()), (before, 8));
}

/// Rows of the trials in force.
fn in_force(path: &Path) -> Vec<i64> {
    use sqlx::{ConnectOptions, Connection};
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut c = sqlx::sqlite::SqliteConnectOptions::new().filename(path).connect().await.unwrap();
        let ids = sqlx::query_scalar("SELECT id FROM current_trials ORDER BY id").fetch_all(&mut c).await.unwrap();
        c.close().await.unwrap();
        ids
    })
}

/// The newest schema.
fn newest() -> i64 {
    sqlx::migrate!().iter().map(|m| m.version).max().unwrap()
}

/// Makes a database of schema 2 at `path`, with what the newer one at `from` holds.
fn with_schema_2(path: &Path, from: &Path) {
    use sqlx::{ConnectOptions, Connection, Executor, migrate::Migrator};
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut migrations = sqlx::migrate!().iter().cloned().collect::<Vec<_>>();
        migrations.truncate(2);
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        Migrator::with_migrations(migrations).run(&mut connection).await.unwrap();
        sqlx::query("ATTACH ? AS newer").bind(from.to_str()).execute(&mut connection).await.unwrap();
        let copied = "INSERT INTO environments SELECT * FROM newer.environments;
            INSERT INTO runs SELECT id, started_at, finished_at, command, target, preset, generator, nvrtc, environment,
                measurement_policy, read_ceiling_gbps, gpu_state FROM newer.runs;
            INSERT INTO problems SELECT * FROM newer.problems;
            INSERT INTO variants SELECT * FROM newer.variants;
            INSERT INTO kernels SELECT * FROM newer.kernels;
            INSERT INTO shapes SELECT * FROM newer.shapes;
            INSERT INTO splits SELECT * FROM newer.splits;
            INSERT INTO trials (id, run, kernel, shape, split, is_default, outcome, error, bytes, created_at)
                SELECT id, run, kernel, shape, split, is_default, outcome, error, bytes, created_at FROM newer.trials;
            INSERT INTO samples SELECT trial, idx, microseconds FROM newer.samples";
        connection.execute(copied).await.unwrap();
        connection.close().await.unwrap();
    });
}

#[test]
fn another_programs_database_is_refused_and_untouched() {
    let (_folder, path) = place();
    execute(&path, "CREATE TABLE bookmarks (url TEXT)");
    assert!(matches!(refused(&path, &["another program", "Name another file"]), DbError::Foreign { .. }));
    assert!(matches!(Db::open_read_only(&path), Err(DbError::Foreign { .. })));
}

#[test]
fn what_names_no_file_is_refused() {
    for name in ["", ":memory:", "file:trials?mode=memory", "file:trials.sqlite"] {
        for opened in [Db::open(Path::new(name)), Db::open_read_only(Path::new(name))] {
            let error = opened.map(|_| ()).unwrap_err();
            assert!(
                matches!(error, DbError::NotAFile { .. }) && error.to_string().contains("path of a file"),
                "{error}"
            );
        }
    }
    let (folder, _) = place();
    let odd = folder.path().join("file:trials.sqlite");
    drop(Db::open(&odd).unwrap());
    assert!(odd.exists());
}

#[test]
fn a_database_without_its_tables_is_told_with_the_next_step() {
    let (_folder, path) = place();
    filled(&path);
    execute(&path, "DROP VIEW contenders");
    let db = Db::open_read_only(&path).unwrap();
    let error = db.winners(&WinnerFilter::of(Target::Sm90a)).unwrap_err().to_string();
    assert!(
        error.contains("contenders") && error.contains("name another file") && error.contains("restore"),
        "{error}"
    );
}

#[test]
fn a_missing_file_is_not_made_by_reading() {
    let (folder, path) = place();
    let error = Db::open_read_only(&path).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no database at") && error.contains("nvkv-tune --db"), "{error}");
    assert!(contents(folder.path()).is_empty());
}

#[test]
fn a_folder_in_the_way_is_named() {
    let (folder, path) = place();
    std::fs::create_dir(&path).unwrap();
    refused(&path, &["it is a folder", "name another file"]);
    let read = Db::open_read_only(&path).map(|_| ()).unwrap_err();
    let merged = Db::merge(&[folder.path().join("a")], &path, true).unwrap_err();
    let input = Db::merge(std::slice::from_ref(&path), &folder.path().join("a"), true).unwrap_err();
    for error in [read, merged, input] {
        assert!(matches!(&error, DbError::CannotOpen { reason, .. } if reason == "it is a folder"), "{error}");
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    refused(&folder.path().join("file/nvkv.sqlite"), &["cannot make the folder"]);
}

/// What the child of [`a_read_only_folder_can_be_read_and_not_written`] does, as an ordinary user.
#[test]
#[ignore = "run by its parent"]
fn child_without_rights() {
    let Some(path) = std::env::var_os("NVKV_TEST_DB") else { return };
    let path = Path::new(&path);
    let winners = |db: Db| db.winners(&WinnerFilter::of(Target::Sm90a)).unwrap().len();
    assert_eq!(winners(Db::open_read_only(path).unwrap()), 1);
    let error = Db::open(path).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("read-only") && error.contains("name another file"), "{error}");
    let new = path.with_file_name("new.sqlite");
    let error = Db::open(&new).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no permission to make it"), "{error}");
    let error = Db::open_read_only(&path.with_file_name("copy.sqlite")).map(|_| ()).unwrap_err();
    assert!(matches!(error, DbError::UnfinishedLog { .. }), "{error}");
}

#[test]
fn a_read_only_folder_can_be_read_and_not_written() {
    let (folder, path) = place();
    filled(&path);
    // A copy of a database in use: its last trials are only in the log.
    let (mut db, id) = tuning(&path);
    db.record(id, &timed(50, &[1.0])).unwrap();
    std::fs::copy(&path, folder.path().join("copy.sqlite")).unwrap();
    std::fs::copy(path.with_file_name("nvkv.sqlite-wal"), folder.path().join("copy.sqlite-wal")).unwrap();
    drop(db);
    for file in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::set_permissions(file.unwrap().path(), PermissionsExt::from_mode(0o444)).unwrap();
    }
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o555)).unwrap();
    let before = contents(folder.path());

    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_without_rights", "--ignored", "--nocapture"]).env("NVKV_TEST_DB", &path);
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        child.uid(65_534).gid(65_534); // nobody: the superuser may write everywhere
    }
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    assert!(contents(folder.path()) == before, "reading wrote something");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
}
