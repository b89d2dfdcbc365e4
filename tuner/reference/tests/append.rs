//! Append against a byte image built from the documented shapes.

mod common;

use common::{random_bits, seeded};
use nvkv_reference::codec::{e2m1_decode, e4m3_decode, e4m3_encode, fp8_element, from_f32, quantise_block, to_f32};
use nvkv_reference::{HostCache, append};
use nvkv_spec::layout::Arrangement;
use nvkv_spec::{AppendProblem, Dtype, ElementFormat, KvFormat, Numerics, VScaleOrder};

const PAGES: usize = 3;
const HEADS: usize = 2;
const K_SCALE: f32 = 0.013;
const V_SCALE: f32 = 0.7;

/// Every problem, in every arrangement of the cache.
fn matrix() -> Vec<(AppendProblem, Arrangement)> {
    let mut all = Vec::new();
    for &kv_format in KvFormat::ALL {
        for &arrangement in Arrangement::ALL {
            for &v_scale_order in VScaleOrder::ALL {
                for head_dim in [64, 128, 256] {
                    for page_size in [8, 16, 32, 64, 128] {
                        let dtype = if page_size % 3 == 2 { Dtype::F16 } else { Dtype::Bf16 };
                        all.push((AppendProblem { kv_format, head_dim, page_size, dtype, v_scale_order }, arrangement));
                    }
                }
            }
        }
    }
    all
}

fn cache(p: &AppendProblem, arrangement: Arrangement) -> HostCache {
    let (pages, heads) = (PAGES as u64, HEADS as u32);
    HostCache::new(arrangement, p.kv_format, p.v_scale_order, pages, heads, p.page_size, p.head_dim)
}

/// A position in the cache.
#[derive(Clone, Copy)]
struct At {
    page: usize,
    head: usize,
    token: usize,
}

/// Offset of byte 0 of a row, by the documented shape. `before` is the bytes of a row of the tensors placed
/// earlier, `row` of this one, `all` of all four.
fn offset(arrangement: Arrangement, size: usize, at: At, before: usize, row: usize, all: usize) -> usize {
    let At { page, head, token } = at;
    let hnd = (head * size + token) * row;
    match arrangement {
        Arrangement::Hnd => PAGES * HEADS * size * before + page * HEADS * size * row + hnd,
        Arrangement::Nhd => PAGES * HEADS * size * before + ((page * size + token) * HEADS + head) * row,
        Arrangement::OneBlock => HEADS * size * (page * all + before) + hnd,
    }
}

/// The bytes of one K (`which` = 0) or V (1) row and where each belongs.
fn expected(p: &AppendProblem, arrangement: Arrangement, which: usize, at: At, x: &[f32]) -> Vec<(usize, u8)> {
    let (dim, size) = (p.head_dim as usize, p.page_size as usize);
    let g = [K_SCALE, V_SCALE][which];
    let formats = [p.kv_format.k(), p.kv_format.v()];
    // Bytes of data and block scales.
    let rows = formats.map(|format| if format == ElementFormat::Nvfp4 { (dim / 2, dim / 16) } else { (dim, 0) });
    let before = if which == 1 { rows[0].0 + rows[0].1 } else { 0 };
    let (all, (data, scales)) = (rows.iter().map(|(data, scales)| data + scales).sum(), rows[which]);
    let start = offset(arrangement, size, at, before, data, all);
    if formats[which] == ElementFormat::Fp8E4m3 {
        return x.iter().enumerate().map(|(i, x)| (start + i, e4m3_encode(x / g))).collect();
    }
    let mut bytes = Vec::new();
    for (s, x) in x.as_chunks().0.iter().enumerate() {
        let block = quantise_block(x, g);
        bytes.extend((0..8).map(|i| (start + 8 * s + i, block.codes[2 * i] + 16 * block.codes[2 * i + 1])));
        let before = before + data;
        let scale = if which == 1 && p.v_scale_order == VScaleOrder::Interleaved4 {
            // Dense in a head's page, so the heads are outermost in every arrangement.
            let outer = if arrangement == Arrangement::Nhd { Arrangement::Hnd } else { arrangement };
            let page = offset(outer, size, At { token: 0, ..at }, before, scales, all);
            page + at.token / 4 * 4 * scales + 4 * s + at.token % 4
        } else {
            offset(arrangement, size, at, before, scales, all) + s
        };
        bytes.push((scale, block.scale));
    }
    bytes
}

