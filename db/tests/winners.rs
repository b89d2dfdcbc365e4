//! Who wins, who cannot, and what the views say about the default.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{
    append, calm, decode, failed, gpu, kernel, place, predicted, record_rounds, run, shape, timed, tuning, variant,
};
use nvkv_db::{Db, DbError, Emulated, EnvironmentKey, MeasurementId, TrialRecord, WinnerFilter};
use nvkv_spec::{KernelId, Outcome, Shape, SplitPolicy, Stage, Target};
use proptest::prelude::*;

const ALL: fn() -> WinnerFilter = || WinnerFilter::of(Target::Sm90a);

/// Warps of the winner at the only shape.
fn winning_kernel(db: &Db) -> Option<KernelId> {
    let winners = db.winners(&ALL()).unwrap();
    assert!(winners.len() <= 1, "{winners:?}");
    winners.first().map(|w| w.kernel.key().kernel_id)
}

fn id(warps: u32) -> Option<KernelId> {
    Some(KernelId::new(&decode(128), &variant(warps)))
}

#[test]
fn the_shortest_time_wins_and_comes_back_whole() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.note_gpu(run, 4600.0, &serde_json::json!({"sm_clock": 1980})).unwrap();
    db.record(run, &timed(4, &[9.0, 30.0, 31.0])).unwrap(); // lowest minimum, not lowest median
    let best = timed(8, &[21.0, 20.0, 22.0, 19.0]);
    let trial = db.record(run, &best).unwrap();

    let winner = db.winners(&ALL()).unwrap().remove(0);
    assert_eq!((winner.trial, winner.run), (trial, run));
    assert_eq!(winner.kernel, best.kernel);
    assert_eq!((Some(winner.shape), winner.split), (best.shape, best.split));
    assert_eq!(winner.environment, gpu("GPU-1", "580.1"));
    assert_eq!((winner.times.median_us, winner.times.min_us, winner.times.samples), (20.5, 19.0, 4));
    assert_eq!(winner.times.iqr_us, 21.0 - 19.0); // nearest ranks 1 and 3 of 4
    assert_eq!((winner.error, winner.bytes, winner.default), (3e-4, best.bytes, None));
    let gbps = best.bytes as f64 / 20.5e-6 / 1e9;
    assert!((winner.gbps() - gbps).abs() < 1e-9 && (winner.ceiling_share().unwrap() - gbps / 4600.0).abs() < 1e-12);
    assert_eq!(winner.measurement_policy.as_deref(), Some("graph-replay,cold-l2,interleaved,v1"));
}

#[test]
fn equal_times_are_decided_by_kernel_id_then_split_in_any_order_of_recording() {
    let chunk =
        |warps| TrialRecord { split: Some(SplitPolicy::Chunk { tokens: 512, taper: 0 }), ..timed(warps, &[10.0]) };
    let even = |warps| timed(warps, &[10.0]);
    for trials in [[even(4), chunk(4), even(8)], [even(8), even(4), chunk(4)], [chunk(4), even(8), even(4)]] {
        let (_folder, path) = place();
        let (mut db, run) = tuning(&path);
        for trial in &trials {
            db.record(run, trial).unwrap();
        }
        let winner = db.winners(&ALL()).unwrap().remove(0);
        assert_eq!(Some(winner.kernel.key().kernel_id), id(4).min(id(8)));
        assert_eq!(winner.split, Some(SplitPolicy::Chunk { tokens: 512, taper: 0 })); // `chunk512` before `even4`
    }
}

#[test]
fn of_equal_times_the_default_wins() {
    let last = if id(4) < id(8) { 8 } else { 4 };
    for (first, second) in [(4, 8), (8, 4)] {
        let (_folder, path) = place();
        let (mut db, on_gpu) = tuning(&path);
        let without_gpu = db.begin_run(&run(None)).unwrap();
        for warps in [first, second] {
            let is_default = warps == last;
            db.record(on_gpu, &TrialRecord { is_default, ..timed(warps, &[10.0]) }).unwrap();
            db.record(without_gpu, &TrialRecord { is_default, ..predicted(warps, 9.0) }).unwrap();
        }
        assert_eq!(winning_kernel(&db), id(last));
        assert!(db.predicted_winners(&ALL()).unwrap()[0].is_default);
    }
}

