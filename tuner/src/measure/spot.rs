//! The reference's result for single heads of a shape too large to compute in full.

use super::fill::Pattern;
use crate::verify::{K_SCALE, Q_SCALE, SOFT_CAP, V_SCALE, new_slots, sm_scale};
use nvkv_reference::{DecodeInputs, HostCache, append, decode_head};
use nvkv_spec::layout::{Arrangement, CacheLayout, PagedTensor};
use nvkv_spec::{AppendMode, DecodeProblem};
use rayon::prelude::*;

/// What the reference says about one KV head of one request.
pub(super) struct Spot {
    pub(super) request: usize,
    pub(super) kv_head: u32,
    /// `[q_len * group, D]`.
    pub(super) expected: Vec<f64>,
}

impl Spot {
    /// The same rows of a whole output `[batch * q_len, Hq, D]`.
    pub(super) fn rows_of(&self, problem: &DecodeProblem, kv_heads: u32, out: &[u16]) -> Vec<u16> {
        rows(problem, kv_heads, self.request, self.kv_head, problem.group, out)
    }
}

/// Rows of KV head `kv_head` of `request` in a tensor `[batch * q_len, Hkv * per_head, D]`.
fn rows(
    problem: &DecodeProblem,
    kv_heads: u32,
    request: usize,
    kv_head: u32,
    per_head: u32,
    tensor: &[u16],
) -> Vec<u16> {
    let (q_len, dim) = (problem.q_len as usize, problem.head_dim as usize);
    let run = per_head as usize * dim;
    let token = kv_heads as usize * run;
    (0..q_len).flat_map(|i| &tensor[(request * q_len + i) * token + kv_head as usize * run..][..run]).copied().collect()
}

/// Inputs of the whole batch, as far as a single head needs them.
pub(super) struct SpotInputs<'a> {
    pub(super) problem: &'a DecodeProblem,
    pub(super) layout: &'a CacheLayout,
    /// Cached tokens of each request.
    pub(super) kv_len: &'a [u32],
    pub(super) kv_heads: u32,
    /// Pages `[batch, block_table_stride]`.
    pub(super) block_table: &'a [i32],
    pub(super) block_table_stride: usize,
    pub(super) q: &'a [u16],
    pub(super) new_rows: &'a [Vec<u16>; 2],
    /// `[Hq]`, or empty.
    pub(super) sinks: &'a [f32],
}

