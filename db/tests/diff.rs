//! Two databases compared.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{calm, gpu, place, record_rounds, run, shape, timed};
use nvkv_db::{Db, Pairing, TrialRecord, Verdict, diff};
use std::path::Path;

/// Warps, context and time of trials.
type Trials<'a> = &'a [(u32, u32, f64)];

fn tuned(path: &Path, driver: &str, trials: Trials) -> Db {
    let mut db = Db::open(path).unwrap();
    let run = db.begin_run(&run(Some(gpu("GPU-1", driver)))).unwrap();
    for &(warps, context, us) in trials {
        let trial = TrialRecord { shape: Some(shape(64, context)), ..timed(warps, &[]) };
        record_rounds(&mut db, run, trial, &calm(us));
    }
    drop(db);
    Db::open_read_only(path).unwrap()
}

fn compared(a: Trials, b: Trials) -> Vec<Pairing> {
    let ((_a, a_path), (_b, b_path)) = (place(), place());
    diff(&tuned(&a_path, "580.1", a), &tuned(&b_path, "580.1", b), 0.03).unwrap()
}

#[test]
fn verdicts_follow_from_the_samples() {
    for (us, verdict) in [
        (100.0, Verdict::Same),
        (100.3, Verdict::Same),
        (104.0, Verdict::Slower),
        (105.0, Verdict::Slower),
        (102.0, Verdict::Ambiguous),
        (95.0, Verdict::Faster),
    ] {
        let difference = compared(&[(4, 4096, 100.0)], &[(4, 4096, us)]).remove(0).difference.unwrap();
        assert_eq!(difference.verdict, verdict, "{us}");
        assert!((difference.ratio - us / 100.0).abs() < 1e-9 && difference.same_gpu && difference.agree);
    }
}

#[test]
fn noise_that_may_hide_a_difference_is_ambiguous() {
    let ((_a, a), (_b, b)) = (place(), place());
    for (path, us) in [(&a, 100.0), (&b, 102.0)] {
        let (mut db, run) = common::tuning(path);
        db.record(run, &timed(4, &[us; 7])).unwrap(); // one round: an error of 1 %
    }
    let open = |path: &Path| Db::open_read_only(path).unwrap();
    let verdict = |threshold| diff(&open(&a), &open(&b), threshold).unwrap().remove(0).difference.unwrap().verdict;
    assert_eq!((verdict(0.03), verdict(0.1)), (Verdict::Ambiguous, Verdict::Same));
}

#[test]
fn the_samples_of_one_trial_are_the_same_however_few_and_those_of_another_are_not() {
    let ((_a, a), (folder, b)) = (place(), place());
    for path in [&a, &b] {
        let (mut db, run) = common::tuning(path);
        db.record(run, &timed(4, &[100.0])).unwrap(); // one sample: an error of 1 %
        std::thread::sleep(std::time::Duration::from_millis(2)); // trials of another moment
    }
    let [copy, merged] = ["copy", "merged"].map(|name| folder.path().join(name));
    std::fs::copy(&a, &copy).unwrap();
    Db::merge(std::slice::from_ref(&a), &merged, false).unwrap();
    let verdict = |b: &Path| {
        let open = |path: &Path| Db::open_read_only(path).unwrap();
        diff(&open(&a), &open(b), 0.03).unwrap().remove(0).difference.unwrap().verdict
    };
    let verdicts = [&a, &copy, &merged, &b].map(|b| verdict(b));
    assert_eq!(verdicts, [Verdict::Same, Verdict::Same, Verdict::Same, Verdict::Ambiguous]);
}

#[test]
fn agreement_is_the_same_winner_or_near_ties_of_each_other() {
    let near = compared(&[(4, 4096, 100.0), (8, 4096, 100.2)], &[(4, 4096, 100.2), (8, 4096, 100.0), (8, 8192, 1.0)]);
    assert!(near[0].difference.as_ref().unwrap().agree);
    let apart = compared(&[(4, 4096, 100.0), (8, 4096, 120.0)], &[(4, 4096, 120.0), (8, 4096, 100.0)]);
    let apart = apart[0].difference.as_ref().unwrap();
    assert!(!apart.agree && !apart.same_winner && apart.verdict == Verdict::Same);
}

#[test]
fn what_one_has_alone_is_listed_and_another_gpu_is_said() {
    let pairings = compared(&[(4, 4096, 100.0), (4, 1024, 30.0)], &[(4, 4096, 100.0), (4, 8192, 200.0)]);
    let only: Vec<_> = pairings.iter().map(|p| (p.shape, p.only_in_a)).collect();
    assert_eq!(only, [(shape(64, 1024), Some(true)), (shape(64, 4096), None), (shape(64, 8192), Some(false))]);

    let ((_a, a), (_b, b)) = (place(), place());
    let trials = [(4, 4096, 100.0)];
    let pairings = diff(&tuned(&a, "580.1", &trials), &tuned(&b, "590.1", &trials), 0.03).unwrap();
    assert!(!pairings[0].difference.as_ref().unwrap().same_gpu);
}

#[test]
fn the_files_are_not_written() {
    let ((_a, a), (_b, b)) = (place(), place());
    let (db_a, db_b) = (tuned(&a, "580.1", &[(4, 4096, 100.0)]), tuned(&b, "580.1", &[(4, 4096, 100.0)]));
    let before = [std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap()];
    diff(&db_a, &db_b, 0.03).unwrap();
    drop((db_a, db_b));
    assert_eq!([std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap()], before);
}
