//! Inputs of the cases in host memory, with what the reference makes of them.

use super::case::{AppendCase, Content, DecodeCase};
use super::random::{aligned_bits, bits, cached_row, hard_bits, huge_row, huge_sign, normal_bits, seeded, sinks};
use nvkv_reference::{DecodeInputs, DecodeOutput, HostCache, append, decode};
use nvkv_spec::layout::PagedTensor;
use nvkv_spec::{AppendMode, AppendProblem, DecodeProblem, Problem, VScaleOrder};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::ops::Range;

/// Scale of Q in class `fp8`: normal numbers reach about 250 of 448.
pub const Q_SCALE: f32 = 0.02;
/// Scale of the K tensor: scores get a standard deviation of about 1.
pub const K_SCALE: f32 = 0.4;
/// Scale of the V tensor.
pub const V_SCALE: f32 = 0.7;
/// Soft cap: of the size of the larger scores, so that it bends them.
pub const SOFT_CAP: f32 = 3.0;
/// Pages that no request owns.
const UNUSED_PAGES: usize = 3;

/// Softmax scale of `problem`.
pub fn sm_scale(problem: &DecodeProblem) -> f32 {
    1.0 / (problem.head_dim as f32).sqrt()
}

/// A decode case with all its data.
#[derive(Clone, Debug)]
pub struct DecodeData {
    /// The case.
    pub case: DecodeCase,
    /// The cache before the launch. What no request may see (unused pages, rows past the end or before the window,
    /// this step's rows of a fused kernel) is NaN in every format.
    pub cache: HostCache,
    /// The cache after the launch: the same, or with this step's rows.
    pub cache_after: HostCache,
    /// Pages `[batch, stride]`; garbage past the last page of a request, and before the first that its window reaches.
    pub block_table: Vec<i32>,
    /// Entries a row of `block_table`.
    pub block_table_stride: usize,
    /// Cached tokens a request.
    pub kv_len: Vec<i32>,
    /// Queries `[batch * q_len, Hq, D]`.
    pub q: Vec<u16>,
    /// New K and V `[batch * q_len, Hkv, D]`; empty where the append is separate.
    pub new_rows: [Vec<u16>; 2],
    /// Elements of the new rows that are not finite.
    pub non_finite: u32,
    /// Sink of each query head `[Hq]`; empty where the problem has none.
    pub sinks: Vec<f32>,
    /// The reference's result.
    pub expected: DecodeOutput,
}

impl DecodeData {
    /// Builds the inputs of `case`, and asks the reference.
    pub fn new(problem: &DecodeProblem, case: &DecodeCase) -> Self {
        let mut rng = seeded(&format!("{}/{}", Problem::Decode(*problem).key(), case.name));
        let first_seen = |len| case.first_seen(problem, len);
        let (block_table, block_table_stride, pages) =
            block_table(&mut rng, problem.page_size, &case.kv_len, first_seen);
        let mut cache = empty_cache(&problem.append_problem(), case, pages);
        let pages_of = |request: usize| &block_table[request * block_table_stride..][..block_table_stride];
        let new_tokens = if problem.append == AppendMode::Fused { problem.q_len } else { 0 };
        for (request, &len) in case.kv_len.iter().enumerate() {
            let tokens = first_seen(len)..len.saturating_sub(new_tokens);
            fill_request(&mut rng, &mut cache, pages_of(request), tokens, case.content);
        }
        let rows = case.kv_len.len() * problem.q_len as usize;
        let dim = problem.head_dim as usize;
        let query_rows = rows * (case.kv_heads * problem.group) as usize;
        let q = match case.content {
            Content::HugeKey | Content::NonFinite => {
                aligned_bits(&mut rng, problem.dtype, query_rows, problem.head_dim)
            }
            Content::NoScores => vec![0; query_rows * dim],
            Content::Random | Content::ConstantValues | Content::HardTokens => {
                normal_bits(&mut rng, problem.dtype, query_rows * dim)
            }
        };
        let mut data = Self {
            case: case.clone(),
            cache_after: cache.clone(),
            cache,
            block_table,
            block_table_stride,
            kv_len: case.kv_len.iter().map(|&len| len as i32).collect(),
            q,
            new_rows: [Vec::new(), Vec::new()],
            non_finite: 0,
            sinks: Vec::new(),
            expected: DecodeOutput { out: Vec::new(), lse: Vec::new() },
        };
        if problem.append == AppendMode::Fused {
            data.append_new_rows(&mut rng, problem, rows * case.kv_heads as usize * dim);
        }
        if problem.sinks {
            data.sinks = sinks(&mut rng, case.kv_heads * problem.group);
        }
        data.expected = decode(&data.inputs(problem));
        data
    }

