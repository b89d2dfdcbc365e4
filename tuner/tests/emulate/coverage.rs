//! What generated kernels are made of against what a GPU answered: every instruction form ran in a kernel of the
//! emulator's corpus, whose results an H200 recorded (`emulator/tests/vectors`), or is excused below.

use crate::{Compiled, base, decode_kernels, nvrtc};
use nvkv_emulator::Module;
use nvkv_generator::{Preset, default_variant, feasible, problems, variants};
use nvkv_spec::{Operation, Problem, Target, Variant};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[allow(dead_code, unused_imports, reason = "the forms' PTX is all that this test needs")]
#[path = "../../emulator/tests/vectors/corpus/mod.rs"]
mod corpus;

/// Forms that no recorded kernel has, and what stands in for the record.
const EXCUSED: [(&str, &str); 3] = [
    ("ld.const.u32", "the emulator keeps constants in global memory, whose loads are recorded"),
    ("cvt.rn.f16x2.e2m1x2", "sm_90a lacks it; emulator/tests/conversions.rs asks for all inputs"),
    (
        "cvt.rn.satfinite.e2m1x2.f32",
        "sm_90a lacks it; emulator/tests/conversions.rs asks for every f16 and the borders of codes",
    ),
];

/// Every variant of the quick space, and one of each path for the other families of targets.
fn kernels() -> Vec<(Target, Problem, Variant)> {
    let mut all = Vec::new();
    for problem in problems(Preset::Quick, Operation::ALL) {
        let feasible = |variant: &Variant| feasible(&problem, variant, Target::Sm90a).is_ok();
        all.extend(variants(&problem, Preset::Quick).into_iter().filter(feasible).map(|v| (Target::Sm90a, problem, v)));
    }
    for target in [Target::Sm89, Target::Sm90a, Target::Sm100a, Target::Sm120a] {
        let decode = decode_kernels(target).into_iter();
        all.extend(decode.map(|(target, problem, variant)| (target, Problem::Decode(problem), variant)));
        let append = Problem::Append(base().append_problem());
        all.push((target, append, default_variant(&append, target)));
    }
    all
}

fn opcodes(ptx: &str) -> BTreeSet<String> {
    Module::parse(ptx).expect("PTX").opcodes().map(str::to_string).collect()
}

#[test]
fn a_gpu_answered_for_every_instruction_form_of_the_kernels() {
    let recorded: BTreeSet<String> = corpus::forms().iter().flat_map(|form| opcodes(&form.ptx())).collect();
    let nvrtc = nvrtc();
    let used: BTreeMap<String, String> = kernels()
        .into_par_iter()
        .flat_map_iter(|(target, problem, variant)| {
            let Compiled { symbol, ptx, .. } = Compiled::new(&nvrtc, &problem, variant, target);
            opcodes(&ptx).into_iter().map(move |opcode| (opcode, format!("{symbol} for {target}")))
        })
        .collect();
    let is_excused = |opcode: &str| EXCUSED.iter().any(|(excused, _)| *excused == opcode);
    let missing: Vec<String> = used
        .iter()
        .filter(|(opcode, _)| !recorded.contains(*opcode) && !is_excused(opcode))
        .map(|(opcode, kernel)| format!("{opcode} in {kernel}"))
        .collect();
    assert!(missing.is_empty(), "not in emulator/tests/vectors/forms.txt:\n{}", missing.join("\n"));
    for (opcode, _) in EXCUSED {
        assert!(used.contains_key(opcode) && !recorded.contains(opcode), "{opcode} needs no excuse");
    }
}
