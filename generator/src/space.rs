//! The axes of every variant and the problem lists of the presets: the only place where they are spelled.

use crate::feasible::feasible;
use crate::footprint::Footprint;
use nvkv_spec::{
    AppendMode, AppendProblem, AppendVariant, DecodeProblem, DecodeVariant, Dequant, Dtype, ElementFormat, KvFormat,
    Lengths, Mma, Numerics, Operands, Operation, Path, Problem, Shape, SplitPolicy, Staging, Target, VScaleOrder,
    Variant,
};

/// How much of the space a tune covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// Minutes on two cores.
    Quick,
    /// The shapes of a server, every path.
    Standard,
    /// Every axis.
    Full,
}

/// Head dims that the templates take.
pub const HEAD_DIMS: [u32; 3] = [64, 128, 256];
/// Page sizes that the templates take.
pub const PAGE_SIZES: [u32; 5] = [8, 16, 32, 64, 128];
/// Query heads a KV head at most.
pub const MAX_GROUP: u32 = 16;
/// New tokens a request at most.
pub const MAX_Q_LEN: u32 = 8;

/// The problem that the presets vary around: Llama-3.x and Qwen3 at 8 KV heads.
const BASE: DecodeProblem = DecodeProblem {
    kv_format: KvFormat::Nvfp4,
    numerics: Numerics::Fp8,
    head_dim: 128,
    group: 8,
    q_len: 1,
    page_size: 16,
    dtype: Dtype::Bf16,
    v_scale_order: VScaleOrder::Linear,
    append: AppendMode::Separate,
    window: None,
    sinks: false,
    soft_cap: false,
};

/// Layers of models that ask for more than a softmax: of gpt-oss (sinks; every other layer sees 128 tokens) and of
/// Gemma 2 9B (a soft cap; every other layer sees 4,096).
const MODEL_LAYERS: [DecodeProblem; 4] = {
    let gpt_oss = DecodeProblem { head_dim: 64, sinks: true, ..BASE };
    let gemma_2 = DecodeProblem { head_dim: 256, group: 2, soft_cap: true, ..BASE };
    [gpt_oss, DecodeProblem { window: Some(128), ..gpt_oss }, gemma_2, DecodeProblem { window: Some(4096), ..gemma_2 }]
};

/// The problems of a preset, before the command line replaces any of its lists.
pub fn problems(preset: Preset, operations: &[Operation]) -> Vec<Problem> {
    operations.iter().flat_map(|&operation| problems_of(preset, operation)).collect()
}

fn problems_of(preset: Preset, operation: Operation) -> Vec<Problem> {
    let decode = |append| {
        let all = decode_problems(preset).into_iter();
        all.map(|p| Problem::Decode(DecodeProblem { append, ..p })).collect::<Vec<_>>()
    };
    match operation {
        Operation::Decode => decode(AppendMode::Separate),
        Operation::Fused if preset == Preset::Full => decode(AppendMode::Fused),
        Operation::Fused => {
            let fused = DecodeProblem { append: AppendMode::Fused, ..BASE };
            let exact = DecodeProblem { numerics: Numerics::Exact, ..fused };
            let kept = if preset == Preset::Quick { 1 } else { 2 };
            [fused, exact].into_iter().take(kept).map(Problem::Decode).collect()
        }
        Operation::Append => append_problems(preset).into_iter().map(Problem::Append).collect(),
    }
}

