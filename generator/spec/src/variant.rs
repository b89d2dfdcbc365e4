//! What is chosen: the compile-time axes of a kernel, and the split policy of its launch.

use crate::name::named_enum;
use crate::problem::Problem;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

named_enum! {
    /// How stored codes become tensor-core operands.
    Dequant: "dequantisation" {
        /// Code bits are placed into f16 (exact up to 2^-14), then multiplied by the block scale.
        Place = "place",
        /// The target's own conversion instruction (E2M1 to f16, or E4M3 to f16), then the scale.
        Convert = "convert",
        /// A shared table gives `RN_e4m3(e2m1 * sf)` of all eight magnitudes; bytes are picked by `prmt`.
        Table = "table",
        /// The stored E4M3 bytes are the operand.
        Direct = "direct",
    }
}

named_enum! {
    /// Which tensor-core instruction consumes the operands.
    Mma: "MMA" {
        /// `mma.sync.m16n8k16`, f16 operands.
        F16 = "f16",
        /// `mma.sync.m16n8k32`, E4M3 operands.
        E4m3 = "e4m3",
        /// `wgmma`, the cache side in registers and the queries in shared memory: `m64nNk32` of E4M3 operands, or `m64nNk16`
        /// where the dequantisation gives f16.
        Wgmma = "wgmma",
    }
}

/// The way from stored bytes to products, for K or for V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Path {
    /// Dequantisation.
    pub dequant: Dequant,
    /// Tensor-core instruction.
    pub mma: Mma,
}

impl Path {
    /// Whether its products are of f16 operands, not of E4M3 ones.
    pub fn multiplies_f16(self) -> bool {
        self.mma == Mma::F16 || (self.mma == Mma::Wgmma && matches!(self.dequant, Dequant::Place | Dequant::Convert))
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.dequant, self.mma)
    }
}

named_enum! {
    /// Which side of the MMA the cache is on.
    Operands: "operand order" {
        /// Tokens on M, query rows on N: S^T = K Q^T, O^T = V^T P^T. Nothing is wasted at group 8.
        Swapped = "swapped",
        /// Query rows on M, tokens on N: S = Q K^T, O = P V. Fills M at 16 query rows.
        Straight = "straight",
    }
}

/// How a tile travels from global memory to registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Staging {
    /// Straight into registers, one tile ahead.
    Registers,
    /// `cp.async` into a ring of `stages` tiles a warp in shared memory.
    CpAsync {
        /// Tiles in the ring, the one in use included.
        stages: u32,
    },
}

impl std::fmt::Display for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Registers => f.write_str("reg"),
            Self::CpAsync { stages } => write!(f, "cp{stages}"),
        }
    }
}

/// Compile-time axes of a decode kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DecodeVariant {
    /// Way of the keys.
    pub k_path: Path,
    /// Way of the values.
    pub v_path: Path,
    /// Operand order.
    pub operands: Operands,
    /// Query rows a block handles: the MMA's N (swapped) or M (straight) extent.
    pub query_tile: u32,
    /// Warps a block.
    pub warps: u32,
    /// Tokens a warp handles at a time.
    pub tile_tokens: u32,
    /// Way of a tile into the SM.
    pub staging: Staging,
    /// Blocks an SM that registers are budgeted for (`__launch_bounds__`).
    pub blocks_per_sm: u32,
}

/// Compile-time axes of an append kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AppendVariant {
    /// Threads a block.
    pub threads: u32,
    /// 16-element blocks, of both K and V, that a thread requantises.
    pub blocks_per_thread: u32,
}

/// What is chosen at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum Variant {
    /// Of a decode kernel.
    Decode(DecodeVariant),
    /// Of an append kernel.
    Append(AppendVariant),
}

impl Variant {
    /// What a kernel of this variant of `problem` fills a device of `sms` SMs with. An append has no splits that could ask.
    pub fn filling(&self, problem: &Problem, sms: u32) -> Filling {
        let (row_tiles, warps) = match (problem, self) {
            (Problem::Decode(p), Self::Decode(v)) => (p.row_tiles(v.query_tile), v.warps),
            _ => (1, 1),
        };
        Filling { row_tiles, warps, sms }
    }

    /// A readable name, unique among the variants of a problem.
    pub fn key(&self) -> String {
        match self {
            Self::Decode(v) => format!(
                "k_{}-v_{}-{}-n{}-w{}-t{}-{}-b{}",
                v.k_path, v.v_path, v.operands, v.query_tile, v.warps, v.tile_tokens, v.staging, v.blocks_per_sm
            ),
            Self::Append(v) => format!("w{}-e{}", v.threads / 32, v.blocks_per_thread),
        }
    }
}

