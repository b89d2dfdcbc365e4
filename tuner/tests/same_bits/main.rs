//! Every variant of the quick space on a GPU of sm_90a and in the emulator: the same launches, their results side by
//! side. Where PTX defines each instruction to the bit, all bytes must be equal; as NVRTC made it, what `ex2.approx`
//! and `lg2.approx` leave open and what `ptxas` may fuse shows in the last place of some outputs.
#![cfg(feature = "gpu-tests")]

mod exact;
mod side;

use exact::exact;
use nvkv_generator::{Preset, feasible, problems, render, variants};
use nvkv_spec::{KernelId, Operation, Outcome, Problem, Target, Variant};
use nvkv_tuner::gpu::{Device, Kernel, Nvrtc};
use nvkv_tuner::pipeline::compile::reason;
use nvkv_tuner::verify::{Output, Prepared, outputs_emulated, outputs_on_gpu};
use nvkv_tuner::worker::Depth;
use rayon::prelude::*;
use side::Nearness;
use std::collections::HashMap;
use std::rc::Rc;

const TARGET: Target = Target::Sm90a;
/// Runs of a kernel on the GPU that must be equal.
const RUNS: usize = 3;

/// A kernel.
struct Job {
    problem: Problem,
    variant: Variant,
    symbol: String,
    /// As NVRTC made it.
    plain: String,
    /// The same with every result defined.
    exact: String,
}

/// What launches of a kernel left.
type Left = Result<Vec<Output>, Outcome>;

/// Of a job's two texts.
struct Results {
    plain: Left,
    exact: Vec<Left>,
}

impl Job {
    fn new(nvrtc: &Nvrtc, problem: Problem, variant: Variant) -> Self {
        let source = render(&problem, &variant, TARGET).expect("templates render");
        let symbol = KernelId::new(&problem, &variant).symbol();
        let options = ["-arch=compute_90a", "--std=c++17", "--device-as-default-execution-space"].map(String::from);
        let output = nvrtc.compile(&source.text, "kernel.cu", &options).expect("NVRTC runs");
        assert!(output.accepted, "{symbol}: {}", output.log);
        let exact = exact(&output.ptx);
        Self { problem, variant, symbol, plain: output.ptx, exact }
    }

    fn emulate(&self, prepared: &Prepared) -> Results {
        let run = |ptx: &str| outputs_emulated(prepared, &self.variant, &self.symbol, ptx);
        Results { plain: run(&self.plain), exact: vec![run(&self.exact)] }
    }

    fn run(&self, device: &Rc<Device>, prepared: &Prepared) -> Results {
        let load = |ptx: &str| Kernel::from_ptx(device, ptx, &self.symbol).unwrap_or_else(|e| panic!("{e}"));
        let (plain, exact) = (load(&self.plain), load(&self.exact));
        let run = |kernel: &Kernel| outputs_on_gpu(device, kernel, prepared, &self.variant);
        Results { plain: run(&plain), exact: (0..RUNS).map(|_| run(&exact)).collect() }
    }
}

fn jobs() -> Vec<Job> {
    let nvrtc = Nvrtc::load().expect("this test needs NVRTC");
    let mut all = Vec::new();
    for problem in problems(Preset::Quick, Operation::ALL) {
        let variants = variants(&problem, Preset::Quick).into_iter();
        all.extend(variants.filter(|v| feasible(&problem, v, TARGET).is_ok()).map(|variant| (problem, variant)));
    }
    all.into_par_iter().map(|(problem, variant)| Job::new(&nvrtc, problem, variant)).collect()
}

fn on_gpu(jobs: &[Job], prepared: &HashMap<String, Prepared>) -> Vec<Results> {
    let device = Rc::new(Device::open(0).expect("this test needs a GPU"));
    assert_eq!(device.capability().ok(), Some((9, 0)), "this test needs a GPU of sm_90a");
    println!("{}", device.environment(None).map(|e| format!("{}, driver {}", e.name, e.driver)).unwrap_or_default());
    jobs.iter().map(|job| job.run(&device, &prepared[&job.problem.key()])).collect()
}

/// The outputs, or none and why.
fn left<'a>(wrong: &mut Vec<String>, side: &str, left: &'a Left) -> &'a [Output] {
    match left {
        Ok(outputs) => outputs,
        Err(outcome) => {
            wrong.push(format!("{side}: {}", reason(outcome)));
            &[]
        }
    }
}

/// What is wrong, and how near the plain results are.
fn compare(job: &Job, gpu: &Results, emulated: &Results) -> (Vec<String>, Nearness) {
    let mut wrong = Vec::new();
    let mut nearness = Nearness::default();
    let expected = left(&mut wrong, "in the emulator, exact", &emulated.exact[0]);
    for run in &gpu.exact {
        let got = left(&mut wrong, "on the GPU, exact", run);
        nearness.bytes += got.iter().map(|output| output.bytes.len()).sum::<usize>();
        wrong.extend(side::difference(got, expected));
    }
    let expected = left(&mut wrong, "in the emulator", &emulated.plain);
    let got = left(&mut wrong, "on the GPU", &gpu.plain);
    wrong.extend(nearness.take(&job.problem, got, expected));
    (wrong.into_iter().map(|what| format!("{}: {what}", job.symbol)).collect(), nearness)
}

#[test]
fn every_variant_of_the_quick_space_gives_the_bits_of_the_gpu() {
    let jobs = jobs();
    let all = problems(Preset::Quick, Operation::ALL);
    let prepared: HashMap<_, _> = all.par_iter().map(|p| (p.key(), Prepared::for_emulator(p, Depth::Quick))).collect();
    let (gpu, emulated): (Vec<Results>, Vec<Results>) = rayon::join(
        || on_gpu(&jobs, &prepared),
        || jobs.par_iter().map(|job| job.emulate(&prepared[&job.problem.key()])).collect(),
    );
    let mut failures = Vec::new();
    println!("{:42} kernels  equal bytes   16-bit outputs  others  past 1 unit  log-sum-exp", "");
    for problem in &all {
        let (mut kernels, mut sum) = (0, Nearness::default());
        for ((job, gpu), emulated) in
            jobs.iter().zip(&gpu).zip(&emulated).filter(|((job, ..), _)| job.problem == *problem)
        {
            let (wrong, nearness) = compare(job, gpu, emulated);
            failures.extend(wrong);
            sum.add(&nearness);
            kernels += 1;
        }
        println!("{:42} {kernels:7}  {sum}", problem.key());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
