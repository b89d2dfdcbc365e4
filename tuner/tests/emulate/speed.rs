//! How fast the emulator is, on all cores and with all checks:
//! `cargo test --release -p nvkv-tuner --test emulate speed -- --ignored --nocapture`

use crate::decode::Batch;
use crate::{Compiled, append, base, decode, nvrtc};
use nvkv_emulator::Stats;
use nvkv_generator::{Preset, default_variant, feasible, variants};
use nvkv_spec::{DecodeProblem, Mma, Numerics, Problem, SplitPolicy, Target, Variant};
use std::time::{Duration, Instant};

/// Runs of each kernel; the fastest counts, since other work on the machine only slows.
const RUNS: usize = 5;

/// The first feasible variant whose keys go by `mma`.
fn variant_with(problem: &Problem, target: Target, mma: Mma) -> Variant {
    let wanted = |v: &Variant| matches!(v, Variant::Decode(d) if d.k_path.mma == mma);
    let found =
        variants(problem, Preset::Standard).into_iter().find(|v| wanted(v) && feasible(problem, v, target).is_ok());
    found.unwrap_or_else(|| panic!("no variant of {} with {mma} for {target}", problem.key()))
}

fn fastest(mut run: impl FnMut() -> Stats) -> (Stats, Duration) {
    let timed = (0..RUNS).map(|_| {
        let start = Instant::now();
        let stats = run();
        (stats, start.elapsed())
    });
    timed.min_by_key(|(_, time)| *time).expect("there is a run")
}

fn report(name: &str, (stats, time): (Stats, Duration)) {
    let rate = stats.thread_instructions as f64 / time.as_secs_f64() / 1e6;
    let lanes = stats.thread_instructions as f64 / stats.warp_instructions as f64;
    println!("{name:<44} {rate:>6.0} M/s {:>9.3} s {lanes:>6.1} lanes", time.as_secs_f64());
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let nvrtc = nvrtc();
    let fp8 = base();
    let exact = DecodeProblem { numerics: Numerics::Exact, ..fp8 };
    let batch = Batch { kv_len: vec![300, 300], kv_heads: 8, split: SplitPolicy::Even { splits: 2 } };
    println!("decode of 2 requests x 300 tokens x 8 KV heads, D = 128:");
    for (problem, target, mma) in [
        (fp8, Target::Sm90a, Mma::Wgmma),
        (fp8, Target::Sm90a, Mma::F16),
        (exact, Target::Sm90a, Mma::F16),
        (fp8, Target::Sm120a, Mma::E4m3),
        (fp8, Target::Sm89, Mma::E4m3),
    ] {
        let variant = variant_with(&Problem::Decode(problem), target, mma);
        let compiled = Compiled::new(&nvrtc, &Problem::Decode(problem), variant, target);
        let mut prepared = decode::Prepared::new(&problem, &compiled, &batch).expect("NVRTC's PTX is read");
        let name = format!("{target} {} {mma}", problem.numerics);
        report(&name, fastest(|| prepared.launch().unwrap_or_else(|error| panic!("{name}: {error}"))));
    }
    let problem = fp8.append_problem();
    let variant = default_variant(&Problem::Append(problem), Target::Sm90a);
    let compiled = Compiled::new(&nvrtc, &Problem::Append(problem), variant, Target::Sm90a);
    let mut prepared = append::Prepared::new(&problem, &compiled, 4096).expect("NVRTC's PTX is read");
    report("sm_90a append", fastest(|| prepared.launch().unwrap_or_else(|error| panic!("append: {error}"))));
}