/// How the tokens of a request are divided among blocks. Evaluated on the device from `kv_len`, so
/// a captured graph stays valid when lengths change; both forms are one formula there (`stages/work.cuh`): parts of
/// `max(ceil(kv_len / (max_splits - taper)), min_split_tokens)` tokens, rounded up to whole tiles, the last of them
/// halved `taper` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitPolicy {
    /// Every request in `splits` equal parts.
    Even {
        /// Parts.
        splits: u32,
    },
    /// Parts of `tokens` tokens, as many as the request needs: balances ragged batches.
    Chunk {
        /// Tokens a part.
        tokens: u32,
        /// How often the last part is halved: a request ends with parts of `tokens` / 2, / 4 .. and two of the smallest.
        /// Blocks start with the large parts, so that small ones fill the SMs while the last large ones end.
        #[serde(default, skip_serializing_if = "is_zero")]
        taper: u32,
    },
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A split policy as the parameters of a launch say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitLaunch {
    /// `DecodeParams::max_splits`.
    pub max_splits: u32,
    /// `DecodeParams::min_split_tokens`.
    pub min_split_tokens: u32,
    /// `DecodeParams::taper`.
    pub taper: u32,
}

/// What a kernel fills a device with: of these [`crate::Problem::split_at`] finds how many blocks a launch should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling {
    /// Of the kernel ([`crate::DecodeProblem::row_tiles`]).
    pub row_tiles: u32,
    /// Of a block.
    pub warps: u32,
    /// Of the device.
    pub sms: u32,
}

/// Warps with which an SM does as much as with more (`docs/measured/notes.md`, 5 and 29).
const ENOUGH_WARPS: f64 = 8.0;
/// What a block costs beside its tokens, in tokens (see [`SplitPolicy::at`]).
const BLOCK_TOKENS: f64 = 384.0;
/// Numbers of parts that [`SplitPolicy::at`] tries at most.
const MOST_TRIED: u32 = 63;

impl SplitPolicy {
    /// The context in one part, and what an append, which has no policy, is launched with.
    pub const WHOLE: Self = Self::Even { splits: 1 };

    /// What a policy that won at `tuned` becomes at another shape of the same bucket. Contexts are what the queries see:
    /// [`crate::Problem::split_at`].
    ///
    /// Of even parts there are as many blocks in all as won, up to about twice as many: the number of parts N that is the least
    /// of `max(busiest(N), 8 / warps) / N + 384 busiest(N) / context`, where
    /// `busiest(N) = ceil(batch * kv_heads * row_tiles * N / sms)` is the number of blocks of the busiest SM: its tokens, for
    /// which fewer than eight warps take as long as eight would, and what its blocks cost beside them. Fitted to what an H200
    /// took between the tuned shapes, with kernels of one row tile (`docs/measured/2026-11-30-regret.md`).
    /// Parts of so many tokens become longer or shorter, so that the number of blocks stays.
    pub(crate) fn at(self, tuned: &Shape, shape: &Shape, filling: Filling) -> Self {
        let (Shape::Decode { batch: b, context: c, kv_heads: h, .. }, Shape::Decode { batch, context, kv_heads, .. }) =
            (*tuned, *shape)
        else {
            return self;
        };
        if tuned == shape {
            return self;
        }
        let product = |sizes: &[u32]| sizes.iter().map(|&n| u128::from(n.max(1))).product::<u128>();
        let saturated = |n: u128| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
        match self {
            Self::Even { splits } => {
                let (all, one) = (product(&[splits, b, h]), product(&[batch, kv_heads]));
                let fewest = saturated(all / one);
                let most = saturated((2 * all).div_ceil(one)).clamp(fewest, fewest.saturating_add(MOST_TRIED));
                let [row_tiles, warps, sms] =
                    [filling.row_tiles, filling.warps, filling.sms].map(|n| f64::from(n.max(1)));
                let one = one as f64 * row_tiles;
                let context = f64::from(context.max(1));
                let busiest = |n: u32| {
                    let n = f64::from(n);
                    let blocks = (one * n / sms).ceil();
                    blocks.max(ENOUGH_WARPS / warps) / n + blocks * BLOCK_TOKENS / context
                };
                let best = (fewest..=most).min_by(|&m, &n| busiest(m).total_cmp(&busiest(n)));
                Self::Even { splits: best.unwrap_or(fewest) }
            }
            Self::Chunk { tokens, taper } => {
                let work = product(&[tokens, batch, context, kv_heads]);
                Self::Chunk { tokens: saturated(work.div_ceil(product(&[b, c, h]))), taper }
            }
        }
    }

