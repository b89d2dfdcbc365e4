//! One decode case.

use super::case::Content;
use super::executor::Executor;
use super::host::{DecodeData, Q_SCALE, SOFT_CAP, V_SCALE, sm_scale};
use super::rows::RowStrides;
use super::{Failure, Guarded, compare};
use crate::gpu::Geometry;
use nvkv_generator::launch;
use nvkv_spec::abi::{COUNTER_BYTES, DecodeParams};
use nvkv_spec::{AppendMode, DecodeProblem, DeviceCache, Launch, Lengths, Problem, Shape, Variant};

/// The status word's value before a launch: it is added to, not set.
const STATUS_BEFORE: u32 = 7;

/// Runs a case with each of its split policies; returns the largest relative L2 error.
pub(super) fn run<E: Executor>(
    on: &mut E,
    problem: &DecodeProblem,
    variant: &Variant,
    data: &DecodeData,
) -> Result<f64, Failure> {
    let inputs = Inputs::new(on, problem, data)?;
    let mut largest = 0.0f64;
    for &split in &data.case.splits {
        let shape = Shape::Decode {
            batch: data.kv_len.len() as u32,
            context: data.case.context(),
            kv_heads: data.case.kv_heads,
            lengths: Lengths::Equal,
        };
        let launch = launch(&Problem::Decode(*problem), variant, &shape, split);
        let error = run_split(on, &inputs, &launch).map_err(|f| f.at(&format!("split {split}")))?;
        largest = largest.max(error);
    }
    Ok(largest)
}

/// What all launches of a case read.
struct Inputs<'a, E: Executor> {
    problem: &'a DecodeProblem,
    data: &'a DecodeData,
    q_rows: RowStrides,
    k_rows: RowStrides,
    v_rows: RowStrides,
    q: E::Memory,
    new_rows: Option<[E::Memory; 2]>,
    block_table: E::Memory,
    kv_len: E::Memory,
    sinks: Option<E::Memory>,
}

impl<'a, E: Executor> Inputs<'a, E> {
    fn new(on: &mut E, problem: &'a DecodeProblem, data: &'a DecodeData) -> Result<Self, Failure> {
        let case = &data.case;
        let q_rows = RowStrides::new(case.kv_heads * problem.group, problem.head_dim, case.padded);
        let k_rows = RowStrides::new(case.kv_heads, problem.head_dim, case.padded);
        let v_rows = RowStrides::of_v(case.kv_heads, problem.head_dim, case.padded);
        let new_rows = match problem.append {
            AppendMode::Separate => None,
            AppendMode::Fused => {
                let [k, v] = &data.new_rows;
                Some([on.hold(&k_rows.spread(k))?, on.hold(&v_rows.spread(v))?])
            }
        };
        Ok(Self {
            problem,
            data,
            q: on.hold(&q_rows.spread(&data.q))?,
            q_rows,
            k_rows,
            v_rows,
            new_rows,
            block_table: on.hold(&data.block_table)?,
            kv_len: on.hold(&data.kv_len)?,
            sinks: problem.sinks.then(|| on.hold(&data.sinks)).transpose()?,
        })
    }
}

/// What one launch writes.
struct Outputs<E: Executor> {
    out: Guarded<E>,
    lse: Option<Guarded<E>>,
    cache: Guarded<E>,
    status: Guarded<E>,
    workspace: Guarded<E>,
}

impl<E: Executor> Outputs<E> {
    fn new(on: &mut E, inputs: &Inputs<E>, launch: &Launch) -> Result<Self, Failure> {
        let rows = inputs.data.kv_len.len() * inputs.problem.q_len as usize;
        let heads = (inputs.data.case.kv_heads * inputs.problem.group) as usize;
        let lse = inputs.data.case.with_lse.then(|| Guarded::poisoned(on, "lse", rows * heads * 4));
        Ok(Self {
            out: Guarded::poisoned(on, "out", rows * inputs.q_rows.token * 2)?,
            lse: lse.transpose()?,
            cache: Guarded::holding(on, "the cache", &inputs.data.cache.bytes)?,
            status: Guarded::holding(on, "status", &[STATUS_BEFORE])?,
            workspace: workspace(on, launch.workspace_bytes as usize)?,
        })
    }
}

