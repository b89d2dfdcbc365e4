//! Buckets: what they cost at the shapes they serve, what a split changes, and what stays as it was.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{calm, decode, place, record_rounds, run, shape, timed, tuning, variant};
use nvkv_db::{Buckets, Db, EnvironmentKey, Part, Regret, RunId, TrialRecord, Winner, WinnerFilter};
use nvkv_spec::{DecodeProblem, KernelId, Problem, Shape, SplitPolicy, Target};
use std::path::Path;

const ALL: fn() -> WinnerFilter = || WinnerFilter::of(Target::Sm90a);

fn at(context: u32, warps: u32, samples: &[f64]) -> TrialRecord {
    TrialRecord { shape: Some(shape(64, context)), ..timed(warps, samples) }
}

fn id(warps: u32) -> KernelId {
    KernelId::new(&decode(128), &variant(warps))
}

/// Two buckets, won by 4 and 8 warps, and the shape between them, where both and 2 warps were timed.
fn tuned(path: &Path) -> (Db, RunId) {
    let (mut db, run) = tuning(path);
    for (context, warps, us) in [(4096, 4, 50.0), (4096, 8, 90.0), (16_384, 4, 300.0), (16_384, 8, 200.0)] {
        db.record(run, &at(context, warps, &[us; 9])).unwrap();
    }
    for (warps, us) in [(4, 121.0), (8, 110.0), (2, 100.0)] {
        db.record_held_out(run, &at(8192, warps, &[us - 1.0, us, us + 1.0])).unwrap();
    }
    (db, run)
}

fn winners(db: &Db) -> Vec<(Shape, KernelId, Option<f64>)> {
    let of = |w: Winner| (w.shape, w.kernel.key().kernel_id, w.regret.map(|r| (r * 1e6).round() / 1e6));
    db.winners(&ALL()).unwrap().into_iter().map(of).collect()
}

/// Bucket, shape, winner's time, best's time, whether it is split.
fn regrets(db: &Db) -> Vec<(Shape, Shape, f64, f64, bool)> {
    let of = |r: Regret| (r.bucket, r.shape, r.winner.times.median_us, r.best.times.median_us, r.is_split);
    db.regrets(&ALL()).unwrap().into_iter().map(of).collect()
}

#[test]
fn the_regret_is_the_winners_time_over_the_best_at_the_shape_between() {
    let (_folder, path) = place();
    let (db, _) = tuned(&path);
    let [low, middle, high] = [4096, 8192, 16_384].map(|context| shape(64, context));
    assert_eq!(regrets(&db), [(low, middle, 121.0, 100.0, false), (high, middle, 110.0, 100.0, false)]);
    let [first, second] = &db.regrets(&ALL()).unwrap()[..] else { panic!("two") };
    assert!((first.share() - 0.21).abs() < 1e-12 && first.is_too_much() && !first.is_noise(), "{first:?}");
    assert_eq!((&first.winner.kernel_id, &second.winner.kernel_id, &second.best.kernel_id), (&id(4), &id(8), &id(2)));
    assert_eq!(db.buckets(&ALL()).unwrap().regrets, [first.clone(), second.clone()]);
    // It goes with the winner, wherever that goes; a shape that is held out wins nothing.
    assert_eq!(winners(&db), [(low, id(4), Some(0.21)), (high, id(8), Some(0.1))]);
    let of_high = db.regrets(&WinnerFilter { shape: Some(high), ..ALL() }).unwrap();
    assert_eq!(of_high, std::slice::from_ref(second));
}

#[test]
fn a_split_gives_the_shape_a_winner_of_its_own_and_is_told_until_a_tune_asks_for_the_shape() {
    let (_folder, path) = place();
    let (mut db, run) = tuned(&path);
    let [low, middle, high] = [4096, 8192, 16_384].map(|context| shape(64, context));
    db.split_bucket(Target::Sm90a, &decode(128), &middle, &low).unwrap();
    assert_eq!(winners(&db), [(low, id(4), None), (middle, id(2), None), (high, id(8), None)]);
    assert_eq!(regrets(&db), [(low, middle, 121.0, 100.0, true)]);
    // The new bucket has borders of its own. Only its winner was timed there.
    let border = TrialRecord { shape: Some(shape(64, 5793)), ..at(4096, 2, &[70.0]) };
    db.record_held_out(run, &border).unwrap();
    assert_eq!(winners(&db)[..2], [(low, id(4), None), (middle, id(2), Some(0.0))]);
    // Splitting what is a bucket changes nothing, and neither does holding it out.
    db.split_bucket(Target::Sm90a, &decode(128), &high, &low).unwrap();
    db.record_held_out(run, &at(16_384, 2, &[900.0])).unwrap();
    assert_eq!(winners(&db).len(), 3);

    assert_eq!(search_shapes(&db), [low, high], "a search learns where everything was tried");
    db.record(run, &at(8192, 1, &[500.0])).unwrap();
    assert_eq!(regrets(&db).iter().filter(|r| r.4).count(), 0);
    assert_eq!(search_shapes(&db), [low, middle, high]);
}