/// Seven tokens: some skipped, the rest scattered over the pages.
fn slots(page_size: i64) -> [i64; 7] {
    [2 * page_size, -1, 5, page_size - 1, i64::MIN, 3 * page_size - 1, page_size + 2]
}

#[test]
fn every_byte_is_where_the_layout_says_and_no_other_changes() {
    let mut rng = seeded(1);
    for (p, arrangement) in matrix() {
        let what = format!("{p:?} {arrangement}");
        let (dim, size) = (p.head_dim as usize, p.page_size as usize);
        let slots = slots(size as i64);
        let rows = [0, 1].map(|_| random_bits(&mut rng, p.dtype, slots.len() * HEADS * dim));
        let mut cache = cache(&p, arrangement);
        cache.bytes.fill(0xa5);
        let mut image = cache.bytes.clone();
        for (which, rows) in rows.iter().enumerate() {
            for (i, bits) in rows.chunks_exact(dim).enumerate().filter(|(i, _)| slots[i / HEADS] >= 0) {
                let slot = slots[i / HEADS] as usize;
                let at = At { page: slot / size, head: i % HEADS, token: slot % size };
                let x: Vec<f32> = bits.iter().map(|&b| to_f32(p.dtype, b)).collect();
                for (at, byte) in expected(&p, arrangement, which, at, &x) {
                    image[at] = byte;
                }
            }
        }
        assert_eq!(append(&p, &rows[0], &rows[1], &slots, K_SCALE, V_SCALE, &mut cache), 0, "{what}");
        assert!(cache.bytes == image, "{what}");
    }
}

#[test]
fn rows_read_back_as_the_elements_that_were_stored() {
    let mut rng = seeded(2);
    for (p, arrangement) in matrix() {
        let (dim, size) = (p.head_dim as usize, i64::from(p.page_size));
        let slots = slots(size);
        let rows = [0, 1].map(|_| random_bits(&mut rng, p.dtype, slots.len() * HEADS * dim));
        let mut cache = cache(&p, arrangement);
        append(&p, &rows[0], &rows[1], &slots, K_SCALE, V_SCALE, &mut cache);
        for (numerics, i) in Numerics::ALL.iter().flat_map(|&n| (0..slots.len() * HEADS).map(move |i| (n, i))) {
            let slot = slots[i / HEADS];
            if slot < 0 {
                continue;
            }
            let (page, head, token) = ((slot / size) as u64, (i % HEADS) as u32, (slot % size) as u32);
            let mut read = [vec![0.0; dim], vec![0.0; dim]];
            cache.k_row(numerics, page, head, token, &mut read[0]);
            cache.v_row(numerics, page, head, token, &mut read[1]);
            for (which, (format, g)) in [(p.kv_format.k(), K_SCALE), (p.kv_format.v(), V_SCALE)].into_iter().enumerate()
            {
                let x: Vec<f32> = rows[which][i * dim..][..dim].iter().map(|&b| to_f32(p.dtype, b)).collect();
                assert_eq!(read[which], stored(format, numerics, &x, g), "{p:?} {arrangement} {numerics} {which}");
            }
        }
    }
}

/// The elements that a row is stored as, without the scale of the tensor.
fn stored(format: ElementFormat, numerics: Numerics, x: &[f32], g: f32) -> Vec<f64> {
    let block = |x: &[f32; 16]| {
        let block = quantise_block(x, g);
        block.codes.map(|code| match numerics {
            Numerics::Fp8 => f64::from(fp8_element(code, block.scale)),
            Numerics::Exact => f64::from(e2m1_decode(code)) * f64::from(e4m3_decode(block.scale)),
        })
    };
    match format {
        ElementFormat::Nvfp4 => x.as_chunks().0.iter().flat_map(block).collect(),
        ElementFormat::Fp8E4m3 => x.iter().map(|x| f64::from(e4m3_decode(e4m3_encode(x / g)))).collect(),
    }
}

