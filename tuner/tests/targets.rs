//! Every path of every operation compiles for every target, without a GPU.

use nvkv_generator::{Preset, feasible, problems, render, variants};
use nvkv_spec::{DecodeProblem, KernelId, KvFormat, Operands, Operation, Problem, Target, Variant};
use nvkv_tuner::gpu::{self, Nvrtc};
use rayon::prelude::*;
use std::collections::HashSet;

/// The quick problems, and one with every feature for each numerics class: eight query rows, operands swapped. And one
/// of sixteen for each class: straight.
fn cases() -> Vec<(Problem, Operands)> {
    let quick = problems(Preset::Quick, Operation::ALL);
    let decode = problems(Preset::Quick, &[Operation::Decode]);
    let wide = decode.into_iter().filter_map(|problem| match problem {
        Problem::Decode(p) if p.kv_format == KvFormat::Nvfp4 => Some(Problem::Decode(DecodeProblem { group: 16, ..p })),
        _ => None,
    });
    let features = wide.clone().filter_map(with_features);
    let swapped = quick.into_iter().chain(features).map(|p| (p, Operands::Swapped));
    swapped.chain(wide.map(|p| (p, Operands::Straight))).collect()
}

/// K in FP8, V in NVFP4, a window, sinks and a soft cap.
fn with_features(problem: Problem) -> Option<Problem> {
    let Problem::Decode(p) = problem else { return None };
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, group: 4, q_len: 2, ..p };
    Some(Problem::Decode(DecodeProblem { window: Some(128), sinks: true, soft_cap: true, ..mixed }))
}

/// What makes a variant another program rather than another size.
fn family(problem: &Problem, variant: &Variant) -> String {
    match variant {
        Variant::Decode(v) => format!("{} {} {}", problem.key(), v.k_path, v.v_path),
        Variant::Append(_) => problem.key(),
    }
}

/// The smallest feasible variant of each family: small tiles compile fast.
fn smallest(problem: &Problem, operands: Operands, target: Target) -> Vec<Variant> {
    let mut all: Vec<_> = variants(problem, Preset::Standard);
    all.retain(|v| !matches!(v, Variant::Decode(v) if v.operands != operands));
    all.retain(|v| feasible(problem, v, target).is_ok());
    all.sort_by_key(|v| match v {
        Variant::Decode(v) => (v.tile_tokens, v.query_tile, v.warps),
        Variant::Append(v) => (v.blocks_per_thread, v.threads, 0),
    });
    let mut seen = HashSet::new();
    all.retain(|v| seen.insert(family(problem, v)));
    all
}

#[test]
fn every_path_compiles_for_every_target() {
    let nvrtc = Nvrtc::load().expect("NVRTC: `make toolchain` fetches it");
    let mut jobs = Vec::new();
    for &target in Target::ALL {
        for (problem, operands) in cases() {
            jobs.extend(smallest(&problem, operands, target).into_iter().map(|variant| (target, problem, variant)));
        }
    }
    let failures: Vec<String> = jobs
        .par_iter()
        .filter_map(|(target, problem, variant)| {
            let id = KernelId::new(problem, variant);
            let source = render(problem, variant, *target).expect("templates render");
            match gpu::compile(&nvrtc, &source.text, target.name(), &id.symbol()) {
                Ok(binary) if binary.facts.registers > 0 && binary.facts.instructions > 0 => None,
                Ok(binary) => Some(format!("{id} for {target}: facts {:?}", binary.facts)),
                Err(error) => Some(format!("{id} for {target}: {error}")),
            }
        })
        .collect();
    assert!(jobs.len() > 7 * 10, "{} kernels", jobs.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{} kernels", jobs.len());
}
