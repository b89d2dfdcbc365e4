//! One selection of a kernel: the launch that follows from its shape and split, and what it rests on.

use super::Problems;
use crate::pipeline::limits;
use nvkv_generator::launch;
use nvkv_runtime::bundle::{Kernel, Selection, Trust};
use nvkv_spec::{Evidence, Problem, Shape, SplitPolicy};

pub fn check(kernel: &Kernel, selection: &Selection) -> Problems {
    if !super::kernel::exists(&kernel.problem, &kernel.variant) {
        return Problems::new(); // told of the kernel; nothing follows from it
    }
    let problems = [check_launch(kernel, selection), check_trust(kernel, selection), check_regret(selection)];
    let problems = problems.into_iter().flatten();
    problems.map(|what| format!("{}, the selection at {}: {what}", kernel.id, selection.shape.key())).collect()
}

fn check_launch(kernel: &Kernel, selection: &Selection) -> Option<String> {
    let sizes = match (kernel.problem, selection.shape) {
        (Problem::Decode(_), Shape::Decode { batch, context, kv_heads, .. }) => [batch, context, kv_heads],
        (Problem::Append(_), Shape::Append { tokens, kv_heads }) => [tokens, kv_heads, 1],
        _ => return Some("its shape is of another operation".into()),
    };
    if sizes.contains(&0) {
        return Some("its shape is empty".into());
    }
    if let Err(error) = limits::check(&[(kernel.problem, vec![selection.shape])]) {
        return Some(error.to_string());
    }
    let split = match (kernel.problem, selection.split) {
        (Problem::Decode(_), None | Some(SplitPolicy::Even { splits: 0 } | SplitPolicy::Chunk { tokens: 0, .. })) => {
            return Some("it has no split".into());
        }
        (Problem::Append(_), Some(_)) => return Some("it has a split, which an append has not".into()),
        (_, split) => split.unwrap_or(SplitPolicy::WHOLE),
    };
    let follows = launch(&kernel.problem, &kernel.variant, &selection.shape, split).workspace_bytes;
    let stated = selection.workspace_bytes;
    (stated != follows).then(|| format!("workspace_bytes is {stated}; from its shape and split follows {follows}"))
}

fn check_trust(kernel: &Kernel, selection: &Selection) -> Option<String> {
    let time = match selection.trust {
        Trust::Timed => (selection.median_us, selection.predicted_us),
        Trust::Predicted => (selection.predicted_us, selection.median_us),
    };
    if !matches!(time, (Some(us), None) if us.is_finite() && us > 0.0) {
        return Some("its times are not those of its trust: timed has a median, predicted a prediction".into());
    }
    let unfounded = selection.trust == Trust::Timed && !matches!(kernel.evidence, Evidence::VerifiedOnGpu { .. });
    unfounded.then(|| format!("timed, it says, but {} was never run on a GPU", kernel.id))
}

/// The regret of a bucket is a time over the best one, less one, and was measured.
fn check_regret(selection: &Selection) -> Option<String> {
    let regret = selection.regret?;
    if selection.trust != Trust::Timed {
        return Some("it is predicted, and has a regret, which only a measurement tells".into());
    }
    let possible = regret.is_finite() && regret >= 0.0;
    (!possible).then(|| format!("its regret is {regret}; none is faster than the best, so it is 0 or more"))
}