    /// The launch parameters for contexts up to `max_context`.
    pub fn launch(self, max_context: u32) -> SplitLaunch {
        match self {
            Self::Even { splits } => SplitLaunch { max_splits: splits, min_split_tokens: 1, taper: 0 },
            Self::Chunk { tokens, taper } => {
                let max_splits = max_context.div_ceil(tokens).max(1).saturating_add(taper);
                SplitLaunch { max_splits, min_split_tokens: tokens, taper }
            }
        }
    }
}

impl std::fmt::Display for SplitPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Even { splits } => write!(f, "even{splits}"),
            Self::Chunk { tokens, taper: 0 } => write!(f, "chunk{tokens}"),
            Self::Chunk { tokens, taper } => write!(f, "chunk{tokens}-taper{taper}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Lengths;

    fn shape(batch: u32, context: u32, kv_heads: u32) -> Shape {
        Shape::Decode { batch, context, kv_heads, lengths: Lengths::Equal }
    }

    /// Of four warps, on an H200.
    fn filling(row_tiles: u32) -> Filling {
        Filling { row_tiles, warps: 4, sms: 132 }
    }

    fn even(splits: u32) -> SplitPolicy {
        SplitPolicy::Even { splits }
    }

    #[test]
    fn even_parts_become_as_many_blocks_as_won_up_to_twice_and_leave_few_sms_idle() {
        let tuned = shape(64, 16_384, 8);
        assert_eq!(even(1).at(&tuned, &tuned, filling(1)), even(1));
        assert_eq!(even(5).at(&tuned, &tuned, filling(1)), even(5), "what won stays where it won");
        // 35 * 8 blocks are 2.1 an SM, and the busiest has 3; in four parts they are 8.5, and it has 9.
        for (batch, context, splits) in [(32, 16_384, 2), (35, 10_624, 4), (128, 16_384, 1), (132, 16_384, 1)] {
            assert_eq!(even(1).at(&tuned, &shape(batch, context, 8), filling(1)), even(splits), "{batch} x {context}");
        }
        for batch in 1..200 {
            let SplitPolicy::Even { splits } = even(4).at(&shape(8, 8192, 8), &shape(batch, 8192, 8), filling(1))
            else {
                panic!()
            };
            let blocks = splits * batch * 8;
            assert!((splits == 1 || blocks <= 2 * 256 + batch * 8) && blocks + batch * 8 > 256, "{batch}: {splits}");
        }
        // 35 * 8 * 2 blocks are 4.2 an SM, and the busiest has 5; in three parts they are 12.7, and it has 13.
        assert_eq!(even(1).at(&tuned, &shape(35, 10_624, 8), filling(2)), even(3));
        let huge = shape(u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(even(u32::MAX).at(&huge, &shape(1, 1, 1), filling(1)), even(u32::MAX));
    }

    /// 45 * 8 blocks are 2.7 an SM. Of two warps each the busiest has six, and is as fast with eight; in two parts it has twelve.
    #[test]
    fn small_blocks_become_enough_warps() {
        let (tuned, shape) = (shape(64, 4096, 8), shape(45, 5793, 8));
        for (warps, splits) in [(2, 2), (4, 1), (8, 1)] {
            assert_eq!(even(1).at(&tuned, &shape, Filling { warps, ..filling(1) }), even(splits), "{warps} warps");
        }
    }

    /// A row tile is a block of the grid as a KV head is.
    #[test]
    fn row_tiles_count_as_kv_heads_do() {
        for (tiles, splits) in [(2, 1), (3, 4), (16, 2)] {
            for (batch, context) in (1..200).zip([1024, 8192, 65_536].into_iter().cycle()) {
                let at = |kv_heads, tiles| {
                    even(splits).at(&shape(8, 8192, kv_heads), &shape(batch, context, kv_heads), filling(tiles))
                };
                assert_eq!(at(8, tiles), at(8 * tiles, 1), "{tiles} tiles, {batch} x {context}");
            }
        }
    }

    #[test]
    fn chunks_keep_the_number_of_blocks() {
        let chunk = |tokens| SplitPolicy::Chunk { tokens, taper: 2 };
        for (batch, context, tokens) in [(8, 8192, 2048), (8, 4096, 1024), (16, 8192, 4096), (4, 8192, 1024)] {
            assert_eq!(chunk(2048).at(&shape(8, 8192, 8), &shape(batch, context, 8), filling(1)), chunk(tokens));
        }
        let huge = shape(u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(chunk(u32::MAX).at(&shape(1, 0, 1), &huge, filling(1)), chunk(u32::MAX));
    }
}
