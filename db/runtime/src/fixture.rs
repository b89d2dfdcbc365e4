//! Bundles of made-up kernels, for tests and benches: everything but their machine code is as `nvkv-tune` writes it.

use crate::bundle::{
    DIGEST_NAME, FILE_NAME, FileEntry, Files, Kernel, LaunchRule, Manifest, SCHEMA, Selection, Trust, digest, numerics,
    parameters,
};
use nvkv_spec::{
    AppendMode, AppendVariant, CompileFacts, DecodeProblem, DecodeVariant, Dequant, Dtype, Evidence, KernelId,
    KvFormat, Lengths, Mma, Numerics, Operands, Path, Problem, Shape, SplitLaunch, SplitPolicy, Staging, Target,
    Toolchain, VScaleOrder, Variant,
};
use std::{fs, io};

/// The problem that fixtures are about: an NVFP4 cache in class fp8, head dim 128, group 8, pages of 16 tokens, bf16.
pub fn problem() -> DecodeProblem {
    DecodeProblem {
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
    }
}

/// A kernel of `problem`; another `tile_tokens` makes another kernel. Launch constants are plausible, not the tuner's.
pub fn kernel(problem: Problem, tile_tokens: u32, is_default: bool) -> Kernel {
    let path = |mma| Path { dequant: Dequant::Table, mma };
    let (variant, row_tiles, items_per_block, split_state_bytes) = match problem {
        Problem::Decode(p) => {
            let variant = DecodeVariant {
                k_path: path(Mma::Wgmma),
                v_path: path(Mma::F16),
                operands: Operands::Swapped,
                query_tile: 8,
                warps: 4,
                tile_tokens,
                staging: Staging::CpAsync { stages: 3 },
                blocks_per_sm: 2,
            };
            (Variant::Decode(variant), p.row_tiles(8), 0, u64::from(p.head_dim) * 34)
        }
        Problem::Append(_) => (Variant::Append(AppendVariant { threads: 128, blocks_per_thread: 1 }), 1, 128, 0),
    };
    let decodes = matches!(problem, Problem::Decode(_));
    let id = KernelId::new(&problem, &variant);
    let file = |name: &str| FileEntry {
        path: format!("{id}/{name}"),
        blake3: blake3::hash(text(&id, name).as_bytes()).to_hex().to_string(),
        bytes: text(&id, name).len() as u64,
    };
    let (parameters, parameter_bytes) = parameters(&problem);
    Kernel {
        symbol: id.symbol(),
        problem,
        variant,
        numerics: numerics(&problem),
        launch: LaunchRule {
            threads: 128,
            shared_bytes: if decodes { 65_536 } else { 0 },
            row_tiles,
            items_per_block,
            split_state_bytes,
            grid: ["kv_heads * row_tiles", "batch", "max_splits"].map(String::from),
            workspace: "made up".into(),
            blocks_per_sm: if decodes { 2 } else { 0 },
            block_tokens: if decodes { 4 * tile_tokens } else { 0 },
            default_max_splits: "made up".into(),
            rule: "made up".into(),
        },
        parameters,
        parameter_bytes,
        source_hash: file("kernel.cu").blake3,
        files: Files { cu: file("kernel.cu"), ptx: file("kernel.ptx"), cubin: file("kernel.cubin") },
        compile: CompileFacts::default(),
        toolchain: Toolchain { nvrtc: "13.0".into(), generator: "0.1.0".into() },
        evidence: Evidence::Predicted,
        is_default,
        selections: Vec::new(),
        id,
    }
}

/// What stands in for a file of a kernel.
fn text(id: &KernelId, name: &str) -> String {
    format!("{name} of {id}, made up")
}

/// Selects `kernel` at `shape`, timed; of decode in `splits` even parts.
pub fn select(kernel: &mut Kernel, shape: Shape, splits: u32) {
    let split = matches!(kernel.problem, Problem::Decode(_)).then_some(SplitPolicy::Even { splits });
    let launch = match shape {
        Shape::Decode { batch, kv_heads, .. } => {
            kernel.launch.decode(batch, kv_heads, SplitLaunch { max_splits: splits, min_split_tokens: 1, taper: 0 })
        }
        Shape::Append { tokens, kv_heads } => kernel.launch.append(&kernel.problem, tokens, kv_heads),
    };
    kernel.selections.push(Selection {
        shape,
        split,
        workspace_bytes: launch.workspace_bytes,
        trust: Trust::Timed,
        median_us: Some(12.5),
        gbps: Some(3021.25),
        share_of_read_ceiling: Some(0.654_321),
        default_median_us: Some(14.25),
        near_ties: None,
        regret: None,
        predicted_us: None,
    });
}

/// A bundle of these kernels, not yet on a disk.
pub fn manifest(kernels: Vec<Kernel>) -> Manifest {
    let toolchain = Toolchain { nvrtc: "13.0".into(), generator: "0.1.0".into() };
    let created_at = "2026-11-29T00:00:00Z".into();
    Manifest { schema: SCHEMA, target: Target::Sm90a, toolchain, created_at, kernels }
}

/// Decode in two variants, timed at batches 1, 8 and 64 with 1,024 to 65,536 tokens, its append, and no fused kernel;
/// untimed decodes with a window of 128 tokens, sinks and soft cap, and of a cache with K in FP8.
pub fn small() -> Manifest {
    let (decode, append) = (Problem::Decode(problem()), Problem::Append(problem().append_problem()));
    let featured = DecodeProblem { window: Some(128), sinks: true, soft_cap: true, ..problem() };
    let mixed = DecodeProblem { kv_format: KvFormat::Fp8E4m3Nvfp4, ..problem() };
    let untimed = [featured, mixed].map(|problem| kernel(Problem::Decode(problem), 16, true));
    let mut kernels = vec![kernel(decode, 16, false), kernel(decode, 64, true), kernel(append, 0, true)];
    kernels.extend(untimed);
    for batch in [1, 8, 64] {
        for context in [1024, 8192, 65_536] {
            let shape = Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::Equal };
            select(&mut kernels[usize::from(batch == 64)], shape, 64 / batch);
        }
    }
    select(&mut kernels[2], Shape::Append { tokens: 64, kv_heads: 8 }, 1);
    manifest(kernels)
}

/// Writes `manifest`, its digest and its kernels' files into `folder`, which is made where it is missing.
pub fn write(folder: &std::path::Path, manifest: &Manifest) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for Kernel { id, files, .. } in &manifest.kernels {
        fs::create_dir_all(folder.join(id.as_str()))?;
        for file in [&files.cu, &files.ptx, &files.cubin] {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            fs::write(folder.join(&file.path), text(id, name))?;
        }
    }
    let bytes = manifest.to_json()?;
    fs::write(folder.join(FILE_NAME), &bytes)?;
    fs::write(folder.join(DIGEST_NAME), digest(&bytes))
}