    fn append_new_rows(&mut self, rng: &mut StdRng, problem: &DecodeProblem, elements: usize) {
        let of_content = if self.case.content == Content::HardTokens { hard_bits } else { normal_bits };
        self.new_rows = std::array::from_fn(|_| of_content(rng, problem.dtype, elements));
        if self.case.content == Content::NonFinite {
            spoil(problem, &mut self.new_rows, self.case.kv_heads as usize);
        }
        let slots = new_slots(problem, &self.case.kv_len, &self.block_table, self.block_table_stride);
        let [k, v] = &self.new_rows;
        self.non_finite =
            append(&problem.append_problem(), k, v, &slots, self.case.k_scale(), V_SCALE, &mut self.cache_after);
    }

    fn inputs<'a>(&'a self, problem: &'a DecodeProblem) -> DecodeInputs<'a> {
        DecodeInputs {
            problem,
            q: &self.q,
            cache: &self.cache_after,
            block_table: &self.block_table,
            block_table_stride: self.block_table_stride,
            kv_len: &self.kv_len,
            sm_scale: sm_scale(problem),
            q_scale: Q_SCALE,
            k_scale: self.case.k_scale(),
            v_scale: V_SCALE,
            window: self.case.window(problem),
            soft_cap: problem.soft_cap.then_some(SOFT_CAP),
            sinks: problem.sinks.then_some(&self.sinks[..]),
        }
    }
}

/// An append case with all its data.
#[derive(Clone, Debug)]
pub struct AppendData {
    /// The case.
    pub case: AppendCase,
    /// The cache before: random bytes, so that a byte that is not written shows.
    pub cache: HostCache,
    /// The cache after.
    pub cache_after: HostCache,
    /// K and V `[tokens, Hkv, D]`.
    pub rows: [Vec<u16>; 2],
    /// Slot of each token; some are negative.
    pub slots: Vec<i64>,
    /// Elements that are not finite, in tokens that are not skipped.
    pub non_finite: u32,
}

impl AppendData {
    /// Builds the inputs of `case`, and asks the reference.
    pub fn new(problem: &AppendProblem, case: &AppendCase) -> Self {
        let mut rng = seeded(&format!("{}/{}", Problem::Append(*problem).key(), case.name));
        let pages = u64::from(case.tokens.div_ceil(problem.page_size)) + UNUSED_PAGES as u64;
        let order = problem.v_scale_order;
        let (page, dim) = (problem.page_size, problem.head_dim);
        let mut cache = HostCache::new(case.arrangement, problem.kv_format, order, pages, case.kv_heads, page, dim);
        rng.fill(&mut cache.bytes[..]);
        let mut slots: Vec<i64> = (0..(pages * u64::from(page)) as i64).collect();
        slots.shuffle(&mut rng);
        slots.truncate(case.tokens as usize);
        for skipped in (4..slots.len()).step_by(7) {
            slots[skipped] = -1 - skipped as i64;
        }
        let elements = (case.tokens * case.kv_heads * dim) as usize;
        let rows = std::array::from_fn(|_| hard_bits(&mut rng, problem.dtype, elements));
        let mut cache_after = cache.clone();
        let (k_scale, v_scale) = (case.k_scale, 3.0 * case.k_scale);
        let non_finite = append(problem, &rows[0], &rows[1], &slots, k_scale, v_scale, &mut cache_after);
        Self { case: case.clone(), cache, cache_after, rows, slots, non_finite }
    }
}

/// Makes some elements of new rows NaN or infinite. Of the keys only the first of a request gets infinities,
/// where the queries' signs are, so that its score is far from the others' (see `aligned_bits`).
fn spoil(problem: &DecodeProblem, [k, v]: &mut [Vec<u16>; 2], kv_heads: usize) {
    let dim = problem.head_dim as usize;
    let token = kv_heads * dim;
    let special = |value: f32| bits(problem.dtype, value);
    for (i, (k, v)) in k.iter_mut().zip(v).enumerate() {
        let (d, first) = (i % dim, (i / token).is_multiple_of(problem.q_len as usize));
        match i % 37 {
            3 => *k = special(f32::NAN),
            5 if first => *k = special(huge_sign(d) * f32::INFINITY),
            7 => *v = special(-f32::NAN),
            11 => *v = special(f32::NEG_INFINITY),
            13 => *v = special(f32::INFINITY),
            _ => {}
        }
    }
}