#[test]
fn the_default_is_beaten_only_beyond_noise() {
    let wide =
        |us: f64| calm(us).into_iter().enumerate().map(|(i, round)| round.iter().map(|x| x + 3.0 * i as f64).collect());
    for (of_default, of_other, beaten) in [
        (calm(100.0), 98.0, true),
        (wide(94.0).collect(), 98.0, false),
        (wide(94.0).collect(), 60.0, true),
        (calm(100.0), 99.9, false),
    ] {
        let (_folder, path) = place();
        let (mut db, run) = tuning(&path);
        record_rounds(&mut db, run, TrialRecord { is_default: true, ..timed(4, &[]) }, &of_default);
        record_rounds(&mut db, run, timed(8, &[]), &calm(of_other));
        let winner = db.winners(&ALL()).unwrap().remove(0);
        assert_eq!(winner.default.unwrap().beaten, beaten, "{of_default:?} against {of_other}");
        assert_eq!(winner.is_default, !beaten, "what does not beat the default is not recommended");
        let near: Vec<_> = winner.near_ties.iter().map(|n| Some(n.kernel_id.clone())).collect();
        assert!(beaten || near == [id(8)], "{near:?}");
    }
}

/// A trial at another shape.
fn at(context: u32, trial: TrialRecord) -> TrialRecord {
    TrialRecord { shape: Some(shape(64, context)), ..trial }
}

#[test]
fn of_near_ties_the_one_that_is_within_noise_at_the_most_shapes_wins_in_any_order_of_recording() {
    let (first, last) = if id(4) < id(8) { (4, 8) } else { (8, 4) };
    let trials = [
        (at(4096, timed(first, &[])), 100.0),
        (at(4096, timed(last, &[])), 100.1),
        (at(8192, timed(first, &[])), 230.0),
        (at(8192, timed(last, &[])), 200.0),
        (at(4096, timed(2, &[])), 150.0),
    ];
    for rotation in 0..trials.len() {
        let (_folder, path) = place();
        let (mut db, run) = tuning(&path);
        let mut order = trials.clone();
        order.rotate_left(rotation);
        for (trial, us) in order {
            record_rounds(&mut db, run, trial, &calm(us));
        }
        let winners = db.winners(&ALL()).unwrap();
        let kernels: Vec<_> = winners.iter().map(|w| Some(w.kernel.key().kernel_id)).collect();
        assert_eq!(kernels, [id(last), id(last)], "the faster by 0.1 %, and first by name, is so at one shape only");
        let near: Vec<_> = winners[0].near_ties.iter().map(|n| Some(n.kernel_id.clone())).collect();
        assert_eq!(near, [id(first)], "half as slow again is no near tie");
        assert!(winners[1].near_ties.is_empty());

        let one = db.winners(&WinnerFilter { shape: Some(shape(64, 4096)), ..ALL() }).unwrap().remove(0);
        assert_eq!(one, winners[0], "a filter does not change who wins");
    }
}

#[test]
fn a_near_tie_that_does_not_beat_the_default_does_not_win_though_it_is_so_at_more_shapes() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    record_rounds(&mut db, run, at(8192, timed(2, &[])), &calm(200.0)); // 2 is the most common
    record_rounds(&mut db, run, timed(8, &[]), &calm(100.0));
    record_rounds(&mut db, run, timed(2, &[]), &calm(100.8));
    record_rounds(&mut db, run, TrialRecord { is_default: true, ..timed(4, &[]) }, &calm(101.5));
    let winner = db.winners(&ALL()).unwrap().remove(0);
    assert_eq!((Some(winner.kernel.key().kernel_id), winner.default.unwrap().beaten), (id(8), true));
    assert_eq!(winner.near_ties.len(), 2, "the default is a near tie too, though it is beaten");
}

