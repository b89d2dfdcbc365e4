//! Which variants make sense on which target: a named reason for each that does not.

use crate::footprint::{Footprint, state_floats};
use nvkv_spec::{
    AppendVariant, DecodeProblem, DecodeVariant, Dequant, ElementFormat, Mma, Numerics, Operands, Path, Problem,
    REGISTERS_PER_SM, SHARED_RESERVED_PER_BLOCK, Staging, Target, Variant,
};

/// Why a variant is not generated. Programs see the name, people the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, thiserror::Error)]
pub enum Rejection {
    /// `place` and `table` read E2M1 codes, `direct` reads E4M3 bytes.
    #[error("the dequantisation does not read this storage format")]
    WrongFormat,
    /// `table` rounds to E4M3; `place` and `convert` of E2M1 do not; E4M3 MMAs take an E4M3 Q.
    #[error("the path computes another numerics class")]
    WrongNumerics,
    /// V is multiplied by an f16 P.
    #[error("V has no path with this MMA")]
    NoSuchVPath,
    /// The target has no `wgmma`.
    #[error("the target has no wgmma")]
    NoWgmma,
    /// `wgmma` takes tokens on M and warps in groups of four.
    #[error("wgmma needs swapped operands and a multiple of four warps")]
    WgmmaShape,
    /// With `wgmma` Q is in shared memory. As f16 it fits the registers up to 16 query rows, where `mma.sync` is no slower.
    #[error("wgmma with f16 operands is for more than 16 query rows")]
    QueriesFitRegisters,
    /// ptxas unpacks E4M3 `mma.sync` to f16 on this target: `table` with the f16 MMA does it better.
    #[error("the target emulates the E4M3 mma.sync")]
    EmulatedFp8Mma,
    /// ptxas needs ~20 instructions for the E2M1 conversion on this target.
    #[error("the target emulates the E2M1 conversion")]
    EmulatedE2m1Convert,
    /// Straight operands with at most eight query rows leave half of M empty.
    #[error("straight operands would leave half of the MMA's rows empty")]
    HalfEmptyM,
    /// Straight operands come in sixteens.
    #[error("the query tile does not fit the operand order")]
    QueryTileShape,
    /// A smaller query tile holds all query rows as well.
    #[error("a smaller query tile holds all query rows")]
    QueryTileTooLarge,
    /// The cache would be read once for each of many row tiles.
    #[error("more than four row tiles would each read the cache")]
    TooManyRowTiles,
    /// Accumulators, queries and staged tiles do not fit the registers that `blocks_per_sm` leaves.
    #[error("the block wants more registers than its share")]
    TooManyRegisters,
    /// The block's shared memory does not fit, alone or `blocks_per_sm` times.
    #[error("the blocks want more shared memory than an SM has")]
    TooMuchShared,
    /// `blocks_per_sm` blocks have more warps than an SM holds.
    #[error("the blocks want more warps than an SM holds")]
    TooManyWarps,
    /// Fewer than four warps an SM cannot keep the memory busy.
    #[error("too few warps an SM to hide latency")]
    TooFewWarps,
}

impl Rejection {
    /// Whether the variant is none of this problem in the first place: the axes are combined for all formats and classes.
    pub fn is_of_another_problem(self) -> bool {
        matches!(self, Self::WrongFormat | Self::WrongNumerics)
    }
}

/// Whether `variant` of `problem` can run on `target` and is worth compiling.
///
/// # Errors
/// The first reason against it.
pub fn feasible(problem: &Problem, variant: &Variant, target: Target) -> Result<(), Rejection> {
    match (problem, variant) {
        (Problem::Decode(p), Variant::Decode(v)) => {
            paths(p, v, target)?;
            query_tile(p, v)?;
            resources(p, v, target)
        }
        (Problem::Append(_), Variant::Append(v)) => append(v, target),
        _ => Err(Rejection::WrongFormat),
    }
}

fn reject_if(condition: bool, reason: Rejection) -> Result<(), Rejection> {
    if condition { Err(reason) } else { Ok(()) }
}

