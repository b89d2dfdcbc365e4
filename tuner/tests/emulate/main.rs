//! Generated kernels in the emulator: compiled by NVRTC for every target, run on the CPU, held to the reference.

mod coverage;
mod defined;
mod features;
mod mutations;
mod samples;
mod speed;

use nvkv_generator::{Preset, default_variant, feasible, problems, render, variants};
use nvkv_spec::layout::Arrangement;
use nvkv_spec::{
    AppendMode, DecodeProblem, Dtype, KernelId, KvFormat, Mma, Numerics, Operation, Problem, SplitPolicy, Target,
    VScaleOrder, Variant,
};
use nvkv_tuner::gpu::Nvrtc;
use nvkv_tuner::pipeline::compile::reason;
use nvkv_tuner::verify::{AppendCase, Content, DecodeCase, JUST_BELOW_ONE, Prepared, emulate};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// A kernel as NVRTC made it.
struct Compiled {
    symbol: String,
    variant: Variant,
    /// With lines of the source.
    ptx: String,
}

impl Compiled {
    fn new(nvrtc: &Nvrtc, problem: &Problem, variant: Variant, target: Target) -> Self {
        let source = render(problem, &variant, target).expect("templates render");
        Self::of_source(nvrtc, &source.text, (problem, variant, target))
    }

    /// The PTX alone: for a virtual target NVRTC makes no machine code, and the PTX is the same.
    fn of_source(nvrtc: &Nvrtc, text: &str, (problem, variant, target): (&Problem, Variant, Target)) -> Self {
        let id = KernelId::new(problem, &variant);
        let arch = format!("-arch={}", target.name().replace("sm_", "compute_"));
        let options = [arch, "--std=c++17".into(), "--device-as-default-execution-space".into(), "-lineinfo".into()];
        let output = nvrtc.compile(text, "kernel.cu", &options).expect("NVRTC runs");
        assert!(output.accepted, "{id} for {target}: {}", output.log);
        Self { symbol: id.symbol(), variant, ptx: output.ptx }
    }

    /// Why the kernel is not right.
    fn failure(&self, prepared: &Prepared) -> Option<String> {
        emulate(prepared, &self.variant, &self.symbol, &self.ptx).err().map(|outcome| reason(&outcome))
    }
}

/// Numbers as bytes.
fn bytes_of<T: Copy, const N: usize>(values: &[T], to_bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to_bytes(value)).collect()
}

fn nvrtc() -> Nvrtc {
    Nvrtc::load().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"))
}

/// The base problem of the presets, with f16 outputs, which can be held to a narrow tolerance.
fn base() -> DecodeProblem {
    match problems(Preset::Quick, &[Operation::Decode])[0] {
        Problem::Decode(problem) => DecodeProblem { dtype: Dtype::F16, ..problem },
        Problem::Append(_) => unreachable!("a decode problem was asked for"),
    }
}

/// Both classes, and every format.
fn paths() -> [DecodeProblem; 5] {
    let base = base();
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..base };
    let exact = |problem| DecodeProblem { numerics: Numerics::Exact, ..problem };
    [base, exact(base), DecodeProblem { kv_format: KvFormat::Fp8E4m3, ..base }, mixed, exact(mixed)]
}

/// Operands straight, other dims and pages, two rows of V on one line of shared memory, fused with the append.
fn shapes() -> [DecodeProblem; 6] {
    let base = base();
    [
        DecodeProblem { group: 16, numerics: Numerics::Exact, ..base },
        DecodeProblem { head_dim: 64, page_size: 32, q_len: 2, group: 4, ..base },
        DecodeProblem { kv_format: KvFormat::Fp8E4m3, head_dim: 64, ..base },
        DecodeProblem { append: AppendMode::Fused, v_scale_order: VScaleOrder::Interleaved4, ..base },
        DecodeProblem { append: AppendMode::Fused, kv_format: KvFormat::Fp8E4m3Nvfp4, head_dim: 64, ..base },
        DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, head_dim: 256, page_size: 8, group: 16, ..base },
    ]
}

/// The first feasible variant of each pair of paths.
fn one_of_each_path(problem: &Problem, target: Target) -> Vec<Variant> {
    let mut seen = HashSet::new();
    let mut all = variants(problem, Preset::Standard);
    all.retain(|variant| match variant {
        Variant::Decode(v) => feasible(problem, variant, target).is_ok() && seen.insert((v.k_path, v.v_path)),
        Variant::Append(_) => false,
    });
    all
}

