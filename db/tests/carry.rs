//! Upgrades: what an identical cubin keeps, and what another one does not.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{decode, failed, gpu, place, run, shape, timed};
use nvkv_db::{Carried, Compiled, Db, KernelRecord, NewRun, TrialRecord, WinnerFilter};
use nvkv_spec::{CompileFacts, Outcome, SplitPolicy, Stage, Target};

const TARGET: Target = Target::Sm90a;

/// The kernel of `of` by another source and NVRTC, with the cubin of `cubin`.
fn upgraded(of: &TrialRecord, cubin: &str) -> KernelRecord {
    let compiled = Some(Compiled { cubin_hash: cubin.into(), facts: CompileFacts::default() });
    KernelRecord { source_hash: "new".into(), nvrtc: "13.1".into(), compiled, ..of.kernel.clone() }
}

fn cubin(of: &TrialRecord) -> &str {
    &of.kernel.compiled.as_ref().unwrap().cubin_hash
}

fn on(driver: &str) -> NewRun {
    NewRun { nvrtc: "13.1".into(), ..run(Some(gpu("GPU-2", driver))) }
}

#[test]
fn an_identical_cubin_keeps_its_times_once_and_says_where_they_are_from() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let first = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    let old = TrialRecord { is_default: true, ..timed(4, &[11.0, 10.0, 12.0]) };
    let elsewhere = TrialRecord { shape: Some(shape(1, 1024)), ..timed(4, &[3.0]) };
    let ids = [&old, &elsewhere].map(|trial| db.record(first, trial).unwrap());
    let second = db.begin_run(&on("580.1")).unwrap();

    let other = db.carry_over(second, &upgraded(&old, "another cubin"), |_, _| false).unwrap();
    assert_eq!(other, Carried::default());
    let kernel = upgraded(&old, cubin(&old));
    let carried = db.carry_over(second, &kernel, |at, _| at == shape(1, 1024)).unwrap();
    assert_eq!((carried.keys.len(), carried.error, &carried.failure), (2, Some(3e-4), &None));
    assert_eq!(db.carry_over(second, &kernel, |_, _| false).unwrap(), Carried::default(), "once");

    let winners = db.winners(&WinnerFilter::of(TARGET)).unwrap();
    let new: Vec<_> =
        winners.iter().map(|w| (w.kernel.key(), w.carried_from, w.times.median_us, w.is_default)).collect();
    let expected = [(ids[1], 3.0, true), (ids[0], 11.0, false)];
    assert_eq!(new, expected.map(|(id, us, is_default)| (kernel.key(), Some(id), us, is_default)));
    assert!(!db.is_of_another_driver(winners[0].trial).unwrap());
    let done = db.done(TARGET, Some(&gpu("GPU-1", "580.1"))).unwrap();
    assert!(carried.keys.iter().all(|key| done.contains(key)));

    // An upgrade later they are still those of the first run.
    let third = db.begin_run(&on("580.1")).unwrap();
    let next = KernelRecord { source_hash: "newer".into(), ..kernel };
    db.carry_over(third, &next, |_, _| false).unwrap();
    assert_eq!(db.winners(&WinnerFilter::of(TARGET)).unwrap()[0].carried_from, Some(ids[1]));
}

#[test]
fn times_of_another_driver_are_a_start_and_its_failures_are_tried_again() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let first = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    let (good, bad) = (timed(4, &[10.0]), failed(8, Outcome::Crashed { stage: Stage::Verify, detail: "700".into() }));
    db.record(first, &good).unwrap();
    db.record(first, &bad).unwrap();

    let second = db.begin_run(&run(Some(gpu("GPU-1", "590.0")))).unwrap();
    let carried = db.carry_over(second, &good.kernel, |_, _| false).unwrap();
    assert_eq!((carried.keys.len(), carried.error), (1, None), "verified again under the new driver");
    assert_eq!(db.carry_over(second, &bad.kernel, |_, _| false).unwrap(), Carried::default());
    let here = gpu("GPU-1", "590.0");
    let remembered = |db: &Db| db.remembered(TARGET, (&decode(128), shape(64, 4096)), &here, false).unwrap();
    assert_eq!(remembered(&db).iter().map(|r| (&*r.driver, r.samples)).collect::<Vec<_>>(), [("580.1", 1)]);
    let of_new = |db: &Db| {
        let winners = db.winners(&WinnerFilter::of(TARGET)).unwrap();
        winners.into_iter().find(|w| w.environment.driver == "590.0").unwrap()
    };
    assert!(db.is_of_another_driver(of_new(&db).trial).unwrap());

    // What is timed here takes its place, with as many samples or fewer.
    db.record(second, &timed(4, &[14.0])).unwrap();
    assert_eq!((of_new(&db).times.median_us, of_new(&db).carried_from), (14.0, None));
    assert_eq!(remembered(&db)[0].driver, "590.0");
    assert_eq!(db.remembered(TARGET, (&decode(128), shape(64, 4096)), &here, true).unwrap().len(), 2);

    // Under the driver that saw it fail, the same machine code fails by another name too.
    let third = db.begin_run(&on("580.1")).unwrap();
    let carried = db.carry_over(third, &upgraded(&bad, cubin(&bad)), |_, _| false).unwrap();
    assert!(matches!(carried.failure, Some(Outcome::Crashed { .. })) && carried.keys.len() == 1);
}

#[test]
fn times_by_another_policy_are_not_carried() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let first = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    let split = Some(SplitPolicy::Even { splits: 2 });
    let old = TrialRecord { split, ..timed(4, &[10.0]) };
    db.record(first, &old).unwrap();
    let newer = NewRun { measurement_policy: Some("another".into()), ..on("580.1") };
    let second = db.begin_run(&newer).unwrap();
    assert_eq!(db.carry_over(second, &upgraded(&old, cubin(&old)), |_, _| false).unwrap(), Carried::default());
}
