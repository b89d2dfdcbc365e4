//! Merging: laws that hold for any databases, and what is refused.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{calm, failed, gpu, place, predicted, record_rounds, run, shape, timed};
use nvkv_db::{Db, DbError, NewRun, TrialRecord, WinnerFilter};
use nvkv_spec::{Outcome, Target};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    /// A run on one of two boards of a model, another driver, or no GPU.
    Run(u8),
    /// A trial of the last run: kernel, shape, how it ends, samples.
    Trial { warps: u32, batch: u32, end: u8, samples: Vec<u32> },
    /// A trial of the last run at a shape between: kernel, samples; and the bucket is split there, or is not.
    HeldOut { warps: u32, samples: Vec<u32>, split: bool },
    /// The last run ends.
    Finish,
    /// What failed of a kernel is released.
    Release(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let trial = (1u32..4, 1u32..3, 0u8..6, prop::collection::vec(1u32..5, 1..4))
        .prop_map(|(warps, batch, end, samples)| Step::Trial { warps, batch, end, samples });
    let held_out = (1u32..4, prop::collection::vec(1u32..5, 1..4), prop::bool::ANY)
        .prop_map(|(warps, samples, split)| Step::HeldOut { warps, samples, split });
    let step = prop_oneof![
        2 => held_out,
        2 => (0u8..4).prop_map(Step::Run),
        8 => trial,
        1 => Just(Step::Finish),
        1 => (1u32..4).prop_map(Step::Release),
    ];
    prop::collection::vec(step, 0..10)
}

fn environment(which: u8) -> NewRun {
    let search = if which == 2 { "model" } else { "exhaustive" };
    let environment = match which {
        0 => None,
        1 => Some(gpu("GPU-1", "580.1")),
        2 => Some(gpu("GPU-2", "580.1")),
        _ => Some(gpu("GPU-1", "590.0")),
    };
    NewRun { search: search.into(), ..run(environment) }
}

/// Continues the history in the database at `path`.
fn play(path: &Path, steps: &[Step]) {
    let mut db = Db::open(path).unwrap();
    let mut last = db.begin_run(&environment(1)).unwrap();
    for step in steps {
        match step {
            Step::Run(which) => last = db.begin_run(&environment(*which)).unwrap(),
            Step::Finish => db.finish_run(last, "2026-11-29T10:05:00Z").unwrap(),
            Step::Release(warps) => {
                let kernel = timed(*warps, &[1.0]).kernel.key().kernel_id;
                db.release(&nvkv_db::Release::Kernel(kernel.to_string()), "2026-11-29T10:06:00Z", "a test").unwrap();
            }
            Step::HeldOut { warps, samples, split } => {
                let samples: Vec<f64> = samples.iter().map(|&us| f64::from(us)).collect();
                let (between, trial) = (shape(1, 8192), timed(*warps, &samples));
                db.record_held_out(last, &TrialRecord { shape: Some(between), ..trial }).unwrap();
                // A bucket that no tune knows yet has no row to be split from.
                if *split {
                    db.split_bucket(Target::Sm90a, &common::decode(128), &between, &shape(1, 4096)).unwrap();
                }
            }
            Step::Trial { warps, batch, end, samples } => {
                let samples: Vec<f64> = samples.iter().map(|&us| f64::from(us)).collect();
                let trial = match end {
                    0 => predicted(*warps, samples[0]),
                    1 => failed(*warps, Outcome::Wrong { error: f64::NAN, detail: "NaN".into() }),
                    2 => failed(*warps, Outcome::LaunchFailed { error: "no memory".into() }),
                    _ => timed(*warps, &samples),
                };
                let place = trial.shape.map(|_| shape(*batch, 4096));
                let trial = TrialRecord { shape: place, is_default: *warps == 1, ..trial };
                if *end == 3 {
                    let rounds: Vec<_> = samples.iter().map(|&us| vec![us]).collect();
                    record_rounds(&mut db, last, trial, &rounds);
                } else {
                    db.record(last, &trial).unwrap();
                }
            }
        }
    }
}

/// Everything in the file, row by row.
fn dump(path: &Path) -> Vec<String> {
    use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut c = sqlx::sqlite::SqliteConnectOptions::new().filename(path).connect().await.unwrap();
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '!_%' ESCAPE '!' ORDER BY name",
        )
        .fetch_all(&mut c)
        .await
        .unwrap();
        let mut all = Vec::new();
        for table in tables {
            let columns: Vec<String> = sqlx::query_scalar("SELECT quote(name) FROM pragma_table_info(?)")
                .bind(&table)
                .fetch_all(&mut c)
                .await
                .unwrap();
            let quoted: Vec<_> = columns.iter().map(|name| format!("quote({})", name.trim_matches('\''))).collect();
            let sql = format!("SELECT '{table}: ' || concat_ws(', ', {}) FROM {table} ORDER BY 1", quoted.join(", "));
            all.extend(sqlx::query_scalar::<_, String>(AssertSqlSafe(sql)).fetch_all(&mut c).await.unwrap());
        }
        c.close().await.unwrap();
        all
    })
}

