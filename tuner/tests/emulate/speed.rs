//! How fast the emulator is, on all cores and with all checks, by the clock and by the CPU time that it took:
//! `cargo test --release -p nvkv-tuner --test emulate speed -- --ignored --nocapture`

use crate::{Compiled, append_case, base, batch, nvrtc};
use nvkv_generator::{Preset, default_variant, feasible, variants};
use nvkv_spec::{DecodeProblem, Mma, Numerics, Problem, SplitPolicy, Target, Variant};
use nvkv_tuner::verify::{AppendCase, DecodeCase, Prepared, Work, emulate};

/// Runs of each kernel; the fastest counts, since other work on the machine only slows.
const RUNS: usize = 5;
/// Launches of a run, about as many as verifying a kernel takes. The first decodes the kernel too, on one core.
const LAUNCHES: usize = 20;

/// The first feasible variant whose keys go by `mma`.
fn variant_with(problem: &Problem, target: Target, mma: Mma) -> Variant {
    let wanted = |v: &Variant| matches!(v, Variant::Decode(d) if d.k_path.mma == mma);
    let found =
        variants(problem, Preset::Standard).into_iter().find(|v| wanted(v) && feasible(problem, v, target).is_ok());
    found.unwrap_or_else(|| panic!("no variant of {} with {mma} for {target}", problem.key()))
}

fn report(name: &str, prepared: &Prepared, Compiled { symbol, variant, ptx }: &Compiled) {
    let run = |_| emulate(prepared, variant, symbol, ptx).unwrap_or_else(|outcome| panic!("{name}: {outcome:?}")).work;
    let runs: Vec<Work> = (0..RUNS).map(run).collect();
    let Work { launches, stats, time, .. } = *runs.iter().min_by_key(|work| work.time).expect("there is a run");
    let cpu = runs.iter().map(|work| work.cpu).min().expect("there is a run");
    let millions = stats.thread_instructions as f64 / 1e6;
    let (rate, rate_of_cpu) = (millions / time.as_secs_f64(), 2.0 * millions / cpu.as_secs_f64());
    let lanes = stats.thread_instructions as f64 / stats.warp_instructions as f64;
    let seconds = time.as_secs_f64() / f64::from(launches);
    println!("{name:<26} {rate:>6.0} M/s, {rate_of_cpu:>6.0} M in 2 s of CPU, {seconds:>7.3} s, {lanes:>5.1} lanes");
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let nvrtc = nvrtc();
    let fp8 = base();
    let exact = DecodeProblem { numerics: Numerics::Exact, ..fp8 };
    let splits = vec![SplitPolicy::Even { splits: 2 }];
    let requests = DecodeCase { kv_len: vec![300, 300], kv_heads: 8, splits, ..batch() };
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
        let prepared = Prepared::decode(&problem, &vec![requests.clone(); LAUNCHES]);
        report(&format!("{target} {} {mma}", problem.numerics), &prepared, &compiled);
    }
    let problem = fp8.append_problem();
    let variant = default_variant(&Problem::Append(problem), Target::Sm90a);
    let compiled = Compiled::new(&nvrtc, &Problem::Append(problem), variant, Target::Sm90a);
    let case = AppendCase { tokens: 4096, ..append_case() };
    let prepared = Prepared::append(&problem, &vec![case; LAUNCHES]);
    report("sm_90a append", &prepared, &compiled);
}
