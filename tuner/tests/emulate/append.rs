//! Append kernels: the cache comes out as the reference has it, to the bit.

use crate::random::{hard_elements, seeded};
use crate::{Compiled, bytes_of, param_bytes};
use nvkv_emulator::{EmulationError, Memory, Module, Stats, launch};
use nvkv_generator::Launch;
use nvkv_reference::{HostCache, append};
use nvkv_spec::abi::AppendParams;
use nvkv_spec::layout::Arrangement;
use nvkv_spec::{AppendProblem, Problem, Shape, SplitPolicy};
use nvkv_tuner::gpu::DeviceCache;
use rand::RngExt;

const KV_HEADS: u32 = 2;
const TOKENS: u32 = 37;
const K_SCALE: f32 = 0.37;
const V_SCALE: f32 = 1.1;

struct Data {
    cache: HostCache,
    slots: Vec<i64>,
    rows: [Vec<u16>; 2],
}

impl Data {
    /// A cache of random bytes; slots from the last one down, every seventh token skipped.
    fn new(problem: &AppendProblem, tokens: u32, seed: &str) -> Self {
        let mut rng = seeded(seed);
        let pages = u64::from(tokens.div_ceil(problem.page_size)) + 2;
        let (page, dim) = (problem.page_size, problem.head_dim);
        let (format, order) = (problem.kv_format, problem.v_scale_order);
        let mut cache = HostCache::new(Arrangement::Hnd, format, order, pages, KV_HEADS, page, dim);
        rng.fill(&mut cache.bytes[..]);
        let last = (pages * u64::from(page)) as i64 - 1;
        let slots = (0..i64::from(tokens)).map(|token| if token % 7 == 4 { -1 } else { last - token }).collect();
        let elements = (tokens * KV_HEADS * dim) as usize;
        let rows = std::array::from_fn(|_| hard_elements(&mut rng, problem.dtype, elements));
        Self { cache, slots, rows }
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
    status: u64,
}

impl<'a> Prepared<'a> {
    /// New rows of `tokens` tokens in device memory, and a cache to take them.
    pub fn new(problem: &AppendProblem, compiled: &'a Compiled, tokens: u32) -> Result<Self, EmulationError> {
        let data = Data::new(problem, tokens, &compiled.symbol);
        let mut memory = Memory::new();
        let cache_at = memory.alloc_with(&data.cache.bytes);
        let status = memory.alloc_with(&7u32.to_le_bytes());
        let row_bytes = i64::from(2 * problem.head_dim);
        let device_cache = DeviceCache { base: cache_at, layout: &data.cache.layout, format: problem.kv_format };
        let params = device_cache.append_params(AppendParams {
            k: memory.alloc_with(&bytes_of(&data.rows[0], u16::to_le_bytes)),
            v: memory.alloc_with(&bytes_of(&data.rows[1], u16::to_le_bytes)),
            slot_mapping: memory.alloc_with(&bytes_of(&data.slots, i64::to_le_bytes)),
            status,
            k_stride_token: row_bytes * i64::from(KV_HEADS),
            k_stride_head: row_bytes,
            v_stride_token: row_bytes * i64::from(KV_HEADS),
            v_stride_head: row_bytes,
            tokens,
            kv_heads: KV_HEADS,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            ..AppendParams::default()
        });
        let shape = Shape::Append { tokens, kv_heads: KV_HEADS };
        // Append kernels take no split.
        let split = SplitPolicy::Even { splits: 1 };
        let plan = Launch::new(&Problem::Append(*problem), &compiled.variant, &shape, split);
        let module = Module::parse(&compiled.ptx)?;
        let params = param_bytes(AppendParams::FIELDS, &params);
        Ok(Self { compiled, module, plan, params, data, memory, cache_at, status })
    }

    /// Runs the kernel once.
    pub fn launch(&mut self) -> Result<Stats, EmulationError> {
        let Self { compiled, module, plan, params, memory, .. } = self;
        let block = [plan.threads, 1, 1];
        launch(module, &compiled.symbol, plan.grid, block, plan.shared_bytes, params, memory, module.target())
    }
}

/// Runs the kernel, and compares every byte of the cache.
pub fn check(problem: &AppendProblem, compiled: &Compiled) -> Result<Stats, EmulationError> {
    let mut prepared = Prepared::new(problem, compiled, TOKENS)?;
    let stats = prepared.launch()?;
    let Prepared { data: Data { mut cache, slots, rows }, memory, cache_at, status, .. } = prepared;
    let non_finite = append(problem, &rows[0], &rows[1], &slots, K_SCALE, V_SCALE, &mut cache);
    let got = memory.read(cache_at, cache.bytes.len())?;
    let wrong = got.iter().zip(&cache.bytes).position(|(got, expected)| got != expected);
    assert_eq!(wrong, None, "{}: first byte that differs", compiled.symbol);
    assert_eq!(memory.read(status, 4)?, (7 + non_finite).to_le_bytes(), "{}: status", compiled.symbol);
    Ok(stats)
}