#[test]
fn few_samples_neither_win_nor_lose() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    record_rounds(&mut db, run, timed(8, &[]), &calm(100.0));
    db.record(run, &timed(4, &[99.5; 7])).unwrap(); // one round, 0.5 % ahead
    let winner = db.winners(&ALL()).unwrap().remove(0);
    assert_eq!((Some(winner.kernel.key().kernel_id), winner.times.rounds), (id(8), 5));
    assert_eq!(Some(winner.near_ties[0].kernel_id.clone()), id(4));
    db.record(run, &timed(4, &[90.0; 7])).unwrap();
    assert_eq!(winning_kernel(&db), id(4), "far ahead is ahead");
}

#[test]
fn a_default_that_wins_does_not_beat_itself() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.record(run, &TrialRecord { is_default: true, ..timed(4, &[10.0, 10.0]) }).unwrap();
    let winner = db.winners(&ALL()).unwrap().remove(0);
    assert!(winner.is_default && !winner.default.unwrap().beaten);
}

#[test]
fn failed_trials_never_win_and_a_wrong_kernel_wins_nowhere() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.record(run, &timed(8, &[20.0])).unwrap();
    let fast = timed(4, &[10.0]);
    db.record(run, &fast).unwrap();
    assert_eq!(winning_kernel(&db), id(4));
    assert!(!db.failed_where_run(Target::Sm90a, &fast.kernel.key()).unwrap());

    let wrong = Outcome::Wrong { error: f64::NAN, detail: "kv_len 17, head 3".into() };
    db.record(run, &TrialRecord { shape: Some(shape(1, 17)), samples: vec![], outcome: wrong, ..fast.clone() })
        .unwrap();
    assert_eq!(winning_kernel(&db), id(8), "wrong at another shape");
    assert!(db.failed_where_run(Target::Sm90a, &fast.kernel.key()).unwrap());

    let refused = failed(2, Outcome::LaunchFailed { error: "too many resources".into() });
    let disturbed = TrialRecord { shape: Some(shape(1, 17)), ..refused.clone() };
    db.record(run, &disturbed).unwrap();
    assert!(!db.failed_where_run(Target::Sm90a, &refused.kernel.key()).unwrap(), "one disturbed measurement");
    db.record(run, &refused).unwrap();
    assert!(db.failed_where_run(Target::Sm90a, &refused.kernel.key()).unwrap());

    let hang = Outcome::Timeout { stage: Stage::Measure, seconds: 10.0 };
    db.record(run, &failed(8, hang)).unwrap();
    assert_eq!(winning_kernel(&db), None, "hung in some launch");
}

#[test]
fn a_compile_that_timed_out_once_does_not_bar_the_kernel() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    let slow = TrialRecord {
        kernel: nvkv_db::KernelRecord { compiled: None, ..timed(4, &[]).kernel },
        ..failed(4, Outcome::Timeout { stage: Stage::Compile, seconds: 60.0 })
    };
    db.record(run, &slow).unwrap();
    db.record(run, &timed(4, &[10.0])).unwrap();
    assert_eq!(winning_kernel(&db), id(4));
    let kernel = timed(4, &[]).kernel;
    assert_eq!(db.kernel_by_source(Target::Sm90a, &kernel.key()).unwrap(), Some(kernel), "facts filled in");
}

#[test]
fn the_later_trial_of_a_key_supersedes() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.record(run, &timed(4, &[10.0])).unwrap();
    db.record(run, &timed(4, &[30.0])).unwrap();
    assert_eq!(db.winners(&ALL()).unwrap()[0].times.median_us, 30.0);
    db.record(run, &timed(8, &[20.0])).unwrap();
    assert_eq!(winning_kernel(&db), id(8));
}

