//! What a run would do, and about how long and how large it would be, without doing it.

use super::Request;
use super::cost::*;
use super::space::{Candidate, Case, Space, splits};
use super::timing::{RUNOFF, RUNOFF_ROUNDS, RUNOFF_SAMPLES};
use crate::search::{Effort, Strategy, effort};
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
    /// Which launches would be timed.
    pub search: &'static str,
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
    /// Timings, at most: kernel, shape and split; 0 without a GPU.
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
            search: request.search.name(),
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
        let (mut gpu_ms, mut search) = (0, Searches::new(request));
        for (space, (problem, shapes)) in spaces.iter().zip(&request.cases) {
            let held_out = if request.held_out { held_out(shapes) } else { Vec::new() };
            plan.held_out += held_out.len();
            space.rejected.iter().for_each(|(reason, n)| *plan.rejected.entry(*reason).or_default() += n);
            if timed {
                let (timings, ms) = search.of(problem, &space.feasible, shapes);
                let between = held_out.len() * HELD_OUT_LAUNCHES;
                plan.timings += timings + between;
                gpu_ms += ms + first_look_ms(between) + runoff_ms(&held_out);
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
    let of = |variant| {
        let all = effort(Strategy::Exhaustive, trials(problem, variant, shapes, target, preset), 0);
        COMPILE_MS + VERIFY_MS + round_ms(all)
    };
    Space::new(*problem, target, preset).feasible.iter().map(of).sum::<u64>() + runoff_ms(shapes)
}

/// The work of `pending` candidates in the unit of [`super::progress::Progress`].
pub fn work_ms(request: &Request, pending: &[&Candidate]) -> u64 {
    let mut search = Searches::new(request);
    let of_case = |(index, (problem, shapes)): (usize, &Case)| {
        let variants: Vec<_> = pending.iter().filter(|c| c.case == index).map(|c| c.variant).collect();
        let tried = match request.machine.gpu {
            _ if variants.is_empty() => 0,
            Ok(_) => search.of(problem, &variants, shapes).1,
            Err(_) => PREDICT_MS * (variants.len() * shapes.len()) as u64,
        };
        COMPILE_MS * variants.len() as u64 + tried
    };
    request.cases.iter().enumerate().map(of_case).sum()
}

/// What the searches of a run from nothing cost at most, problem by problem.
struct Searches<'a> {
    request: &'a Request,
    /// Timings so far, which a model learns from.
    known: usize,
}

impl<'a> Searches<'a> {
    fn new(request: &'a Request) -> Self {
        Self { request, known: 0 }
    }

    /// Timings of the next problem, and the GPU's time for it with verification and run-offs, ms.
    fn of(&mut self, problem: &Problem, variants: &[Variant], shapes: &[Shape]) -> (usize, u64) {
        let Request { search, machine, preset, .. } = self.request;
        let (mut timings, mut ms) = (0, runoff_ms(shapes));
        for shape in shapes {
            let launches = variants.iter().map(|v| trials(problem, v, &[*shape], machine.target, *preset)).sum();
            let effort = effort(*search, launches, self.known);
            timings += effort.timings;
            ms += round_ms(effort);
            self.known += effort.timings;
        }
        // A model has those verified that it asks for.
        let verified = if *search == Strategy::Model { variants.len().min(timings) } else { variants.len() };
        (timings, ms + VERIFY_MS * verified as u64)
    }
}

fn trials(problem: &Problem, variant: &Variant, shapes: &[Shape], target: Target, preset: Preset) -> usize {
    shapes.iter().map(|shape| splits(problem, variant, shape, target, preset).len()).sum()
}

/// A first look at all of so many launches, ms.
pub fn first_look_ms(launches: usize) -> u64 {
    round_ms(effort(Strategy::Exhaustive, launches, 0))
}

fn round_ms(Effort { timings, samples }: Effort) -> u64 {
    timings as u64 * TRIAL_MS + samples as u64 * SAMPLE_MS
}

/// The run-offs at `shapes`, ms.
pub fn runoff_ms(shapes: &[Shape]) -> u64 {
    let round = TRIAL_MS + u64::from(RUNOFF_SAMPLES) * SAMPLE_MS;
    (shapes.len() * (RUNOFF + 1)) as u64 * u64::from(RUNOFF_ROUNDS) * round
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::target::Machine;
    use nvkv_generator::{problems, shapes};
    use nvkv_spec::{GpuEnvironment, Operation};

    fn plan(search: Strategy) -> Plan {
        let gpu = Ok(GpuEnvironment::default());
        let machine = Machine { target: Target::Sm90a, gpu, device: 0, beside: Vec::new() };
        let of_decode = problems(Preset::Standard, &[Operation::Decode]).into_iter().take(12);
        let cases = of_decode.map(|problem| (problem, shapes(&problem, Preset::Standard))).collect();
        let request = Request::of_appends(machine, std::path::Path::new(""), Vec::new());
        Plan::new(&Request { cases, preset: Preset::Standard, search, ..request })
    }

    #[test]
    fn a_search_that_chooses_times_less_and_compiles_all() {
        let [all, halving, model] = Strategy::ALL.map(plan);
        assert_eq!((halving.compiles, model.compiles), (all.compiles, all.compiles));
        // A fifth after the first 800, but no fewer than 16 at each shape.
        let least = crate::search::ENOUGH + (all.timings - crate::search::ENOUGH) / 5;
        assert!(model.timings >= least && model.timings * 2 < all.timings, "{} of {}", model.timings, all.timings);
        assert!(model.seconds < all.seconds);
        // 1 + 1/2 + 1/4, each rounded up.
        let rounds = 7 * all.timings / 4;
        assert!((rounds..rounds + 2 * all.shapes).contains(&halving.timings), "{} for {rounds}", halving.timings);
    }
}