#[test]
fn non_finite_inputs_are_counted_and_never_poison_a_row() {
    for (&kv_format, (dtype, inf, nan)) in
        KvFormat::ALL.iter().flat_map(|f| [(f, (Dtype::F16, 0x7c00, 0x7e01)), (f, (Dtype::Bf16, 0x7f80, 0xffc1))])
    {
        let p =
            AppendProblem { kv_format, head_dim: 64, page_size: 8, dtype, v_scale_order: VScaleOrder::Interleaved4 };
        let mut k = vec![0u16; 2 * HEADS * 64];
        let mut v = k.clone();
        // Token 0: an infinity of each sign and a NaN in K, a NaN in V; token 1 is skipped.
        (k[0], k[1], k[2], v[70], k[HEADS * 64]) = (inf, inf | 0x8000, nan, nan, nan);
        let mut cache = cache(&p, Arrangement::Hnd);
        assert_eq!(append(&p, &k, &v, &[9, -1], 1.0, 1.0, &mut cache), 4, "{kv_format} {dtype}");
        let mut row = vec![0.0; 64];
        cache.k_row(Numerics::Exact, 1, 0, 1, &mut row);
        let largest = if kv_format.k() == ElementFormat::Nvfp4 { 6.0 * 448.0 } else { 448.0 };
        assert_eq!(row[..4], [largest, -largest, 0.0, 0.0], "{kv_format} {dtype}");
        assert!(row[4..].iter().all(|&x| x == 0.0));
        cache.v_row(Numerics::Exact, 1, 1, 1, &mut row);
        assert!(row.iter().all(|&x| x == 0.0), "{kv_format} {dtype}");
    }
}

/// Multiplying by the reciprocal of the scale moves some quotients off a tie; the contract divides.
#[test]
fn fp8_rows_are_divided_by_their_scale() {
    let p = AppendProblem {
        kv_format: KvFormat::Fp8E4m3,
        head_dim: 64,
        page_size: 8,
        dtype: Dtype::F16,
        v_scale_order: VScaleOrder::Linear,
    };
    let mut moved = 0;
    for g in (3..64).step_by(2).map(|g| g as f32) {
        for (below, tie) in (0..8u8).map(|m| (0x38 + m, 1.0 + (2.0 * f32::from(m) + 1.0) / 16.0)) {
            let x = from_f32(p.dtype, tie * g);
            assert_eq!(to_f32(p.dtype, x), tie * g, "x is exact in f16");
            let mut cache = cache(&p, Arrangement::Hnd);
            let rows = vec![x; HEADS * 64];
            append(&p, &rows, &rows, &[0], g, g, &mut cache);
            assert_eq!(cache.bytes[0], below.next_multiple_of(2), "{tie} * {g} goes to the even neighbour of the tie");
            moved += usize::from(e4m3_encode(tie * g * (1.0 / g)) != cache.bytes[0]);
        }
    }
    assert!(moved > 0, "no such case was met");
}

#[test]
#[should_panic(expected = "token 8) is outside a cache")]
fn a_token_past_its_page_is_refused() {
    let p = AppendProblem { page_size: 8, head_dim: 64, ..matrix()[0].0 };
    cache(&p, Arrangement::Hnd).k_row(Numerics::Exact, 0, 0, 8, &mut [0.0; 64]);
}

#[test]
#[should_panic(expected = "outside a cache of 3 pages")]
fn a_slot_outside_the_cache_is_refused() {
    let p = matrix()[0].0;
    let rows = vec![0; HEADS * p.head_dim as usize];
    append(&p, &rows, &rows, &[3 * i64::from(p.page_size)], 1.0, 1.0, &mut cache(&p, Arrangement::Hnd));
}
