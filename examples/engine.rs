//! A small engine: a paged NVFP4 cache, prefill by append, and a decode loop of one captured CUDA graph with the append
//! fused in. Weights are random; lengths grow, requests join and leave, and every step is compared with dense attention
//! in float64 on the CPU.
//!
//! ```text
//! cargo run --release -p nvkv-runtime --example engine -- kernels-out/sm_90a [steps]
//! ```
//!
//! The bundle needs the fused problem below and its append:
//! `nvkv-tune --op fused,append --kv-format nvfp4 --numerics fp8 --head-dim 128 --group 8 --q-len 1 --page-size 16`.
#![allow(unsafe_code)] // launches on device memory that this program owns

use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr, sys};
use nvkv_reference::codec::{from_f32, to_f32};
use nvkv_reference::{DecodeInputs, HostCache};
use nvkv_runtime::Runtime;
use nvkv_runtime::spec::abi::{AppendParams, DecodeParams};
use nvkv_runtime::spec::layout::Arrangement;
use nvkv_runtime::spec::{
    AppendMode, DecodeProblem, DeviceCache, Dtype, KvFormat, Lengths, Numerics, Problem, Shape, VScaleOrder,
};
use std::error::Error;
use std::sync::Arc;

const KV_HEADS: u32 = 2;
/// Requests that run at a time: the batch of the captured step. A place without a request has length 0.
const PLACES: usize = 4;
const MAX_CONTEXT: u32 = 512;
const PROBLEM: DecodeProblem = DecodeProblem {
    kv_format: KvFormat::Nvfp4,
    numerics: Numerics::Fp8,
    head_dim: 128,
    group: 8,
    q_len: 1,
    page_size: 16,
    dtype: Dtype::Bf16,
    v_scale_order: VScaleOrder::Linear,
    append: AppendMode::Fused,
    window: None,
    sinks: false,
    soft_cap: false,
};
const Q_SCALE: f32 = 0.02;
const K_SCALE: f32 = 0.4;
const V_SCALE: f32 = 0.7;
/// Largest relative L2 error of a request's output: that of bf16.
const TOLERANCE: f64 = 4e-3;

/// The model: rows from a position and a seed, as a transformer would make them of a token.
fn rows(seed: u64, elements: u32) -> Vec<u16> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    // The sum of four uniform numbers is near enough to a normal one.
    let mut normal = || (0..4).map(|_| uniform()).sum::<f32>() * 1.73 - 3.46;
    (0..elements).map(|_| from_f32(PROBLEM.dtype, normal())).collect()
}

/// A request: which rows it has is its seed's matter.
#[derive(Clone)]
struct Request {
    seed: u64,
    length: u32,
    /// Length at which it leaves.
    end: u32,
    pages: Vec<i32>,
}

struct Engine {
    runtime: Runtime,
    stream: Arc<CudaStream>,
    cache: CudaSlice<u8>,
    /// The same cache by the reference: every append is done there too.
    host: HostCache,
    free: Vec<i32>,
    places: [Option<Request>; PLACES],
    step: Step,
}

/// The buffers of the captured step.
struct Step {
    q: CudaSlice<u16>,
    k: CudaSlice<u16>,
    v: CudaSlice<u16>,
    out: CudaSlice<u16>,
    block_table: CudaSlice<i32>,
    kv_len: CudaSlice<i32>,
    status: CudaSlice<u32>,
    workspace: CudaSlice<u8>,
}

/// The address of a buffer, for launches in `stream`.
fn at<T>(buffer: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    buffer.device_ptr(stream).0
}

fn pages_of(tokens: u32) -> usize {
    tokens.div_ceil(PROBLEM.page_size) as usize
}

impl Engine {
    fn device_cache(&self) -> DeviceCache {
        let base = at(&self.cache, &self.stream);
        DeviceCache::new(base, &self.host.layout, PROBLEM.kv_format)
    }

    fn new(folder: &str) -> Result<Self, Box<dyn Error>> {
        let context = CudaContext::new(0)?;
        let stream = context.new_stream()?;
        // One stream does everything: cudarc need not order accesses by events, which a capture could not hold.
        // SAFETY: no buffer is used in another stream.
        unsafe { context.disable_event_tracking() };
        let runtime = Runtime::open(folder, None)?;
        runtime.prepare(&[Problem::Decode(PROBLEM), Problem::Append(PROBLEM.append_problem())])?;
        let pages = PLACES * pages_of(MAX_CONTEXT);
        let DecodeProblem { kv_format, v_scale_order, page_size, head_dim, .. } = PROBLEM;
        let host =
            HostCache::new(Arrangement::Hnd, kv_format, v_scale_order, pages as u64, KV_HEADS, page_size, head_dim);
        let found = runtime.find(&Problem::Decode(PROBLEM), &step_shape())?;
        println!("decode: {} ({})", found.kernel.id, found.trust.name());
        let workspace_bytes = found.launch.workspace_bytes.max(256);
        let rows = |heads: u32| stream.alloc_zeros::<u16>(PLACES * (heads * head_dim) as usize);
        let step = Step {
            q: rows(KV_HEADS * PROBLEM.group)?,
            k: rows(KV_HEADS)?,
            v: rows(KV_HEADS)?,
            out: rows(KV_HEADS * PROBLEM.group)?,
            block_table: stream.alloc_zeros(PLACES * pages_of(MAX_CONTEXT))?,
            kv_len: stream.alloc_zeros(PLACES)?,
            status: stream.alloc_zeros(1)?,
            workspace: stream.alloc_zeros(workspace_bytes as usize)?,
        };
        let cache = stream.alloc_zeros(host.bytes.len())?;
        let free = (0..pages as i32).rev().collect();
        Ok(Self { runtime, stream, cache, host, free, places: Default::default(), step })
    }

