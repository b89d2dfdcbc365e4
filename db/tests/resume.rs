//! What survives: a killed tuner, two tuners at once; and what a resumed tune skips.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{append, decode, failed, gpu, kernel, place, predicted, run, shape, timed, tuning};
use nvkv_db::{Db, RunId, TrialRecord};
use nvkv_spec::{GpuEnvironment, Outcome, Shape, SplitPolicy, Stage, Target};
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Trial `n` of writer `writer`: its samples tell both, and their number.
fn numbered(writer: u32, n: u32) -> TrialRecord {
    let samples: Vec<f64> = (0..20).map(|i| f64::from(writer * 1_000_000 + n * 100 + i + 1)).collect();
    TrialRecord { shape: Some(shape(writer + 1, n + 1)), ..timed(n % 7 + 1, &samples) }
}

/// Records trials until it is killed, or `NVKV_TEST_COUNT` of them, and says each once it is stored.
#[test]
#[ignore = "run by its parents"]
fn child_that_records() {
    let Some(path) = std::env::var_os("NVKV_TEST_DB") else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u32>().unwrap();
    let writer = number("NVKV_TEST_WRITER");
    let (mut db, run) = tuning(Path::new(&path));
    for n in 0..number("NVKV_TEST_COUNT") {
        db.record(run, &numbered(writer, n)).unwrap();
        println!("stored {n}");
    }
}

fn spawn(path: &Path, writer: u32, count: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_records", "--ignored", "--nocapture"])
        .env("NVKV_TEST_DB", path)
        .env("NVKV_TEST_WRITER", writer.to_string())
        .env("NVKV_TEST_COUNT", count.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Checks that exactly these trials of the writers are stored, each with all of its samples.
fn whole(path: &Path, expected: &HashSet<(u32, u32)>) {
    let rows = stored(path);
    let found: HashSet<(u32, u32)> = rows.iter().map(|(batch, context, _)| (batch - 1, context - 1)).collect();
    assert!(expected.is_subset(&found), "lost: {:?}", expected.difference(&found).collect::<Vec<_>>());
    for (batch, context, samples) in rows {
        assert_eq!(samples, numbered(batch - 1, context - 1).samples);
    }
}

/// Batch, context and samples of every trial, read by another client.
fn stored(path: &Path) -> Vec<(u32, u32, Vec<f64>)> {
    use sqlx::ConnectOptions;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut connection = sqlx::sqlite::SqliteConnectOptions::new().filename(path).connect().await.unwrap();
        let rows: Vec<(u32, u32, sqlx::types::Json<Vec<f64>>)> = sqlx::query_as(
            "SELECT s.batch, s.context,
                    (SELECT json_group_array(microseconds) FROM (
                        SELECT microseconds FROM samples WHERE trial = t.id ORDER BY idx))
             FROM trials AS t JOIN shapes AS s ON s.id = t.shape",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        rows.into_iter().map(|(batch, context, samples)| (batch, context, samples.0)).collect()
    })
}

#[test]
fn every_acknowledged_trial_survives_kill_9() {
    // The child dies at different points of a transaction.
    for (count, delay_ms) in [(1, 0), (5, 2), (10, 4), (20, 7), (30, 11), (40, 17), (97, 25)] {
        let (_folder, path) = place();
        let mut child = spawn(&path, 0, u32::MAX);
        let mut said = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("stored ").map(|n| (0, n.parse().unwrap())));
        let mut acknowledged: HashSet<(u32, u32)> = said.by_ref().take(count).collect();
        std::thread::sleep(Duration::from_millis(delay_ms));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        acknowledged.extend(said);
        assert!(acknowledged.len() >= count);

        let mut db = Db::open(&path).unwrap();
        let done = db.done(Target::Sm90a, Some(&gpu("GPU-1", "580.1"))).unwrap();
        assert!(acknowledged.iter().all(|&(writer, n)| done.contains(&numbered(writer, n).key())));
        let next = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
        db.record(next, &numbered(1, 0)).unwrap();
        drop(db);
        whole(&path, &acknowledged.into_iter().chain([(1, 0)]).collect());
    }
}