#[test]
fn another_source_of_a_kernel_makes_its_trials_stale_until_it_is_adopted_again() {
    let (_folder, path) = place();
    let (mut db, first) = tuning(&path);
    let old = timed(4, &[10.0]);
    db.record(first, &old).unwrap();

    let second = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    let mut new = timed(4, &[20.0]);
    new.kernel.source_hash = "another source".into();
    db.record(second, &new).unwrap();
    assert_eq!(db.winners(&ALL()).unwrap()[0].kernel, new.kernel);

    let third = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    db.adopt(third, &[old.kernel.key()]).unwrap();
    assert_eq!(db.winners(&ALL()).unwrap()[0].kernel, old.kernel);
}

#[test]
fn kernels_of_another_nvrtc_are_stale_for_the_whole_problem() {
    let (_folder, path) = place();
    let (mut db, first) = tuning(&path);
    db.record(first, &timed(4, &[10.0])).unwrap();
    let newer = nvkv_db::NewRun { nvrtc: "13.1".into(), ..run(Some(gpu("GPU-1", "580.1"))) };
    let second = db.begin_run(&newer).unwrap();
    let mut other_variant = timed(8, &[20.0]);
    other_variant.kernel.nvrtc = "13.1".into();
    db.record(second, &other_variant).unwrap();
    assert_eq!(winning_kernel(&db), id(8));
}

#[test]
fn environments_are_kept_apart_and_filtered() {
    let (_folder, path) = place();
    let (mut db, first) = tuning(&path);
    db.record(first, &timed(4, &[10.0])).unwrap();
    let second = db.begin_run(&run(Some(gpu("GPU-1", "590.0")))).unwrap();
    db.record(second, &timed(8, &[20.0])).unwrap();
    db.record(second, &failed(4, Outcome::Wrong { error: 1.0, detail: "on the new driver".into() })).unwrap();

    let on = |driver: &str| {
        let environment = Some(EnvironmentKey::from(&gpu("GPU-1", driver)));
        let winners = db.winners(&WinnerFilter { environment, ..ALL() }).unwrap();
        winners.into_iter().map(|w| w.times.median_us).collect::<Vec<_>>()
    };
    assert_eq!((on("580.1"), on("590.0"), on("570.0")), (vec![10.0], vec![20.0], vec![]));
    assert_eq!(db.winners(&ALL()).unwrap().len(), 2);
}

#[test]
fn filters_take_problems_and_a_shape() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    let (problem, variant) = append();
    let tokens = Shape::Append { tokens: 256, kv_heads: 8 };
    let of_append = TrialRecord {
        kernel: kernel(problem, variant, "append"),
        shape: Some(tokens),
        split: None,
        ..timed(4, &[5.0])
    };
    db.record(run, &of_append).unwrap();
    db.record(run, &timed(4, &[10.0])).unwrap();
    db.record(run, &TrialRecord { shape: Some(shape(1, 1024)), ..timed(4, &[3.0]) }).unwrap();

    let shapes = |filter: &WinnerFilter| db.winners(filter).unwrap().into_iter().map(|w| w.shape).collect::<Vec<_>>();
    assert_eq!(shapes(&ALL()), [tokens, shape(1, 1024), shape(64, 4096)], "append, then decode by batch");
    assert_eq!(shapes(&WinnerFilter { problems: vec![problem], ..ALL() }), [tokens]);
    assert_eq!(shapes(&WinnerFilter { problems: vec![problem, decode(128)], ..ALL() }), shapes(&ALL()));
    assert_eq!(shapes(&WinnerFilter { shape: Some(shape(1, 1024)), ..ALL() }), [shape(1, 1024)]);
    assert_eq!(shapes(&WinnerFilter { problems: vec![decode(64)], ..ALL() }), []);
    assert_eq!(shapes(&WinnerFilter::of(Target::Sm100a)), []);
    assert_eq!(db.winners(&WinnerFilter { problems: vec![problem], ..ALL() }).unwrap()[0].split, None);
}

