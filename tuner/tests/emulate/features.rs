//! What models ask of attention beside a softmax over all tokens: windows, sinks and soft caps, over every path.

use crate::{Compiled, base, batch, nvrtc};
use nvkv_generator::{Preset, default_variant, feasible, variants};
use nvkv_spec::{
    AppendMode, DecodeProblem, KvFormat, Numerics, Problem, SplitPolicy, Staging, Target, VScaleOrder, Variant,
};
use nvkv_tuner::verify::{DecodeCase, Prepared};
use rayon::prelude::*;
use std::collections::HashSet;

/// One target of each way to multiply: E4M3 `mma.sync`, `wgmma`, E2M1 converted to f16.
const TARGETS: [Target; 3] = [Target::Sm120a, Target::Sm90a, Target::Sm100a];

/// All features at once, so that what one does to another shows: eight query rows, sixteen of four positions, K and V
/// in different formats with tiles of several pages, and the append fused in.
fn problems() -> [DecodeProblem; 4] {
    let all = DecodeProblem { window: Some(70), sinks: true, soft_cap: true, ..base() };
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, head_dim: 64, page_size: 8, ..all };
    [
        all,
        DecodeProblem { numerics: Numerics::Exact, q_len: 4, group: 4, ..all },
        DecodeProblem { q_len: 4, group: 2, ..mixed },
        DecodeProblem { append: AppendMode::Fused, q_len: 2, v_scale_order: VScaleOrder::Interleaved4, ..all },
    ]
}

/// No token, one, and lengths that end or begin within tiles and pages; windows of one token, of less than a tile, of
/// several, and of more than there is.
fn cases(problem: &DecodeProblem) -> Vec<DecodeCase> {
    let shortest = if problem.append == AppendMode::Fused { problem.q_len } else { 1 };
    let case = |window: u32| DecodeCase {
        name: format!("window {window}"),
        kv_len: vec![0, shortest, 312, 77],
        kv_heads: if window == 5 { 2 } else { 1 },
        splits: vec![SplitPolicy::Even { splits: if window == 70 { 2 } else { 3 } }],
        window: Some(window),
        ..batch()
    };
    [1, 5, 70, u32::MAX].map(case).to_vec()
}

/// The first feasible variant of each path of K, way of staging and order of operands.
fn one_of_each_program(problem: &Problem, target: Target) -> Vec<Variant> {
    let mut seen = HashSet::new();
    let mut all = variants(problem, Preset::Standard);
    all.retain(|variant| match variant {
        Variant::Decode(v) => {
            let program = (v.k_path, v.staging == Staging::Registers, v.operands);
            feasible(problem, variant, target).is_ok() && seen.insert(program)
        }
        Variant::Append(_) => false,
    });
    all
}

#[test]
fn windows_sinks_and_soft_caps_are_right_on_every_path() {
    let nvrtc = nvrtc();
    let failures: Vec<String> = problems()
        .par_iter()
        .flat_map(|p| {
            let (problem, prepared) = (Problem::Decode(*p), Prepared::decode(p, &cases(p)));
            let kernels = TARGETS.into_iter().flat_map(|target| {
                one_of_each_program(&problem, target).into_iter().map(move |variant| (target, variant))
            });
            let failure = |(target, variant)| {
                let compiled = Compiled::new(&nvrtc, &problem, variant, target);
                Some(format!("{} for {target}: {}", compiled.symbol, compiled.failure(&prepared)?))
            };
            kernels.collect::<Vec<_>>().into_par_iter().filter_map(failure).collect::<Vec<_>>()
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn each_feature_is_right_without_the_others() {
    let nvrtc = nvrtc();
    let alone = [
        DecodeProblem { window: Some(70), kv_format: KvFormat::Fp8E4m3, ..base() },
        DecodeProblem { sinks: true, ..base() },
        DecodeProblem { soft_cap: true, ..base() },
    ];
    alone.par_iter().for_each(|p| {
        let prepared = Prepared::decode(p, &[batch()]);
        for target in [Target::Sm90a, Target::Sm89] {
            let problem = Problem::Decode(*p);
            let compiled = Compiled::new(&nvrtc, &problem, default_variant(&problem, target), target);
            assert_eq!(compiled.failure(&prepared), None, "{} for {target}", compiled.symbol);
        }
    });
}

/// Pages longer than a step of the block: splits begin within pages, new tokens lie on both sides of their borders, and warps
/// past the end read rows of the last page all the same. None of these may be rows that another split's block writes.
#[test]
fn no_split_reads_new_tokens_that_another_one_writes() {
    let nvrtc = nvrtc();
    let of_pages = |(page_size, q_len)| {
        let fused = DecodeProblem { append: AppendMode::Fused, page_size, q_len, head_dim: 64, group: 1, ..base() };
        let problem = DecodeProblem { numerics: Numerics::Exact, window: Some(70), ..fused };
        let case = |window| DecodeCase {
            kv_len: (250..=290).collect(),
            kv_heads: 1,
            splits: vec![SplitPolicy::Chunk { tokens: 1, taper: 0 }],
            window: Some(window),
            ..batch()
        };
        let small = |v: &Variant| matches!(v, Variant::Decode(v) if v.warps == 2 && v.tile_tokens == 16);
        let variant = variants(&Problem::Decode(problem), Preset::Full).into_iter();
        let variant = variant.filter(|v| feasible(&Problem::Decode(problem), v, Target::Sm90a).is_ok()).find(small);
        let compiled = Compiled::new(&nvrtc, &Problem::Decode(problem), variant.expect("two warps"), Target::Sm90a);
        let failure = compiled.failure(&Prepared::decode(&problem, &[12, 44].map(case)))?;
        Some(format!("{}: {failure}", compiled.symbol))
    };
    let failures: Vec<String> = [(32, 8), (64, 2), (128, 4)].into_par_iter().filter_map(of_pages).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
