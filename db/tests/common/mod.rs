//! Kernels, trials and GPUs for the tests: small, and different where a test needs them to be.
#![allow(dead_code, reason = "each test file uses its share")]

use nvkv_db::{Compiled, Db, KernelRecord, Measurement, NewRun, RunId, TrialId, TrialRecord};
use nvkv_spec::{
    AppendMode, AppendProblem, AppendVariant, CompileFacts, DecodeProblem, DecodeVariant, Dequant, Dtype,
    GpuEnvironment, KvFormat, Lengths, Mma, Numerics, Operands, Outcome, Problem, Shape, SplitPolicy, Staging, Target,
    VScaleOrder, Variant,
};
use std::path::{Path, PathBuf};

/// A folder that is gone after the test, and a database path in it.
pub fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvkv.sqlite");
    (folder, path)
}

pub fn gpu(uuid: &str, driver: &str) -> GpuEnvironment {
    GpuEnvironment {
        name: "H200".into(),
        uuid: uuid.into(),
        capability: (9, 0),
        sms: 132,
        l2_bytes: 60 << 20,
        memory_bytes: 139 << 30,
        driver: driver.into(),
        max_sm_clock: 1980,
        max_memory_clock: 3201,
    }
}

pub fn run(environment: Option<GpuEnvironment>) -> NewRun {
    NewRun {
        started_at: "2026-11-29T10:00:00Z".into(),
        command: "nvkv-tune --arch sm_90".into(),
        target: Target::Sm90a,
        preset: "quick".into(),
        search: "exhaustive".into(),
        generator: "0.1.0".into(),
        nvrtc: "13.0".into(),
        measurement_policy: environment.as_ref().map(|_| "graph-replay,cold-l2,interleaved,v1".into()),
        environment,
    }
}

/// An open database with a run on one GPU.
pub fn tuning(path: &Path) -> (Db, RunId) {
    let mut db = Db::open(path).unwrap();
    let id = db.begin_run(&run(Some(gpu("GPU-1", "580.1")))).unwrap();
    (db, id)
}

pub fn decode(head_dim: u32) -> Problem {
    Problem::Decode(DecodeProblem {
        kv_format: KvFormat::Nvfp4,
        numerics: Numerics::Exact,
        head_dim,
        group: 8,
        q_len: 1,
        page_size: 16,
        dtype: Dtype::Bf16,
        v_scale_order: VScaleOrder::Linear,
        append: AppendMode::Separate,
        window: None,
        sinks: false,
        soft_cap: false,
    })
}

pub fn append() -> (Problem, Variant) {
    let problem = AppendProblem {
        kv_format: KvFormat::Nvfp4,
        head_dim: 128,
        page_size: 16,
        dtype: Dtype::Bf16,
        v_scale_order: VScaleOrder::Interleaved4,
    };
    (Problem::Append(problem), Variant::Append(AppendVariant { threads: 128, blocks_per_thread: 2 }))
}

pub fn variant(warps: u32) -> Variant {
    let path = nvkv_spec::Path { dequant: Dequant::Place, mma: Mma::F16 };
    Variant::Decode(DecodeVariant {
        k_path: path,
        v_path: path,
        operands: Operands::Swapped,
        query_tile: 8,
        warps,
        tile_tokens: 16,
        staging: Staging::CpAsync { stages: 3 },
        blocks_per_sm: 4,
    })
}

pub fn kernel(problem: Problem, variant: Variant, source_hash: &str) -> KernelRecord {
    let facts = CompileFacts { registers: 64, instructions: 900, cubin_bytes: 20_000, ..CompileFacts::default() };
    KernelRecord {
        target: Target::Sm90a,
        problem,
        variant,
        source_hash: source_hash.into(),
        nvrtc: "13.0".into(),
        generator: "0.1.0".into(),
        compiled: Some(Compiled { cubin_hash: format!("cubin of {source_hash}"), facts }),
    }
}

pub fn shape(batch: u32, context: u32) -> Shape {
    Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::Equal }
}

/// A timed trial of a kernel with `warps` at 64 x 4,096.
pub fn timed(warps: u32, samples: &[f64]) -> TrialRecord {
    let problem = decode(128);
    TrialRecord {
        kernel: kernel(problem, variant(warps), &format!("source w{warps}")),
        shape: Some(shape(64, 4096)),
        split: Some(SplitPolicy::Even { splits: 4 }),
        is_default: false,
        outcome: Outcome::Timed { error: 3e-4 },
        bytes: shape(64, 4096).bytes(&problem),
        samples: samples.to_vec(),
        measurements: Vec::new(),
    }
}

/// `trial` with samples of several rounds of measuring, recorded.
pub fn record_rounds(db: &mut Db, run: RunId, trial: TrialRecord, rounds: &[Vec<f64>]) -> TrialId {
    let mut measured = TrialRecord { samples: Vec::new(), measurements: Vec::new(), ..trial };
    for (round, samples) in (1..).zip(rounds) {
        let state = serde_json::json!({ "sm_clock": 1980 });
        let measurement = Measurement {
            round,
            read_ceiling_gbps: 4600.0,
            sentinel_us: Some(60.0),
            retaken: 0,
            missing: 0,
            state_before: state.clone(),
            state_after: state,
        };
        let id = db.record_measurement(run, &measurement).unwrap();
        measured.samples.extend(samples);
        measured.measurements.extend(samples.iter().map(|_| id));
    }
    db.record(run, &measured).unwrap()
}

/// Five rounds of eight samples around `us`: rounds 0.1 % apart, samples 0.2 %.
pub fn calm(us: f64) -> Vec<Vec<f64>> {
    let around = |us: f64, step: f64, n: i32| (0..n).map(move |i| us * (1.0 + step * f64::from(2 * i - n + 1) / 2.0));
    around(us, 0.001, 5).map(|round| around(round, 0.002, 8).collect()).collect()
}

/// The same, compiled only.
pub fn predicted(warps: u32, predicted_us: f64) -> TrialRecord {
    TrialRecord { outcome: Outcome::CompiledOnly { predicted_us }, samples: Vec::new(), ..timed(warps, &[]) }
}

/// The same, ended by `outcome` and about the kernel as a whole.
pub fn failed(warps: u32, outcome: Outcome) -> TrialRecord {
    TrialRecord { outcome, shape: None, split: None, bytes: 0, samples: Vec::new(), ..timed(warps, &[]) }
}
