//! Everything that needs a GPU: asked for without one, these tests fail.
#![cfg(feature = "gpu-tests")]

use nvkv_generator::{Preset, default_split, default_variant, feasible, problems, render, shapes, variants};
use nvkv_spec::abi::DecodeParams;
use nvkv_spec::{
    AppendMode, DecodeProblem, KernelId, KvFormat, Numerics, Operation, Outcome, Problem, SplitPolicy, Target, Traffic,
    Variant,
};
use nvkv_tuner::gpu::{self, Nvrtc};
use nvkv_tuner::worker::{CandidateKernel, Depth, GpuWorker, Limits, MeasureRequest, VerifyRequest};
use rayon::prelude::*;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One test at a time owns the GPU: timing and memory are shared.
static GPU: Mutex<()> = Mutex::new(());

struct Bench {
    worker: GpuWorker,
    compiler: Compiler,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(limit: Duration) -> Self {
        let alone = GPU.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut worker = worker(limit);
        let environment = worker.environment().expect("these tests need a GPU");
        let (major, minor) = environment.capability;
        let target = Target::of_capability(major, minor).expect("a GPU of a known target");
        let compiler = Compiler { target, nvrtc: Nvrtc::load().expect("these tests need NVRTC") };
        Self { worker, compiler, _alone: alone }
    }
}

fn worker(limit: Duration) -> GpuWorker {
    let limits = Limits { device: Duration::from_secs(60), verify: limit, measure: limit };
    GpuWorker::of_binary(PathBuf::from(env!("CARGO_BIN_EXE_nvkv-tune")), 0, limits)
}

struct Compiler {
    target: Target,
    nvrtc: Nvrtc,
}

impl Compiler {
    fn kernel(&self, problem: &Problem, variant: &Variant, source: &str) -> CandidateKernel {
        let id = KernelId::new(problem, variant);
        let binary = gpu::compile(&self.nvrtc, source, self.target.name(), &id.symbol())
            .unwrap_or_else(|error| panic!("{id}: {error}"));
        CandidateKernel { id, variant: *variant, split: SplitPolicy::Even { splits: 1 }, cubin: binary.cubin }
    }

    fn rendered(&self, problem: &Problem, variant: &Variant) -> CandidateKernel {
        let source = render(problem, variant, self.target).expect("templates render");
        self.kernel(problem, variant, &source.text)
    }
}

/// Problems of the full preset in which every value of each axis meets every value of each other axis at least once:
/// the names' parts are the axes' values.
fn matrix() -> Vec<Problem> {
    // Taken in a stride that shares no factor with the axes, so that neighbours differ in all of them.
    let all = problems(Preset::Full, Operation::ALL);
    let spread = (0..53).flat_map(|first| all.iter().skip(first).step_by(53));
    let mut met = HashSet::new();
    spread.filter(|problem| meets_new_pairs(&problem.key(), &mut met)).copied().collect()
}

fn meets_new_pairs(key: &str, met: &mut HashSet<(String, String)>) -> bool {
    let values: Vec<_> = key.split('-').collect();
    let pairs = values.iter().enumerate().flat_map(|(i, a)| values[i + 1..].iter().map(move |b| (a, b)));
    pairs.filter(|(a, b)| met.insert((a.to_string(), b.to_string()))).count() > 0
}

/// Windows, sinks, soft caps, and K and V in different formats, at once.
fn featured() -> Vec<Problem> {
    let Problem::Decode(base) = first_decode() else { unreachable!("a decode problem was asked for") };
    let all = DecodeProblem { window: Some(4096), sinks: true, soft_cap: true, ..base };
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..all };
    let exact = DecodeProblem { numerics: Numerics::Exact, q_len: 4, group: 4, ..all };
    let fused = DecodeProblem { append: AppendMode::Fused, q_len: 2, page_size: 64, ..mixed };
    [all, mixed, exact, fused].map(Problem::Decode).to_vec()
}

fn first_decode() -> Problem {
    problems(Preset::Quick, &[Operation::Decode])[0]
}

/// Workers that verify side by side: most of the time the GPU waits for the reference.
const SIDE_BY_SIDE: usize = 4;

