//! What a kernel needs and how it is launched: derived here once, for renderer, tuner and manifest.

use nvkv_spec::abi::COUNTER_BYTES;
use nvkv_spec::{
    AppendProblem, DecodeProblem, DecodeVariant, Dequant, Launch, Mma, Operands, Problem, Shape, SplitLaunch,
    SplitPolicy, Staging, Variant,
};
use serde::{Deserialize, Serialize};

/// What one block of a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Threads a block.
    pub threads: u32,
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    /// Blocks that share the query rows of one KV head: `ceil(group * q_len / query_tile)`.
    pub row_tiles: u32,
}

/// The shared memory of a decode block, in the order it lies there, bytes. The merge of the warps'
/// states takes over the rings' room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedPlan {
    /// 256 table entries of 8 bytes, where a path looks magnitudes up.
    pub table: u32,
    /// Q as `wgmma`'s B operand: an E4M3 byte or an f16 an element.
    pub queries: u32,
    /// `warps * stages` tiles.
    pub rings: u32,
    /// A state of each warp.
    pub merge: u32,
}

impl SharedPlan {
    pub(crate) fn new(problem: &DecodeProblem, variant: &DecodeVariant) -> Self {
        let uses_table = [variant.k_path, variant.v_path].iter().any(|p| p.dequant == Dequant::Table);
        let stages = match variant.staging {
            Staging::Registers => 0,
            Staging::CpAsync { stages } => stages,
        };
        Self {
            table: if uses_table { 256 * 8 } else { 0 },
            queries: match variant.k_path.mma {
                Mma::Wgmma => variant.query_tile * problem.head_dim * (1 + u32::from(variant.k_path.multiplies_f16())),
                Mma::F16 | Mma::E4m3 => 0,
            },
            rings: variant.warps * stages * variant.tile_tokens * problem.kv_format.token_bytes(problem.head_dim),
            merge: variant.warps * state_bytes(problem, variant),
        }
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.table + self.queries + self.rings.max(self.merge)
    }
}

/// Registers of softmax state and output accumulators that one lane of a decode warp holds.
pub(crate) fn state_floats(problem: &DecodeProblem, variant: &DecodeVariant) -> u32 {
    let (row_block, out_tile) = match variant.operands {
        Operands::Swapped => (8, 16),
        Operands::Straight => (16, 8),
    };
    let q_blocks = variant.query_tile / row_block;
    q_blocks * (problem.head_dim / out_tile * 4 + 4)
}

/// Bytes of one warp's state, in shared memory or in the workspace.
fn state_bytes(problem: &DecodeProblem, variant: &DecodeVariant) -> u32 {
    state_floats(problem, variant) * 32 * 4
}

impl Footprint {
    /// The footprint of `variant` of `problem`.
    ///
    /// # Panics
    /// Where the variant is of another operation than the problem: a defect of the caller.
    pub fn new(problem: &Problem, variant: &Variant) -> Self {
        match (problem, variant) {
            (Problem::Decode(p), Variant::Decode(v)) => Self {
                threads: v.warps * 32,
                shared_bytes: SharedPlan::new(p, v).bytes(),
                row_tiles: p.row_tiles(v.query_tile),
            },
            (Problem::Append(_), Variant::Append(v)) => Self { threads: v.threads, shared_bytes: 0, row_tiles: 1 },
            _ => panic!("{} is no variant of {}", variant.key(), problem.key()),
        }
    }
}

/// The launch of `variant` of `problem` at `shape`; `split` is ignored by append kernels. Sizes that no GPU
/// takes saturate: they stay too large, and never look small.
///
/// # Panics
/// Where problem, variant and shape are not of one operation: a defect of the caller.
pub fn launch(problem: &Problem, variant: &Variant, shape: &Shape, split: SplitPolicy) -> Launch {
    let Footprint { threads, shared_bytes, row_tiles } = Footprint::new(problem, variant);
    match (problem, variant, *shape) {
        (Problem::Decode(p), Variant::Decode(v), Shape::Decode { batch, context, kv_heads, .. }) => {
            let SplitLaunch { max_splits, min_split_tokens, taper } = split.launch(p.seen(context));
            let grid = [kv_heads.saturating_mul(row_tiles), batch, max_splits];
            let workspace_bytes = workspace_bytes(p, v, batch, kv_heads, max_splits);
            Launch { grid, threads, shared_bytes, workspace_bytes, max_splits, min_split_tokens, taper }
        }
        (Problem::Append(p), Variant::Append(v), Shape::Append { tokens, kv_heads }) => {
            let items = append_items(p) * u64::from(tokens);
            let blocks = items.div_ceil(u64::from(v.threads * v.blocks_per_thread)) as u32;
            let grid = [blocks.max(1), kv_heads, 1];
            Launch { grid, threads, shared_bytes, workspace_bytes: 0, max_splits: 1, min_split_tokens: 0, taper: 0 }
        }
        _ => panic!("{} at {} does not go with {}", problem.key(), shape.key(), variant.key()),
    }
}

/// Items of one token of one KV head: 16-element blocks, each of K and V.
fn append_items(problem: &AppendProblem) -> u64 {
    u64::from(problem.head_dim / 16)
}

/// Counters, then one state a split of each request, head and row tile.
fn workspace_bytes(
    problem: &DecodeProblem,
    variant: &DecodeVariant,
    batch: u32,
    kv_heads: u32,
    max_splits: u32,
) -> u64 {
    if max_splits <= 1 {
        return 0;
    }
    let row_tiles = problem.row_tiles(variant.query_tile);
    let groups = (u64::from(batch) * u64::from(kv_heads)).saturating_mul(row_tiles.into());
    let states = groups.saturating_mul(max_splits.into()).saturating_mul(state_bytes(problem, variant).into());
    COUNTER_BYTES.saturating_add(states)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Preset, default_variant, problems};
    use nvkv_spec::{Lengths, Operation, Target};

    #[test]
    fn sizes_beyond_every_gpu_stay_too_large() {
        let problem = problems(Preset::Quick, &[Operation::Decode])[0];
        let Problem::Decode(p) = problem else { unreachable!() };
        let problem = Problem::Decode(DecodeProblem { group: 16, q_len: 8, ..p });
        let shape = Shape::Decode { batch: 1 << 31, context: 1 << 31, kv_heads: 1 << 31, lengths: Lengths::Equal };
        let variant = default_variant(&problem, Target::Sm90a);
        let launch = launch(&problem, &variant, &shape, SplitPolicy::Even { splits: u32::MAX });
        assert_eq!((launch.grid[0], launch.workspace_bytes), (u32::MAX, u64::MAX));
    }
}
