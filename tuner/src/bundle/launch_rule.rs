//! How an engine launches a kernel, from the manifest alone: constants, and formulas over the parameters.

use nvkv_generator::{Footprint, Launch};
use nvkv_spec::abi::COUNTER_BYTES;
use nvkv_spec::{Problem, Shape, SplitPolicy, Variant};
use serde::{Deserialize, Serialize};

/// Launch geometry: constants, and how grid and workspace follow from a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchRule {
    /// Threads a block, in x.
    pub threads: u32,
    /// Dynamic shared memory, bytes; above 48 KiB the engine opts in by function attribute.
    pub shared_bytes: u32,
    /// Blocks that share the query rows of one KV head.
    pub row_tiles: u32,
    /// Append: 16-element blocks that one thread block requantises. 0 for decode.
    pub items_per_block: u32,
    /// Decode: workspace of one split of one row tile of one KV head of one request, bytes. 0 for append.
    pub split_state_bytes: u64,
    /// Grid in x, y, z.
    pub grid: [String; 3],
    /// Workspace in bytes.
    pub workspace: String,
    /// Decode: blocks an SM that the kernel is budgeted for. 0 for append.
    pub blocks_per_sm: u32,
    /// Decode: tokens that a block takes at a time; a shorter split gains nothing. 0 for append.
    pub block_tokens: u32,
    /// `max_splits` where no selection is near: what an engineer without a tuner would launch. Any number is right.
    pub default_max_splits: String,
    /// The whole launch in words.
    pub rule: String,
}

const DEFAULT_MAX_SPLITS: &str = "clamp(floor(sms * blocks_per_sm / (batch * kv_heads * row_tiles)), 1, \
     ceil(max_context / block_tokens)), where sms is the device's number of multiprocessors and max_context the longest \
     context of any launch, or window + q_len - 1 where that is less; min_split_tokens is 1";
const APPEND_RULE: &str = "Pass the parameter struct by value. The blocks of 16 elements of a head's new \
     rows, K and V, are dealt out in order; the grid's second dimension is the head.";

impl LaunchRule {
    /// The rule of `variant` of `problem`.
    pub fn new(problem: &Problem, variant: &Variant) -> Self {
        let Footprint { threads, shared_bytes, row_tiles } = Footprint::new(problem, variant);
        let constants = Self {
            threads,
            shared_bytes,
            row_tiles,
            items_per_block: 0,
            split_state_bytes: 0,
            grid: ["max_splits", "kv_heads * row_tiles", "batch"].map(String::from),
            workspace: decode_workspace(),
            blocks_per_sm: 0,
            block_tokens: 0,
            default_max_splits: "1".into(),
            rule: decode_rule(),
        };
        match variant {
            Variant::Decode(v) => Self {
                split_state_bytes: split_state_bytes(problem, variant) / u64::from(row_tiles),
                blocks_per_sm: v.blocks_per_sm,
                block_tokens: v.warps * v.tile_tokens,
                default_max_splits: DEFAULT_MAX_SPLITS.into(),
                ..constants
            },
            Variant::Append(v) => {
                let items = 2 * problem.head_dim() / 16;
                let blocks = format!("max(1, ceil(tokens * {items} / items_per_block))");
                Self {
                    items_per_block: v.threads * v.blocks_per_thread,
                    grid: [blocks, "kv_heads".into(), "1".into()],
                    workspace: "0".into(),
                    rule: APPEND_RULE.into(),
                    ..constants
                }
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
         tokens from kv_len on the device, so a captured graph stays valid when lengths change. max_splits and \
         min_split_tokens come from the selection, or from default_max_splits where none is near. Zero the workspace's \
         first {COUNTER_BYTES} bytes once; each launch leaves them zeroed. Launches of any shape and kernel may share a \
         workspace, of the largest size among them, if they are ordered; zero it again after a launch that failed."
    )
}

/// What one more split adds to the workspace of one request with one KV head, bytes.
fn split_state_bytes(problem: &Problem, variant: &Variant) -> u64 {
    let shape = Shape::Decode { batch: 1, context: 1024, kv_heads: 1 };
    let bytes = |splits| Launch::new(problem, variant, &shape, SplitPolicy::Even { splits }).workspace_bytes;
    bytes(3) - bytes(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_generator::{Preset, default_split, default_variant, problems};
    use nvkv_spec::{Operation, Target};

    /// The formulas as an engine would write them.
    fn by_the_rule(rule: &LaunchRule, problem: &Problem, shape: Shape, max_splits: u32) -> ([u32; 3], u64) {
        match shape {
            Shape::Decode { batch, kv_heads, .. } => {
                let counters = u64::from(batch * kv_heads * rule.row_tiles);
                let states = counters * u64::from(max_splits) * rule.split_state_bytes;
                let workspace = if max_splits <= 1 { 0 } else { COUNTER_BYTES + states };
                ([max_splits, kv_heads * rule.row_tiles, batch], workspace)
            }
            Shape::Append { tokens, kv_heads } => {
                let items = tokens * 2 * problem.head_dim() / 16;
                ([items.div_ceil(rule.items_per_block).max(1), kv_heads, 1], 0)
            }
        }
    }

    #[test]
    fn the_rule_gives_the_launch_that_was_tuned() {
        for problem in problems(Preset::Quick, Operation::ALL) {
            let variant = default_variant(&problem, Target::Sm90a);
            let rule = LaunchRule::new(&problem, &variant);
            for (batch, context, kv_heads, splits) in [(1, 1, 1, 1), (3, 5000, 8, 7), (64, 16384, 2, 16)] {
                let shape = match problem {
                    Problem::Decode(_) => Shape::Decode { batch, context, kv_heads },
                    Problem::Append(_) => Shape::Append { tokens: batch * 17, kv_heads },
                };
                let launch = Launch::new(&problem, &variant, &shape, SplitPolicy::Even { splits });
                assert_eq!((rule.threads, rule.shared_bytes), (launch.threads, launch.shared_bytes));
                assert_eq!(by_the_rule(&rule, &problem, shape, splits), (launch.grid, launch.workspace_bytes));
            }
        }
    }
    /// The rule for shapes that no selection is near to gives the launch that the tuner measures as the default.
    #[test]
    fn the_default_split_by_the_rule_is_the_one_that_is_timed() {
        for &target in Target::ALL {
            for problem in problems(Preset::Standard, &[Operation::Decode, Operation::Fused]) {
                let variant = default_variant(&problem, target);
                let rule = LaunchRule::new(&problem, &variant);
                for (batch, context, kv_heads) in
                    [(1, 1, 1), (1, 131_072, 8), (3, 5000, 8), (64, 16384, 2), (4096, 9, 8)]
                {
                    let shape = Shape::Decode { batch, context, kv_heads };
                    let Problem::Decode(p) = problem else { unreachable!() };
                    let seen = p.seen(context);
                    let slots = target.facts().sms * rule.blocks_per_sm;
                    let wave = slots / (batch * kv_heads * rule.row_tiles);
                    let by_rule = (wave.clamp(1, seen.div_ceil(rule.block_tokens)), 1);
                    let timed = default_split(&problem, &variant, &shape, target).launch(context);
                    assert_eq!(by_rule, timed, "{} at {} on {target}", problem.key(), shape.key());
                }
            }
        }
    }
}
