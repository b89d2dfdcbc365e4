//! What a GPU, its driver and a kernel can do wrong while kernels are verified and timed: each costs what it must, is
//! recorded with its reason, and nothing else is lost.

use super::*;
use crate::pipeline::cache::Cache;
use crate::pipeline::new_run;
use crate::pipeline::space::{Space, render_all};
use crate::pipeline::target::Machine;
use crate::worker::Compiled;
use crate::worker::fake::{self, At, Fault};
use nvkv_generator::Preset;
use nvkv_spec::{CompileFacts, KernelId, Stage, Toolchain};
use std::path::Path;
use std::sync::mpsc::channel;

pub(super) const SHAPES: [Shape; 2] =
    [Shape::Append { tokens: 64, kv_heads: 8 }, Shape::Append { tokens: 256, kv_heads: 8 }];

/// A tune on a fake GPU whose kernels are compiled already.
pub(super) struct Tune {
    folder: tempfile::TempDir,
    request: Request,
    candidates: Vec<Candidate>,
}

impl Tune {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gpu = GpuEnvironment { name: "H200".into(), uuid: "GPU-1".into(), sms: 132, ..GpuEnvironment::default() };
        let machine = Machine { target: Target::Sm90a, gpu: Ok(gpu), device: 0, beside: Vec::new() };
        let request = Request::of_appends(machine, folder.path(), SHAPES.to_vec());
        let problem = request.cases[0].0;
        let candidates = render_all(&[Space::new(problem, Target::Sm90a, Preset::Quick)], Target::Sm90a).unwrap();
        Self { folder, request, candidates }
    }

    pub(super) fn id(&self, n: usize) -> KernelId {
        self.candidates[n].source.id.clone()
    }

    /// A run of it, begun.
    fn begin(&self) -> (Board, Toolchain, Recorder, Cache) {
        let board = self.request.machine.boards().remove(0);
        let toolchain = Toolchain { nvrtc: "13.0".into(), generator: "0".into() };
        let run = new_run(&self.request, &toolchain, Some(&board.environment));
        let recorder = Recorder::begin(&self.request.db, &run, &self.candidates).unwrap();
        (board, toolchain, recorder, Cache::new(&self.request.out, Target::Sm90a, "13.0"))
    }

    /// Runs it with these faults; gives the end of the run, and its recorder.
    pub(super) fn run(&self, faults: &[(At, Fault)]) -> (anyhow::Result<()>, Recorder) {
        let (progress, stop) = (Progress::new(0), Stop::new(None));
        let (board, toolchain, mut recorder, cache) = self.begin();
        let pending: Vec<_> = self.candidates.iter().filter(|c| recorder.failed_before(c).is_none()).collect();
        let built = built(&pending, &cache, (&CompileFacts::default(), &toolchain));
        let worker = fake::worker(self.folder.path(), &board.environment, faults);
        let end =
            Timing::with_worker((&self.request, board), worker, &mut recorder, (&progress, &stop)).run(built, &pending);
        (end, recorder)
    }

    /// Measures its buckets with these faults.
    pub(super) fn measure_buckets(&self, faults: &[(At, Fault)]) -> (anyhow::Result<()>, Recorder) {
        let (progress, stop) = (Progress::new(0), Stop::new(None));
        let (board, _, mut recorder, cache) = self.begin();
        let fields = held_out::fields(&self.request, &recorder, &cache).unwrap();
        let worker = fake::worker(self.folder.path(), &board.environment, faults);
        let mut timing = Timing::with_worker((&self.request, board), worker, &mut recorder, (&progress, &stop));
        let end = fields.iter().try_for_each(|field| timing.measure_buckets(field));
        drop(timing);
        (end, recorder)
    }

    /// Kernel and outcome of every failure of a run.
    fn failures(&self, recorder: &Recorder) -> Vec<(KernelId, Outcome)> {
        let failures = recorder.db().failures(recorder.run()).unwrap();
        failures.into_iter().map(|failure| (failure.kernel_id, failure.outcome)).collect()
    }

    fn winners(&self, recorder: &Recorder) -> Vec<KernelId> {
        let winners = recorder.db().winners(&WinnerFilter::of(Target::Sm90a)).unwrap();
        winners.into_iter().map(|winner| winner.kernel.key().kernel_id).collect()
    }
}

/// The candidates as compilers leave them, all done: the hash of its source stands for a kernel's machine code.
pub(super) fn built<'a>(
    candidates: &[&'a Candidate],
    cache: &Cache,
    (facts, toolchain): (&CompileFacts, &Toolchain),
) -> Receiver<Built<'a>> {
    let (sender, built) = channel();
    for &candidate in candidates {
        let compiled = Compiled {
            ptx: String::new(),
            cubin: candidate.source.hash.as_bytes().to_vec(),
            facts: facts.clone(),
            log: String::new(),
            toolchain: toolchain.clone(),
        };
        let artefact = cache.store(&candidate.source.hash, &candidate.source.text, &compiled).unwrap();
        sender.send(Built { candidate, result: Ok(Ok(artefact)) }).unwrap();
    }
    built
}

/// The database as another process finds it.
fn reopened(path: &Path) -> nvkv_db::Db {
    nvkv_db::Db::open(path).unwrap()
}

