//! One selection of a bundle: a kernel of its problem, and the launch that follows from its shape and split.

use super::Problems;
use crate::pipeline::limits;
use nvkv_generator::launch;
use nvkv_runtime::bundle::{Kernel, Manifest, Selection, Trust};
use nvkv_spec::{Evidence, Problem, Shape, SplitPolicy};

pub fn check(manifest: &Manifest, selection: &Selection) -> Problems {
    let Some(kernel) = manifest.kernels.iter().find(|k| k.id == selection.kernel) else {
        return vec![said(selection, format!("its kernel {} is not in the bundle", selection.kernel))];
    };
    if kernel.problem.key() != selection.problem {
        return vec![said(selection, format!("its kernel {} solves {}", kernel.id, kernel.problem.key()))];
    }
    if !super::kernel::exists(&kernel.problem, &kernel.variant) {
        return Problems::new(); // told of the kernel; nothing follows from it
    }
    let problems = check_launch(selection, kernel).into_iter().chain(check_trust(selection, kernel));
    problems.map(|problem| said(selection, problem)).collect()
}

fn said(selection: &Selection, problem: String) -> String {
    format!("selection {} at {}: {problem}", selection.problem, selection.shape.key())
}

fn check_launch(selection: &Selection, kernel: &Kernel) -> Option<String> {
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
        (_, split) => split.unwrap_or(SplitPolicy::Even { splits: 1 }),
    };
    let launch = launch(&kernel.problem, &kernel.variant, &selection.shape, split);
    let stated = (selection.max_splits, selection.min_split_tokens, selection.taper, selection.workspace_bytes);
    let follows = (launch.max_splits, launch.min_split_tokens, launch.taper, launch.workspace_bytes);
    (stated != follows).then(|| {
        format!(
            "max_splits, min_split_tokens, taper and workspace_bytes are {stated:?}; from its split follow {follows:?}"
        )
    })
}

fn check_trust(selection: &Selection, kernel: &Kernel) -> Option<String> {
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
