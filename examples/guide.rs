//! An engine's first steps in Rust: open a bundle, find the kernel of a step, ask why, and launch it where a GPU is.
//!
//! ```text
//! cargo run -p nvkv-runtime --example guide -- kernels-out/sm_90a
//! ```
#![allow(unsafe_code)] // one launch on device memory that this program owns

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, sys};
use nvkv_runtime::spec::abi::DecodeParams;
use nvkv_runtime::spec::layout::{Arrangement, CacheLayout};
use nvkv_runtime::spec::{
    AppendMode, DecodeProblem, DeviceCache, Dtype, KvFormat, Lengths, Numerics, Problem, Shape, VScaleOrder,
};
use nvkv_runtime::{Found, Runtime};
use std::error::Error;
use std::sync::Arc;

const BATCH: u32 = 2;
const KV_HEADS: u32 = 8;
const CONTEXT: u32 = 16;
const MODEL: DecodeProblem = DecodeProblem {
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

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or("kernels-out/sm_90a".into());
    let runtime = Runtime::open(&folder, None)?;
    let problem = Problem::Decode(MODEL);
    let shape = Shape::Decode { batch: BATCH, context: CONTEXT, kv_heads: KV_HEADS, lengths: Lengths::Equal };
    let found = runtime.find(&problem, &shape)?;
    println!("{}: {}, {} bytes of workspace", found.kernel.id, found.trust.name(), found.launch.workspace_bytes);
    print!("{}", runtime.explain(&problem, &shape));
    println!("{}", serde_json::to_string(&runtime.shape_histogram())?);

    // SAFETY: asks for a library.
    if !unsafe { sys::is_culib_present() } {
        println!("no device: {}", runtime.prepare(&[problem]).err().map_or(String::new(), |error| error.to_string()));
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    runtime.prepare(&[problem])?;
    let found = runtime.find(&problem, &shape)?;
    launch(&runtime, &found, &stream)
}

/// One decode over a cache of zeros: every log-sum-exp is ln(CONTEXT).
fn launch(runtime: &Runtime, found: &Found, stream: &Arc<CudaStream>) -> Result<(), Box<dyn Error>> {
    let heads = KV_HEADS * MODEL.group;
    let rows = (BATCH * heads * MODEL.head_dim) as usize;
    let (q, out) = (stream.alloc_zeros::<u16>(rows)?, stream.alloc_zeros::<u16>(rows)?);
    let lse = stream.alloc_zeros::<f32>((BATCH * heads) as usize)?;
    let block_table = stream.clone_htod(&[0i32, 1])?;
    let kv_len = stream.clone_htod(&[CONTEXT as i32; BATCH as usize])?;
    let layout = CacheLayout::new(Arrangement::Hnd, MODEL.kv_format, 2, KV_HEADS, MODEL.page_size, MODEL.head_dim);
    let cache = stream.alloc_zeros::<u8>(layout.bytes as usize)?;
    let workspace = stream.alloc_zeros::<u8>(found.launch.workspace_bytes.max(1) as usize)?;
    fn address<T>(buffer: &CudaSlice<T>, stream: &CudaStream) -> u64 {
        buffer.device_ptr(stream).0
    }
    let cache = DeviceCache::new(address(&cache, stream), &layout, MODEL.kv_format);
    let row = 2 * i64::from(MODEL.head_dim);
    let params = cache.decode_params(DecodeParams {
        q: address(&q, stream),
        out: address(&out, stream),
        lse: address(&lse, stream),
        block_table: address(&block_table, stream),
        kv_len: address(&kv_len, stream),
        workspace: address(&workspace, stream),
        q_stride_token: row * i64::from(heads),
        q_stride_head: row,
        out_stride_token: row * i64::from(heads),
        out_stride_head: row,
        block_table_stride: 1,
        batch: BATCH,
        kv_heads: KV_HEADS,
        sm_scale: 1.0 / (MODEL.head_dim as f32).sqrt(),
        q_scale: 1.0,
        k_scale: 1.0,
        v_scale: 1.0,
        ..DecodeParams::default()
    });
    let workspace_bytes = workspace.len() as u64;
    // SAFETY: buffers of these sizes on this device, alive until the results are copied back.
    unsafe { runtime.decode(found, &params, workspace_bytes, stream.cu_stream().cast()) }?;
    let lse = stream.clone_dtoh(&lse)?;
    if (lse[0] - (CONTEXT as f32).ln()).abs() > 1e-3 {
        return Err(format!("the log-sum-exp is {}", lse[0]).into());
    }
    println!("launched: log-sum-exp {:.4}", lse[0]);
    Ok(())
}
