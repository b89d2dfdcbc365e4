//! Generated kernels in the emulator: compiled by NVRTC for every target, run on the CPU, held to the reference.

mod append;
mod decode;
mod random;
mod samples;
mod speed;

use decode::Batch;
use nvkv_generator::{Preset, default_variant, feasible, problems, render, variants};
use nvkv_spec::abi::Field;
use nvkv_spec::{
    AppendMode, DecodeProblem, Dtype, KvFormat, Numerics, Operation, Problem, SplitPolicy, Target, VScaleOrder, Variant,
};
use nvkv_tuner::gpu::Nvrtc;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::HashSet;

/// Largest relative L2 error of an f16 output.
const TOLERANCE: f64 = 1e-3;

/// A kernel as NVRTC made it.
pub struct Compiled {
    /// Its entry.
    pub symbol: String,
    /// What it was rendered from.
    pub variant: Variant,
    /// Its PTX, with lines of the source.
    pub ptx: String,
}

impl Compiled {
    /// The PTX alone: for a virtual target NVRTC makes no machine code, and the PTX is the same.
    fn new(nvrtc: &Nvrtc, problem: &Problem, variant: Variant, target: Target) -> Self {
        let source = render(problem, &variant, target).expect("templates render");
        let arch = format!("-arch={}", target.name().replace("sm_", "compute_"));
        let options = [arch, "--std=c++17".into(), "--device-as-default-execution-space".into(), "-lineinfo".into()];
        let output = nvrtc.compile(&source.text, "kernel.cu", &options).expect("NVRTC runs");
        assert!(output.accepted, "{} for {target}: {}", source.id, output.log);
        Self { symbol: source.id.symbol(), variant, ptx: output.ptx }
    }
}

/// Numbers as bytes.
pub fn bytes_of<T: Copy, const N: usize>(values: &[T], to_bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to_bytes(value)).collect()
}

/// A parameter struct as the kernel gets it, from its table of fields.
pub fn param_bytes(fields: &[Field], params: &impl Serialize) -> Vec<u8> {
    let values = serde_json::to_value(params).expect("parameters are numbers");
    let mut bytes = Vec::new();
    for field in fields {
        let value = &values[field.name];
        let field_bytes = match field.cuda_type {
            "float" => (value.as_f64().expect("a float") as f32).to_le_bytes().to_vec(),
            "unsigned int" => (value.as_u64().expect("an unsigned int") as u32).to_le_bytes().to_vec(),
            "long long" => value.as_i64().expect("a long long").to_le_bytes().to_vec(),
            _ => value.as_u64().expect("a pointer").to_le_bytes().to_vec(),
        };
        bytes.resize(field.offset, 0);
        bytes.extend(field_bytes);
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
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

/// Both classes and both formats.
fn paths() -> [DecodeProblem; 3] {
    let base = base();
    [base, DecodeProblem { numerics: Numerics::Exact, ..base }, DecodeProblem { kv_format: KvFormat::Fp8E4m3, ..base }]
}

/// Operands straight, other dims and pages, fused with the append.
fn shapes() -> [DecodeProblem; 3] {
    let base = base();
    [
        DecodeProblem { group: 16, numerics: Numerics::Exact, ..base },
        DecodeProblem { head_dim: 64, page_size: 32, q_len: 2, group: 4, ..base },
        DecodeProblem { append: AppendMode::Fused, v_scale_order: VScaleOrder::Interleaved4, ..base },
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

/// Every path, and the default of every shape.
fn decode_kernels(target: Target) -> Vec<(Target, DecodeProblem, Variant)> {
    let mut all = Vec::new();
    for problem in paths() {
        let variants = one_of_each_path(&Problem::Decode(problem), target);
        all.extend(variants.into_iter().map(|variant| (target, problem, variant)));
    }
    let default = |problem| (target, problem, default_variant(&Problem::Decode(problem), target));
    all.extend(shapes().map(default));
    all
}

#[test]
fn every_path_of_every_target_decodes_as_the_reference_does() {
    let nvrtc = nvrtc();
    // Empty, one token, several splits with a ragged end, more than one tile and page.
    let batch = Batch { kv_len: vec![0, 2, 300, 77], kv_heads: 2, split: SplitPolicy::Even { splits: 3 } };
    let kernels: Vec<_> = Target::ALL.iter().flat_map(|&target| decode_kernels(target)).collect();
    let failures: Vec<String> = kernels
        .into_par_iter()
        .filter_map(|(target, problem, variant)| {
            let compiled = Compiled::new(&nvrtc, &Problem::Decode(problem), variant, target);
            match decode::check(&problem, &compiled, &batch) {
                Ok((_, error)) if error <= TOLERANCE => None,
                Ok((_, error)) => Some(format!("{} for {target}: error {error:.2e}", compiled.symbol)),
                Err(error) => Some(format!("{} for {target}: {error}", compiled.symbol)),
            }
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn append_writes_the_reference_s_bytes_for_every_target() {
    let nvrtc = nvrtc();
    let base = base().append_problem();
    let interleaved = DecodeProblem { v_scale_order: VScaleOrder::Interleaved4, head_dim: 64, ..self::base() };
    let fp8 = DecodeProblem { kv_format: KvFormat::Fp8E4m3, dtype: Dtype::Bf16, ..self::base() };
    let problems = [base, interleaved.append_problem(), fp8.append_problem()];
    Target::ALL.par_iter().for_each(|&target| {
        for problem in problems {
            let variant = default_variant(&Problem::Append(problem), target);
            let compiled = Compiled::new(&nvrtc, &Problem::Append(problem), variant, target);
            append::check(&problem, &compiled)
                .unwrap_or_else(|error| panic!("{} for {target}: {error}", compiled.symbol));
        }
    });
}