#[test]
fn two_processes_and_two_threads_at_once_lose_nothing() {
    const COUNT: u32 = 60;
    let (_folder, path) = place();
    let children = [spawn(&path, 0, COUNT), spawn(&path, 1, COUNT)];
    std::thread::scope(|scope| {
        for writer in [2, 3] {
            let path = &path;
            scope.spawn(move || {
                let (mut db, run) = tuning(path);
                for n in 0..COUNT {
                    db.record(run, &numbered(writer, n)).unwrap();
                }
            });
        }
    });
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    whole(&path, &(0..4).flat_map(|writer| (0..COUNT).map(move |n| (writer, n))).collect());
    let db = Db::open(&path).unwrap();
    assert_eq!(db.done(Target::Sm90a, Some(&gpu("GPU-1", "580.1"))).unwrap().len(), 4 * COUNT as usize);
}

#[test]
fn many_processes_open_a_new_file_at_once() {
    for _ in 0..5 {
        let (_folder, path) = place();
        let children: Vec<_> = (0..6).map(|writer| spawn(&path, writer, 1)).collect();
        for child in children {
            assert!(child.wait_with_output().unwrap().status.success());
        }
        whole(&path, &(0..6).map(|writer| (writer, 0)).collect());
    }
}

#[test]
fn a_database_moves_between_threads() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    let db = std::thread::spawn(move || {
        db.record(run, &timed(4, &[1.0])).unwrap();
        db
    })
    .join()
    .unwrap();
    assert_eq!(db.outcomes(run).unwrap()["timed"], 1);
}

/// One trial of every outcome.
fn one_of_each() -> Vec<TrialRecord> {
    let mut uncompiled = failed(1, Outcome::CompileFailed { log: "kernel.cu(3): error: expected a `;`".into() });
    uncompiled.kernel.compiled = None;
    let at_shape = |warps, outcome| TrialRecord { outcome, samples: vec![], ..timed(warps, &[]) };
    vec![
        uncompiled,
        predicted(2, 17.25),
        at_shape(3, Outcome::LaunchFailed { error: "CUDA_ERROR_INVALID_VALUE".into() }),
        failed(4, Outcome::Wrong { error: 0.125, detail: "constant V, head 2".into() }),
        at_shape(5, Outcome::Timeout { stage: Stage::Verify, seconds: 20.0 }),
        at_shape(6, Outcome::Crashed { stage: Stage::Measure, detail: "signal 11".into() }),
        timed(7, &[1.0]),
        failed(8, Outcome::Faulted { detail: "PTX line 12: a race".into() }),
        failed(9, Outcome::Emulated { error: 2e-4, cases: 7 }),
    ]
}

fn record_all(db: &mut Db, run: RunId, trials: &[TrialRecord]) {
    for trial in trials {
        db.record(run, trial).unwrap();
    }
}

#[test]
fn failures_come_back_with_their_reasons_and_outcomes_are_counted_by_run() {
    let (_folder, path) = place();
    let (mut db, first) = tuning(&path);
    let trials = one_of_each();
    record_all(&mut db, first, &trials);
    let second = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    record_all(&mut db, second, &[timed(7, &[1.0]), timed(7, &[2.0])]);

    let failures = db.failures(first).unwrap();
    let right = |outcome: &Outcome| {
        matches!(outcome, Outcome::Timed { .. } | Outcome::CompiledOnly { .. } | Outcome::Emulated { .. })
    };
    let expected: Vec<_> = trials.iter().filter(|t| !right(&t.outcome)).collect();
    assert_eq!(failures.len(), expected.len());
    for (failure, trial) in failures.iter().zip(expected) {
        assert_eq!((&failure.kernel_id, &failure.outcome), (&trial.kernel.key().kernel_id, &trial.outcome));
        assert_eq!((failure.shape, failure.split), (trial.shape, trial.split));
    }
    assert_eq!(db.outcomes(first).unwrap().len(), 9);
    assert_eq!(db.outcomes(second).unwrap().into_iter().collect::<Vec<_>>(), [("timed".to_string(), 2)]);
    assert!(db.failures(second).unwrap().is_empty());
}

