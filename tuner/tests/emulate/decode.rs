//! Decode and fused kernels: the output is near the reference's, a second launch on the same workspace gives the
//! same bits, and a fused kernel leaves the cache to the bit.

use crate::random::{cached_row, elements, seeded};
use crate::{Compiled, bytes_of, param_bytes};
use half::{bf16, f16};
use nvkv_emulator::{EmulationError, Memory, Module, Stats, launch};
use nvkv_generator::Launch;
use nvkv_reference::{DecodeInputs, HostCache, append, decode};
use nvkv_spec::abi::{COUNTER_BYTES, DecodeParams};
use nvkv_spec::layout::{Arrangement, PagedTensor};
use nvkv_spec::{AppendMode, DecodeProblem, Dtype, Problem, Shape, SplitPolicy, VScaleOrder};
use nvkv_tuner::gpu::DeviceCache;

const Q_SCALE: f32 = 0.02;
const K_SCALE: f32 = 0.4;
const V_SCALE: f32 = 0.7;

/// A batch of requests.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Cached tokens of each.
    pub kv_len: Vec<i32>,
    /// KV heads.
    pub kv_heads: u32,
    /// Division of the context among blocks.
    pub split: SplitPolicy,
}

struct Data {
    cache: HostCache,
    block_table: Vec<i32>,
    stride: usize,
    q: Vec<u16>,
    new_rows: [Vec<u16>; 2],
}

impl Data {
    /// Pages in falling order; page 0, and rows past the end of a request, hold NaN.
    fn new(problem: &DecodeProblem, batch: &Batch, seed: &str) -> Self {
        let mut rng = seeded(seed);
        let blocks = |len: i32| (len as usize).div_ceil(problem.page_size as usize);
        let pages: usize = batch.kv_len.iter().map(|&len| blocks(len)).sum::<usize>() + 1;
        let stride = batch.kv_len.iter().map(|&len| blocks(len)).max().unwrap_or(0) + 1;
        let (format, order) = (problem.kv_format, problem.v_scale_order);
        let (page, dim) = (problem.page_size, problem.head_dim);
        let mut cache = HostCache::new(Arrangement::Hnd, format, order, pages as u64, batch.kv_heads, page, dim);
        cache.bytes.fill(0xFF);
        let mut block_table = vec![-1; stride * batch.kv_len.len()];
        let mut free = (0..pages as i32).rev();
        let new_tokens = if problem.append == AppendMode::Fused { problem.q_len as i32 } else { 0 };
        for (request, &len) in batch.kv_len.iter().enumerate() {
            let row = &mut block_table[request * stride..][..blocks(len)];
            row.iter_mut().zip(&mut free).for_each(|(entry, page)| *entry = page);
            for token in 0..(len - new_tokens).max(0) as u32 {
                let at = (row[(token / page) as usize] as u64, token % page);
                for head in 0..batch.kv_heads {
                    let (k, v) = (cached_row(&mut rng, format.k(), dim), cached_row(&mut rng, format.v(), dim));
                    let layout = cache.layout;
                    write(&mut cache, (layout.k_data, layout.k_scales), VScaleOrder::Linear, at, head, &k);
                    write(&mut cache, (layout.v_data, layout.v_scales), order, at, head, &v);
                }
            }
        }
        let rows = batch.kv_len.len() * problem.q_len as usize * batch.kv_heads as usize;
        let q = elements(&mut rng, problem.dtype, rows * (problem.group * dim) as usize);
        let new_rows = std::array::from_fn(|_| elements(&mut rng, problem.dtype, rows * dim as usize));
        Self { cache, block_table, stride, q, new_rows }
    }

    /// The cache with this step's rows in it, where the kernel appends them.
    fn cache_after(&self, problem: &DecodeProblem, batch: &Batch) -> HostCache {
        let mut cache = self.cache.clone();
        if problem.append == AppendMode::Fused {
            let (q_len, page) = (problem.q_len as i32, problem.page_size as i32);
            let mut slots = Vec::new();
            for (request, &len) in batch.kv_len.iter().enumerate() {
                slots.extend((len - q_len..len).map(|token| match token {
                    0.. => i64::from(
                        self.block_table[request * self.stride + (token / page) as usize] * page + token % page,
                    ),
                    _ => -1,
                }));
            }
            let [k, v] = &self.new_rows;
            append(&problem.append_problem(), k, v, &slots, K_SCALE, V_SCALE, &mut cache);
        }
        cache
    }
}

fn write(
    cache: &mut HostCache,
    (data, scales): (PagedTensor, PagedTensor),
    order: VScaleOrder,
    (page, token): (u64, u32),
    head: u32,
    (codes, block_scales): &(Vec<u8>, Vec<u8>),
) {
    cache.bytes[data.row(page, head, token)..][..codes.len()].copy_from_slice(codes);
    let first = scales.row(page, head, 0);
    for (i, &scale) in block_scales.iter().enumerate() {
        let offset = order.offset(token, i as u32, block_scales.len() as u32, scales.strides.token);
        cache.bytes[first + offset as usize] = scale;
    }
}

/// A kernel with everything that a launch takes.
pub struct Prepared<'a> {
    compiled: &'a Compiled,
    module: Module,
    plan: Launch,
    params: Vec<u8>,
    data: Data,
    memory: Memory,
    cache_at: u64,
    out: u64,
}

