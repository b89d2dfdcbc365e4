//! How a kernel is launched, from the manifest alone: constants, and what follows from them at a shape.

use nvkv_spec::abi::COUNTER_BYTES;
use nvkv_spec::kv_format::BLOCK;
use nvkv_spec::{Launch, Problem, SplitLaunch};
use serde::{Deserialize, Serialize};

/// Launch geometry: constants, and how grid and workspace follow from a call. The formulas are text for engines that
/// bring their own launcher; [`LaunchRule::decode`] and [`LaunchRule::append`] are these formulas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchRule {
    /// Threads a block, in x.
    pub threads: u32,
    /// Dynamic shared memory, bytes; above 48 KiB the engine opts in by function attribute.
    pub shared_bytes: u32,
    /// Blocks that share the query rows of one KV head.
    pub row_tiles: u32,
    /// Append: 16-element blocks, of both K and V, that one thread block requantises. 0 for decode.
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

impl LaunchRule {
    /// A decode of `batch` requests with `kv_heads` KV heads. Sizes beyond every GPU saturate: they stay too large.
    pub fn decode(&self, batch: u32, kv_heads: u32, splits: SplitLaunch) -> Launch {
        let SplitLaunch { max_splits, min_split_tokens, taper } = splits;
        let counters = self.counters(batch, kv_heads);
        let states = counters.saturating_mul(max_splits.into()).saturating_mul(self.split_state_bytes);
        Launch {
            grid: [kv_heads.saturating_mul(self.row_tiles), batch, max_splits],
            threads: self.threads,
            shared_bytes: self.shared_bytes,
            workspace_bytes: if max_splits <= 1 { 0 } else { COUNTER_BYTES.saturating_add(states) },
            max_splits,
            min_split_tokens,
            taper,
        }
    }

    /// An append of `tokens` rows to `kv_heads` KV heads of `problem`.
    pub fn append(&self, problem: &Problem, tokens: u32, kv_heads: u32) -> Launch {
        let items = u64::from(tokens) * u64::from(problem.head_dim() / BLOCK);
        let blocks = items.div_ceil(u64::from(self.items_per_block.max(1))).max(1);
        Launch {
            grid: [u32::try_from(blocks).unwrap_or(u32::MAX), kv_heads, 1],
            threads: self.threads,
            shared_bytes: self.shared_bytes,
            workspace_bytes: 0,
            max_splits: 1,
            min_split_tokens: 0,
            taper: 0,
        }
    }

    /// [`Self::default_max_splits`], worked out for a device of `sms` multiprocessors and contexts up to `max_context`.
    pub fn default_splits(&self, sms: u32, batch: u32, kv_heads: u32, max_context: u32) -> SplitLaunch {
        let slots = u64::from(sms) * u64::from(self.blocks_per_sm);
        let wave = slots / self.counters(batch, kv_heads).max(1);
        let most = max_context.div_ceil(self.block_tokens.max(1)).max(1);
        SplitLaunch { max_splits: wave.clamp(1, most.into()) as u32, min_split_tokens: 1, taper: 0 }
    }

    /// Split counters that a launch takes: one a request, KV head and row tile.
    pub fn counters(&self, batch: u32, kv_heads: u32) -> u64 {
        (u64::from(batch) * u64::from(kv_heads)).saturating_mul(self.row_tiles.into())
    }
}