    /// A request joins: its prompt's rows go into fresh pages by one append.
    fn prefill(&mut self, place: usize, mut request: Request) -> Result<(), Box<dyn Error>> {
        request.pages = self.free.split_off(self.free.len() - pages_of(request.end));
        let (tokens, elements) = (request.length, KV_HEADS * PROBLEM.head_dim);
        let of = |salt: u64| (0..tokens).flat_map(|t| rows(request.row(t) ^ salt, elements)).collect::<Vec<_>>();
        let (k, v): (Vec<u16>, Vec<u16>) = (of(K_SALT), of(V_SALT));
        let slots: Vec<i64> = (0..tokens).map(|token| request.slot(token)).collect();
        let problem = PROBLEM.append_problem();
        nvkv_reference::append(&problem, &k, &v, &slots, K_SCALE, V_SCALE, &mut self.host);

        let stream = &self.stream;
        let (k, v, slots) = (stream.clone_htod(&k)?, stream.clone_htod(&v)?, stream.clone_htod(&slots)?);
        let found = self.runtime.find(&Problem::Append(problem), &Shape::Append { tokens, kv_heads: KV_HEADS })?;
        let head = 2 * i64::from(PROBLEM.head_dim);
        let params = self.device_cache().append_params(AppendParams {
            k: at(&k, stream),
            v: at(&v, stream),
            slot_mapping: at(&slots, stream),
            status: at(&self.step.status, stream),
            k_stride_token: head * i64::from(KV_HEADS),
            k_stride_head: head,
            v_stride_token: head * i64::from(KV_HEADS),
            v_stride_head: head,
            tokens,
            kv_heads: KV_HEADS,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            ..AppendParams::default()
        });
        // SAFETY: buffers of these sizes on this device, alive until the stream is waited for.
        unsafe { self.runtime.append(&found, &params, stream.cu_stream().cast()) }?;
        stream.synchronize()?;
        self.places[place] = Some(request);
        Ok(())
    }

    /// The step for all places, captured once: lengths, pages and rows are read from buffers when it is replayed.
    fn capture(&self) -> Result<CudaGraph, Box<dyn Error>> {
        let (stream, step) = (&self.stream, &self.step);
        let found = self.runtime.find(&Problem::Decode(PROBLEM), &step_shape())?;
        let head = 2 * i64::from(PROBLEM.head_dim);
        let (q_token, kv_token) = (head * i64::from(KV_HEADS * PROBLEM.group), head * i64::from(KV_HEADS));
        let params = self.device_cache().decode_params(DecodeParams {
            q: at(&step.q, stream),
            out: at(&step.out, stream),
            block_table: at(&step.block_table, stream),
            kv_len: at(&step.kv_len, stream),
            new_k: at(&step.k, stream),
            new_v: at(&step.v, stream),
            status: at(&step.status, stream),
            workspace: at(&step.workspace, stream),
            q_stride_token: q_token,
            q_stride_head: head,
            out_stride_token: q_token,
            out_stride_head: head,
            new_k_stride_token: kv_token,
            new_k_stride_head: head,
            new_v_stride_token: kv_token,
            new_v_stride_head: head,
            block_table_stride: pages_of(MAX_CONTEXT) as i64,
            batch: PLACES as u32,
            kv_heads: KV_HEADS,
            sm_scale: 1.0 / (PROBLEM.head_dim as f32).sqrt(),
            q_scale: Q_SCALE,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            ..DecodeParams::default()
        });
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        // SAFETY: buffers of these sizes on this device, alive as long as the graph.
        let launched =
            unsafe { self.runtime.decode(&found, &params, step.workspace.len() as u64, stream.cu_stream().cast()) };
        let graph =
            stream.end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
        launched?;
        graph.ok_or_else(|| "the capture is empty".into())
    }

