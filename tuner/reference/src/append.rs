//! Append: new K and V rows to cache pages, requantised to the bit.

use crate::cache::{CachedTensor, HostCache, Row};
use crate::codec::{Block, e4m3_encode, finite_f32, quantise_block};
use nvkv_spec::kv_format::BLOCK;
use nvkv_spec::{AppendProblem, Dtype, ElementFormat};

/// Stores `k` and `v`, bit patterns `[tokens, Hkv, D]` of `problem.dtype`, and returns how many
/// elements were not finite (see [`finite_f32`] for what is stored in their place).
///
/// `slots[t]` is `page * page_size + offset` of token t. A negative slot skips the token, whose
/// elements are then not counted either. `k_scale` and `v_scale` are the scales of the tensors, positive
/// normal numbers. NVFP4 rows follow [`quantise_block`], FP8 rows are `RN_e4m3(x / g)`, one IEEE
/// f32 division.
///
/// # Panics
/// Where `k`, `v` or `cache` have another shape than `problem` and `slots`, or a slot is outside the cache.
pub fn append(
    problem: &AppendProblem,
    k: &[u16],
    v: &[u16],
    slots: &[i64],
    k_scale: f32,
    v_scale: f32,
    cache: &mut HostCache,
) -> u32 {
    assert_eq!(
        (cache.format, cache.head_dim, cache.page_size, cache.order),
        (problem.kv_format, problem.head_dim, problem.page_size, problem.v_scale_order),
        "cache of another problem"
    );
    let (heads, dim) = (cache.kv_heads as usize, cache.head_dim as usize);
    let elements = slots.len() * heads * dim;
    assert_eq!((k.len(), v.len()), (elements, elements), "elements of k and v");
    let mut non_finite = 0;
    for (tensor, rows, g) in [(cache.k(), k, k_scale), (cache.v(), v, v_scale)] {
        for (index, bits) in rows.chunks_exact(dim).enumerate() {
            let Ok(slot) = u64::try_from(slots[index / heads]) else { continue };
            let page_size = u64::from(cache.page_size);
            let (page, token) = (slot / page_size, (slot % page_size) as u32);
            let row = Row { page, head: (index % heads) as u32, token };
            non_finite += store(problem.dtype, bits, g, tensor, row, cache);
        }
    }
    non_finite
}

/// Stores one row; returns how many of its elements were not finite.
fn store(dtype: Dtype, bits: &[u16], g: f32, tensor: CachedTensor, row: Row, cache: &mut HostCache) -> u32 {
    let (values, replaced): (Vec<f32>, Vec<bool>) = bits.iter().map(|&bits| finite_f32(dtype, bits)).unzip();
    match tensor.format {
        ElementFormat::Nvfp4 => {
            let (blocks, _) = values.as_chunks::<{ BLOCK as usize }>();
            let blocks: Vec<Block> = blocks.iter().map(|x| quantise_block(x, g)).collect();
            cache.write_blocks(tensor, row, &blocks);
        }
        ElementFormat::Fp8E4m3 => {
            let bytes: Vec<u8> = values.iter().map(|x| e4m3_encode(x / g)).collect();
            cache.write_bytes(tensor, row, &bytes);
        }
    }
    replaced.into_iter().filter(|&r| r).count() as u32
}
