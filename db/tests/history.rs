//! What a search is told of the past.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{failed, gpu, place, predicted, run, shape, timed};
use nvkv_db::{Db, EnvironmentKey, KernelRecord, NewRun, Release, TrialRecord};
use nvkv_spec::{Outcome, Stage, Target};

const TARGET: Target = Target::Sm90a;

fn here() -> EnvironmentKey {
    EnvironmentKey::from(&gpu("GPU-1", "580.1"))
}

#[test]
fn the_past_has_every_trial_at_a_shape_on_boards_of_the_model_in_order() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let first = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    let refused = Outcome::LaunchFailed { error: "no memory".into() };
    let refused = TrialRecord { outcome: refused, samples: Vec::new(), ..timed(2, &[]) };
    let ids = [timed(1, &[2.0, 1.5]), refused, timed(1, &[1.0; 9])].map(|trial| db.record(first, &trial).unwrap());
    // Neither a whole kernel, nor a prediction, nor another GPU's.
    db.record(first, &failed(3, Outcome::Crashed { stage: Stage::Verify, detail: "700".into() })).unwrap();
    db.record(first, &predicted(4, 5.0)).unwrap();
    let other = db.begin_run(&run(Some(nvkv_spec::GpuEnvironment { name: "H100".into(), ..gpu("GPU-3", "580.1") })));
    db.record(other.unwrap(), &timed(1, &[7.0])).unwrap();
    let past = db.past(TARGET, &here(), None).unwrap();
    assert_eq!(past.iter().map(|trial| trial.id).collect::<Vec<_>>(), ids);
    assert_eq!(past.iter().map(|trial| &trial.samples[..]).collect::<Vec<_>>(), [&[2.0, 1.5][..], &[], &[1.0; 9]]);
    assert!(past.iter().all(|trial| !trial.carried && trial.shape == shape(64, 4096) && trial.driver == "580.1"));
    assert!(past.is_sorted_by(|a, b| a.moment.clock < b.moment.clock));

    // A new driver on another board of the model; only what was recorded since; what was released does not count.
    db.release(&Release::Kernel(timed(2, &[]).kernel.key().kernel_id.to_string()), "2026-11-30T10:00:00Z", "a test")
        .unwrap();
    let second = db.begin_run(&run(Some(gpu("GPU-2", "590.0")))).unwrap();
    let now = db.now(second).unwrap();
    let last = db.record(second, &timed(2, &[3.0])).unwrap();
    let since = db.past(TARGET, &here(), Some(ids[2])).unwrap();
    assert_eq!(since.iter().map(|t| (t.id, &*t.driver)).collect::<Vec<_>>(), [(last, "590.0")]);
    assert!(since[0].moment.run == second && since[0].moment.began == now.began && since[0].moment.clock >= now.clock);
    assert!(past.iter().all(|trial| trial.moment.clock < now.began), "it was there before the run began");
}

#[test]
fn what_was_carried_over_is_of_the_moment_of_its_origin() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let first = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    let old = timed(4, &[11.0, 10.0, 12.0]);
    db.record(first, &old).unwrap();
    let second = db.begin_run(&NewRun { nvrtc: "13.1".into(), ..run(Some(gpu("GPU-1", "580.1"))) }).unwrap();
    let kernel = KernelRecord { nvrtc: "13.1".into(), ..old.kernel.clone() };
    db.carry_over(second, &kernel, |_, _| false).unwrap();
    let [origin, carried] = &db.past(TARGET, &here(), None).unwrap()[..] else { panic!("two trials") };
    assert_eq!((origin.carried, carried.carried), (false, true));
    assert_eq!((carried.moment, &carried.samples), (origin.moment, &origin.samples));
    assert_eq!((origin.kernel.key(), carried.kernel.key()), (old.kernel.key(), kernel.key()));
}

#[test]
fn a_run_says_which_trials_it_chose_from_and_so_does_its_winner() {
    let (_folder, path) = place();
    let mut db = Db::open(&path).unwrap();
    let guided = NewRun { search: "model".into(), ..run(Some(gpu("GPU-1", "580.1"))) };
    let run = db.begin_run(&guided).unwrap();
    db.record(run, &timed(4, &[10.0])).unwrap();
    assert_eq!(db.runs(None).unwrap()[0].start, guided);
    assert_eq!(db.winners(&nvkv_db::WinnerFilter::of(TARGET)).unwrap()[0].search, "model");
}