#[test]
fn each_fault_costs_one_kernel_and_is_recorded_with_its_reason() {
    let tune = Tune::new();
    let sticky = Outcome::Crashed { stage: Stage::Measure, detail: "CUDA_ERROR_ILLEGAL_ADDRESS".into() };
    type Right = fn(&Outcome) -> bool;
    let cases: [(At, Fault, Right); 5] = [
        (
            At::Verify(tune.id(0)),
            Fault::Crash,
            |o| matches!(o, Outcome::Crashed { stage: Stage::Verify, detail } if detail.contains("ILLEGAL_ADDRESS")),
        ),
        (
            At::Verify(tune.id(1)),
            Fault::Hang,
            |o| matches!(o, Outcome::Timeout { stage: Stage::Verify, seconds } if *seconds == fake::LIMIT.as_secs_f64()),
        ),
        (
            At::Verify(tune.id(2)),
            Fault::Garbage,
            |o| matches!(o, Outcome::Crashed { detail, .. } if detail.contains("not an answer")),
        ),
        (
            At::Measure(tune.id(3)),
            Fault::Crash,
            |o| matches!(o, Outcome::Crashed { stage: Stage::Measure, detail } if detail.contains("timed at t")),
        ),
        (
            At::Measure(tune.id(4)),
            Fault::Lost(sticky),
            |o| matches!(o, Outcome::Crashed { stage: Stage::Measure, detail } if detail.contains("ILLEGAL_ADDRESS")),
        ),
    ];
    let faults: Vec<_> = cases.iter().map(|(at, fault, _)| (at.clone(), fault.clone())).collect();
    let (end, recorder) = tune.run(&faults);
    end.unwrap();
    let failures = tune.failures(&recorder);
    for (n, (at, fault, right)) in cases.iter().enumerate() {
        let of: Vec<_> = failures.iter().filter(|(id, _)| *id == tune.id(n)).collect();
        assert!(of.len() == 1 && right(&of[0].1), "{at:?} {fault:?}: {of:?}");
    }
    assert_eq!(failures.len(), cases.len(), "{failures:?}");
    let winners = tune.winners(&recorder);
    assert!(
        winners.len() == SHAPES.len()
            && winners.iter().all(|id| (cases.len()..)
                .take(99)
                .any(|n| { tune.candidates.get(n).is_some_and(|c| c.source.id == *id) }))
    );
    // Those that failed are left out the next time, and nothing else is left to do.
    drop(recorder);
    let before = reopened(&tune.request.db).quarantined().unwrap();
    assert_eq!(before.len(), cases.len());
    let (end, recorder) = tune.run(&[]);
    end.unwrap();
    assert_eq!(recorder.db().outcomes(recorder.run()).unwrap().len(), 0);
}

#[test]
fn a_hang_while_timing_is_found_among_its_neighbours() {
    let tune = Tune::new();
    let (end, recorder) = tune.run(&[(At::Measure(tune.id(1)), Fault::Hang)]);
    end.unwrap();
    let failures = tune.failures(&recorder);
    assert!(
        matches!(&failures[..], [(id, Outcome::Timeout { stage: Stage::Measure, .. })] if *id == tune.id(1)),
        "{failures:?}"
    );
    assert_eq!(tune.winners(&recorder).len(), SHAPES.len());
}

#[test]
fn no_memory_for_a_shape_bars_no_kernel_from_another() {
    let tune = Tune::new();
    let no_memory = Outcome::LaunchFailed { error: "CUDA_ERROR_OUT_OF_MEMORY".into() };
    let (end, recorder) = tune.run(&[(At::Shape(SHAPES[1]), Fault::Refused(no_memory))]);
    end.unwrap();
    let winners = recorder.db().winners(&WinnerFilter::of(Target::Sm90a)).unwrap();
    assert_eq!(winners.iter().map(|w| w.shape).collect::<Vec<_>>(), SHAPES[..1]);
    let failures = recorder.db().failures(recorder.run()).unwrap();
    assert_eq!(failures.len(), tune.candidates.len());
    let right = |f: &nvkv_db::Failure| {
        f.shape == Some(SHAPES[1]) && matches!(&f.outcome, Outcome::LaunchFailed { error } if error.contains("MEMORY"))
    };
    assert!(failures.iter().all(right), "{failures:?}");
    assert!(recorder.db().quarantined().unwrap().is_empty());
}

#[test]
fn a_gpu_that_is_gone_ends_the_run_and_the_next_one_goes_on() {
    let tune = Tune::new();
    let (end, recorder) = tune.run(&[(At::Shape(SHAPES[1]), Fault::Gone)]);
    let said = format!("{:#}", end.unwrap_err());
    assert!(said.contains("no longer answers") && said.contains("the same command goes on"), "{said}");
    assert!(said.contains("lists no device"), "{said}");
    let timed = recorder.db().outcomes(recorder.run()).unwrap()["timed"];
    assert!(tune.failures(&recorder).is_empty(), "no kernel is to blame");
    assert_eq!(tune.winners(&recorder).len(), 1, "the first shape is done");
    drop(recorder);
    let (end, recorder) = tune.run(&[]);
    end.unwrap();
    assert_eq!(tune.winners(&recorder).len(), SHAPES.len());
    assert_eq!(recorder.db().outcomes(recorder.run()).unwrap()["timed"], timed, "the other shape's, and no more");
}
