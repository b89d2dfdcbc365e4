//! What a run would do, and about how long and how large it would be, without doing it.

use super::Request;
use super::cost::*;
use super::space::{Candidate, Case, Space, splits};
use super::timing::{ROUND_SAMPLES, RUNOFF, RUNOFF_ROUNDS, RUNOFF_SAMPLES};
use nvkv_generator::{Preset, Rejection};
use nvkv_spec::bucket::held_out;
use nvkv_spec::{Problem, Shape, Target, Variant};
use serde::Serialize;
use std::collections::BTreeMap;

/// Counts and estimates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The target.
    pub target: Target,
    /// Whether a GPU of it is here, so that kernels are verified and timed.
    pub timed: bool,
    /// Problems.
    pub problems: usize,
    /// Problem and shape pairs.
    pub shapes: usize,
    /// Shapes between them at which buckets are measured at first, before any is split; 0 where that is not asked for.
    pub held_out: usize,
    /// Variants before pruning.
    pub variants: usize,
    /// Variants rejected, by reason.
    pub rejected: BTreeMap<Rejection, usize>,
    /// Kernels to compile.
    pub compiles: usize,
    /// Timings: kernel, shape and split; 0 without a GPU.
    pub timings: usize,
    /// Winners and defaults to emulate, at most; 0 with a GPU.
    pub emulations: usize,
    /// Estimate of the whole, s.
    pub seconds: u64,
    /// Estimate of cache, bundle and database, bytes.
    pub bytes: u64,
}

impl Plan {
    /// The plan of a run from nothing; what is known or cached already makes it shorter.
    pub fn new(request: &Request) -> Self {
        let target = request.machine.target;
        let timed = request.machine.gpu.is_ok();
        let spaces: Vec<_> = request.cases.iter().map(|(p, _)| Space::new(*p, target, request.preset)).collect();
        let mut plan = Self {
            target,
            timed,
            problems: request.cases.len(),
            shapes: request.cases.iter().map(|(_, shapes)| shapes.len()).sum(),
            held_out: 0,
            variants: spaces.iter().map(Space::total).sum(),
            rejected: BTreeMap::new(),
            compiles: spaces.iter().map(|space| space.feasible.len()).sum(),
            timings: 0,
            emulations: 0,
            seconds: 0,
            bytes: 0,
        };
        let mut gpu_ms = 0;
        for (space, (problem, shapes)) in spaces.iter().zip(&request.cases) {
            space.rejected.iter().for_each(|(reason, n)| *plan.rejected.entry(*reason).or_default() += n);
            let trials: usize = space.feasible.iter().map(|v| trials(problem, v, shapes, target, request.preset)).sum();
            if timed {
                let held_out = if request.held_out { held_out(shapes) } else { Vec::new() };
                let between = held_out.len() * HELD_OUT_LAUNCHES;
                plan.held_out += held_out.len();
                plan.timings += trials + between;
                gpu_ms += VERIFY_MS * space.feasible.len() as u64 + round_ms(trials) + runoff_ms(shapes);
                gpu_ms += round_ms(between) + runoff_ms(&held_out);
            } else {
                plan.emulations += space.feasible.len().min(shapes.len() + 1);
            }
        }
        // More compilers than cores are no faster.
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let compile_ms = COMPILE_MS * plan.compiles.div_ceil(request.jobs.clamp(1, cores)) as u64;
        // Compilers and the GPU work at the same time; the longer of the two is what one waits for.
        let emulate_ms = EMULATE_MS * plan.emulations as u64 / cores as u64;
        plan.seconds = (compile_ms.max(gpu_ms) + emulate_ms).div_ceil(1000);
        let rows = if timed { plan.timings } else { plan.compiles * plan.shapes.div_ceil(plan.problems.max(1)) };
        // Each in the cache; a winner a shape and a default a problem in the bundle too.
        let copies = plan.compiles + plan.compiles.min(plan.shapes + plan.problems);
        plan.bytes = KERNEL_BYTES * copies as u64 + TRIAL_BYTES * rows as u64;
        plan
    }
}

/// Estimated work of one case from nothing, compilers and GPU together, ms: the same on every machine.
pub fn case_ms((problem, shapes): &Case, preset: Preset, target: Target) -> u64 {
    let of = |variant| COMPILE_MS + VERIFY_MS + round_ms(trials(problem, variant, shapes, target, preset));
    Space::new(*problem, target, preset).feasible.iter().map(of).sum::<u64>() + runoff_ms(shapes)
}

/// The work of `pending` candidates in the unit of [`super::progress::Progress`].
pub fn work_ms(request: &Request, pending: &[&Candidate]) -> u64 {
    let of = |candidate: &&Candidate| {
        let (problem, shapes) = &request.cases[candidate.case];
        let tried = match request.machine.gpu {
            Ok(_) => {
                let trials = trials(problem, &candidate.variant, shapes, request.machine.target, request.preset);
                VERIFY_MS + round_ms(trials)
            }
            Err(_) => PREDICT_MS * shapes.len() as u64,
        };
        COMPILE_MS + tried
    };
    let runoffs = |case: &Case| if request.machine.gpu.is_ok() { runoff_ms(&case.1) } else { 0 };
    let with_work = |(index, _): &(usize, &Case)| pending.iter().any(|c| c.case == *index);
    let runoffs: u64 = request.cases.iter().enumerate().filter(with_work).map(|(_, case)| runoffs(case)).sum();
    pending.iter().map(of).sum::<u64>() + runoffs
}

fn trials(problem: &Problem, variant: &Variant, shapes: &[Shape], target: Target, preset: Preset) -> usize {
    shapes.iter().map(|shape| splits(problem, variant, shape, target, preset).len()).sum()
}

/// A first look at so many trials, ms.
pub fn round_ms(trials: usize) -> u64 {
    trials as u64 * (TRIAL_MS + u64::from(ROUND_SAMPLES) * SAMPLE_MS)
}

/// The run-offs at `shapes`, ms.
pub fn runoff_ms(shapes: &[Shape]) -> u64 {
    let round = TRIAL_MS + u64::from(RUNOFF_SAMPLES) * SAMPLE_MS;
    (shapes.len() * (RUNOFF + 1)) as u64 * u64::from(RUNOFF_ROUNDS) * round
}