#[test]
fn an_error_that_is_not_a_number_survives() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.record(run, &failed(4, Outcome::Wrong { error: f64::NAN, detail: "all NaN".into() })).unwrap();
    let outcome = &db.failures(run).unwrap()[0].outcome;
    assert!(matches!(outcome, Outcome::Wrong { error, .. } if error.is_nan()), "{outcome:?}");
}

#[test]
fn a_resumed_tune_skips_what_this_gpu_did_and_every_failed_compile() {
    let (_folder, path) = place();
    let (mut db, id) = tuning(&path);
    let mut trials = one_of_each();
    let (problem, variant) = append();
    trials.push(TrialRecord {
        kernel: kernel(problem, variant, "append"),
        shape: Some(Shape::Append { tokens: 64, kv_heads: 8 }),
        split: None,
        ..timed(1, &[2.0])
    });
    trials.push(TrialRecord { split: Some(SplitPolicy::Chunk { tokens: 256, taper: 0 }), ..timed(7, &[1.0]) });
    record_all(&mut db, id, &trials);
    record_all(&mut db, id, &trials[1..3]); // again: the same keys

    let keys: HashSet<_> = trials.iter().map(TrialRecord::key).collect();
    let done = |environment: Option<&_>| db.done(Target::Sm90a, environment).unwrap();
    assert_eq!(done(Some(&gpu("GPU-1", "580.1"))), keys);
    let compile_failed = HashSet::from([trials[0].key()]);
    assert_eq!(done(Some(&gpu("GPU-1", "590.0"))), compile_failed, "another driver");
    assert_eq!(done(Some(&gpu("GPU-2", "580.1"))), keys, "another board of the model");
    let fewer = GpuEnvironment { sms: 66, ..gpu("GPU-3", "580.1") };
    assert_eq!(done(Some(&fewer)), compile_failed, "another model");
    assert_eq!(done(None), compile_failed, "no GPU");
    assert!(db.done(Target::Sm100a, None).unwrap().is_empty(), "another target");
}

#[test]
fn two_tuners_store_a_prediction_once() {
    let (_folder, path) = place();
    let (mut db, timing) = tuning(&path);
    let (first, second) = (db.begin_run(&run(None)).unwrap(), db.begin_run(&run(None)).unwrap());
    let trial = predicted(1, 3.0);
    assert!(db.record_once(first, &trial).unwrap().is_some());
    assert!(db.record_once(second, &trial).unwrap().is_none());
    assert!(db.record_once(second, &predicted(2, 3.0)).unwrap().is_some(), "another kernel");
    let other = TrialRecord { shape: Some(shape(1, 4096)), ..predicted(1, 3.0) };
    assert!(db.record_once(second, &other).unwrap().is_some(), "another shape");
    let other = TrialRecord { split: Some(SplitPolicy::Even { splits: 9 }), ..predicted(1, 3.0) };
    assert!(db.record_once(second, &other).unwrap().is_some(), "a split that was never seen");
    assert!(db.record_once(timing, &trial).unwrap().is_some(), "a run with a GPU");
    let counts = [first, second, timing].map(|run| db.outcomes(run).unwrap()["compiled_only"]);
    assert_eq!(counts, [1, 3, 1]);
}

