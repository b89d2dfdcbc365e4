//! The checker is checked: mistakes as people make them, seeded into the templates one at a time. The emulator must
//! find each of them, by a wrong result or by a fault, and nothing in the kernels as they are.

use crate::{Compiled, append_case, base, batch, nvrtc};
use nvkv_generator::{feasible, render};
use nvkv_spec::{
    AppendMode, AppendVariant, DecodeProblem, DecodeVariant, Dequant, Dtype, KvFormat, Mma, Numerics, Operands, Path,
    Problem, SplitPolicy, Staging, Target, VScaleOrder, Variant,
};
use nvkv_tuner::verify::{Content, DecodeCase, Prepared};
use rayon::prelude::*;
use std::collections::HashMap;
use std::fs;

/// A kernel to seed faults into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kernel {
    /// Table dequantisation, `wgmma`, a ring of two.
    Wgmma,
    /// The same of class `exact`: 32 query rows, f16 operands.
    WgmmaF16,
    /// Codes placed into f16, tiles of two pages, a ring of three.
    Place,
    /// Blackwell's conversion, staging in registers.
    Registers,
    /// Sixteen query rows, operands straight.
    Straight,
    /// An FP8 cache.
    Fp8Cache,
    /// K in FP8, V in NVFP4, the append fused in.
    Mixed,
    /// The append fused in, two new tokens in two row tiles, V scales interleaved, bf16.
    Fused,
    /// A window, sinks and a soft cap: two new tokens, tiles of two pages.
    Features,
    /// A window, staging in registers.
    WindowInRegisters,
    /// The append alone.
    Append,
}

/// What the kernel is run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum On {
    /// The batch of the other tests.
    Batch,
    /// One request in one part, with one key in its middle that outweighs all others.
    HugeKey,
    /// One request in so many splits that merging them takes several turns; and with a taper.
    ManySplits,
    /// The batch, with NaN and infinities among the new tokens.
    NonFinite,
    /// The batch, with new tokens that are hard to requantise.
    HardTokens,
    /// One request whose warps use every stage of their rings several times.
    ManySteps,
    /// One request of one full page.
    OnePage,
    /// Windows that begin within a page, with a tile, and in the second page of a tile.
    Windows,
}

/// A mistake: in `file`, `text` becomes `replacement`.
struct Mutation {
    what: &'static str,
    file: &'static str,
    text: &'static str,
    replacement: &'static str,
    kernel: Kernel,
    on: On,
}

