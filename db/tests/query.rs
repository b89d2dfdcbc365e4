//! Lookups: each trust, and misses that say what exists.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{append, decode, failed, gpu, kernel, place, predicted, run, shape, timed, tuning, variant};
use nvkv_db::{Answer, Db, EnvironmentKey, Query, TrialRecord};
use nvkv_spec::{Outcome, Problem, Shape, Target};

fn ask(shape: Shape) -> Query {
    Query { target: Target::Sm90a, problem: decode(128), shape, environment: None }
}

fn at(shape: Shape, us: f64) -> TrialRecord {
    TrialRecord { shape: Some(shape), ..timed(4, &[us]) }
}

fn miss(db: &Db, query: &Query) -> (String, Option<Problem>) {
    match db.query(query).unwrap() {
        Answer::Miss { why, nearest } => (why, nearest),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn an_exact_shape_comes_before_a_nearer_looking_one() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.record(run, &at(shape(64, 4096), 10.0)).unwrap();
    db.record(run, &at(shape(64, 4095), 9.0)).unwrap();
    let Answer::Exact { winner } = db.query(&ask(shape(64, 4096))).unwrap() else { panic!() };
    assert_eq!((winner.shape, winner.times.median_us), (shape(64, 4096), 10.0));
}

#[test]
fn the_nearest_tuned_shape_answers_as_a_bucket() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    for (batch, context) in [(1, 1024), (16, 4096), (64, 65_536)] {
        db.record(run, &at(shape(batch, context), 10.0)).unwrap();
    }
    // By log2: (32, 8192) is 2 from (16, 4096), 4 from (64, 65536), 8 from (1, 1024).
    let Answer::Bucket { winner, distance } = db.query(&ask(shape(32, 8192))).unwrap() else { panic!() };
    assert_eq!((winner.shape, distance), (shape(16, 4096), 2.0));
    // Halfway in batch between 16 and 64 at other contexts: the distance decides, not the order.
    let Answer::Bucket { winner, .. } = db.query(&ask(shape(60, 60_000))).unwrap() else { panic!() };
    assert_eq!(winner.shape, shape(64, 65_536));
}

#[test]
fn equally_near_shapes_are_decided_the_same_way_every_time() {
    for order in [[32, 128], [128, 32]] {
        let (_folder, path) = place();
        let (mut db, run) = tuning(&path);
        for batch in order {
            db.record(run, &at(shape(batch, 4096), 10.0)).unwrap();
        }
        let Answer::Bucket { winner, distance } = db.query(&ask(shape(64, 4096))).unwrap() else { panic!() };
        assert_eq!((winner.shape, distance), (shape(32, 4096), 1.0));
    }
}

#[test]
fn without_an_environment_the_latest_measurement_answers() {
    let (_folder, path) = place();
    let (mut db, first) = tuning(&path);
    db.record(first, &at(shape(64, 4096), 10.0)).unwrap();
    let second = db.begin_run(&run(Some(gpu("GPU-1", "590.0")))).unwrap();
    db.record(second, &at(shape(64, 4096), 12.0)).unwrap();
    let median = |environment| {
        let query = Query { environment, ..ask(shape(64, 4096)) };
        match db.query(&query).unwrap() {
            Answer::Exact { winner } => winner.times.median_us,
            answer => panic!("{answer:?}"),
        }
    };
    assert_eq!(median(None), 12.0);
    assert_eq!(median(Some(EnvironmentKey::from(&gpu("GPU-1", "580.1")))), 10.0);
}

#[test]
fn a_prediction_answers_only_where_nothing_was_timed() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let id = db.begin_run(&run(None)).unwrap();
    db.record(id, &predicted(8, 9.0)).unwrap();
    let Answer::Predicted { winner, distance } = db.query(&ask(shape(64, 4096))).unwrap() else { panic!() };
    assert_eq!((winner.predicted_us, distance), (9.0, 0.0));
    let Answer::Predicted { distance, .. } = db.query(&ask(shape(16, 4096))).unwrap() else { panic!() };
    assert_eq!(distance, 2.0);

    let on_gpu = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    db.record(on_gpu, &at(shape(16, 4096), 10.0)).unwrap();
    assert!(matches!(db.query(&ask(shape(64, 4096))).unwrap(), Answer::Bucket { .. }));
    // Beyond three doublings an engine takes the default kernel.
    let (why, nearest) = miss(&db, &ask(shape(256, 4096)));
    assert!(why.contains("the nearest is b16-c4096-h8, 4.0 away") && nearest.is_none(), "{why}");
}

#[test]
fn a_miss_says_what_exists() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    let (why, nearest) = miss(&db, &ask(shape(1, 1024)));
    assert!(why.contains("no decode was tuned for sm_90a") && why.contains("nvkv-tune --arch sm_90a"), "{why}");
    assert_eq!(nearest, None);

    let (problem, of_append) = append();
    let appended = TrialRecord {
        kernel: kernel(problem, of_append, "append"),
        shape: Some(Shape::Append { tokens: 8, kv_heads: 8 }),
        split: None,
        ..timed(4, &[1.0])
    };
    db.record(run, &appended).unwrap();
    assert_eq!(miss(&db, &ask(shape(1, 1024))).1, None, "an append is near to no decode");
    db.record(run, &TrialRecord { kernel: kernel(decode(64), variant(4), "d64"), ..timed(4, &[1.0]) }).unwrap();
    let (why, nearest) = miss(&db, &ask(shape(1, 1024)));
    assert!(why.contains(&decode(128).key()) && why.contains("never tuned for sm_90a"), "{why}");
    assert_eq!(nearest, Some(decode(64)), "a head dim apart is nearer than another operation");

    db.record(run, &failed(4, Outcome::Wrong { error: 1.0, detail: "x".into() })).unwrap();
    let (why, _) = miss(&db, &ask(shape(1, 1024)));
    assert!(why.contains("no usable trial") && why.contains("1 wrong on H200 (driver 580.1)"), "{why}");

    let elsewhere = Some(EnvironmentKey::from(&gpu("GPU-1", "590.0")));
    let (why, _) = miss(&db, &Query { environment: elsewhere, problem: decode(64), ..ask(shape(64, 4096)) });
    assert!(why.contains("on this GPU and driver") && why.contains("1 timed on H200 (driver 580.1)"), "{why}");
}
