//! One append case.

use super::executor::Executor;
use super::host::AppendData;
use super::rows::RowStrides;
use super::{Failure, Guarded, compare};
use crate::gpu::Geometry;
use nvkv_generator::launch;
use nvkv_spec::abi::AppendParams;
use nvkv_spec::{AppendProblem, DeviceCache, Problem, Shape, SplitPolicy, Variant};

/// The status word's value before a launch: it is added to, not set.
const STATUS_BEFORE: u32 = 7;

/// Runs a case; the cache must come out as the reference has it, every byte of it.
pub(super) fn run<E: Executor>(
    on: &mut E,
    problem: &AppendProblem,
    variant: &Variant,
    data: &AppendData,
) -> Result<(), Failure> {
    let case = &data.case;
    let k_rows = RowStrides::new(case.kv_heads, problem.head_dim, case.padded);
    let v_rows = RowStrides::of_v(case.kv_heads, problem.head_dim, case.padded);
    let [k, v] = &data.rows;
    let k = on.hold(&k_rows.spread(k))?;
    let v = on.hold(&v_rows.spread(v))?;
    let slots = on.hold(&data.slots)?;
    let cache = Guarded::holding(on, "the cache", &data.cache.bytes)?;
    let status = Guarded::holding(on, "status", &[STATUS_BEFORE])?;
    let device_cache = DeviceCache::new(cache.address(), &data.cache.layout, problem.kv_format);
    let params = device_cache.append_params(AppendParams {
        k: E::address(&k),
        v: E::address(&v),
        slot_mapping: E::address(&slots),
        status: status.address(),
        k_stride_token: k_rows.token_bytes(),
        k_stride_head: k_rows.head_bytes(),
        v_stride_token: v_rows.token_bytes(),
        v_stride_head: v_rows.head_bytes(),
        tokens: case.tokens,
        kv_heads: case.kv_heads,
        k_scale: case.k_scale,
        v_scale: 3.0 * case.k_scale,
        ..AppendParams::default()
    });
    let shape = Shape::Append { tokens: case.tokens, kv_heads: case.kv_heads };
    // Append kernels take no split.
    let launch = launch(&Problem::Append(*problem), variant, &shape, SplitPolicy::Even { splits: 1 });
    let geometry = Geometry { grid: launch.grid, threads: launch.threads, shared_bytes: launch.shared_bytes };
    on.launch(geometry, &params)?;
    compare::bytes("the cache", &cache.read(on)?, &data.cache_after.bytes)?;
    let counted = status.read::<u32>(on)?[0];
    let expected = STATUS_BEFORE + data.non_finite;
    if counted != expected {
        let detail = format!("status is {counted}, not {expected}");
        return Err(Failure::Wrong { error: f64::NAN, detail });
    }
    Ok(())
}