/// What the database answers: winners and predictions without the ids of their rows, what is done, what is barred.
fn answers(path: &Path) -> String {
    let db = Db::open_read_only(path).unwrap();
    let filter = WinnerFilter::of(Target::Sm90a);
    let winners: Vec<_> = db
        .winners(&filter)
        .unwrap()
        .into_iter()
        .map(|w| (w.kernel.key(), w.shape, w.split, w.times, w.default, w.environment.driver, w.created_at, w.regret))
        .collect();
    let predicted: Vec<_> = db
        .predicted_winners(&filter)
        .unwrap()
        .into_iter()
        .map(|w| (w.kernel.key(), w.shape, w.predicted_us, w.default_predicted_us, w.created_at))
        .collect();
    let quarantined: Vec<_> =
        db.quarantined().unwrap().into_iter().map(|q| (q.kernel, q.outcome.kind(), q.place)).collect();
    let mut done: Vec<_> = db.done(Target::Sm90a, Some(&gpu("GPU-2", "580.1"))).unwrap().into_iter().collect();
    done.sort_by_key(|key| format!("{key:?}"));
    format!("{winners:?}\n{predicted:?}\n{quarantined:?}\n{done:?}")
}

struct Files(tempfile::TempDir, u32);

impl Files {
    fn new_name(&mut self) -> PathBuf {
        self.1 += 1;
        self.0.path().join(format!("{}.sqlite", self.1))
    }

    /// A copy of `base` that goes on with `steps`.
    fn continued(&mut self, base: &Path, steps: &[Step]) -> PathBuf {
        let path = self.new_name();
        std::fs::copy(base, &path).unwrap();
        play(&path, steps);
        path
    }

    fn merge(&mut self, inputs: &[&PathBuf]) -> PathBuf {
        let path = self.new_name();
        let inputs: Vec<_> = inputs.iter().map(|input| input.to_path_buf()).collect();
        Db::merge(&inputs, &path, false).unwrap();
        path
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    /// The databases share a history, as copies of one file do, and then part.
    #[test]
    fn merging_is_associative_commutative_and_idempotent(base in steps(), parts in [steps(), steps(), steps()]) {
        let mut files = Files(tempfile::tempdir().unwrap(), 0);
        let shared = files.new_name();
        play(&shared, &base);
        let [a, b, c] = parts.map(|part| files.continued(&shared, &part));
        let before = std::fs::read(&a).unwrap();

        let (ab, ba) = (files.merge(&[&a, &b]), files.merge(&[&b, &a]));
        prop_assert_eq!(dump(&ab), dump(&ba));
        let bc = files.merge(&[&b, &c]);
        let (left, right) = (files.merge(&[&ab, &c]), files.merge(&[&a, &bc]));
        prop_assert_eq!(dump(&left), dump(&right));
        prop_assert_eq!(dump(&left), dump(&files.merge(&[&c, &a, &b, &a])));
        let (once, twice) = (files.merge(&[&a]), files.merge(&[&a, &a]));
        prop_assert_eq!(dump(&once), dump(&twice));
        prop_assert_eq!(dump(&files.merge(&[&ab, &a])), dump(&ab));

        prop_assert_eq!(answers(&twice), answers(&a));
        prop_assert_eq!(std::fs::read(&a).unwrap(), before, "an input was changed");
    }
}

/// A database of one run with `trials`.
fn filled(path: &Path, environment: &str, trials: &[TrialRecord]) {
    let mut db = Db::open(path).unwrap();
    let id = db.begin_run(&run(Some(gpu(environment, "580.1")))).unwrap();
    for trial in trials {
        db.record(id, trial).unwrap();
    }
}

#[test]
fn more_samples_decide_and_a_failure_on_one_board_bars_the_kernel_on_its_twin() {
    let (folder, a) = place();
    let (b, c) = (folder.path().join("b.sqlite"), folder.path().join("c.sqlite"));
    let wrong = failed(8, Outcome::Wrong { error: 0.5, detail: "kv_len 17".into() });
    filled(&a, "GPU-1", &[timed(4, &[10.0, 11.0, 12.0]), timed(8, &[5.0, 5.0, 5.0])]);
    filled(&b, "GPU-2", &[timed(4, &[30.0]), wrong]);
    let merged = Db::merge(&[a.clone(), b], &c, false).unwrap();
    assert_eq!((merged.inputs, merged.trials, merged.runs), (vec![2, 2], 4, 2));
    let winners = Db::open_read_only(&c).unwrap().winners(&WinnerFilter::of(Target::Sm90a)).unwrap();
    assert_eq!(winners.iter().map(|w| w.times.median_us).collect::<Vec<_>>(), [11.0]);

    // A merge into its own input, while a tuner writes there.
    let mut writer = Db::open(&a).unwrap();
    writer.begin_run(&run(None)).unwrap();
    assert!(matches!(Db::merge(&[a.clone(), c.clone()], &a, true), Err(DbError::Busy { .. })));
    drop(writer);
    assert_eq!(Db::merge(&[a.clone(), c.clone()], &a, true).unwrap().trials, 4);
    assert_eq!(Db::open(&a).unwrap().winners(&WinnerFilter::of(Target::Sm90a)).unwrap().len(), 1);
    let names = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.contains("merge")), "something is left behind");
}