impl<'a> Prepared<'a> {
    /// Random inputs in device memory.
    pub fn new(problem: &DecodeProblem, compiled: &'a Compiled, batch: &Batch) -> Result<Self, EmulationError> {
        let data = Data::new(problem, batch, &compiled.symbol);
        let mut memory = Memory::new();
        let cache_at = memory.alloc_with(&data.cache.bytes);
        let out = memory.alloc(2 * data.q.len());
        let context = batch.kv_len.iter().copied().max().unwrap_or(0) as u32;
        let shape = Shape::Decode { batch: batch.kv_len.len() as u32, context, kv_heads: batch.kv_heads };
        let plan = Launch::new(&Problem::Decode(*problem), &compiled.variant, &shape, batch.split);
        let params = params(problem, batch, &data, &mut memory, (cache_at, out), &plan);
        let module = Module::parse(&compiled.ptx)?;
        Ok(Self { compiled, module, plan, params, data, memory, cache_at, out })
    }

    /// Runs the kernel once.
    pub fn launch(&mut self) -> Result<Stats, EmulationError> {
        let Self { compiled, module, plan, params, memory, .. } = self;
        let block = [plan.threads, 1, 1];
        launch(module, &compiled.symbol, plan.grid, block, plan.shared_bytes, params, memory, module.target())
    }
}

/// Runs the kernel twice; returns what it executed and its relative L2 error.
pub fn check(problem: &DecodeProblem, compiled: &Compiled, batch: &Batch) -> Result<(Stats, f64), EmulationError> {
    let mut prepared = Prepared::new(problem, compiled, batch)?;
    let (out, out_bytes) = (prepared.out, 2 * prepared.data.q.len());
    let mut stats = Stats::default();
    let mut outputs = Vec::new();
    for _ in 0..2 {
        prepared.memory.write(out, &vec![0xFF; out_bytes])?;
        stats += prepared.launch()?;
        outputs.push(prepared.memory.read(out, out_bytes)?);
    }
    assert_eq!(outputs[0], outputs[1], "{}: the second launch differs", compiled.symbol);
    let Prepared { data, memory, cache_at, .. } = prepared;
    let after = data.cache_after(problem, batch);
    assert_eq!(memory.read(cache_at, after.bytes.len())?, after.bytes, "{}: the cache", compiled.symbol);
    let expected = decode(&DecodeInputs {
        problem,
        q: &data.q,
        cache: &after,
        block_table: &data.block_table,
        block_table_stride: data.stride,
        kv_len: &batch.kv_len,
        sm_scale: sm_scale(problem),
        q_scale: Q_SCALE,
        k_scale: K_SCALE,
        v_scale: V_SCALE,
    });
    Ok((stats, relative_error(problem.dtype, &outputs[0], &expected.out)))
}

/// Zeroed counters, and nothing but NaN behind them: partial results need no preparation.
fn workspace(plan: &Launch) -> Vec<u8> {
    let counters = (plan.workspace_bytes as usize).min(COUNTER_BYTES as usize);
    let mut bytes = vec![0; counters];
    bytes.resize(plan.workspace_bytes as usize, 0xFF);
    bytes
}

fn sm_scale(problem: &DecodeProblem) -> f32 {
    1.0 / (problem.head_dim as f32).sqrt()
}

fn params(
    problem: &DecodeProblem,
    batch: &Batch,
    data: &Data,
    memory: &mut Memory,
    (cache_at, out): (u64, u64),
    plan: &Launch,
) -> Vec<u8> {
    let q_heads = i64::from(batch.kv_heads * problem.group);
    let row = i64::from(2 * problem.head_dim);
    let kv_token = row * i64::from(batch.kv_heads);
    let cache = DeviceCache { base: cache_at, layout: &data.cache.layout, format: data.cache.format };
    let params = cache.decode_params(DecodeParams {
        q: memory.alloc_with(&bytes_of(&data.q, u16::to_le_bytes)),
        out,
        lse: memory.alloc(batch.kv_len.len() * problem.q_len as usize * q_heads as usize * 4),
        block_table: memory.alloc_with(&bytes_of(&data.block_table, i32::to_le_bytes)),
        kv_len: memory.alloc_with(&bytes_of(&batch.kv_len, i32::to_le_bytes)),
        new_k: memory.alloc_with(&bytes_of(&data.new_rows[0], u16::to_le_bytes)),
        new_v: memory.alloc_with(&bytes_of(&data.new_rows[1], u16::to_le_bytes)),
        status: memory.alloc_with(&[0; 4]),
        workspace: memory.alloc_with(&workspace(plan)),
        q_stride_token: row * q_heads,
        q_stride_head: row,
        out_stride_token: row * q_heads,
        out_stride_head: row,
        new_k_stride_token: kv_token,
        new_k_stride_head: row,
        new_v_stride_token: kv_token,
        new_v_stride_head: row,
        block_table_stride: data.stride as i64,
        batch: batch.kv_len.len() as u32,
        kv_heads: batch.kv_heads,
        max_splits: plan.max_splits,
        min_split_tokens: plan.min_split_tokens,
        sm_scale: sm_scale(problem),
        q_scale: Q_SCALE,
        k_scale: K_SCALE,
        v_scale: V_SCALE,
        ..DecodeParams::default()
    });
    param_bytes(DecodeParams::FIELDS, &params)
}

fn relative_error(dtype: Dtype, got: &[u8], expected: &[f64]) -> f64 {
    let value = |bits| match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f64(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
    };
    let got = got.as_chunks::<2>().0.iter().map(|&bytes| value(u16::from_le_bytes(bytes)));
    let (wrong, size) = got.zip(expected).fold((0.0, 0.0), |(wrong, size), (got, &expected)| {
        (wrong + (got - expected) * (got - expected), size + expected * expected)
    });
    (wrong / size).sqrt()
}