    /// One step of every running request, by the graph and by the reference; the largest error of an output.
    fn advance(&mut self, graph: &CudaGraph) -> Result<f64, Box<dyn Error>> {
        let (heads, dim) = (KV_HEADS * PROBLEM.group, PROBLEM.head_dim);
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        let stride = pages_of(MAX_CONTEXT);
        let (mut table, mut lengths, mut slots) = (vec![0; PLACES * stride], Vec::new(), Vec::new());
        for (place, request) in self.places.iter_mut().enumerate() {
            let seed = request.as_ref().map_or(0, |request| request.row(request.length));
            q.extend(rows(seed, heads * dim));
            k.extend(rows(seed ^ K_SALT, KV_HEADS * dim));
            v.extend(rows(seed ^ V_SALT, KV_HEADS * dim));
            slots.push(request.as_ref().map_or(-1, |request| request.slot(request.length)));
            if let Some(request) = request {
                table[place * stride..][..request.pages.len()].copy_from_slice(&request.pages);
                request.length += 1;
            }
            lengths.push(request.as_ref().map_or(0, |request| request.length as i32));
        }
        let (stream, step) = (&self.stream, &mut self.step);
        stream.memcpy_htod(&q, &mut step.q)?;
        stream.memcpy_htod(&k, &mut step.k)?;
        stream.memcpy_htod(&v, &mut step.v)?;
        stream.memcpy_htod(&table, &mut step.block_table)?;
        stream.memcpy_htod(&lengths, &mut step.kv_len)?;
        graph.launch()?;
        let out = stream.clone_dtoh(&step.out)?;

        nvkv_reference::append(&PROBLEM.append_problem(), &k, &v, &slots, K_SCALE, V_SCALE, &mut self.host);
        let expected = nvkv_reference::decode(&DecodeInputs {
            problem: &PROBLEM,
            q: &q,
            cache: &self.host,
            block_table: &table,
            block_table_stride: stride,
            kv_len: &lengths,
            sm_scale: 1.0 / (dim as f32).sqrt(),
            q_scale: Q_SCALE,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            window: None,
            sinks: None,
            soft_cap: None,
        });
        let per_request = (heads * dim) as usize;
        let errors = out.chunks(per_request).zip(expected.out.chunks(per_request)).map(|(got, want)| error(got, want));
        // In total order a NaN is the largest: it is not lost.
        Ok(errors.map(f64::abs).max_by(f64::total_cmp).unwrap_or(0.0))
    }

    /// Requests that reached their end leave, and their pages are free again.
    fn retire(&mut self) -> usize {
        let done = |place: &mut Option<Request>| place.take_if(|request| request.length + 1 > request.end);
        let left: Vec<_> = self.places.iter_mut().filter_map(done).collect();
        self.free.extend(left.iter().flat_map(|request| &request.pages));
        left.len()
    }
}

const K_SALT: u64 = 0x5555_0000;
const V_SALT: u64 = 0xaaaa_0000;

impl Request {
    /// Seed of the rows at `token`.
    fn row(&self, token: u32) -> u64 {
        (self.seed << 32) + u64::from(token) + 1
    }

    /// Where `token` lies in the cache.
    fn slot(&self, token: u32) -> i64 {
        let page = self.pages[(token / PROBLEM.page_size) as usize];
        i64::from(page) * i64::from(PROBLEM.page_size) + i64::from(token % PROBLEM.page_size)
    }
}

fn step_shape() -> Shape {
    Shape::Decode { batch: PLACES as u32, context: MAX_CONTEXT, kv_heads: KV_HEADS, lengths: Lengths::Equal }
}

/// Relative L2 error of one request's output.
fn error(got: &[u16], want: &[f64]) -> f64 {
    let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
    let pairs = got.iter().map(|&bits| f64::from(to_f32(PROBLEM.dtype, bits))).zip(want);
    let difference = norm(&mut pairs.map(|(got, want)| got - want));
    if difference == 0.0 { 0.0 } else { difference / norm(&mut want.iter().copied()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or("kernels-out/sm_90a".into());
    let steps: u32 = arguments.next().map_or(Ok(200), |steps| steps.parse())?;
    let mut engine = Engine::new(&folder)?;
    let graph = engine.capture()?;
    let (mut joined, mut left, mut largest) = (0u32, 0, 0.0f64);
    for step in 0..steps {
        // A place that is free takes the next request now and then, with a prompt of another length.
        let free = engine.places.iter().position(Option::is_none);
        if let (Some(place), true) = (free, step % 3 == 0) {
            let length = 1 + joined * 53 % 300;
            let end = (length + 20 + joined * 31 % 120).min(MAX_CONTEXT);
            engine.prefill(place, Request { seed: u64::from(joined) + 1, length, end, pages: Vec::new() })?;
            joined += 1;
        }
        let error = engine.advance(&graph)?;
        if error.is_nan() || error > TOLERANCE {
            return Err(format!("step {step}: relative error {error:.2e}, more than {TOLERANCE:.0e}").into());
        }
        largest = largest.max(error);
        left += engine.retire();
    }
    let stored = engine.stream.clone_dtoh(&engine.cache)?;
    if stored != engine.host.bytes {
        return Err("the cache differs from the reference's".into());
    }
    println!(
        "{steps} steps, {joined} requests joined, {left} left; largest relative error {largest:.2e}; cache equal to the byte"
    );
    Ok(())
}
