//! Rendered sources, as a person reads them. A change of a template shows here line by line: read it, then accept it
//! with `cargo insta review` (or `INSTA_UPDATE=always cargo test`).

#![allow(clippy::unwrap_used, reason = "a test may stop where its set-up is broken")]

use nvkv_generator::{Preset, default_variant, feasible, problems, render, variants};
use nvkv_spec::{Dequant, Operation, Problem, Staging, Target, Variant};

fn text(problem: &Problem, variant: &Variant, target: Target) -> String {
    render(problem, variant, target).unwrap().text
}

#[test]
fn append() {
    let problem = problems(Preset::Quick, &[Operation::Append])[0];
    insta::assert_snapshot!(text(&problem, &default_variant(&problem, Target::Sm90a), Target::Sm90a));
}

#[test]
fn decode_hopper_wgmma_ring() {
    let problem = problems(Preset::Quick, &[Operation::Decode])[0];
    insta::assert_snapshot!(text(&problem, &default_variant(&problem, Target::Sm90a), Target::Sm90a));
}

#[test]
fn fused_blackwell_convert_registers() {
    let problem = problems(Preset::Standard, &[Operation::Fused])[1];
    let wanted = |v: &Variant| match v {
        Variant::Decode(v) => v.staging == Staging::Registers && v.k_path.dequant == Dequant::Convert,
        Variant::Append(_) => false,
    };
    let all = variants(&problem, Preset::Standard);
    let variant = all.iter().find(|v| wanted(v) && feasible(&problem, v, Target::Sm100a).is_ok()).unwrap();
    let source = text(&problem, variant, Target::Sm100a);
    // The stages are those of the snapshot above; constants and entry point are this kernel's own.
    let constants: Vec<_> = source.lines().take_while(|line| !line.starts_with("// Conversions")).collect();
    let entry = source.find("// Dynamic shared memory").unwrap();
    insta::assert_snapshot!(format!("{}\n...\n{}", constants.join("\n"), &source[entry..]));
}

/// Every source of the standard preset renders with nothing left of the template language, and distinct kernels have
/// distinct sources.
#[test]
fn every_source_is_complete_and_its_own() {
    let mut hashes = std::collections::HashMap::new();
    for problem in problems(Preset::Standard, Operation::ALL) {
        for variant in variants(&problem, Preset::Standard) {
            if feasible(&problem, &variant, Target::Sm90a).is_err() {
                continue;
            }
            let source = render(&problem, &variant, Target::Sm90a).unwrap();
            for left in ["<{", "}>", "<%", "%>", "#include"] {
                assert!(!source.text.contains(left), "{}: {left}", source.id);
            }
            assert!(source.text.contains(&source.id.symbol()));
            let other = hashes.insert(source.hash, source.id.clone());
            assert!(other.is_none(), "{} and {other:?} are the same source", source.id);
        }
    }
}