fn paths(problem: &DecodeProblem, variant: &DecodeVariant, target: Target) -> Result<(), Rejection> {
    let facts = target.facts();
    let (k, v) = (variant.k_path, variant.v_path);
    reject_if(v.mma != Mma::F16, Rejection::NoSuchVPath)?;
    for (path, format) in [(k, problem.kv_format.k()), (v, problem.kv_format.v())] {
        path_computes(path, format, problem.numerics)?;
        let converts_e2m1 = path.dequant == Dequant::Convert && format == ElementFormat::Nvfp4;
        reject_if(converts_e2m1 && !facts.e2m1_convert, Rejection::EmulatedE2m1Convert)?;
    }
    reject_if(k.mma == Mma::E4m3 && !facts.native_fp8_mma, Rejection::EmulatedFp8Mma)?;
    if k.mma == Mma::Wgmma {
        reject_if(!facts.wgmma, Rejection::NoWgmma)?;
        let shape = variant.operands == Operands::Swapped && variant.warps.is_multiple_of(4);
        reject_if(!shape, Rejection::WgmmaShape)?;
        reject_if(k.multiplies_f16() && variant.query_tile <= 16, Rejection::QueriesFitRegisters)?;
    }
    Ok(())
}

/// Storage format and numerics class decide what a path may be.
fn path_computes(path: Path, format: ElementFormat, numerics: Numerics) -> Result<(), Rejection> {
    let reads = match format {
        ElementFormat::Nvfp4 => matches!(path.dequant, Dequant::Place | Dequant::Convert | Dequant::Table),
        ElementFormat::Fp8E4m3 => match path.mma {
            Mma::F16 => path.dequant == Dequant::Convert,
            Mma::E4m3 => path.dequant == Dequant::Direct,
            Mma::Wgmma => matches!(path.dequant, Dequant::Convert | Dequant::Direct),
        },
    };
    reject_if(!reads, Rejection::WrongFormat)?;
    let class = match (format, numerics) {
        (ElementFormat::Nvfp4, Numerics::Fp8) => path.dequant == Dequant::Table,
        (ElementFormat::Nvfp4, Numerics::Exact) => path.dequant != Dequant::Table && path.multiplies_f16(),
        (ElementFormat::Fp8E4m3, Numerics::Fp8) => true,
        (ElementFormat::Fp8E4m3, Numerics::Exact) => path.multiplies_f16(),
    };
    reject_if(!class, Rejection::WrongNumerics)
}

fn query_tile(problem: &DecodeProblem, variant: &DecodeVariant) -> Result<(), Rejection> {
    let (rows, tile) = (problem.query_rows(), variant.query_tile);
    let straight = variant.operands == Operands::Straight;
    reject_if(straight && !tile.is_multiple_of(16), Rejection::QueryTileShape)?;
    reject_if(straight && rows <= 8, Rejection::HalfEmptyM)?;
    let smallest = if straight { 16 } else { 8 };
    reject_if(tile > smallest && rows <= tile / 2, Rejection::QueryTileTooLarge)?;
    reject_if(rows.div_ceil(tile) > 4, Rejection::TooManyRowTiles)
}

fn resources(problem: &DecodeProblem, variant: &DecodeVariant, target: Target) -> Result<(), Rejection> {
    let facts = target.facts();
    let footprint = Footprint::new(&Problem::Decode(*problem), &Variant::Decode(*variant));
    reject_if(footprint.shared_bytes > facts.shared_per_block, Rejection::TooMuchShared)?;
    let resident = variant.blocks_per_sm * (footprint.shared_bytes + SHARED_RESERVED_PER_BLOCK);
    reject_if(resident > facts.shared_per_sm, Rejection::TooMuchShared)?;
    let warps = variant.warps * variant.blocks_per_sm;
    reject_if(warps > facts.warps_per_sm, Rejection::TooManyWarps)?;
    reject_if(warps < 4, Rejection::TooFewWarps)?;
    let share = (REGISTERS_PER_SM / (warps * 32) / 8 * 8).min(255);
    reject_if(registers_wanted(problem, variant) > share, Rejection::TooManyRegisters)
}

/// Addresses, loop state and operands in flight: what a decode kernel needs besides its arrays.
const WORKING_REGISTERS: u32 = 48;