/// Quick: both numerics classes of the base, and the FP8 cache it is measured against. Standard: the base with one
/// field changed at a time, and [`MODEL_LAYERS`]. Full: everything.
fn decode_problems(preset: Preset) -> Vec<DecodeProblem> {
    let fp8_cache = DecodeProblem { kv_format: KvFormat::Fp8E4m3, ..BASE };
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..BASE };
    let both = |p: DecodeProblem| Numerics::ALL.iter().map(move |&numerics| DecodeProblem { numerics, ..p });
    match preset {
        Preset::Quick => both(BASE).chain([fp8_cache]).collect(),
        Preset::Standard => {
            let mut around = vec![BASE];
            around.extend([64, 256].map(|head_dim| DecodeProblem { head_dim, ..BASE }));
            around.extend([1, 4, 5, 16].map(|group| DecodeProblem { group, ..BASE }));
            around.extend([64, 128].map(|page_size| DecodeProblem { page_size, ..BASE }));
            around.extend([2, 4].map(|q_len| DecodeProblem { q_len, ..BASE }));
            around.extend([DecodeProblem { v_scale_order: VScaleOrder::Interleaved4, ..BASE }, mixed]);
            around.into_iter().flat_map(both).chain([fp8_cache]).chain(MODEL_LAYERS).collect()
        }
        Preset::Full => every_decode_problem(),
    }
}

fn every_decode_problem() -> Vec<DecodeProblem> {
    let mut all = Vec::new();
    for (&kv_format, &numerics) in product(KvFormat::ALL, Numerics::ALL) {
        for (&head_dim, &page_size) in product(&HEAD_DIMS, &PAGE_SIZES) {
            for (&dtype, &v_scale_order) in product(Dtype::ALL, VScaleOrder::ALL) {
                // FP8 values have no block scales to order.
                if kv_format.v() == ElementFormat::Fp8E4m3 && v_scale_order != VScaleOrder::Linear {
                    continue;
                }
                for (&group, &q_len) in product(&[1, 2, 3, 4, 5, 6, 7, 8, 12, 16], &[1, 2, 4]) {
                    let shape = DecodeProblem { head_dim, group, q_len, page_size, ..BASE };
                    all.push(DecodeProblem { kv_format, numerics, dtype, v_scale_order, ..shape });
                }
            }
        }
    }
    all.extend(with_features(&all));
    all
}

/// Window, sinks and soft cap, alone and together, on a spread of `problems`: the step shares no factor with the axes, so
/// that every value of each meets every feature.
fn with_features(problems: &[DecodeProblem]) -> Vec<DecodeProblem> {
    let feature = |(i, &problem): (usize, &DecodeProblem)| {
        let [window, sinks, soft_cap] = [1, 2, 4].map(|bit| (i % 7 + 1) & bit != 0);
        DecodeProblem { window: window.then_some(128), sinks, soft_cap, ..problem }
    };
    problems.iter().step_by(11).enumerate().map(feature).collect()
}

fn append_problems(preset: Preset) -> Vec<AppendProblem> {
    let base = BASE.append_problem();
    let fp8_cache = AppendProblem { kv_format: KvFormat::Fp8E4m3, ..base };
    let mixed = AppendProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..base };
    match preset {
        Preset::Quick => vec![base],
        Preset::Standard => {
            let interleaved = AppendProblem { v_scale_order: VScaleOrder::Interleaved4, ..base };
            let f16 = AppendProblem { dtype: Dtype::F16, ..base };
            let mut all = vec![base, f16, interleaved, fp8_cache, mixed];
            all.extend([64, 256].map(|head_dim| AppendProblem { head_dim, ..base }));
            all.extend([64, 128].map(|page_size| AppendProblem { page_size, ..base }));
            all
        }
        Preset::Full => {
            let mut all: Vec<_> = every_decode_problem().iter().map(DecodeProblem::append_problem).collect();
            all.sort();
            all.dedup();
            all
        }
    }
}

fn product<'a, A, B>(a: &'a [A], b: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    a.iter().flat_map(move |x| b.iter().map(move |y| (x, y)))
}

/// KV heads of the shapes of the presets, and where a user names none.
pub const KV_HEADS: u32 = 8;