/// 32 query rows of class `exact`, whose f16 `wgmma` has them in shared memory.
fn wide() -> [DecodeProblem; 2] {
    let nvfp4 = DecodeProblem { group: 16, q_len: 2, numerics: Numerics::Exact, ..base() };
    [nvfp4, DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..nvfp4 }]
}

/// Every path, and the default of every shape.
fn decode_kernels(target: Target) -> Vec<(Target, DecodeProblem, Variant)> {
    let mut all = Vec::new();
    for problem in paths() {
        let variants = one_of_each_path(&Problem::Decode(problem), target);
        all.extend(variants.into_iter().map(|variant| (target, problem, variant)));
    }
    for problem in wide() {
        let mut variants = one_of_each_path(&Problem::Decode(problem), target);
        variants.retain(|v| matches!(v, Variant::Decode(v) if v.k_path.mma == Mma::Wgmma));
        all.extend(variants.into_iter().map(|variant| (target, problem, variant)));
    }
    let default = |problem| (target, problem, default_variant(&Problem::Decode(problem), target));
    all.extend(shapes().map(default));
    all
}

/// Empty, one token, several splits with a ragged end, more than one tile and page.
fn batch() -> DecodeCase {
    DecodeCase {
        name: "batch".into(),
        arrangement: Arrangement::Hnd,
        kv_heads: 2,
        kv_len: vec![0, 2, 300, 77],
        content: Content::Random,
        with_lse: true,
        padded: true,
        splits: vec![SplitPolicy::Even { splits: 3 }],
        window: None,
    }
}

fn append_case() -> AppendCase {
    let (name, arrangement) = ("tokens".into(), Arrangement::Hnd);
    AppendCase { name, arrangement, kv_heads: 2, tokens: 37, k_scale: JUST_BELOW_ONE, padded: true }
}

#[test]
fn every_path_of_every_target_decodes_as_the_reference_does() {
    let nvrtc = nvrtc();
    let kernels: Vec<_> = Target::ALL.iter().flat_map(|&target| decode_kernels(target)).collect();
    let problems: HashSet<_> = kernels.iter().map(|(_, problem, _)| *problem).collect();
    let prepared: HashMap<_, _> = problems.into_iter().map(|p| (p, Prepared::decode(&p, &[batch()]))).collect();
    let failures: Vec<String> = kernels
        .into_par_iter()
        .filter_map(|(target, problem, variant)| {
            let compiled = Compiled::new(&nvrtc, &Problem::Decode(problem), variant, target);
            let failure = compiled.failure(&prepared[&problem])?;
            Some(format!("{} for {target}: {failure}", compiled.symbol))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A row's scale of 0 would make NaN of what is masked, and weigh parts of a request wrongly.
#[test]
fn without_scores_all_tokens_count_alike() {
    let problem = DecodeProblem { dtype: Dtype::Bf16, numerics: Numerics::Exact, ..base() };
    let splits = [1, 3, 5].map(|splits| SplitPolicy::Even { splits }).to_vec();
    let case = DecodeCase { content: Content::NoScores, kv_len: vec![900, 1280], kv_heads: 1, splits, ..batch() };
    let (prepared, problem) = (Prepared::decode(&problem, &[case]), Problem::Decode(problem));
    let compiled = Compiled::new(&nvrtc(), &problem, default_variant(&problem, Target::Sm90a), Target::Sm90a);
    assert_eq!(compiled.failure(&prepared), None);
}

#[test]
fn append_writes_the_reference_s_bytes_for_every_target() {
    let nvrtc = nvrtc();
    let base = base().append_problem();
    let interleaved = DecodeProblem { v_scale_order: VScaleOrder::Interleaved4, head_dim: 64, ..self::base() };
    let fp8 = DecodeProblem { kv_format: KvFormat::Fp8E4m3, dtype: Dtype::Bf16, ..self::base() };
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..interleaved };
    for problem in [base, interleaved.append_problem(), fp8.append_problem(), mixed.append_problem()] {
        let prepared = Prepared::append(&problem, &[append_case()]);
        Target::ALL.par_iter().for_each(|&target| {
            let problem = Problem::Append(problem);
            let compiled = Compiled::new(&nvrtc, &problem, default_variant(&problem, target), target);
            assert_eq!(compiled.failure(&prepared), None, "{} for {target}", compiled.symbol);
        });
    }
}
