//! The launch rule of a kernel: constants from its footprint, and the formulas as text.

use nvkv_generator::{Footprint, launch};
use nvkv_runtime::bundle::LaunchRule;
use nvkv_spec::abi::COUNTER_BYTES;
use nvkv_spec::{Lengths, Problem, Shape, SplitPolicy, Variant};

const DEFAULT_MAX_SPLITS: &str = "clamp(floor(sms * blocks_per_sm / (batch * kv_heads * row_tiles)), 1, \
     ceil(max_context / block_tokens)), where sms is the device's number of multiprocessors and max_context the longest \
     context of any launch, or window + q_len - 1 where that is less; min_split_tokens is 1 and taper 0";
const APPEND_RULE: &str = "Pass the parameter struct by value. The blocks of 16 elements of a head's new \
     rows, those of K and of V together, are dealt out in order; the grid's second dimension is the head.";

/// The launch rule of `variant` of `problem`.
pub fn launch_rule(problem: &Problem, variant: &Variant) -> LaunchRule {
    let Footprint { threads, shared_bytes, row_tiles } = Footprint::new(problem, variant);
    let constants = LaunchRule {
        threads,
        shared_bytes,
        row_tiles,
        items_per_block: 0,
        split_state_bytes: 0,
        grid: ["kv_heads * row_tiles", "batch", "max_splits"].map(String::from),
        workspace: decode_workspace(),
        blocks_per_sm: 0,
        block_tokens: 0,
        default_max_splits: "1".into(),
        rule: decode_rule(),
    };
    match variant {
        Variant::Decode(v) => LaunchRule {
            split_state_bytes: split_state_bytes(problem, variant) / u64::from(row_tiles),
            blocks_per_sm: v.blocks_per_sm,
            block_tokens: v.warps * v.tile_tokens,
            default_max_splits: DEFAULT_MAX_SPLITS.into(),
            ..constants
        },
        Variant::Append(v) => {
            let items = problem.head_dim() / 16;
            let blocks = format!("max(1, ceil(tokens * {items} / items_per_block))");
            LaunchRule {
                items_per_block: v.threads * v.blocks_per_thread,
                grid: [blocks, "kv_heads".into(), "1".into()],
                workspace: "0".into(),
                rule: APPEND_RULE.into(),
                ..constants
            }
        }
    }
}

fn decode_workspace() -> String {
    format!(
        "0 if max_splits <= 1, else {COUNTER_BYTES} + counters * max_splits * split_state_bytes, where counters = batch * \
         kv_heads * row_tiles, at most {}",
        COUNTER_BYTES / size_of::<u32>() as u64
    )
}

fn decode_rule() -> String {
    format!(
        "Pass the parameter struct by value. One block a split, KV head and row tile, and request; the block finds its \
         tokens from kv_len on the device, so a captured graph stays valid when lengths change. max_splits, \
         min_split_tokens and taper follow from the selection's split, or from default_max_splits where none is near. Zero the workspace's \
         first {COUNTER_BYTES} bytes once; each launch leaves them zeroed. Launches of any shape and kernel may share a \
         workspace, of the largest size among them, if they are ordered; zero it again after a launch that failed."
    )
}

/// What one more split adds to the workspace of one request with one KV head, bytes.
fn split_state_bytes(problem: &Problem, variant: &Variant) -> u64 {
    let shape = Shape::Decode { batch: 1, context: 1024, kv_heads: 1, lengths: Lengths::Equal };
    let bytes = |splits| launch(problem, variant, &shape, SplitPolicy::Even { splits }).workspace_bytes;
    bytes(3) - bytes(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_generator::{Preset, default_split, default_variant, problems};
    use nvkv_spec::{Operation, Target};

    #[test]
    fn the_rule_gives_the_launch_that_was_tuned() {
        for problem in problems(Preset::Quick, Operation::ALL) {
            let variant = default_variant(&problem, Target::Sm90a);
            let rule = launch_rule(&problem, &variant);
            for (batch, context, kv_heads, splits) in [(1, 1, 1, 1), (3, 5000, 8, 7), (64, 16384, 2, 16)] {
                let shape = match problem {
                    Problem::Decode(_) => Shape::Decode { batch, context, kv_heads, lengths: Lengths::Equal },
                    Problem::Append(_) => Shape::Append { tokens: batch * 17, kv_heads },
                };
                let tuned = launch(&problem, &variant, &shape, SplitPolicy::Even { splits });
                let by_rule = match shape {
                    Shape::Decode { batch, kv_heads, .. } => {
                        rule.decode(batch, kv_heads, SplitPolicy::Even { splits }.launch(context))
                    }
                    Shape::Append { tokens, kv_heads } => rule.append(&problem, tokens, kv_heads),
                };
                assert_eq!(by_rule, tuned, "{} at {}", problem.key(), shape.key());
            }
        }
    }
    /// The rule for shapes that no selection is near to gives the launch that the tuner measures as the default.
    #[test]
    fn the_default_split_by_the_rule_is_the_one_that_is_timed() {
        for &target in Target::ALL {
            for problem in problems(Preset::Standard, &[Operation::Decode, Operation::Fused]) {
                let variant = default_variant(&problem, target);
                let rule = launch_rule(&problem, &variant);
                for (batch, context, kv_heads) in
                    [(1, 1, 1), (1, 131_072, 8), (3, 5000, 8), (64, 16384, 2), (4096, 9, 8)]
                {
                    let shape = Shape::Decode { batch, context, kv_heads, lengths: Lengths::Equal };
                    let Problem::Decode(p) = problem else { unreachable!() };
                    let context = p.seen(context);
                    let by_rule = rule.default_splits(target.facts().sms, batch, kv_heads, context);
                    let timed = default_split(&problem, &variant, &shape, target).launch(context);
                    assert_eq!(by_rule, timed, "{} at {} on {target}", problem.key(), shape.key());
                }
            }
        }
    }
}