/// Pages in random order, `[batch, stride]`, with the stride and the number of pages. Entries past
/// the last page of a request, and before that of its first token that is seen, are no pages at all.
fn block_table(
    rng: &mut StdRng,
    page_size: u32,
    kv_len: &[u32],
    first_seen: impl Fn(u32) -> u32,
) -> (Vec<i32>, usize, u64) {
    let blocks = |len: u32| len.div_ceil(page_size) as usize;
    let unseen = |len: u32| (first_seen(len) / page_size) as usize;
    let pages = kv_len.iter().map(|&len| blocks(len) - unseen(len)).sum::<usize>() + UNUSED_PAGES;
    let mut order: Vec<i32> = (0..pages as i32).collect();
    order.shuffle(rng);
    let mut free = order.into_iter();
    let stride = kv_len.iter().map(|&len| blocks(len)).max().unwrap_or(0) + 2;
    let mut table = Vec::with_capacity(kv_len.len() * stride);
    let garbage = |i: usize| if i.is_multiple_of(2) { -1 } else { i32::MAX };
    for &len in kv_len {
        table.extend((0..unseen(len)).map(garbage));
        table.extend(free.by_ref().take(blocks(len) - unseen(len)));
        table.extend((blocks(len)..stride).map(garbage));
    }
    (table, stride, pages as u64)
}

/// A cache in which every element is NaN, whatever the format: 0x7f or 0xff as a block scale or as E4M3.
fn empty_cache(problem: &AppendProblem, case: &DecodeCase, pages: u64) -> HostCache {
    let (page, dim) = (problem.page_size, problem.head_dim);
    let mut cache =
        HostCache::new(case.arrangement, problem.kv_format, problem.v_scale_order, pages, case.kv_heads, page, dim);
    cache.bytes.fill(if case.kv_heads.is_multiple_of(2) { 0xff } else { 0x7f });
    cache
}

/// Writes the rows of `tokens` of a request.
fn fill_request(rng: &mut StdRng, cache: &mut HostCache, pages: &[i32], tokens: Range<u32>, content: Content) {
    let (dim, layout, order) = (cache.head_dim, cache.layout, cache.order);
    let (k_format, v_format) = (cache.format.k(), cache.format.v());
    let constant = cached_row(rng, v_format, dim);
    let middle = tokens.start.midpoint(tokens.end);
    for token in tokens {
        for head in 0..cache.kv_heads {
            let at =
                Row { page: pages[(token / cache.page_size) as usize] as u64, head, token: token % cache.page_size };
            let huge = content == Content::HugeKey && token == middle;
            let key = if huge { huge_row(k_format, dim) } else { cached_row(rng, k_format, dim) };
            write_row(cache, (layout.k_data, layout.k_scales), VScaleOrder::Linear, at, &key);
            let value = match content {
                Content::ConstantValues => constant.clone(),
                _ => cached_row(rng, v_format, dim),
            };
            write_row(cache, (layout.v_data, layout.v_scales), order, at, &value);
        }
    }
}

#[derive(Clone, Copy)]
struct Row {
    page: u64,
    head: u32,
    token: u32,
}

fn write_row(
    cache: &mut HostCache,
    (data, scales): (PagedTensor, PagedTensor),
    order: VScaleOrder,
    row: Row,
    (codes, block_scales): &(Vec<u8>, Vec<u8>),
) {
    cache.bytes[data.row(row.page, row.head, row.token)..][..codes.len()].copy_from_slice(codes);
    let page = scales.row(row.page, row.head, 0);
    for (s, &scale) in block_scales.iter().enumerate() {
        let offset = order.offset(row.token, s as u32, block_scales.len() as u32, scales.strides.token);
        cache.bytes[page + offset as usize] = scale;
    }
}