#[test]
fn predictions_stand_apart_from_measurements() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let id = db.begin_run(&run(None)).unwrap();
    db.record(id, &TrialRecord { is_default: true, ..predicted(4, 12.0) }).unwrap();
    db.record(id, &predicted(8, 11.0)).unwrap();
    db.record(id, &predicted(2, 9.0)).unwrap();
    assert_eq!(db.winners(&ALL()).unwrap(), []);
    let best = db.predicted_winners(&ALL()).unwrap().remove(0);
    assert_eq!((best.predicted_us, best.default_predicted_us), (9.0, Some(12.0)));

    let on_gpu = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    db.record(on_gpu, &failed(2, Outcome::Wrong { error: 0.5, detail: "elsewhere".into() })).unwrap();
    assert_eq!(db.predicted_winners(&ALL()).unwrap()[0].predicted_us, 11.0, "wrong on a GPU: not predicted");
}

#[test]
fn what_the_emulator_said_stands_beside_a_prediction_and_takes_no_measurement_away() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let without_gpu = db.begin_run(&run(None)).unwrap();
    db.record(without_gpu, &predicted(8, 11.0)).unwrap();
    db.record(without_gpu, &predicted(2, 9.0)).unwrap();
    let best = |db: &Db| db.predicted_winners(&ALL()).unwrap().remove(0);
    assert_eq!((best(&db).predicted_us, best(&db).emulated), (9.0, None));
    assert_eq!(db.emulated(Target::Sm90a, &best(&db).kernel.key()).unwrap(), None);

    db.record(without_gpu, &failed(2, Outcome::Faulted { detail: "PTX line 12: a race".into() })).unwrap();
    assert_eq!(best(&db).predicted_us, 11.0, "at fault in the emulator: not predicted");
    let failures = db.failed_kernels(Target::Sm90a, None).unwrap();
    assert!(matches!(failures[&predicted(2, 9.0).kernel.key()], Outcome::Faulted { .. }));

    db.record(without_gpu, &failed(8, Outcome::Emulated { error: 3e-4, cases: 5 })).unwrap();
    let emulated = Some(Emulated { cases: 5, error: 3e-4 });
    assert_eq!(best(&db).emulated, emulated);
    assert_eq!(db.emulated(Target::Sm90a, &best(&db).kernel.key()).unwrap(), emulated);
    assert_eq!(db.failed_kernels(Target::Sm90a, None).unwrap().len(), 1, "agreement is no failure");

    // A GPU has the last word.
    let on_gpu = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    db.record(on_gpu, &timed(2, &[5.0])).unwrap();
    assert_eq!(winning_kernel(&db), id(2));
}

#[test]
fn contradictory_trials_are_refused() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    let mut uncompiled = timed(4, &[1.0]);
    uncompiled.kernel.compiled = None;
    for trial in [
        timed(4, &[]),
        timed(4, &[1.0, -2.0]),
        timed(4, &[f64::NAN]),
        TrialRecord { shape: None, ..timed(4, &[1.0]) },
        uncompiled,
        TrialRecord { samples: vec![1.0], ..predicted(4, 1.0) },
        TrialRecord { measurements: vec![MeasurementId(1)], ..timed(4, &[1.0, 2.0]) },
        TrialRecord { outcome: Outcome::Emulated { error: 0.0, cases: 1 }, ..predicted(4, 1.0) },
    ] {
        assert!(matches!(db.record(run, &trial), Err(DbError::InvalidTrial { .. })), "{trial:?}");
    }
    assert!(db.outcomes(run).unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_median_is_the_median(samples in prop::collection::vec(0.01f64..1e6, 1..40)) {
        let (_folder, path) = place();
        let (mut db, run) = tuning(&path);
        db.record(run, &timed(4, &samples)).unwrap();
        let times = db.winners(&ALL()).unwrap()[0].times;

        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        prop_assert!((times.median_us - median).abs() <= 1e-12 * median, "{} for {median}", times.median_us);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * sorted[n - 1]; // samples are read with 15 digits
        prop_assert!(close(times.min_us, sorted[0]));
        let rank = |quarter: usize| sorted[(quarter * n).div_ceil(4) - 1];
        prop_assert!(close(times.iqr_us, rank(3) - rank(1)));
        prop_assert_eq!(times.samples, n as u64);
    }
}