#[test]
fn a_compiler_that_crashed_or_was_late_runs_again() {
    let (_folder, path) = place();
    let (mut db, id) = tuning(&path);
    let again = [
        failed(1, Outcome::Crashed { stage: Stage::Compile, detail: "signal: 9 (SIGKILL)".into() }),
        failed(2, Outcome::Timeout { stage: Stage::Compile, seconds: 180.0 }),
    ];
    let final_ones = [
        failed(3, Outcome::Crashed { stage: Stage::Verify, detail: "illegal address".into() }),
        failed(4, Outcome::Timeout { stage: Stage::Measure, seconds: 60.0 }),
        failed(5, Outcome::CompileFailed { log: "error: expected a `;`".into() }),
    ];
    record_all(&mut db, id, &again);
    record_all(&mut db, id, &final_ones);
    record_all(&mut db, id, &[predicted(6, 3.0)]);

    let gpu = gpu("GPU-1", "580.1");
    let done = db.done(Target::Sm90a, Some(&gpu)).unwrap();
    assert!(again.iter().all(|trial| !done.contains(&trial.key())), "{done:?}");
    assert!(final_ones.iter().all(|trial| done.contains(&trial.key())), "{done:?}");
    let kernels = |trials: &[TrialRecord]| trials.iter().map(|t| (t.kernel.key(), t.outcome.clone())).collect();
    let expected: std::collections::HashMap<_, _> = kernels(&final_ones);
    assert_eq!(db.failed_kernels(Target::Sm90a, Some(&gpu)).unwrap(), expected);
    assert_eq!(db.failed_kernels(Target::Sm90a, None).unwrap(), kernels(&final_ones[2..]), "no GPU has a part in it");
}

#[test]
fn kernels_are_found_by_source() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    let trials = one_of_each();
    record_all(&mut db, run, &trials);
    for trial in &trials {
        let found = db.kernel_by_source(Target::Sm90a, &trial.kernel.key()).unwrap();
        assert_eq!(found.as_ref(), Some(&trial.kernel));
    }
    let mut other = kernel(decode(128), common::variant(7), "another source").key();
    assert_eq!(db.kernel_by_source(Target::Sm90a, &other).unwrap(), None);
    other.source_hash = "source w7".into();
    assert!(db.kernel_by_source(Target::Sm90a, &other).unwrap().is_some());
    assert_eq!(db.kernel_by_source(Target::Sm100a, &other).unwrap(), None);
    other.nvrtc = "13.1".into();
    assert_eq!(db.kernel_by_source(Target::Sm90a, &other).unwrap(), None);
}

#[test]
fn a_run_keeps_what_is_noted() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.note_gpu(run, 4600.0, &serde_json::json!({"throttle": []})).unwrap();
    db.note_gpu(run, 4610.5, &serde_json::json!({"throttle": ["power"]})).unwrap();
    db.note_pace(run, 60.0, 1.5).unwrap();
    assert!(db.note_pace(run, 1.0, 1.5).is_err(), "it cannot wait for longer than it takes");
    db.finish_run(run, "2026-11-29T10:05:00Z").unwrap();
    assert!(db.note_gpu(run, 0.0, &serde_json::Value::Null).is_err(), "a ceiling of nothing");
    drop(db);
    use sqlx::ConnectOptions;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let row: (String, f64, String, String, f64, f64) = runtime.block_on(async {
        let mut c = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
        sqlx::query_as(
            "SELECT finished_at, read_ceiling_gbps, gpu_state, command, gpu_seconds, gpu_idle_seconds FROM runs",
        )
        .fetch_one(&mut c)
        .await
        .unwrap()
    });
    let expected = ("2026-11-29T10:05:00Z", 4610.5, r#"{"throttle":["power"]}"#, "nvkv-tune --arch sm_90");
    assert_eq!((row.0.as_str(), row.1, row.2.as_str(), row.3.as_str()), expected);
    assert_eq!((row.4, row.5), (60.0, 1.5));
}

#[test]
fn every_sample_is_kept_with_its_round_and_what_the_gpu_did_then() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    common::record_rounds(&mut db, run, timed(4, &[]), &[vec![10.0, 11.0], vec![12.0]]);
    drop(db);
    use sqlx::ConnectOptions;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let rows: Vec<(i64, f64, i64, i64)> = runtime.block_on(async {
        let mut c = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
        sqlx::query_as(
            "SELECT x.idx, x.microseconds, m.round, json_extract(m.state_before, '$.sm_clock')
             FROM samples AS x JOIN measurements AS m ON m.id = x.measurement ORDER BY x.idx",
        )
        .fetch_all(&mut c)
        .await
        .unwrap()
    });
    assert_eq!(rows, [(0, 10.0, 1, 1980), (1, 11.0, 1, 1980), (2, 12.0, 2, 1980)]);
}
