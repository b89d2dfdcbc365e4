//! PTX with every result written out, as the comparison with a GPU runs it (`tests/same_bits`), computes the same.

use crate::{Compiled, append_case, base, batch, nvrtc};
use nvkv_generator::default_variant;
use nvkv_spec::{AppendMode, DecodeProblem, Numerics, Problem, Target};
use nvkv_tuner::verify::Prepared;

#[path = "../same_bits/exact.rs"]
mod exact;

#[test]
fn kernels_whose_every_result_is_defined_are_still_right() {
    let nvrtc = nvrtc();
    let base = base();
    let exact = DecodeProblem { numerics: Numerics::Exact, ..base };
    let fused = DecodeProblem { append: AppendMode::Fused, ..base };
    let capped = DecodeProblem { soft_cap: true, ..base };
    let decode = |problem| (Problem::Decode(problem), Prepared::decode(&problem, &[batch()]));
    let append = base.append_problem();
    let append = (Problem::Append(append), Prepared::append(&append, &[append_case()]));
    for (problem, prepared) in [decode(base), decode(exact), decode(fused), decode(capped), append] {
        let variant = default_variant(&problem, Target::Sm90a);
        let mut compiled = Compiled::new(&nvrtc, &problem, variant, Target::Sm90a);
        compiled.ptx = exact::exact(&compiled.ptx);
        assert_eq!(compiled.failure(&prepared), None, "{}", compiled.symbol);
    }
}