/// The shapes at which `problem` is tuned in a preset: its buckets (`nvkv_spec::bucket`), until measuring splits some.
pub fn shapes(problem: &Problem, preset: Preset) -> Vec<Shape> {
    let kv_heads = KV_HEADS;
    let decode: &[(u32, u32)] = match preset {
        Preset::Quick => &[(1, 32768), (8, 8192), (64, 16384)],
        _ => &[(1, 32768), (1, 131072), (8, 8192), (16, 32768), (64, 4096), (64, 16384), (128, 8192)],
    };
    let ragged: &[(u32, u32)] = if preset == Preset::Quick { &[] } else { &[(64, 65_536)] };
    let append: &[u32] = match preset {
        Preset::Quick => &[64, 8192],
        _ => &[1, 64, 512, 8192],
    };
    match problem {
        Problem::Decode(_) => {
            let of = |lengths| move |&(batch, context)| Shape::Decode { batch, context, kv_heads, lengths };
            decode.iter().map(of(Lengths::Equal)).chain(ragged.iter().map(of(Lengths::LogUniform))).collect()
        }
        Problem::Append(_) => append.iter().map(|&tokens| Shape::Append { tokens, kv_heads }).collect(),
    }
}

const K_PATHS: [Path; 9] = [
    Path { dequant: Dequant::Table, mma: Mma::Wgmma },
    Path { dequant: Dequant::Table, mma: Mma::E4m3 },
    Path { dequant: Dequant::Table, mma: Mma::F16 },
    Path { dequant: Dequant::Convert, mma: Mma::F16 },
    Path { dequant: Dequant::Place, mma: Mma::F16 },
    Path { dequant: Dequant::Place, mma: Mma::Wgmma },
    Path { dequant: Dequant::Convert, mma: Mma::Wgmma },
    Path { dequant: Dequant::Direct, mma: Mma::Wgmma },
    Path { dequant: Dequant::Direct, mma: Mma::E4m3 },
];
const V_PATHS: [Path; 3] = [
    Path { dequant: Dequant::Table, mma: Mma::F16 },
    Path { dequant: Dequant::Convert, mma: Mma::F16 },
    Path { dequant: Dequant::Place, mma: Mma::F16 },
];

/// How a block is cut: warps, tokens a tile, staging, blocks an SM.
#[derive(Clone, Copy)]
struct Tiling(u32, u32, Staging, u32);

const fn ring(stages: u32) -> Staging {
    Staging::CpAsync { stages }
}

/// Tilings that won, or came near, somewhere on the H200, the best first; and small ones, so that wide query tiles
/// and head dims fit somewhere.
const TILINGS: [Tiling; 18] = [
    Tiling(4, 64, ring(2), 2),
    Tiling(4, 64, ring(2), 3),
    Tiling(4, 32, ring(2), 2),
    Tiling(4, 32, ring(2), 3),
    Tiling(4, 16, ring(3), 2),
    Tiling(4, 32, ring(3), 4),
    Tiling(8, 32, ring(2), 1),
    Tiling(2, 64, ring(2), 4),
    Tiling(8, 32, ring(3), 2),
    Tiling(4, 64, ring(3), 2),
    Tiling(8, 64, ring(2), 1),
    Tiling(8, 64, ring(3), 1),
    Tiling(4, 32, ring(2), 4),
    Tiling(4, 16, ring(4), 4),
    Tiling(8, 16, ring(2), 1),
    Tiling(4, 16, Staging::Registers, 4),
    Tiling(4, 16, Staging::Registers, 2),
    Tiling(4, 16, ring(2), 1),
];

fn tilings(preset: Preset) -> Vec<Tiling> {
    match preset {
        Preset::Quick => TILINGS[..5].to_vec(),
        Preset::Standard => TILINGS.to_vec(),
        Preset::Full => {
            let stagings = [Staging::Registers, ring(2), ring(3), ring(4), ring(6)];
            let mut all = Vec::new();
            for (&warps, &tile) in product(&[2, 4, 8], &[16, 32, 64]) {
                for (&staging, &blocks) in product(&stagings, &[1, 2, 3, 4, 8]) {
                    all.push(Tiling(warps, tile, staging, blocks));
                }
            }
            all
        }
    }
}

