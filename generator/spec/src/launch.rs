//! A launch, worked out: what the generator derives, the manifest states and the runtime passes to the driver.

use serde::{Deserialize, Serialize};

/// Blocks of a grid in x at most: a limit of every CUDA device.
pub const GRID_X: u32 = (1 << 31) - 1;
/// Blocks of a grid in y, and in z, at most.
pub const GRID_YZ: u32 = 65_535;

/// How a kernel is launched for one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block, in x.
    pub threads: u32,
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    /// Workspace, bytes, its counters zeroed once before the first launch; 0 where none is needed.
    pub workspace_bytes: u64,
    /// `DecodeParams::max_splits` (1 for append).
    pub max_splits: u32,
    /// `DecodeParams::min_split_tokens` (0 for append).
    pub min_split_tokens: u32,
    /// `DecodeParams::taper` (0 for append).
    pub taper: u32,
}
