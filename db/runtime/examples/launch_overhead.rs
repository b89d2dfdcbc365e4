//! Host time of a launch, find and checks included, beside the driver's own, on the GPU that is here.
//!
//! ```text
//! cargo run --release -p nvkv-runtime --example launch_overhead -- kernels-out/sm_90a
//! ```
//!
//! Takes the bundle's first plain decode problem. Nothing is attended to (all lengths are 0), so the GPU keeps up and what
//! is timed is the host: rounds of 200 calls, the GPU waited for between them, the median round. The same kernel is launched
//! by `cuLaunchKernel` alone in rounds between: what is left is this runtime's part.
#![allow(unsafe_code)] // launches on device memory that this program owns

use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, sys};
use nvkv_runtime::Runtime;
use nvkv_runtime::bundle::Kernel;
use nvkv_runtime::spec::abi::DecodeParams;
use nvkv_runtime::spec::layout::{Arrangement, CacheLayout};
use nvkv_runtime::spec::{AppendMode, DeviceCache, Lengths, Problem, Shape};
use std::error::Error;
use std::ffi::CString;
use std::path::Path;
use std::time::Instant;

const BATCH: u32 = 8;
const KV_HEADS: u32 = 8;
const CONTEXT: u32 = 8192;
const ROUNDS: usize = 21;
const CALLS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or("kernels-out/sm_90a".into());
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // SAFETY: no buffer is used in another stream.
    unsafe { context.disable_event_tracking() };
    let runtime = Runtime::open(&folder, None)?;
    let plain = |p: &Problem| matches!(p, Problem::Decode(p) if p.append == AppendMode::Separate);
    let Some(problem) = runtime.problems().into_iter().find(plain) else {
        return Err("the bundle has no plain decode".into());
    };
    let Problem::Decode(p) = problem else { return Err("no decode".into()) };
    let start = Instant::now();
    runtime.prepare(&[problem])?;
    println!("prepare {}: {:.1} ms", problem.key(), start.elapsed().as_secs_f64() * 1e3);
    let shape = Shape::Decode { batch: BATCH, context: CONTEXT, kv_heads: KV_HEADS, lengths: Lengths::Equal };
    let found = runtime.find(&problem, &shape)?;

    let layout = CacheLayout::new(Arrangement::Hnd, p.kv_format, 1, KV_HEADS, p.page_size, p.head_dim);
    let heads = KV_HEADS * p.group;
    let rows = (BATCH * p.q_len * heads * p.head_dim) as usize;
    let (q, out) = (stream.alloc_zeros::<u16>(rows)?, stream.alloc_zeros::<u16>(rows)?);
    let cache = stream.alloc_zeros::<u8>(layout.bytes as usize)?;
    let (table, lengths) = (stream.alloc_zeros::<i32>(BATCH as usize)?, stream.alloc_zeros::<i32>(BATCH as usize)?);
    let workspace = stream.alloc_zeros::<u8>(found.launch.workspace_bytes.max(256) as usize)?;
    fn at<T>(buffer: &CudaSlice<T>, stream: &cudarc::driver::CudaStream) -> u64 {
        buffer.device_ptr(stream).0
    }
    let cache = DeviceCache::new(at(&cache, &stream), &layout, p.kv_format);
    let head = 2 * i64::from(p.head_dim);
    let params = cache.decode_params(DecodeParams {
        q: at(&q, &stream),
        out: at(&out, &stream),
        block_table: at(&table, &stream),
        kv_len: at(&lengths, &stream),
        workspace: at(&workspace, &stream),
        q_stride_token: head * i64::from(heads),
        q_stride_head: head,
        out_stride_token: head * i64::from(heads),
        out_stride_head: head,
        block_table_stride: 1,
        batch: BATCH,
        kv_heads: KV_HEADS,
        sm_scale: 1.0,
        q_scale: 1.0,
        k_scale: 1.0,
        v_scale: 1.0,
        ..DecodeParams::default()
    });
    let ours = || -> Result<(), Box<dyn Error>> {
        let found = runtime.find(&problem, &shape)?;
        // SAFETY: buffers of these sizes on this device, alive until the stream is waited for.
        Ok(unsafe { runtime.decode(&found, &params, workspace.len() as u64, stream.cu_stream().cast()) }?)
    };
    let launch = found.launch;
    let bare_params = DecodeParams {
        max_splits: launch.max_splits,
        min_split_tokens: launch.min_split_tokens,
        taper: launch.taper,
        ..params
    };
    let function = function(&folder, found.kernel, launch.shared_bytes)?;
    let bare = || -> Result<(), Box<dyn Error>> {
        let [x, y, z] = launch.grid;
        let mut argument = std::ptr::from_ref(&bare_params).cast_mut().cast();
        let (stream, none) = (stream.cu_stream(), std::ptr::null_mut());
        // SAFETY: the kernel takes that struct; buffers as above.
        let launched = unsafe {
            sys::cuLaunchKernel(
                function,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                launch.shared_bytes,
                stream,
                &mut argument,
                none,
            )
        };
        Ok(launched.result()?)
    };
    let round = |call: &dyn Fn() -> Result<(), Box<dyn Error>>| -> Result<f64, Box<dyn Error>> {
        stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / CALLS as f64)
    };
    let (mut with_find, mut driver) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with_find.push(round(&ours)?);
        driver.push(round(&bare)?);
    }
    stream.synchronize()?;
    println!("host time a call, median and least of {ROUNDS} rounds of {CALLS}:");
    for (name, rounds) in [("find, checks and launch", &mut with_find), ("cuLaunchKernel alone", &mut driver)] {
        rounds.sort_by(f64::total_cmp);
        println!("  {name:<24} {:.2} µs, {:.2} µs", rounds[ROUNDS / 2], rounds[0]);
    }
    println!("  {:<24} {:.2} µs", "this runtime's part", with_find[ROUNDS / 2] - driver[ROUNDS / 2]);
    Ok(())
}

/// The kernel loaded once more, by the driver alone.
fn function(folder: &str, kernel: &Kernel, shared_bytes: u32) -> Result<sys::CUfunction, Box<dyn Error>> {
    let cubin = std::fs::read(Path::new(folder).join(&kernel.files.cubin.path))?;
    let symbol = CString::new(kernel.symbol.as_str())?;
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: a whole cubin, a string that ends, and locals; a context is current.
    unsafe {
        sys::cuModuleLoadData(&mut module, cubin.as_ptr().cast()).result()?;
        sys::cuModuleGetFunction(&mut function, module, symbol.as_ptr()).result()?;
        sys::cuFuncSetAttribute(function, attribute, shared_bytes as i32).result()?;
    }
    Ok(function)
}