/// Slot of each new token of each request; -1 where a request is empty.
pub fn new_slots(problem: &DecodeProblem, kv_len: &[u32], block_table: &[i32], stride: usize) -> Vec<i64> {
    let page_size = i64::from(problem.page_size);
    let slot = |request: usize, position: i64| {
        let page = block_table[request * stride + (position / page_size) as usize];
        i64::from(page) * page_size + position % page_size
    };
    let positions = kv_len.iter().enumerate().flat_map(|(request, &len)| {
        let first = i64::from(len) - i64::from(problem.q_len);
        (0..i64::from(problem.q_len)).map(move |i| (request, first + i))
    });
    positions.map(|(request, position)| if position < 0 { -1 } else { slot(request, position) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::case::{append_cases, decode_cases};
    use crate::worker::Depth;
    use nvkv_spec::{Dtype, KvFormat, Numerics};
    use std::sync::LazyLock;

    fn problem(append: AppendMode, kv_format: KvFormat, v_scale_order: VScaleOrder) -> DecodeProblem {
        DecodeProblem {
            kv_format,
            numerics: Numerics::Exact,
            head_dim: 64,
            group: 2,
            q_len: 2,
            page_size: 16,
            dtype: Dtype::F16,
            v_scale_order,
            append,
            window: None,
            sinks: false,
            soft_cap: false,
        }
    }

    /// The quick cases of a few problems: made once, they take seconds without optimisation.
    static QUICK: LazyLock<Vec<(DecodeProblem, DecodeData)>> = LazyLock::new(|| {
        let problems = [
            problem(AppendMode::Separate, KvFormat::Nvfp4, VScaleOrder::Interleaved4),
            problem(AppendMode::Fused, KvFormat::Nvfp4, VScaleOrder::Linear),
            problem(AppendMode::Fused, KvFormat::Fp8E4m3, VScaleOrder::Linear),
            problem(AppendMode::Fused, KvFormat::Fp8E4m3Nvfp4, VScaleOrder::Interleaved4),
            DecodeProblem {
                window: Some(40),
                sinks: true,
                ..problem(AppendMode::Fused, KvFormat::Nvfp4, VScaleOrder::Interleaved4)
            },
        ];
        let cases = |p: &DecodeProblem| decode_cases(p, Depth::Quick).into_iter().map(|c| (*p, c)).collect::<Vec<_>>();
        problems.iter().flat_map(cases).map(|(p, case)| (p, DecodeData::new(&p, &case))).collect()
    });

    #[test]
    fn every_page_belongs_to_one_request_or_to_none_and_the_rest_is_no_page() {
        for (problem, data) in QUICK.iter() {
            let mut seen = vec![false; data.cache.pages as usize];
            for (request, &len) in data.kv_len.iter().enumerate() {
                let row = &data.block_table[request * data.block_table_stride..][..data.block_table_stride];
                let blocks = (len as u32).div_ceil(problem.page_size) as usize;
                let first = (data.case.first_seen(problem, len as u32) / problem.page_size) as usize;
                for &page in &row[first..blocks] {
                    assert!(!std::mem::replace(&mut seen[page as usize], true), "page {page} twice");
                }
                let mut rest = row[..first].iter().chain(&row[blocks..]);
                assert!(rest.all(|&page| page < 0 || page as u64 >= data.cache.pages));
            }
            assert_eq!(seen.iter().filter(|&&s| !s).count(), UNUSED_PAGES);
        }
    }

    #[test]
    fn visible_rows_are_finite_and_everything_else_is_nan() {
        for (problem, data) in QUICK.iter() {
            let mut row = [0.0; 64];
            let mut visible = vec![false; (data.cache.pages * 16) as usize];
            for (request, &len) in data.kv_len.iter().enumerate() {
                let table = &data.block_table[request * data.block_table_stride..];
                for token in data.case.first_seen(problem, len as u32) as usize..len as usize {
                    visible[table[token / 16] as usize * 16 + token % 16] = true;
                }
            }
            for (slot, visible) in visible.into_iter().enumerate() {
                let (page, token) = (slot as u64 / 16, slot as u32 % 16);
                for head in 0..data.cache.kv_heads {
                    data.cache_after.k_row(problem.numerics, page, head, token, &mut row);
                    assert_eq!(row.iter().all(|x| x.is_finite()), visible, "{}: K slot {slot}", data.case.name);
                    data.cache_after.v_row(problem.numerics, page, head, token, &mut row);
                    assert_eq!(row.iter().all(|x| x.is_finite()), visible, "{}: V slot {slot}", data.case.name);
                }
            }
            assert!(data.expected.out.iter().all(|x| x.is_finite()), "{}", data.case.name);
        }
    }

    #[test]
    fn only_a_fused_kernel_changes_the_cache_and_only_its_own_rows() {
        for (problem, data) in QUICK.iter() {
            let changed = data.cache.bytes.iter().zip(&data.cache_after.bytes).filter(|(a, b)| a != b).count();
            let requests = data.kv_len.iter().filter(|&&len| len > 0).count() as u32;
            let new_bytes = requests * 2 * data.cache.kv_heads * problem.kv_format.token_bytes(64);
            match problem.append {
                AppendMode::Separate => assert_eq!(changed, 0),
                AppendMode::Fused => {
                    assert!(
                        changed as u32 <= new_bytes && changed as u32 > new_bytes * 3 / 4,
                        "{changed} of {new_bytes}"
                    );
                    let spoilt = [Content::NonFinite, Content::HardTokens].contains(&data.case.content);
                    assert_eq!(data.non_finite > 0, spoilt);
                }
            }
        }
    }

    #[test]
    fn constant_values_give_constant_outputs() {
        let problem = problem(AppendMode::Separate, KvFormat::Nvfp4, VScaleOrder::Linear);
        let case =
            decode_cases(&problem, Depth::Quick).into_iter().find(|c| c.content == Content::ConstantValues).unwrap();
        let data = DecodeData::new(&problem, &case);
        // Request 2 has tokens; each of its rows is the constant.
        let per_request = data.expected.out.len() / case.kv_len.len();
        let rows: Vec<_> = data.expected.out[2 * per_request..].chunks(64).collect();
        assert!(rows[0].iter().any(|&x| x != 0.0));
        for row in &rows {
            assert!(row.iter().zip(rows[0]).all(|(a, b)| (a - b).abs() < 1e-9));
        }
    }

    /// Otherwise the rounding of one large score would decide the comparison.
    #[test]
    fn huge_keys_win_by_far_or_lose_by_far() {
        for (problem, data) in QUICK.iter() {
            if data.case.content != Content::HugeKey {
                continue;
            }
            // The longest request: without the huge key its log-sum-exp is about ln(517).
            let rows = (data.case.kv_heads * problem.group * problem.q_len) as usize;
            let lse = &data.expected.lse[2 * rows..];
            assert!(lse.iter().all(|&x| !(12.0..500.0).contains(&x)), "{lse:?}");
            assert!(lse.iter().any(|&x| x > 500.0) || rows < 8, "{lse:?}");
        }
    }

    #[test]
    fn lengths_cover_the_edges() {
        let problem = problem(AppendMode::Separate, KvFormat::Nvfp4, VScaleOrder::Linear);
        let lengths: Vec<u32> = decode_cases(&problem, Depth::Quick).into_iter().flat_map(|c| c.kv_len).collect();
        for length in [0, 1, 15, 16, 17, 63, 64, 65, 3001] {
            assert!(lengths.contains(&length), "{length}");
        }
        let full: Vec<u32> = decode_cases(&problem, Depth::Full).into_iter().map(|c| c.kv_heads).collect();
        assert!([1, 2, 3, 8].iter().all(|heads| full.contains(heads)));
    }

    #[test]
    fn append_cases_hold_every_trap() {
        let problem = problem(AppendMode::Separate, KvFormat::Nvfp4, VScaleOrder::Interleaved4).append_problem();
        let data: Vec<_> = append_cases(Depth::Quick).iter().map(|c| AppendData::new(&problem, c)).collect();
        let bits: Vec<u16> = data.iter().flat_map(|d| d.rows.iter().flatten()).copied().collect();
        for trap in [0x0000, 0x8000, 0x7c00, 0xfc00, 0x0001, 0x7bff] {
            assert!(bits.contains(&trap), "{trap:#06x}");
        }
        assert!(bits.iter().any(|b| b & 0x7fff > 0x7c00), "a NaN");
        for data in &data {
            assert!(data.slots.iter().any(|&s| s < 0) && data.non_finite > 0);
            let mut slots: Vec<_> = data.slots.iter().filter(|&&s| s >= 0).collect();
            slots.sort();
            assert!(slots.windows(2).all(|w| w[0] < w[1]), "a slot twice");
        }
    }
}