/// Every combination of the axes for `problem`, feasible or not.
pub fn variants(problem: &Problem, preset: Preset) -> Vec<Variant> {
    match problem {
        Problem::Decode(_) => decode_variants(preset),
        Problem::Append(_) => product(&[128, 256, 512], &[1, 2, 4])
            .map(|(&threads, &blocks_per_thread)| Variant::Append(AppendVariant { threads, blocks_per_thread }))
            .collect(),
    }
}

fn decode_variants(preset: Preset) -> Vec<Variant> {
    let tilings = tilings(preset);
    let mut all = Vec::new();
    for (&k_path, &v_path) in product(&K_PATHS, &V_PATHS) {
        for (&operands, &query_tile) in product(Operands::ALL, &[8, 16, 32]) {
            for &Tiling(warps, tile_tokens, staging, blocks_per_sm) in &tilings {
                let paths =
                    DecodeVariant { k_path, v_path, operands, query_tile, warps, tile_tokens, staging, blocks_per_sm };
                all.push(Variant::Decode(paths));
            }
        }
    }
    all
}

/// The split policies worth trying at `shape`: as many parts as make one, two, … waves of blocks, rounded down so that
/// no wave is started for a few.
pub fn splits(problem: &Problem, variant: &Variant, shape: &Shape, target: Target, preset: Preset) -> Vec<SplitPolicy> {
    let (Problem::Decode(p), Variant::Decode(v), Shape::Decode { context, lengths, .. }) = (problem, variant, *shape)
    else {
        return vec![SplitPolicy::Even { splits: 1 }];
    };
    if lengths != Lengths::Equal {
        return ragged_splits(problem, v, shape, target);
    }
    let seen = p.seen(context);
    let waves: &[u32] = match preset {
        Preset::Quick => &[1, 2, 4],
        Preset::Standard => &[1, 2, 3, 4],
        Preset::Full => &[1, 2, 3, 4, 5, 6, 8],
    };
    let most = seen.div_ceil(v.warps * v.tile_tokens);
    let one = splits_a_wave(problem, v, shape, target);
    let mut counts: Vec<u32> = waves.iter().map(|&n| ((f64::from(n) * one) as u32).clamp(1, most)).collect();
    counts.dedup();
    let even = counts.iter().map(|&splits| SplitPolicy::Even { splits });
    // The same parts by tokens: equal at this shape, balanced in a ragged batch.
    let chunks = counts.iter().map(|&splits| SplitPolicy::Chunk { tokens: seen.div_ceil(splits), taper: 0 });
    if preset == Preset::Full { even.chain(chunks).collect() } else { even.collect() }
}

/// The same for requests of different lengths: parts of about a half and a quarter of what each block would take if all
/// SMs were filled once, the last ones halved two to four times.
fn ragged_splits(problem: &Problem, variant: &DecodeVariant, shape: &Shape, target: Target) -> Vec<SplitPolicy> {
    let Shape::Decode { batch, context, .. } = *shape else { return Vec::new() };
    let mean = shape.tokens(problem) as f64 / f64::from(batch);
    let one = splits_a_wave(problem, variant, shape, target);
    let step = variant.warps * variant.tile_tokens;
    let part = |fraction: f64| ((mean / one * fraction) as u32).clamp(1, context).next_multiple_of(step);
    let even = SplitPolicy::Even { splits: (one as u32).clamp(1, context.div_ceil(step)) };
    let tapered =
        [(0.5, 2), (0.5, 3), (0.25, 2), (1.0, 4)].map(|(f, taper)| SplitPolicy::Chunk { tokens: part(f), taper });
    [even].into_iter().chain(tapered).collect()
}