impl SpotInputs<'_> {
    /// The first head of the first request and the last head of the last one.
    pub(super) fn spots(&self) -> Vec<Spot> {
        let mut places = vec![(0, 0), (self.kv_len.len() - 1, self.kv_heads - 1)];
        places.dedup();
        places.into_par_iter().map(|(request, kv_head)| self.spot(request, kv_head)).collect()
    }

    /// Attention of a batch of one request with one KV head, whose cache is this head's part of the large one.
    fn spot(&self, request: usize, kv_head: u32) -> Spot {
        let p = self.problem;
        let mut cache = self.cache_of(request, kv_head);
        let block_table: Vec<i32> = (0..cache.pages as i32).collect();
        let of_head = |per_head, tensor| rows(p, self.kv_heads, request, kv_head, per_head, tensor);
        if p.append == AppendMode::Fused {
            let slots = new_slots(p, &[self.kv_len[request]], &block_table, block_table.len());
            let [k, v] = self.new_rows.each_ref().map(|tensor| of_head(1, tensor));
            append(&p.append_problem(), &k, &v, &slots, K_SCALE, V_SCALE, &mut cache);
        }
        let group = (kv_head * p.group) as usize..((kv_head + 1) * p.group) as usize;
        let inputs = DecodeInputs {
            problem: p,
            q: &of_head(p.group, self.q),
            cache: &cache,
            block_table: &block_table,
            block_table_stride: block_table.len(),
            kv_len: &[self.kv_len[request] as i32],
            sm_scale: sm_scale(p),
            q_scale: Q_SCALE,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            window: p.window,
            soft_cap: p.soft_cap.then_some(SOFT_CAP),
            sinks: p.sinks.then(|| &self.sinks[group]),
        };
        Spot { request, kv_head, expected: decode_head(&inputs, 0, 0).out }
    }

    /// The pages of one head of one request. In HND a head's page is contiguous in each tensor, in either
    /// order of V scales.
    fn cache_of(&self, request: usize, kv_head: u32) -> HostCache {
        let p = self.problem;
        let blocks = self.kv_len[request].div_ceil(p.page_size) as usize;
        let (format, order) = (p.kv_format, p.v_scale_order);
        let mut cache = HostCache::new(Arrangement::Hnd, format, order, blocks as u64, 1, p.page_size, p.head_dim);
        let small = cache.layout;
        let tensors = [
            (self.layout.k_data, small.k_data, Pattern::data(format.k())),
            (self.layout.k_scales, small.k_scales, Pattern::scales()),
            (self.layout.v_data, small.v_data, Pattern::data(format.v())),
            (self.layout.v_scales, small.v_scales, Pattern::scales()),
        ];
        for (block, &page) in self.block_table[request * self.block_table_stride..][..blocks].iter().enumerate() {
            for &(large, small, pattern) in &tensors {
                let bytes = small.strides.page as usize;
                let from = PagedTensor::row(&large, page as u64, kv_head, 0);
                let to = &mut cache.bytes[small.row(block as u64, 0, 0)..][..bytes];
                to.iter_mut().zip(from as u64..).for_each(|(byte, index)| *byte = pattern.byte(index));
            }
        }
        cache
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{normal_bits, seeded};
    use nvkv_reference::decode;
    use nvkv_spec::{Dtype, KvFormat, Numerics, VScaleOrder};

    /// Against the reference over the whole cache, for either scale order and with the append fused.
    #[test]
    fn a_spot_is_the_same_head_of_the_whole_batch() {
        for (order, mode) in
            [(VScaleOrder::Linear, AppendMode::Fused), (VScaleOrder::Interleaved4, AppendMode::Separate)]
        {
            let problem = DecodeProblem {
                kv_format: KvFormat::Nvfp4,
                numerics: Numerics::Fp8,
                head_dim: 64,
                group: 3,
                q_len: 2,
                page_size: 8,
                dtype: Dtype::Bf16,
                v_scale_order: order,
                append: mode,
                window: Some(9),
                sinks: true,
                soft_cap: true,
            };
            let (kv_len, kv_heads) = ([21, 9, 17], 2);
            let mut rng = seeded("spot");
            let mut cache = HostCache::new(Arrangement::Hnd, problem.kv_format, order, 9, kv_heads, 8, 64);
            let layout = cache.layout;
            for (tensor, pattern) in [
                (layout.k_data, Pattern::data(problem.kv_format.k())),
                (layout.k_scales, Pattern::scales()),
                (layout.v_data, Pattern::data(problem.kv_format.v())),
                (layout.v_scales, Pattern::scales()),
            ] {
                let (base, bytes) = (tensor.base as usize, 9 * tensor.strides.page as usize);
                cache.bytes[base..][..bytes].iter_mut().zip(tensor.base..).for_each(|(b, i)| *b = pattern.byte(i));
            }
            let block_table = [5, 3, 8, 0, 1, 7, 2, 6, 4];
            let q = normal_bits(&mut rng, problem.dtype, 3 * 2 * 6 * 64);
            let new_rows = std::array::from_fn(|_| normal_bits(&mut rng, problem.dtype, 3 * 2 * 2 * 64));
            let sinks = [0.5, -1.0, 2.0, 3.0, -4.0, 5.0];
            let spots = SpotInputs {
                problem: &problem,
                layout: &layout,
                kv_len: &kv_len,
                kv_heads,
                block_table: &block_table,
                block_table_stride: 3,
                q: &q,
                new_rows: &new_rows,
                sinks: &sinks,
            }
            .spots();
            if mode == AppendMode::Fused {
                let slots = new_slots(&problem, &kv_len, &block_table, 3);
                append(&problem.append_problem(), &new_rows[0], &new_rows[1], &slots, K_SCALE, V_SCALE, &mut cache);
            }
            let inputs = DecodeInputs {
                problem: &problem,
                q: &q,
                cache: &cache,
                block_table: &block_table,
                block_table_stride: 3,
                kv_len: &kv_len.map(|n| n as i32),
                sm_scale: sm_scale(&problem),
                q_scale: Q_SCALE,
                k_scale: K_SCALE,
                v_scale: V_SCALE,
                window: problem.window,
                soft_cap: problem.soft_cap.then_some(SOFT_CAP),
                sinks: problem.sinks.then_some(&sinks),
            };
            let whole = decode(&inputs).out;
            assert_eq!(spots.iter().map(|s| (s.request, s.kv_head)).collect::<Vec<_>>(), [(0, 0), (2, 1)]);
            for spot in spots {
                for (row, expected) in spot.expected.chunks_exact(64).enumerate() {
                    let at = ((spot.request * 2 + row / 3) * 6 + spot.kv_head as usize * 3 + row % 3) * 64;
                    assert_eq!(expected, &whole[at..at + 64], "{order} row {row}");
                }
            }
        }
    }
}