/// Registers that a lane must hold at once, at least: a variant above its share would spill in its main loop.
fn registers_wanted(problem: &DecodeProblem, variant: &DecodeVariant) -> u32 {
    let blocks = variant.tile_tokens / 16;
    let scores = blocks * variant.query_tile / 2;
    let queries = match variant.k_path.mma {
        Mma::F16 => variant.query_tile / 8 * problem.head_dim / 8,
        Mma::E4m3 => variant.query_tile / 8 * problem.head_dim / 16,
        Mma::Wgmma => 0,
    };
    let staged = match variant.staging {
        // Two tiles: the one in use and the next; a warp's tile is 32 lanes of 32-bit words.
        Staging::Registers => 2 * variant.tile_tokens * problem.kv_format.token_bytes(problem.head_dim) / 128,
        Staging::CpAsync { .. } => 0,
    };
    state_floats(problem, variant) + scores + queries + staged + WORKING_REGISTERS
}

fn append(variant: &AppendVariant, target: Target) -> Result<(), Rejection> {
    reject_if(variant.threads / 32 > target.facts().warps_per_sm, Rejection::TooManyWarps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Preset, default_variant, problems, variants};
    use nvkv_spec::Operation;
    use std::collections::BTreeSet;

    #[test]
    fn every_problem_of_every_preset_has_a_variant_on_every_target() {
        // The full preset is large: every 97th of its problems, which share no factor with its axes.
        for (preset, step) in [(Preset::Quick, 1), (Preset::Standard, 1), (Preset::Full, 97)] {
            for problem in problems(preset, Operation::ALL).iter().step_by(step) {
                for &target in Target::ALL {
                    let default = default_variant(problem, target);
                    assert_eq!(feasible(problem, &default, target), Ok(()), "{} on {target}", problem.key());
                    let any = variants(problem, preset).iter().any(|v| feasible(problem, v, target).is_ok());
                    assert!(any, "{} on {target}", problem.key());
                }
            }
        }
    }

    #[test]
    fn every_reason_is_given_somewhere_in_the_full_space() {
        let mut seen = BTreeSet::new();
        for problem in problems(Preset::Full, Operation::ALL).iter().step_by(997) {
            for &target in Target::ALL {
                seen.extend(variants(problem, Preset::Full).iter().filter_map(|v| feasible(problem, v, target).err()));
            }
        }
        use Rejection::*;
        for reason in [WrongFormat, WrongNumerics, NoWgmma, WgmmaShape, EmulatedFp8Mma, EmulatedE2m1Convert] {
            assert!(seen.contains(&reason), "{reason:?}");
        }
        for reason in [HalfEmptyM, QueryTileShape, QueryTileTooLarge, TooManyRegisters, TooMuchShared, TooManyWarps] {
            assert!(seen.contains(&reason), "{reason:?}");
        }
    }

    /// 65,536 registers: 128 a lane for 16 warps, where eight query rows fit; 255 for eight warps, where 32 rows and
    /// their scores of 64 tokens do not.
    #[test]
    fn registers_and_shared_memory_are_a_share_of_the_sm() {
        let Problem::Decode(problem) = problems(Preset::Quick, &[Operation::Decode])[0] else { unreachable!() };
        let table = |mma| Path { dequant: Dequant::Table, mma };
        let variant = DecodeVariant {
            k_path: table(Mma::Wgmma),
            v_path: table(Mma::F16),
            operands: Operands::Swapped,
            query_tile: 8,
            warps: 4,
            tile_tokens: 32,
            staging: Staging::CpAsync { stages: 2 },
            blocks_per_sm: 4,
        };
        let check = |variant| feasible(&Problem::Decode(problem), &Variant::Decode(variant), Target::Sm90a);
        assert_eq!(check(variant), Ok(()));
        let wide = Problem::Decode(DecodeProblem { group: 16, q_len: 2, ..problem });
        let wide_tile = DecodeVariant { query_tile: 32, tile_tokens: 64, blocks_per_sm: 2, ..variant };
        assert_eq!(feasible(&wide, &Variant::Decode(wide_tile), Target::Sm90a), Err(Rejection::TooManyRegisters));
        let deep = DecodeVariant { staging: Staging::CpAsync { stages: 8 }, ..variant };
        assert_eq!(check(deep), Err(Rejection::TooMuchShared));
    }
}