const fn in_batch(
    what: &'static str,
    kernel: Kernel,
    file: &'static str,
    [text, replacement]: [&'static str; 2],
) -> Mutation {
    Mutation { what, file, text, replacement, kernel, on: On::Batch }
}

const fn in_windows(what: &'static str, kernel: Kernel, file: &'static str, change: [&'static str; 2]) -> Mutation {
    Mutation { on: On::Windows, ..in_batch(what, kernel, file, change) }
}

use Kernel::{
    Append, Features, Fp8Cache, Fused, Mixed, Place, Registers, Straight, Wgmma, WgmmaF16, WindowInRegisters,
};

#[rustfmt::skip]
const MUTATIONS: &[Mutation] = &[
    // Lanes and their shares.
    in_batch("K of a wrong token", Wgmma, "stages/shape.cuh", ["4 * (lane.g & 1) + 8 * half", "2 * (lane.g & 1) + 8 * half"]),
    in_batch("V at a wrong lane's place", Registers, "stages/load_registers.cuh", ["(8 * c + lane.g) * V_CHUNK", "(8 * c + lane.t) * V_CHUNK"]),
    in_batch("P not transposed", Wgmma, "stages/softmax.cuh", ["SWAPPED ? transpose_8x8(low) : low", "low"]),
    in_batch("rows of scores and output exchanged", Straight, "stages/shape.cuh", ["SWAPPED ? i & 1 : i >> 1", "i & 1"]),
    in_batch("a wrong query head", Wgmma, "stages/queries.cuh", ["work.head * GROUP + r % GROUP", "work.head + r % GROUP"]),
    // Codes and scales.
    in_batch("nibbles in a wrong order", Place, "stages/dequant.cuh", ["r + 4 * half : 2 * r + half", "2 * r + half : 2 * r + half"]),
    in_batch("two tokens' parts of an f16 operand exchanged", WgmmaF16, "stages/scores.cuh", ["step[1] = high[2 * i], step[2] = low[2 * i + 1]", "step[2] = high[2 * i], step[1] = low[2 * i + 1]"]),
    in_batch("a sign that is not carried on", Place, "stages/dequant.cuh", ["0x38383838", "0x30303030"]),
    in_batch("signs of two nibbles exchanged", Wgmma, "stages/dequant.cuh", ["0x9D8C", "0x9C8D"]),
    in_batch("a byte converted twice", Registers, "stages/convert_e2m1.cuh", ["out[0] = e2m1x2_to_f16x2<0>(codes)", "out[0] = e2m1x2_to_f16x2<1>(codes)"]),
    in_batch("bytes of two tokens mixed up", Fp8Cache, "stages/values.cuh", ["{prmt(first, second, 0x5140)", "{prmt(first, second, 0x5410)"]),
    in_batch("signs of even V elements one bit off", Wgmma, "stages/values.cuh", ["shift_left(codes, 4)", "shift_left(codes, 5)"]),
    in_batch("a wrong entry of the table", Wgmma, "stages/table.cuh", ["6.0f * sf", "5.0f * sf"]),
    in_batch("the scale of a neighbouring V token", Wgmma, "stages/values.cuh", ["table_entry(table, v.scales[2 * pair + 1][SCALE])", "table_entry(table, v.scales[2 * pair][SCALE])"]),
    in_batch("the scale of a neighbouring K block", Place, "stages/scores.cuh", ["SCALE ? 0x3232 : 0x1010", "SCALE ? 0x1010 : 0x3232"]),
    in_batch("V scales in a wrong order", Fused, "stages/scale_order.cuh", ["4 * s + (t & 3)", "s + (HEAD_DIM / 16) * (t & 3)"]),
    // Addresses.
    in_batch("a wrong page of a tile", Place, "stages/load.cuh", ["page, i / PAGE)", "page, i % PAGE)"]),
    Mutation { on: On::OnePage, ..in_batch("a page past the last one", Wgmma, "stages/load.cuh", ["(work.kv_len - 1) / PAGE", "work.kv_len / PAGE"]) },
    in_batch("output with a wrong stride", Fused, "stages/store.cuh", ["token * p.out_stride_token", "token * p.out_stride_head"]),
    in_batch("V of a wrong head", Registers, "stages/load.cuh", ["p.v_data + head * p.v_data_head", "p.v_data + head * p.v_scales_head"]),
    // Staging.
    in_batch("copies of K not waited for", Wgmma, "stages/attend_ring.cuh", ["copy_wait<2 * (STAGES - 1) - 1>()", "copy_wait<2 * (STAGES - 1)>()"]),
    in_batch("copies of V not waited for", Wgmma, "stages/attend_ring.cuh", ["copy_wait<2 * (STAGES - 1)>()", "copy_wait<2 * STAGES - 1>()"]),
    in_batch("copies of V never committed", Place, "stages/attend_ring.cuh", ["        copy_commit();\n        write", "        write"]),
    in_batch("other lanes' copies of K not waited for", Place, "stages/attend_ring.cuh", ["        __syncwarp();                                   // every", "        // every"]),
    Mutation { on: On::ManySteps, ..in_batch("a stage that other lanes still read overwritten", Wgmma, "stages/attend_ring.cuh", ["        __syncwarp();                                   // every lane's copies of K have landed, and the oldest stage is free\n        feed.copy_next(p, work, lane);", "        feed.copy_next(p, work, lane);\n        __syncwarp();"]) },
    in_batch("other lanes' copies of V not waited for", Place, "stages/attend_ring.cuh", ["        __syncwarp();\n        if (has_unseen", "        if (has_unseen"]),
    in_batch("a stale stage", Wgmma, "stages/attend_ring.cuh", ["read = feed.following(read);", ""]),
    // Barriers and fences.
    in_batch("no barrier before the table is read", Fused, "decode.cu.tera", ["__syncthreads();\n    State", "State"]),
    in_batch("no barrier before warps are merged", Place, "stages/merge.cuh", ["    __syncthreads();\n    if (warp < SLICES)", "    if (warp < SLICES)"]),
    in_batch("a warp barrier for one lane", Wgmma, "stages/store.cuh", ["*ticket = take_ticket", "__syncwarp(), *ticket = take_ticket"]),
    in_batch("no fence before a split is published", Wgmma, "ptx/copy.cuh", ["atom.acq_rel.gpu.global", "atom.acquire.gpu.global"]),
    in_batch("no proxy fence after Q is stored", Wgmma, "stages/queries.cuh", ["fence_async_shared();", ";"]),
    in_batch("no wgmma fence", Wgmma, "stages/scores.cuh", ["wgmma_fence();", ""]),
    in_batch("no wgmma wait", Wgmma, "stages/scores.cuh", ["wgmma_wait();", ";"]),
    in_batch("wgmma without its sum so far", Wgmma, "stages/scores.cuh", ["step % CHAIN_STEPS > 0", "false"]),
    // Masks and softmax.
    in_batch("one token too many", Wgmma, "stages/scores.cuh", [">= visible)", "> visible)"]),
    in_batch("a new token that sees the next", Fused, "stages/work.cuh", ["- Q_LEN + i + 1", "- Q_LEN + i + 2"]),
    in_batch("NaN past the end in V", Registers, "stages/load_registers.cuh", ["if (at < work.kv_len", "if (at <= work.kv_len"]),
    in_batch("NaN past the end of a ring's V", Wgmma, "stages/load_ring.cuh", ["max(work.kv_len - token, 0)", "max(work.kv_len - token + 1, 0)"]),
    Mutation { on: On::HugeKey, ..in_batch("output not rescaled", Wgmma, "stages/softmax.cuh", ["scale_output(state, factor);", ""]) },
    Mutation { on: On::HugeKey, ..in_batch("sum not rescaled", Place, "stages/softmax.cuh", ["state.sum[slot] *= factor[slot];", ""]) },
    in_batch("log-sum-exp to base 2", Wgmma, "stages/store.cuh", ["LN2 * (state.max", "(state.max"]),
    // Splits.
    in_batch("the last split dropped", Wgmma, "stages/store.cuh", ["WARPS, work.splits, 0, state", "WARPS, work.splits - 1, 0, state"]),
    in_batch("a ragged end dropped", Place, "stages/work.cuh", ["- origin + STEP_TOKENS - 1) / STEP_TOKENS", "- origin) / STEP_TOKENS"]),
    Mutation { on: On::HugeKey, ..in_batch("warps merged without their weights", Wgmma, "stages/merge.cuh", ["exp2_approx((max - whole) * scale)", "1.0f"]) },
    Mutation { on: On::ManySplits, ..in_batch("states of earlier turns not weighed", Wgmma, "stages/merge.cuh", ["out *= own[slot];", ""]) },
    Mutation { on: On::ManySplits, ..in_batch("every other turn of a merge dropped", Wgmma, "stages/merge.cuh", ["n += AT_ONCE * step", "n += 2 * AT_ONCE * step"]) },
    Mutation { on: On::ManySplits, ..in_batch("splits counted without their taper", Wgmma, "stages/work.cuh", ["(smallest << taper) - 1) / (smallest << taper)", "smallest - 1) / smallest"]) },
    in_batch("an atomic of the block alone", Wgmma, "ptx/copy.cuh", ["atom.acq_rel.gpu", "atom.acq_rel.cta"]),
    in_batch("nobody combines the splits", Wgmma, "stages/store.cuh", ["== work.splits - 1", "== work.splits"]),
    in_batch("counters not reset", Wgmma, "stages/store.cuh", ["[group] = 0;", "[group] = work.splits;"]),
    // Windows, sinks, soft caps.
    in_windows("a window one token too wide", Features, "stages/work.cuh", ["- work.window, 0)", "- work.window - 1, 0)"]),
    in_windows("splits counted from token 0", Features, "stages/work.cuh", ["min(origin + (steps", "min((steps"]),
    in_windows("one window for all queries", Features, "stages/scores.cuh", ["< first_visible(work, position)", "< first_visible(work, 0)"]),
    in_windows("a tile before the window not masked", WindowInRegisters, "stages/scores.cuh", ["hidden |= token < first_visible(work, Q_LEN - 1);", ";"]),
    in_windows("a tile that the last query does not see whole", Features, "stages/scores.cuh", ["first_visible(work, Q_LEN - 1)", "first_visible(work, 0)"]),
    in_windows("a page before the window", Features, "stages/load.cuh", ["max(last, first_visible(work, 0) / PAGE)", "last"]),
    in_windows("NaN before the window in V", WindowInRegisters, "stages/load_registers.cuh", ["at < first_visible(work, 0))", "at < first_visible(work, 0) - 1)"]),
    in_windows("NaN before the window of a ring's V", Features, "stages/load_ring.cuh", ["first_visible(work, 0) - token", "first_visible(work, 0) - token - 1"]),
    in_windows("the sink of another KV head", Features, "stages/sinks.cuh", ["work.head * GROUP + row % GROUP", "row % GROUP"]),
    in_windows("a sink in log2 units", Features, "stages/sinks.cuh", ["row % GROUP] * LOG2E", "row % GROUP]"]),
    in_windows("a sink without the bias of P", Features, "stages/sinks.cuh", ["sink - next + P_BIAS", "sink - next"]),
    in_windows("output not weighed against the sink", Features, "stages/sinks.cuh", ["[slot / 2][i] *= factor", "[slot / 2][i] *= 1.0f"]),
    in_windows("a reference point that the sink did not move", Features, "stages/sinks.cuh", ["state.max[slot] = next / q.scale[slot];", ""]),
    in_windows("half of a soft cap's argument", Features, "stages/queries.cuh", ["2.0f * scale", "scale"]),
    in_windows("a soft cap in natural units", Features, "stages/queries.cuh", ["p.soft_cap * LOG2E", "p.soft_cap"]),
    // The append.
    in_batch("codes rounded down", Mixed, "stages/requant.cuh", ["fmaf(q, 2.0f, ROUND)", "fmaf(q, 2.0f, -0.4f) + ROUND"]),
    in_batch("non-finite elements not counted", Append, "stages/requant.cuh", ["non_finite += special;", ""]),
    in_batch("a wrong slot", Append, "stages/append_block.cuh", ["(u64)slot % PAGE", "((u64)slot + 1) % PAGE"]),
    in_batch("V rows with a wrong stride", Append, "stages/append_block.cuh", ["token * p.v_stride_token", "token * p.v_stride_head"]),
    in_batch("V requantised to K's format", Mixed, "stages/fused_append.cuh", ["requantise<V_FORMAT, OUT_BF16>", "requantise<K_FORMAT, OUT_BF16>"]),
    in_batch("V requantised by K's scale", Fused, "stages/fused_append.cuh", ["is_v ? p.v_scale : p.k_scale", "p.k_scale"]),
    in_batch("new V rows with K's stride", Fused, "stages/fused_append.cuh", ["p.new_v_stride_head", "p.new_k_stride_head"]),
    in_batch("V rows of an append with K's stride", Append, "stages/append_block.cuh", ["p.v_stride_token", "p.k_stride_token"]),
    Mutation { on: On::NonFinite, ..in_batch("non-finite elements counted by each row tile", Fused, "stages/fused_append.cuh", [" && work.row_tile == 0", ""]) },
    Mutation { on: On::NonFinite, ..in_batch("infinities left as they are", Fused, "stages/requant.cuh", ["largest >= (BF16 ? 0x7F80", "largest > (BF16 ? 0x7F80"]) },
    Mutation { on: On::HardTokens, ..in_batch("codes of a block whose scale is 0", Fused, "stages/requant.cuh", ["if (out.scale == 0) return out;", ""]) },
    in_batch("new tokens read before they are written", Fused, "stages/fused_append.cuh", ["non_finite);\n    __syncthreads();", "non_finite);"]),
    in_batch("signs of a lane's two codes exchanged", Fused, "stages/requant.cuh", ["words[0] >> 12 & 0x8 | words[0] >> 24 & 0x80", "words[0] >> 8 & 0x80 | words[0] >> 28 & 0x8"]),
    in_batch("a block's scale of four lanes", Fused, "stages/requant.cuh", ["lanes < LANES; lanes *= 2", "lanes < LANES / 2; lanes *= 2"]),
    in_batch("skipped tokens written", Append, "stages/append_block.cuh", ["k_to, 0, slot >= 0)", "k_to, 0, true)"]),
    in_batch("skipped tokens counted", Append, "stages/requant.cuh", ["return kept ? non_finite : 0;", "return non_finite;"]),
    in_batch("codes of two elements exchanged", Append, "stages/requant.cuh", ["divisor.magnitude(x[i]), divisor.magnitude(x[i + 1])", "divisor.magnitude(x[i + 1]), divisor.magnitude(x[i])"]),
    in_batch("a reciprocal one step too short", Append, "stages/requant.cuh", ["fmaf(error * reciprocal, error, error * reciprocal)", "error * reciprocal"]),
];

impl Kernel {
    fn place(self) -> (Problem, Variant, Target) {
        let (fp8, exact) = (base(), DecodeProblem { numerics: Numerics::Exact, ..base() });
        let path = |dequant, mma| Path { dequant, mma };
        let table = path(Dequant::Table, Mma::F16);
        let [place, convert] = [Dequant::Place, Dequant::Convert].map(|dequant| path(dequant, Mma::F16));
        let ring = |stages| Staging::CpAsync { stages };
        let swapped = DecodeVariant {
            k_path: path(Dequant::Table, Mma::Wgmma),
            v_path: table,
            operands: Operands::Swapped,
            query_tile: 8,
            warps: 4,
            tile_tokens: 16,
            staging: ring(2),
            blocks_per_sm: 2,
        };
        let decode = |problem, variant, target| (Problem::Decode(problem), Variant::Decode(variant), target);
        match self {
            Wgmma => decode(fp8, swapped, Target::Sm90a),
            WgmmaF16 => {
                let rows = DecodeVariant { query_tile: 32, k_path: path(Dequant::Place, Mma::Wgmma), ..swapped };
                decode(
                    DecodeProblem { group: 16, q_len: 2, ..exact },
                    DecodeVariant { v_path: place, ..rows },
                    Target::Sm90a,
                )
            }
            Place => {
                let tiles = DecodeVariant { tile_tokens: 32, staging: ring(3), blocks_per_sm: 1, ..swapped };
                decode(exact, DecodeVariant { k_path: place, v_path: place, ..tiles }, Target::Sm103a)
            }
            Registers => {
                let staging = Staging::Registers;
                decode(exact, DecodeVariant { k_path: convert, v_path: convert, staging, ..swapped }, Target::Sm100a)
            }
            Straight => {
                let rows = DecodeVariant { operands: Operands::Straight, query_tile: 16, ..swapped };
                let problem = DecodeProblem { group: 16, ..exact };
                decode(problem, DecodeVariant { k_path: place, v_path: place, ..rows }, Target::Sm89)
            }
            Fp8Cache => {
                let problem = DecodeProblem { kv_format: KvFormat::Fp8E4m3, ..fp8 };
                let k_path = path(Dequant::Direct, Mma::E4m3);
                decode(problem, DecodeVariant { k_path, v_path: convert, ..swapped }, Target::Sm121a)
            }
            Mixed => {
                let kv_format = KvFormat::Fp8E4m3Nvfp4;
                let problem = DecodeProblem { kv_format, append: AppendMode::Fused, ..fp8 };
                decode(problem, DecodeVariant { k_path: path(Dequant::Direct, Mma::Wgmma), ..swapped }, Target::Sm90a)
            }
            Fused => {
                let order = VScaleOrder::Interleaved4;
                let problem = DecodeProblem {
                    append: AppendMode::Fused,
                    q_len: 2,
                    v_scale_order: order,
                    dtype: Dtype::Bf16,
                    ..fp8
                };
                let k_path = path(Dequant::Table, Mma::E4m3);
                decode(problem, DecodeVariant { k_path, ..swapped }, Target::Sm120a)
            }
            Features => {
                let tiles = DecodeVariant { tile_tokens: 32, staging: ring(3), blocks_per_sm: 1, ..swapped };
                let features = DecodeProblem { window: Some(70), sinks: true, soft_cap: true, ..exact };
                let problem = DecodeProblem { q_len: 2, group: 4, ..features };
                decode(problem, DecodeVariant { k_path: place, v_path: place, ..tiles }, Target::Sm103a)
            }
            WindowInRegisters => {
                let (problem, variant, target) = Registers.place();
                let Problem::Decode(problem) = problem else { unreachable!("a decode problem") };
                (Problem::Decode(DecodeProblem { window: Some(70), ..problem }), variant, target)
            }
            Append => {
                let variant = AppendVariant { threads: 128, blocks_per_thread: 1 };
                (Problem::Append(base().append_problem()), Variant::Append(variant), Target::Sm110a)
            }
        }
    }

    fn prepared(self, on: On) -> Prepared {
        let problem = match self.place().0 {
            Problem::Append(problem) => return Prepared::append(&problem, &[append_case()]),
            Problem::Decode(problem) => problem,
        };
        let case = match on {
            On::Batch => batch(),
            On::HugeKey => {
                let splits = vec![SplitPolicy::Even { splits: 1 }];
                DecodeCase { kv_len: vec![300], content: Content::HugeKey, splits, ..batch() }
            }
            On::ManySplits => DecodeCase {
                kv_len: vec![2800],
                splits: vec![SplitPolicy::Even { splits: 40 }, SplitPolicy::Chunk { tokens: 256, taper: 2 }],
                kv_heads: 1,
                ..batch()
            },
            On::HardTokens => DecodeCase { content: Content::HardTokens, ..batch() },
            On::NonFinite => DecodeCase { content: Content::NonFinite, ..batch() },
            On::ManySteps => {
                let splits = vec![SplitPolicy::Even { splits: 1 }];
                DecodeCase { kv_len: vec![1400], splits, kv_heads: 1, ..batch() }
            }
            On::OnePage => DecodeCase { kv_len: vec![problem.page_size], ..batch() },
            On::Windows => DecodeCase { kv_len: vec![0, 300, 295, 312], ..batch() },
        };
        Prepared::decode(&problem, &[case])
    }

    /// The rendered source.
    fn source(self) -> String {
        let (problem, variant, target) = self.place();
        feasible(&problem, &variant, target).unwrap_or_else(|reason| panic!("{self:?}: {reason}"));
        render(&problem, &variant, target).expect("templates render").text
    }
}

impl Mutation {
    /// `source` with the mistake in it. Stages are in a rendered source word for word; the entry point's own file has
    /// holes, and its lines stand once.
    fn applied(&self, source: &str) -> String {
        let Self { what, file, text, replacement, .. } = self;
        let path = format!("{}/../templates/{file}", env!("CARGO_MANIFEST_DIR"));
        let template = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let stale = |found: usize| format!("stale mutation `{what}`: `{text}` is {found} times in {file}, not once");
        assert_eq!(template.matches(text).count(), 1, "{}", stale(template.matches(text).count()));
        let whole = if file.ends_with(".cuh") { template.trim_end() } else { text };
        assert_eq!(source.matches(whole).count(), 1, "`{what}`: the kernel's source does not have {file} once");
        source.replacen(whole, &whole.replacen(text, replacement, 1), 1)
    }
}

#[test]
fn every_seeded_fault_is_found_and_nothing_else() {
    let nvrtc = nvrtc();
    let mut prepared = HashMap::new();
    for mutation in MUTATIONS {
        let place = (mutation.kernel, mutation.on);
        prepared.entry(place).or_insert_with(|| mutation.kernel.prepared(mutation.on));
    }
    let compiled = |kernel: Kernel, source: &str| {
        let (problem, variant, target) = kernel.place();
        Compiled::of_source(&nvrtc, source, (&problem, variant, target))
    };
    let right = prepared.par_iter().filter_map(|((kernel, on), prepared)| {
        let failure = compiled(*kernel, &kernel.source()).failure(prepared)?;
        Some(format!("{kernel:?} on {on:?}, not mutated: {failure}"))
    });
    let missed = MUTATIONS.par_iter().filter_map(|mutation| {
        let source = mutation.applied(&mutation.kernel.source());
        let failure = compiled(mutation.kernel, &source).failure(&prepared[&(mutation.kernel, mutation.on)]);
        // What the emulator cannot run, it has not found.
        let found = failure.as_ref().is_some_and(|failure| !failure.contains("unknown instruction"));
        println!("{}: {}", mutation.what, failure.as_deref().unwrap_or("right"));
        (!found).then(|| format!("not found: {} ({})", mutation.what, mutation.file))
    });
    let problems: Vec<String> = right.chain(missed).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
