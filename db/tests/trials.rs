//! Trials and runs, read back whole.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{failed, gpu, place, predicted, run, timed, tuning};
use nvkv_spec::{Outcome, Target};

#[test]
fn trials_and_runs_come_back_as_recorded() {
    let (_folder, path) = place();
    let (mut db, first) = tuning(&path);
    db.note_gpu(first, 4600.0, &serde_json::json!({"before": {"sm_clock": 1980}})).unwrap();
    db.finish_run(first, "2026-11-29T11:00:00Z").unwrap();
    let wrong = Outcome::Wrong { error: 0.5, detail: "case 3".into() };
    let recorded = [timed(4, &[9.0, 30.0, 31.0]), timed(8, &[20.0]), failed(8, wrong)];
    for trial in &recorded {
        db.record(first, trial).unwrap();
    }
    let second = db.begin_run(&run(None)).unwrap();
    db.record(second, &predicted(2, 7.0)).unwrap();

    let trials = db.trials(Some(Target::Sm90a)).unwrap();
    let back: Vec<_> = trials.iter().take(3).map(|trial| trial.record.clone()).collect();
    assert_eq!(back, recorded);
    assert_eq!(trials.iter().map(|t| t.quarantined).collect::<Vec<_>>(), [false, true, true, false]);
    assert_eq!(db.trials(None).unwrap(), trials);
    assert_eq!(db.trials(Some(Target::Sm100a)).unwrap(), []);

    let runs = db.runs(None).unwrap();
    assert_eq!(runs.iter().map(|r| r.id).collect::<Vec<_>>(), [first, second]);
    assert_eq!(runs[0].start, run(Some(gpu("GPU-1", "580.1"))));
    assert_eq!(
        (runs[0].read_ceiling_gbps, runs[0].finished_at.as_deref()),
        (Some(4600.0), Some("2026-11-29T11:00:00Z"))
    );
    assert_eq!(runs[0].gpu_state.as_ref().unwrap()["before"]["sm_clock"], 1980);
    assert_eq!((&runs[1].start, runs[1].read_ceiling_gbps), (&run(None), None));
    assert_eq!(db.runs(Some(Target::Sm100a)).unwrap(), []);
}

#[test]
fn a_later_trial_of_the_same_key_is_in_force() {
    let (_folder, path) = place();
    let (mut db, run) = tuning(&path);
    db.record(run, &timed(4, &[9.0])).unwrap();
    db.record(run, &timed(4, &[8.0])).unwrap();
    assert_eq!(db.trials(None).unwrap().iter().map(|t| t.record.samples.clone()).collect::<Vec<_>>(), [[8.0]]);
}
