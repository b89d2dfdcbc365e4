//! Every path of every operation compiles for every target, without a GPU, to the instructions that it is meant to have.

use nvkv_generator::{Preset, feasible, problems, render, variants};
use nvkv_spec::{
    self as spec, AppendMode, DecodeProblem, Dequant, ElementFormat, KernelId, KvFormat, Mma, Numerics, Operands,
    Operation, Problem, Staging, Target, Variant,
};
use nvkv_tuner::gpu::{self, Binary, Nvrtc};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The quick problems, and one with every feature for each numerics class: eight query rows, operands swapped. One of
/// sixteen for each class: straight. And one of 32 whose products are of f16.
fn cases() -> Vec<(Problem, Operands)> {
    let quick = problems(Preset::Quick, Operation::ALL);
    let decode = problems(Preset::Quick, &[Operation::Decode]);
    let nvfp4: Vec<_> = decode
        .into_iter()
        .filter_map(|problem| match problem {
            Problem::Decode(p) if p.kv_format == KvFormat::Nvfp4 => Some(p),
            _ => None,
        })
        .collect();
    let wide = |q_len| nvfp4.iter().map(move |&p| Problem::Decode(DecodeProblem { group: 16, q_len, ..p }));
    let features = wide(1).filter_map(with_features);
    let exact = |p: &Problem| matches!(p, Problem::Decode(p) if p.numerics == Numerics::Exact);
    let swapped = quick.into_iter().chain(features).chain(wide(2).filter(exact)).map(|p| (p, Operands::Swapped));
    swapped.chain(wide(1).map(|p| (p, Operands::Straight))).collect()
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

/// Instructions of a cubin by opcode with its modifiers, such as `QGMMA.64x8x32.F32.E4M3.E4M3`.
fn instructions(cubin: &[u8]) -> Result<BTreeMap<String, usize>, String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.toolchain/nvidia/cu13/bin/nvdisasm");
    let program = if own.exists() { own } else { "nvdisasm".into() };
    let mut file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    file.write_all(cubin).map_err(|error| error.to_string())?;
    let said = Command::new(&program).arg("-c").arg(file.path()).output();
    let said = said.map_err(|error| format!("{}: {error} (`make toolchain` fetches it)", program.display()))?;
    if !said.status.success() {
        return Err(String::from_utf8_lossy(&said.stderr).into_owned());
    }
    let mut counts = BTreeMap::new();
    for line in String::from_utf8_lossy(&said.stdout).lines() {
        // `/*0110*/  @!P0 IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;`
        let Some((_, text)) = line.split_once("*/") else { continue };
        let mut words = text.split_whitespace().skip_while(|word| word.starts_with('@'));
        if let Some(opcode) = words.next().filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase())) {
            *counts.entry(opcode.trim_end_matches(';').into()).or_default() += 1;
        }
    }
    Ok(counts)
}

/// What a kernel must have and must not have, as starts of opcodes.
struct Meant {
    with: Vec<&'static str>,
    without: Vec<&'static str>,
}

/// What the axes of a variant stand for in machine code, on every target alike: where an instruction is not native, the
/// path is not feasible. New tokens are converted where the target can.
fn meant(problem: &Problem, variant: &Variant, target: Target) -> Meant {
    // No kernel spills, or indexes registers; but the state of 32 query rows leaves none, and a word or two may go.
    let full = matches!(variant, Variant::Decode(v) if v.query_tile == 32);
    let mut meant = Meant { with: vec![], without: if full { vec![] } else { vec!["LDL", "STL"] } };
    let mut expect = |opcode, is_meant| if is_meant { meant.with.push(opcode) } else { meant.without.push(opcode) };
    let nvfp4 = [problem.kv_format().k(), problem.kv_format().v()].contains(&ElementFormat::Nvfp4);
    let appends = !matches!(problem, Problem::Decode(p) if p.append == AppendMode::Separate);
    expect("F2FP.SATFINITE.E2M1", appends && nvfp4 && target.facts().e2m1_convert);
    match (problem, variant) {
        (Problem::Decode(p), Variant::Decode(v)) => {
            let converts =
                |path: spec::Path, format| path.dequant == Dequant::Convert && format == ElementFormat::Nvfp4;
            let (wgmma, f16) = (v.k_path.mma == Mma::Wgmma, v.k_path.multiplies_f16());
            expect("QGMMA", wgmma && !f16);
            expect("HGMMA", wgmma && f16);
            expect("QMMA", v.k_path.mma == Mma::E4m3);
            expect("HMMA.16816.F32", v.v_path.mma == Mma::F16);
            expect("F2FP.F16.E2M1.UNPACK", converts(v.k_path, p.kv_format.k()) || converts(v.v_path, p.kv_format.v()));
            expect("LDGSTS", v.staging != Staging::Registers);
            expect("MUFU.EX2", true);
        }
        _ => expect("F2FP.SATFINITE.E4M3", true),
    }
    meant
}

/// What is missing of what was meant, and what is too many.
fn unmeant(meant: &Meant, found: &BTreeMap<String, usize>) -> Vec<String> {
    let count =
        |start: &str| found.iter().filter(|(opcode, _)| opcode.starts_with(start)).map(|(_, n)| n).sum::<usize>();
    let missing = meant.with.iter().filter(|start| count(start) == 0).map(|start| format!("no {start}"));
    let extra = meant.without.iter().filter(|start| count(start) > 0).map(|s| format!("{} {s}", count(s)));
    missing.chain(extra).collect()
}

fn check(binary: &Binary, meant: &Meant) -> Result<(), String> {
    if binary.facts.registers == 0 || binary.facts.instructions == 0 {
        return Err(format!("facts {:?}", binary.facts));
    }
    let found = instructions(&binary.cubin)?;
    let unmeant = unmeant(meant, &found);
    if unmeant.is_empty() { Ok(()) } else { Err(format!("{} of {found:?}", unmeant.join(", "))) }
}

#[test]
fn every_path_compiles_for_every_target_to_what_was_meant() {
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
            let compiled =
                gpu::compile(&nvrtc, &source.text, target.name(), &id.symbol()).map_err(|error| error.to_string());
            let checked = compiled.and_then(|binary| check(&binary, &meant(problem, variant, *target)));
            checked.err().map(|why| format!("{id} for {target}: {why}"))
        })
        .collect();
    assert!(jobs.len() > 7 * 10, "{} kernels", jobs.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{} kernels", jobs.len());
}