/// An older policy took all samples in one round, which says nothing of what differs between rounds.
#[test]
fn more_rounds_hold_before_more_samples_in_any_order_of_recording() {
    let (folder, old) = place();
    let new = folder.path().join("new.sqlite");
    filled(&old, "GPU-1", &[timed(4, &[10.0; 41])]);
    let (mut db, id) = common::tuning(&new);
    record_rounds(&mut db, id, timed(4, &[]), &calm(12.0));
    drop(db);
    for inputs in [[old.clone(), new.clone()], [new.clone(), old.clone()]] {
        let merged = folder.path().join("merged.sqlite");
        Db::merge(&inputs, &merged, true).unwrap();
        let winner = Db::open_read_only(&merged).unwrap().winners(&WinnerFilter::of(Target::Sm90a)).unwrap().remove(0);
        assert_eq!((winner.times.rounds, winner.times.samples), (5, 40), "{:?}", winner.times);
    }
    // Recorded later, in one round, it does not supersede either; a round more does.
    let (mut db, id) = common::tuning(&new);
    let winner = |db: &Db| db.winners(&WinnerFilter::of(Target::Sm90a)).unwrap().remove(0).times;
    db.record(id, &timed(4, &[10.0; 100])).unwrap();
    assert_eq!(winner(&db).samples, 40);
    record_rounds(&mut db, id, timed(4, &[]), &[&calm(11.0)[..], &[vec![11.0]]].concat());
    assert_eq!((winner(&db).rounds, winner(&db).samples), (6, 41));
}

/// Sets the clock of every trial forward by an hour, as if the machine's had been wrong and was then set right.
fn stepped_back(path: &Path) {
    use sqlx::{ConnectOptions, Connection, Executor};
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut c = sqlx::sqlite::SqliteConnectOptions::new().filename(path).connect().await.unwrap();
        c.execute("UPDATE trials SET clock = clock + 3600 * 1000000, created_at = '2030-01-01T00:00:00.000Z'")
            .await
            .unwrap();
        c.close().await.unwrap();
    });
}

#[test]
fn a_clock_that_steps_back_reorders_nothing() {
    let (folder, path) = place();
    filled(&path, "GPU-1", &[timed(4, &[10.0])]);
    stepped_back(&path);
    filled(&path, "GPU-1", &[timed(4, &[30.0])]);
    let merged = folder.path().join("merged.sqlite");
    Db::merge(std::slice::from_ref(&path), &merged, false).unwrap();
    for path in [&path, &merged] {
        let winners = Db::open_read_only(path).unwrap().winners(&WinnerFilter::of(Target::Sm90a)).unwrap();
        assert_eq!(winners[0].times.median_us, 30.0, "what was recorded later holds");
    }
}

#[test]
fn what_cannot_be_merged_is_named_and_leaves_no_result() {
    let (folder, a) = place();
    filled(&a, "GPU-1", &[timed(4, &[10.0])]);
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("garbage.sqlite"), vec![0xa5; 8192]).unwrap();
    let whole = std::fs::read(&a).unwrap();
    std::fs::write(at("cut.sqlite"), &whole[..whole.len() / 2]).unwrap();
    for (input, words) in [
        ("missing.sqlite", "no database at"),
        ("garbage.sqlite", "not a database or is damaged"),
        ("cut.sqlite", "damaged"),
    ] {
        let error = Db::merge(&[a.clone(), at(input)], &at("c.sqlite"), false).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(input), "{error}");
        assert!(!at("c.sqlite").exists());
    }
    let error = Db::merge(std::slice::from_ref(&a), &at("garbage.sqlite"), false).unwrap_err();
    assert!(matches!(error, DbError::Exists { .. }) && error.to_string().contains("--force"), "{error}");
    let error = Db::merge(std::slice::from_ref(&a), &at("garbage.sqlite"), true).unwrap_err();
    assert!(matches!(error, DbError::Corrupt { .. }), "what is no database of nvkv is not replaced: {error}");
    let error = Db::merge(std::slice::from_ref(&a), &at("cut.sqlite/c.sqlite"), false).unwrap_err().to_string();
    assert!(error.contains("cannot make the folder"), "{error}");
}
