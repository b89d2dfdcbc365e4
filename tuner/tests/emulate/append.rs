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

/// Runs the kernel over a cache of random bytes, and compares every byte.
pub fn check(problem: &AppendProblem, compiled: &Compiled) -> Result<Stats, EmulationError> {
    let mut rng = seeded(&compiled.symbol);
    let pages = u64::from(TOKENS.div_ceil(problem.page_size)) + 2;
    let (page, dim) = (problem.page_size, problem.head_dim);
    let (format, order) = (problem.kv_format, problem.v_scale_order);
    let mut cache = HostCache::new(Arrangement::Hnd, format, order, pages, KV_HEADS, page, dim);
    rng.fill(&mut cache.bytes[..]);
    // Every other slot from the end, and every seventh token skipped.
    let last = (pages * u64::from(page)) as i64 - 1;
    let slots: Vec<i64> = (0..i64::from(TOKENS)).map(|token| if token % 7 == 4 { -1 } else { last - token }).collect();
    let elements = (TOKENS * KV_HEADS * dim) as usize;
    let rows: [Vec<u16>; 2] = std::array::from_fn(|_| hard_elements(&mut rng, problem.dtype, elements));

    let mut memory = Memory::new();
    let cache_at = memory.alloc_with(&cache.bytes);
    let status = memory.alloc_with(&7u32.to_le_bytes());
    let row_bytes = i64::from(2 * dim);
    let params = DeviceCache { base: cache_at, layout: &cache.layout, format }.append_params(AppendParams {
        k: memory.alloc_with(&bytes_of(&rows[0], u16::to_le_bytes)),
        v: memory.alloc_with(&bytes_of(&rows[1], u16::to_le_bytes)),
        slot_mapping: memory.alloc_with(&bytes_of(&slots, i64::to_le_bytes)),
        status,
        k_stride_token: row_bytes * i64::from(KV_HEADS),
        k_stride_head: row_bytes,
        v_stride_token: row_bytes * i64::from(KV_HEADS),
        v_stride_head: row_bytes,
        tokens: TOKENS,
        kv_heads: KV_HEADS,
        k_scale: K_SCALE,
        v_scale: V_SCALE,
        ..AppendParams::default()
    });
    let shape = Shape::Append { tokens: TOKENS, kv_heads: KV_HEADS };
    let Launch { grid, threads, shared_bytes, .. } =
        Launch::new(&Problem::Append(*problem), &compiled.variant, &shape, SplitPolicy::Even { splits: 1 });
    let module = Module::parse(&compiled.ptx)?;
    let params = param_bytes(AppendParams::FIELDS, &params);
    let (symbol, target) = (&compiled.symbol, module.target().to_string());
    let stats = launch(&module, symbol, grid, [threads, 1, 1], shared_bytes, &params, &mut memory, &target)?;

    let non_finite = append(problem, &rows[0], &rows[1], &slots, K_SCALE, V_SCALE, &mut cache);
    let got = memory.read(cache_at, cache.bytes.len())?;
    let wrong = got.iter().zip(&cache.bytes).position(|(got, expected)| got != expected);
    assert_eq!(wrong, None, "{symbol}: first byte that differs");
    assert_eq!(memory.read(status, 4)?, (7 + non_finite).to_le_bytes(), "{symbol}: status");
    Ok(stats)
}
