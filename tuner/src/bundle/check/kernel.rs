//! One kernel of a bundle: its files, its name, and what follows from its problem and variant.

use super::super::launch_rule;
use super::Problems;
use crate::pipeline::cache::{CU, CUBIN, PTX};
use crate::pipeline::space::yardstick;
use nvkv_generator::{HEAD_DIMS, MAX_GROUP, MAX_Q_LEN, PAGE_SIZES, Preset, variants};
use nvkv_runtime::bundle::{Kernel, Manifest, Trust, numerics, parameters, read_file};
use nvkv_spec::{Evidence, KernelId, Problem, Target, Variant};
use std::path::Path;

pub fn check(folder: &Path, manifest: &Manifest, kernel: &Kernel) -> Problems {
    if !exists(&kernel.problem, &kernel.variant) {
        return vec![format!("{}: its problem and variant are none that this nvkv-tune generates", kernel.id)];
    }
    let mut problems = check_facts(manifest, kernel);
    problems.extend(check_files(folder, manifest.target, kernel));
    problems.iter_mut().for_each(|problem| *problem = format!("{}: {problem}", kernel.id));
    problems
}

/// Whether launches of this variant can be worked out at all: zeros and other operations are turned away here.
pub fn exists(problem: &Problem, variant: &Variant) -> bool {
    let query = match problem {
        Problem::Decode(p) => {
            (1..=MAX_GROUP).contains(&p.group) && (1..=MAX_Q_LEN).contains(&p.q_len) && p.window != Some(0)
        }
        Problem::Append(_) => true,
    };
    let page_size = match problem {
        Problem::Decode(p) => p.page_size,
        Problem::Append(p) => p.page_size,
    };
    let spaces = [Preset::Standard, Preset::Full];
    query
        && HEAD_DIMS.contains(&problem.head_dim())
        && PAGE_SIZES.contains(&page_size)
        && spaces.into_iter().any(|space| variants(problem, space).contains(variant))
}

/// What follows from problem and variant, and what the selections say about the evidence.
fn check_facts(manifest: &Manifest, kernel: &Kernel) -> Problems {
    let Kernel { problem, variant, .. } = kernel;
    let id = KernelId::new(problem, variant);
    let mut problems = Problems::new();
    let mut claim = |wrong: bool, what: String| problems.extend(wrong.then_some(what));
    claim(kernel.id != id, format!("by its problem and variant its id is {id}"));
    claim(kernel.symbol != id.symbol(), format!("its symbol is {}, not {}", id.symbol(), kernel.symbol));
    let differs = |what: &str| format!("its {what} is not what follows from its problem and variant");
    claim(kernel.launch != launch_rule(problem, variant), differs("launch"));
    claim(kernel.numerics != numerics(problem), differs("numerics class"));
    claim((kernel.parameters.clone(), kernel.parameter_bytes) != parameters(problem), differs("parameter list"));
    claim(kernel.is_default != (yardstick(problem, manifest.target) == Some(*variant)), differs("is_default"));
    let on_gpu = matches!(kernel.evidence, Evidence::VerifiedOnGpu { .. });
    let timed = manifest.selections().any(|(k, s)| k.problem == *problem && s.trust == Trust::Timed);
    claim(on_gpu && !timed, "verified on a GPU, it says, but nothing of its problem was timed".into());
    problems
}

fn check_files(folder: &Path, target: Target, kernel: &Kernel) -> Problems {
    let id = KernelId::new(&kernel.problem, &kernel.variant);
    let mut problems = Problems::new();
    let mut read =
        |name, entry| read_file(folder, &format!("{id}/{name}"), entry).map_err(|e| problems.push(e.to_string())).ok();
    let (cu, ptx, cubin) = (read(CU, &kernel.files.cu), read(PTX, &kernel.files.ptx), read(CUBIN, &kernel.files.cubin));
    if cu.is_some_and(|cu| blake3::hash(&cu).to_hex().as_str() != kernel.source_hash) {
        problems.push("source_hash is not that of kernel.cu".into());
    }
    if let Some(ptx) = ptx.map(|ptx| String::from_utf8_lossy(&ptx).into_owned()) {
        let has = |line: String| ptx.lines().any(|l| l.trim_end() == line || l.starts_with(&format!("{line},")));
        if !has(format!(".target {target}")) {
            problems.push(format!("kernel.ptx is not for {target}"));
        }
        if !has(format!("// Cuda compilation tools, release {}", kernel.toolchain.nvrtc)) {
            problems.push(format!("kernel.ptx was not made by NVRTC {}", kernel.toolchain.nvrtc));
        }
    }
    if let Some(cubin) = cubin {
        if elf_capability(&cubin) != Some(target.facts().capability) {
            problems.push(format!("kernel.cubin is not machine code for {target}"));
        }
        if cubin.len() != kernel.compile.cubin_bytes as usize {
            problems.push(format!("kernel.cubin has {} bytes, not {}", cubin.len(), kernel.compile.cubin_bytes));
        }
    }
    problems
}

/// The compute capability in the ELF header of a cubin: in `e_flags` the second byte, before ELF ABI 8 the first.
fn elf_capability(cubin: &[u8]) -> Option<(u32, u32)> {
    const ABI_VERSION: usize = 8;
    const FLAGS: usize = 48;
    let byte = if *cubin.get(ABI_VERSION)? >= 8 { FLAGS + 1 } else { FLAGS };
    let number = u32::from(*cubin.strip_prefix(b"\x7fELF").and(cubin.get(byte))?);
    Some((number / 10, number % 10))
}