#[test]
fn default_variants_are_right_over_the_whole_matrix() {
    let limit = Duration::from_secs(300);
    let bench = Bench::new(limit);
    let kernel = |p: &Problem| bench.compiler.rendered(p, &default_variant(p, bench.compiler.target));
    let kernels: Vec<_> = matrix().into_par_iter().map(|problem| (problem, kernel(&problem))).collect();
    let verify = |kernels: &[(Problem, CandidateKernel)]| {
        let mut worker = worker(limit);
        let mut wrong = Vec::new();
        for (problem, kernel) in kernels {
            let request = VerifyRequest { problem: *problem, kernel: kernel.clone(), depth: Depth::Full };
            match worker.verify(&request) {
                Ok(report) => eprintln!("{}: {} cases, error {:.1e}", kernel.id, report.cases, report.max_error),
                Err(outcome) => wrong.push(format!("{}: {outcome:?}", kernel.id)),
            }
        }
        wrong
    };
    let share = kernels.len().div_ceil(SIDE_BY_SIDE);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = kernels.chunks(share).map(|part| scope.spawn(|| verify(part))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a verifier ends")).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_feasible_variant_of_the_quick_problems_and_of_every_feature_is_right() {
    let mut bench = Bench::new(Duration::from_secs(300));
    let mut wrong = Vec::new();
    let mut jobs = Vec::new();
    for problem in problems(Preset::Quick, Operation::ALL).into_iter().chain(featured()) {
        let all = variants(&problem, Preset::Standard).into_iter();
        let target = bench.compiler.target;
        jobs.extend(all.filter(|v| feasible(&problem, v, target).is_ok()).map(|v| (problem, v)));
    }
    let kernels: Vec<_> = jobs.par_iter().map(|(problem, variant)| bench.compiler.rendered(problem, variant)).collect();
    for ((problem, _), kernel) in jobs.into_iter().zip(kernels) {
        let id = kernel.id.clone();
        if let Err(outcome) = bench.worker.verify(&VerifyRequest { problem, kernel, depth: Depth::Quick }) {
            wrong.push(format!("{id}: {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn times_are_plausible_beside_the_read_ceiling() {
    let mut bench = Bench::new(Duration::from_secs(300));
    let ceiling = bench.worker.read_ceiling().unwrap();
    assert!(ceiling > 50.0, "{ceiling} GB/s");
    for problem in problems(Preset::Quick, Operation::ALL).into_iter().chain(featured()) {
        let variant = default_variant(&problem, bench.compiler.target);
        let kernel = bench.compiler.rendered(&problem, &variant);
        for shape in shapes(&problem, Preset::Quick) {
            let split = default_split(&problem, &variant, &shape, bench.compiler.target);
            let candidates = vec![CandidateKernel { split, ..kernel.clone() }; 2];
            let request = MeasureRequest { problem, shape, candidates, samples: 5 };
            let report = bench.worker.measure(&request).unwrap();
            for samples in report.candidates {
                let mut samples = samples.unwrap();
                assert_eq!(samples.len(), 5);
                samples.sort_by(f64::total_cmp);
                let rate = shape.bytes(&problem) as f64 / samples[2] / 1e3;
                assert!(rate > 0.0 && rate < 1.1 * report.read_ceiling_gbps, "{rate} GB/s at {}", shape.key());
            }
        }
    }
}

#[test]
fn a_plain_transfer_takes_as_long_as_its_reads_at_the_ceiling_at_least() {
    let mut bench = Bench::new(Duration::from_secs(60));
    let ceiling = bench.worker.read_ceiling().unwrap();
    let read = 64_000_000;
    let at_ceiling = read as f64 / ceiling / 1e3;
    for written in [0, read / 4] {
        let us = bench.worker.transfer(Traffic { read, written }, 11).unwrap().expect("an undisturbed sample");
        assert!((at_ceiling..10.0 * at_ceiling).contains(&us), "{us} µs, {at_ceiling} at {ceiling} GB/s");
    }
    // A launch of nothing still takes its time.
    let nothing = bench.worker.transfer(Traffic { read: 0, written: 0 }, 11).unwrap().expect("an undisturbed sample");
    assert!(nothing > 0.0 && nothing < at_ceiling, "{nothing} µs");
}

/// A decode kernel that is no attention at all: `body` sees its parameters as `p`.
fn impostor(bench: &Bench, body: &str) -> VerifyRequest {
    let problem = first_decode();
    let variant = default_variant(&problem, bench.compiler.target);
    let fields: String = DecodeParams::FIELDS.iter().map(|f| format!("{} {}; ", f.cuda_type, f.name)).collect();
    let symbol = KernelId::new(&problem, &variant).symbol();
    let source =
        format!("struct Params {{ {fields} }};\nextern \"C\" __global__ void {symbol}(const Params p) {{ {body} }}");
    VerifyRequest { problem, kernel: bench.compiler.kernel(&problem, &variant, &source), depth: Depth::Quick }
}

#[test]
fn a_kernel_that_does_nothing_or_writes_outside_is_wrong() {
    let mut bench = Bench::new(Duration::from_secs(120));
    for (body, words) in
        [("", "NaN"), ("((unsigned short*)p.out)[-1] = 0;", "before out"), ("p.lse[-1] = 0;", "before lse")]
    {
        let request = impostor(&bench, &format!("if (p.lse) {{ {body} }}"));
        let outcome = bench.worker.verify(&request).unwrap_err();
        assert!(matches!(&outcome, Outcome::Wrong { detail, .. } if detail.contains(words)), "{outcome:?}");
    }
}

#[test]
fn an_illegal_address_and_a_hang_cost_one_trial_and_not_the_worker() {
    let mut bench = Bench::new(Duration::from_secs(20));
    let crash = impostor(&bench, "*(volatile int*)16 = 1;");
    let outcome = bench.worker.verify(&crash).unwrap_err();
    assert!(matches!(&outcome, Outcome::Crashed { detail, .. } if detail.contains("ILLEGAL")), "{outcome:?}");
    bench.worker.environment().expect("a fresh worker after a crash");
    let hang = impostor(&bench, "while (*(volatile unsigned int*)p.status != 12345u) {}");
    let outcome = bench.worker.verify(&hang).unwrap_err();
    assert!(matches!(&outcome, Outcome::Timeout { .. }), "{outcome:?}");
    bench.worker.environment().expect("a fresh worker after a hang");
}

#[test]
fn a_launch_that_the_driver_refuses_is_named() {
    let mut bench = Bench::new(Duration::from_secs(60));
    let problem = first_decode();
    let variant = default_variant(&problem, bench.compiler.target);
    let mut kernel = bench.compiler.rendered(&problem, &variant);
    kernel.cubin.truncate(100);
    let outcome = bench.worker.verify(&VerifyRequest { problem, kernel, depth: Depth::Quick }).unwrap_err();
    assert!(matches!(&outcome, Outcome::LaunchFailed { error } if error.contains("cuModuleLoadData")), "{outcome:?}");
    bench.worker.environment().expect("the worker lives on");
}