/// Splits a request that fill the target's SMs once.
fn splits_a_wave(problem: &Problem, variant: &DecodeVariant, shape: &Shape, target: Target) -> f64 {
    let Shape::Decode { batch, kv_heads, .. } = *shape else { return 1.0 };
    let row_tiles = Footprint::new(problem, &Variant::Decode(*variant)).row_tiles;
    let slots = target.facts().sms * variant.blocks_per_sm;
    f64::from(slots) / f64::from(batch * kv_heads * row_tiles)
}

/// What an engineer without a tuner would pick: the first feasible tiling of the first feasible path, with the
/// smallest query tile that holds all query rows. The yardstick of every tune.
///
/// # Panics
/// Where no variant of the standard space is feasible: a defect of the space, held by a test.
pub fn default_variant(problem: &Problem, target: Target) -> Variant {
    let by_row_tiles = |v: &Variant| Footprint::new(problem, v).row_tiles;
    variants(problem, Preset::Standard)
        .into_iter()
        .filter(|v| feasible(problem, v, target).is_ok())
        .min_by_key(by_row_tiles)
        .unwrap_or_else(|| panic!("no feasible variant of {} for {target}", problem.key()))
}

/// The split an engineer without a tuner would pick: the SMs filled once.
pub fn default_split(problem: &Problem, variant: &Variant, shape: &Shape, target: Target) -> SplitPolicy {
    splits(problem, variant, shape, target, Preset::Quick)[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_spec::KernelId;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        for preset in [Preset::Quick, Preset::Standard, Preset::Full] {
            let problems = problems(preset, Operation::ALL);
            let keys: HashSet<_> = problems.iter().map(Problem::key).collect();
            assert_eq!(keys.len(), problems.len());
            let symbol = |problem| KernelId::new(problem, &default_variant(problem, Target::Sm90a)).symbol();
            let symbols: HashSet<_> = problems.iter().step_by(97).map(symbol).collect();
            assert_eq!(symbols.len(), problems.len().div_ceil(97));
            let identifier = |symbol: &String| symbol.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            assert!(symbols.iter().all(identifier), "{symbols:?}");
            let variants = variants(&problems[0], preset);
            let keys: HashSet<_> = variants.iter().map(Variant::key).collect();
            assert_eq!(keys.len(), variants.len());
        }
    }

    #[test]
    fn every_value_of_each_axis_meets_every_feature() {
        let keys: Vec<String> = problems(Preset::Full, Operation::ALL).iter().map(Problem::key).collect();
        let parts = |key: &String| key.split('-').map(String::from).collect::<HashSet<_>>();
        let features = ["w128", "sinks", "cap"];
        let (featured, plain): (Vec<_>, Vec<_>) = keys
            .iter()
            .map(parts)
            .filter(|p| !p.contains("append"))
            .partition(|p| features.iter().any(|f| p.contains(*f)));
        let values: HashSet<String> = plain.into_iter().flatten().collect();
        for feature in features {
            let met = featured.iter().filter(|parts| parts.contains(feature)).flatten().cloned().collect();
            assert!(values.is_subset(&met), "{feature}: {:?}", values.difference(&met));
        }
    }

    #[test]
    fn splits_fill_the_sms_and_never_exceed_the_context() {
        let problem = Problem::Decode(BASE);
        let variant = default_variant(&problem, Target::Sm90a);
        let Variant::Decode(v) = variant else { unreachable!() };
        for shape in shapes(&problem, Preset::Standard) {
            let Shape::Decode { batch, context, kv_heads, lengths: Lengths::Equal } = shape else { continue };
            let all = splits(&problem, &variant, &shape, Target::Sm90a, Preset::Standard);
            for policy in &all {
                let max = policy.launch(context).max_splits;
                assert!(max >= 1 && (max - 1) * v.warps * v.tile_tokens < context, "{shape:?} {policy}");
            }
            let slots = 132 * v.blocks_per_sm;
            let most = all.iter().map(|p| p.launch(context).max_splits).max().unwrap();
            assert!(
                batch * kv_heads * most >= slots.min(batch * kv_heads * context / 256),
                "{shape:?}: SMs stay empty"
            );
        }
    }
}