/// The shapes whose trials a search replays.
fn search_shapes(db: &Db) -> Vec<Shape> {
    let timed = db.timed(Target::Sm90a, &EnvironmentKey::from(&common::gpu("GPU-1", "580.1"))).unwrap();
    let mut shapes: Vec<_> = timed.trials.iter().map(|trial| trial.shape).collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

#[test]
fn winners_near_ties_and_defaults_compete_between_the_buckets_each_once() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    let times = [(4096, 4, 50.0), (4096, 8, 50.1), (4096, 2, 90.0), (16_384, 4, 200.0), (16_384, 2, 400.0)];
    for (context, warps, us) in times {
        let is_default = (context, warps) == (16_384, 2);
        record_rounds(&mut db, run, TrialRecord { is_default, ..at(context, warps, &[]) }, &calm(us));
    }
    let other_split = TrialRecord { split: Some(SplitPolicy::Even { splits: 8 }), ..at(4096, 4, &[]) };
    record_rounds(&mut db, run, other_split, &calm(50.2));
    // Near by its few samples alone.
    db.record(run, &at(4096, 1, &[50.0])).unwrap();
    let Buckets { serving, regrets } = db.buckets(&ALL()).unwrap();
    assert_eq!(regrets, []);
    let (low, high) = (shape(64, 4096), shape(64, 16_384));
    let of: Vec<_> = serving.iter().map(|s| (s.kernel.key().kernel_id, s.split, s.at.clone(), s.error)).collect();
    let split = |splits| Some(SplitPolicy::Even { splits });
    assert_eq!(
        of,
        [
            (id(4), split(4), vec![(low, Part::Winner), (high, Part::Winner)], 3e-4),
            (id(8), split(4), vec![(low, Part::Near)], 3e-4),
            (id(2), split(4), vec![(high, Part::Default)], 3e-4),
            (id(4), split(8), vec![(low, Part::Near)], 3e-4)
        ]
    );
}

/// The launch of the winner between the buckets is the one of [`nvkv_spec::Problem::split_at`], with the blocks of all row tiles.
#[test]
fn the_row_tiles_of_the_winner_decide_which_launch_served() {
    let Problem::Decode(problem) = decode(128) else { panic!("a decode") };
    for (group, served) in [(8, 4), (16, 3)] {
        let (_folder, path) = place();
        let (mut db, run) = tuning(&path);
        let problem = Problem::Decode(DecodeProblem { group, ..problem }); // of 8 query rows a block
        let kernel = common::kernel(problem, variant(4), "source");
        let at = |batch, context, splits, us: f64| TrialRecord {
            kernel: kernel.clone(),
            shape: Some(shape(batch, context)),
            split: Some(SplitPolicy::Even { splits }),
            ..timed(4, &[us; 9])
        };
        db.record(run, &at(64, 16_384, 1, 50.0)).unwrap();
        for splits in [2, 3, 4] {
            db.record_held_out(run, &at(35, 10_624, splits, 100.0 + f64::from(splits))).unwrap();
        }
        let regret = db.regrets(&ALL()).unwrap().remove(0);
        assert_eq!(regret.winner.split, Some(SplitPolicy::Even { splits: served }), "group {group}");
    }
}

#[test]
fn another_driver_has_regrets_of_its_own() {
    let (_folder, path) = place();
    let (mut db, _) = tuned(&path);
    let other = db.begin_run(&run(Some(common::gpu("GPU-1", "590.0")))).unwrap();
    db.record(other, &at(4096, 4, &[60.0; 9])).unwrap();
    db.record_held_out(other, &at(8192, 4, &[130.0; 9])).unwrap();
    let regrets = db.regrets(&ALL()).unwrap();
    let of_other: Vec<_> = regrets.iter().filter(|r| r.environment.driver == "590.0").map(Regret::share).collect();
    assert_eq!((regrets.len(), of_other), (3, vec![0.0]));
}

#[test]
fn splits_of_either_side_survive_a_merge_and_what_was_asked_for_is_no_split() {
    let (folder, a) = place();
    let [b, c, merged] = ["b", "c", "merged"].map(|name| folder.path().join(format!("{name}.sqlite")));
    let (mut db, run) = tuned(&a);
    drop(db);
    for copy in [&b, &c] {
        std::fs::copy(&a, copy).unwrap();
    }
    db = Db::open(&b).unwrap();
    db.split_bucket(Target::Sm90a, &decode(128), &shape(64, 8192), &shape(64, 16_384)).unwrap();
    let split = winners(&db);
    drop(db);
    for inputs in [[a.clone(), b.clone()], [b.clone(), a]] {
        Db::merge(&inputs, &merged, true).unwrap();
        let db = Db::open_read_only(&merged).unwrap();
        assert_eq!((winners(&db), regrets(&db).len()), (split.clone(), 1));
    }
    db = Db::open(&c).unwrap();
    db.record(run, &at(8192, 1, &[500.0])).unwrap();
    drop(db);
    for inputs in [[b.clone(), c.clone()], [c, b]] {
        Db::merge(&inputs, &merged, true).unwrap();
        let db = Db::open_read_only(&merged).unwrap();
        assert_eq!((winners(&db), regrets(&db)), (split.clone(), vec![]));
    }
}