fn params<E: Executor>(inputs: &Inputs<E>, outputs: &Outputs<E>, launch: &Launch) -> DecodeParams {
    let data = inputs.data;
    let new_row = |i: usize| inputs.new_rows.as_ref().map_or(0, |rows| E::address(&rows[i]));
    let cache = DeviceCache::new(outputs.cache.address(), &data.cache.layout, data.cache.format);
    cache.decode_params(DecodeParams {
        q: E::address(&inputs.q),
        out: outputs.out.address(),
        lse: outputs.lse.as_ref().map_or(0, Guarded::address),
        block_table: E::address(&inputs.block_table),
        kv_len: E::address(&inputs.kv_len),
        new_k: new_row(0),
        new_v: new_row(1),
        status: outputs.status.address(),
        workspace: outputs.workspace.address(),
        q_stride_token: inputs.q_rows.token_bytes(),
        q_stride_head: inputs.q_rows.head_bytes(),
        out_stride_token: inputs.q_rows.token_bytes(),
        out_stride_head: inputs.q_rows.head_bytes(),
        new_k_stride_token: inputs.k_rows.token_bytes(),
        new_k_stride_head: inputs.k_rows.head_bytes(),
        new_v_stride_token: inputs.v_rows.token_bytes(),
        new_v_stride_head: inputs.v_rows.head_bytes(),
        block_table_stride: data.block_table_stride as i64,
        batch: data.kv_len.len() as u32,
        kv_heads: data.case.kv_heads,
        max_splits: launch.max_splits,
        min_split_tokens: launch.min_split_tokens,
        taper: launch.taper,
        sm_scale: sm_scale(inputs.problem),
        q_scale: Q_SCALE,
        k_scale: data.case.k_scale(),
        v_scale: V_SCALE,
        window: data.case.window(inputs.problem).unwrap_or_default(),
        soft_cap: if inputs.problem.soft_cap { SOFT_CAP } else { 0.0 },
        sinks: inputs.sinks.as_ref().map_or(0, E::address),
        ..DecodeParams::default()
    })
}

/// Two launches on one workspace: the second sees what the first left there.
fn run_split<E: Executor>(on: &mut E, inputs: &Inputs<E>, launch: &Launch) -> Result<f64, Failure> {
    let outputs = Outputs::new(on, inputs, launch)?;
    let params = params(inputs, &outputs, launch);
    let geometry = Geometry { grid: launch.grid, threads: launch.threads, shared_bytes: launch.shared_bytes };
    let mut results = Vec::new();
    for _ in 0..2 {
        outputs.out.poison(on)?;
        outputs.lse.as_ref().map_or(Ok(()), |lse| lse.poison(on))?;
        on.launch(geometry, &params)?;
        let out: Vec<u16> = outputs.out.read(on)?;
        let lse: Vec<f32> = outputs.lse.as_ref().map_or(Ok(Vec::new()), |lse| lse.read(on))?;
        results.push((out, lse));
    }
    if inputs.data.case.content == Content::HardTokens {
        return check_cache(on, inputs, &outputs).map(|()| 0.0);
    }
    let (out, lse) = &results[0];
    let error = check_result(inputs, out, lse)?;
    check_cache(on, inputs, &outputs)?;
    let bits = |lse: &[f32]| lse.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    if results[1].0 != *out || bits(&results[1].1) != bits(lse) {
        // Tells a counter that is not left zeroed from a race: the former is wrong by much.
        let detail = match check_result(inputs, &results[1].0, &results[1].1) {
            Ok(_) => "a second launch gives other bits, within tolerance".to_string(),
            Err(failure) => format!("right once, wrong in a second launch on the same workspace: {failure}"),
        };
        return Err(Failure::Wrong { error, detail });
    }
    Ok(error)
}

fn check_result<E: Executor>(inputs: &Inputs<E>, out: &[u16], lse: &[f32]) -> Result<f64, Failure> {
    let data = inputs.data;
    let Some(dense) = inputs.q_rows.gather(out) else {
        return Err(Failure::Wrong { error: f64::NAN, detail: "wrote between the rows of out".to_string() });
    };
    let per_request = dense.len() / data.kv_len.len();
    let error = compare::outputs(inputs.problem.dtype, &dense, &data.expected.out, per_request)?;
    if data.case.with_lse {
        compare::log_sums(lse, &data.expected.lse)?;
    }
    Ok(error)
}

/// After both launches: the cache to the bit, and the status of two appends of the same rows.
fn check_cache<E: Executor>(on: &E, inputs: &Inputs<E>, outputs: &Outputs<E>) -> Result<(), Failure> {
    compare::bytes("the cache", &outputs.cache.read(on)?, &inputs.data.cache_after.bytes)?;
    let expected = STATUS_BEFORE + 2 * inputs.data.non_finite;
    let status: Vec<u32> = outputs.status.read(on)?;
    if status[0] != expected {
        let counted = format!("status is {} after two launches, not {expected}", status[0]);
        return Err(Failure::Wrong { error: f64::NAN, detail: counted });
    }
    let workspace: Vec<u8> = outputs.workspace.read(on)?;
    let counters = &workspace[..workspace.len().min(COUNTER_BYTES as usize)];
    compare::bytes("the counters", counters, &vec![0; counters.len()])
}

/// Zeroed counters; what follows them needs no preparation, so it is poisoned.
fn workspace<E: Executor>(on: &mut E, bytes: usize) -> Result<Guarded<E>, Failure> {
    let workspace = Guarded::poisoned(on, "the workspace", bytes)?;
    if bytes > 0 {
        workspace.upload(on, &vec![0u8; COUNTER_BYTES as usize])?;
    }
    Ok(workspace)
}
