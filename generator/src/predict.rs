//! A simple model of one call's time (bytes, instructions, occupancy), where nothing can be timed.
//!
//! A call takes the longer of its memory time and its issue time, stretched by the last wave's idle blocks, plus a
//! launch. The constants are rough fits to runs of the H200; on other targets they only order variants.

use crate::footprint::{Footprint, launch};
use nvkv_spec::{
    CompileFacts, DecodeProblem, DecodeVariant, Dequant, Mma, Problem, REGISTERS_PER_SM, Shape, SplitPolicy, Target,
    Variant,
};

/// Share of the datasheet's bandwidth that a plain read kernel reaches.
const READ_EFFICIENCY: f64 = 0.95;
/// SM clock, cycles a µs.
const CLOCK: f64 = 1700.0;
/// Warp instructions a cycle that an SM issues in such loops, at full occupancy.
const ISSUE_RATE: f64 = 2.4;
/// Warps an SM at which latencies are well hidden.
const ENOUGH_WARPS: f64 = 16.0;
/// Launch, prologue and epilogue of a call, µs; a split's combine, µs.
const LAUNCH_US: f64 = 5.0;
const COMBINE_US: f64 = 2.0;

/// Predicted time of one call, µs. An ordering aid; never a measurement.
pub fn predicted_us(
    problem: &Problem,
    variant: &Variant,
    split: SplitPolicy,
    shape: &Shape,
    target: Target,
    facts: &CompileFacts,
) -> f64 {
    let chip = target.facts();
    let memory = shape.bytes(problem) as f64 / (f64::from(chip.bandwidth) * 1e3 * READ_EFFICIENCY);
    let footprint = Footprint::new(problem, variant);
    let resident = resident_blocks(&footprint, facts, target);
    let launch = launch(problem, variant, shape, split);
    let blocks: f64 = launch.grid.iter().map(|&n| f64::from(n)).product();
    let waves = blocks / (f64::from(chip.sms) * resident);
    let last_wave = waves.ceil() / waves;
    let warps = (resident * f64::from(footprint.threads) / 32.0 * waves.min(1.0)).max(0.25);
    let rate = ISSUE_RATE * (warps / ENOUGH_WARPS).min(1.0).sqrt();
    let issue = instructions(problem, variant, shape, target, facts) / (f64::from(chip.sms) * rate * CLOCK);
    let combine = if launch.max_splits > 1 { COMBINE_US + 0.02 * f64::from(launch.max_splits) } else { 0.0 };
    memory.max(issue) * last_wave.min(2.0) + LAUNCH_US + combine
}

/// Blocks an SM that registers, shared memory and warps allow; at least one.
pub fn resident_blocks(footprint: &Footprint, facts: &CompileFacts, target: Target) -> f64 {
    let chip = target.facts();
    let by_registers = REGISTERS_PER_SM / (facts.registers.max(16).next_multiple_of(8) * footprint.threads);
    let by_shared =
        chip.shared_per_sm / (footprint.shared_bytes + facts.static_shared + nvkv_spec::SHARED_RESERVED_PER_BLOCK);
    let by_warps = chip.warps_per_sm * 32 / footprint.threads;
    f64::from(by_registers.min(by_shared).min(by_warps).max(1))
}

/// Warp instructions of a whole call.
fn instructions(problem: &Problem, variant: &Variant, shape: &Shape, target: Target, facts: &CompileFacts) -> f64 {
    match (problem, variant, *shape) {
        (Problem::Decode(p), Variant::Decode(v), Shape::Decode { kv_heads, .. }) => {
            let row_tiles = p.row_tiles(v.query_tile);
            let tiles = f64::from(kv_heads) * f64::from(row_tiles) * shape.tokens(problem) as f64 / 16.0;
            let spills = f64::from(facts.spill_loads + facts.spill_stores) / 4.0;
            tiles * (tile_instructions(p, v) + spills * 16.0 / f64::from(v.tile_tokens))
        }
        (Problem::Append(p), _, Shape::Append { tokens, kv_heads }) => {
            // 17 an element on the H200: quotient, rounding, packing. Where codes are converted, machine code has four fewer.
            let an_element = if target.facts().e2m1_convert { 13.0 } else { 17.0 };
            an_element * f64::from(tokens) * f64::from(kv_heads) * f64::from(2 * p.head_dim) / 32.0
        }
        _ => 0.0,
    }
}

/// Warp instructions for 16 tokens of one KV head: dequantisation by element, then MMAs, softmax and copies by tile.
fn tile_instructions(problem: &DecodeProblem, variant: &DecodeVariant) -> f64 {
    let elements = 16.0 * f64::from(problem.head_dim) / 32.0;
    // Instructions for eight elements.
    let k = match (variant.k_path.dequant, variant.k_path.mma) {
        (Dequant::Place, _) => 19.0,
        (Dequant::Convert, _) => 8.0,
        (Dequant::Table, Mma::F16) => 14.0,
        (Dequant::Table, _) => 10.0,
        (Dequant::Direct, _) => 1.0,
    };
    let v = match variant.v_path.dequant {
        Dequant::Place => 20.0,
        Dequant::Convert => 11.0,
        Dequant::Table | Dequant::Direct => 16.0,
    };
    let query_blocks = f64::from(variant.query_tile) / 8.0;
    let mmas = f64::from(problem.head_dim) / 8.0 * query_blocks;
    let softmax = 30.0 * query_blocks + 25.0 * 16.0 / f64::from(variant.tile_tokens);
    // Five instructions a score, of which a lane holds four a query block.
    let cap = if problem.soft_cap { 20.0 * query_blocks } else { 0.0 };
    elements / 8.0 * (k + v) + mmas + softmax + cap + 40.0
}
