//! What a kernel needs and how it is launched: derived here once, for renderer, tuner and manifest.

use nvkv_spec::{Problem, Shape, SplitPolicy, Variant};
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

impl Footprint {
    /// The footprint of `variant` of `problem`.
    pub fn new(_problem: &Problem, _variant: &Variant) -> Self {
        todo!()
    }
}

/// How a kernel is launched for one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block.
    pub threads: u32,
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    /// Workspace, bytes; zeroed once before the first launch (0 where none is needed).
    pub workspace_bytes: u64,
    /// `DecodeParams::max_splits` (1 for append).
    pub max_splits: u32,
    /// `DecodeParams::min_split_tokens` (0 for append).
    pub min_split_tokens: u32,
}

impl Launch {
    /// The launch of `variant` of `problem` at `shape`; `split` is ignored by append kernels.
    pub fn new(_problem: &Problem, _variant: &Variant, _shape: &Shape, _split: SplitPolicy) -> Self {
        todo!()
    }
}
