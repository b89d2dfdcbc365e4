//! Attention against a plain dense softmax over `[tokens][D]` matrices, which never see the cache.

mod common;

use common::{random_bits, seeded};
use nvkv_reference::codec::{e2m1_decode, e4m3_decode, e4m3_encode, fp8_element, from_f32, quantise_block, to_f32};
use nvkv_reference::{DecodeInputs, DecodeOutput, HostCache, append, decode, decode_head};
use nvkv_spec::layout::Arrangement;
use nvkv_spec::{AppendMode, DecodeProblem, Dtype, ElementFormat, KvFormat, Numerics, VScaleOrder};
use rand::seq::SliceRandom;

const HEADS: usize = 2;
const SM_SCALE: f32 = 0.11;
const Q_SCALE: f32 = 0.017;
const K_SCALE: f32 = 0.013;
const V_SCALE: f32 = 0.7;
const SOFT_CAP: f32 = 1.5;

fn problem() -> DecodeProblem {
    DecodeProblem {
        kv_format: KvFormat::Nvfp4,
        numerics: Numerics::Exact,
        head_dim: 64,
        group: 2,
        q_len: 1,
        page_size: 8,
        dtype: Dtype::F16,
        v_scale_order: VScaleOrder::Linear,
        append: AppendMode::Separate,
        window: None,
        sinks: false,
        soft_cap: false,
    }
}

/// A batch, its rows as they were before quantisation, and the cache that holds them.
struct Case {
    problem: DecodeProblem,
    q: Vec<u16>,
    /// Per request `[kv_len, Hkv, D]`.
    k: Vec<Vec<u16>>,
    v: Vec<Vec<u16>>,
    cache: HostCache,
    block_table: Vec<i32>,
    stride: usize,
    kv_len: Vec<i32>,
    /// Some large, some that are none, where the problem has sinks.
    sinks: Option<Vec<f32>>,
}

impl Case {
    /// Random rows in shuffled pages; every byte that belongs to no token is 0xff, NaN as an E4M3 byte.
    /// `edit` changes K and V of a request before they are stored.
    fn new(problem: DecodeProblem, kv_len: &[i32], edit: impl Fn(&mut [u16], &mut [u16])) -> Self {
        let mut rng = seeded(3);
        let (dim, size) = (problem.head_dim as usize, problem.page_size as usize);
        let pages = |len: i32| (len as usize).div_ceil(size);
        let stride = kv_len.iter().map(|&len| pages(len)).fold(0, usize::max) + 1;
        let total = kv_len.len() * stride;
        let mut block_table: Vec<i32> = (0..total as i32).collect();
        block_table.shuffle(&mut rng);
        let arrangement = Arrangement::OneBlock;
        let (format, order) = (problem.kv_format, problem.v_scale_order);
        let mut cache = HostCache::new(arrangement, format, order, total as u64, HEADS as u32, size as u32, dim as u32);
        cache.bytes.fill(0xff);
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for (request, &len) in kv_len.iter().enumerate() {
            let mut rows = [0, 1].map(|_| random_bits(&mut rng, problem.dtype, len as usize * HEADS * dim));
            let [new_k, new_v] = &mut rows;
            edit(new_k, new_v);
            let page = |t: usize| block_table[request * stride + t / size] as i64;
            let slots: Vec<i64> = (0..len as usize).map(|t| page(t) * size as i64 + (t % size) as i64).collect();
            append(&problem.append_problem(), new_k, new_v, &slots, K_SCALE, V_SCALE, &mut cache);
            let [new_k, new_v] = rows;
            k.push(new_k);
            v.push(new_v);
        }
        let queries = kv_len.len() * problem.q_len as usize * HEADS * problem.group as usize;
        let q = random_bits(&mut rng, problem.dtype, queries * dim);
        let sinks = (0..HEADS * problem.group as usize).map(|head| [0.5, -2.0, 9.0, f32::NEG_INFINITY][head % 4]);
        let sinks = problem.sinks.then(|| sinks.collect());
        Self { problem, q, k, v, cache, block_table, stride, kv_len: kv_len.to_vec(), sinks }
    }

    fn inputs(&self) -> DecodeInputs<'_> {
        DecodeInputs {
            problem: &self.problem,
            q: &self.q,
            cache: &self.cache,
            block_table: &self.block_table,
            block_table_stride: self.stride,
            kv_len: &self.kv_len,
            sm_scale: SM_SCALE,
            q_scale: Q_SCALE,
            k_scale: K_SCALE,
            v_scale: V_SCALE,
            window: self.problem.window,
            soft_cap: self.problem.soft_cap.then_some(SOFT_CAP),
            sinks: self.sinks.as_deref(),
        }
    }

    /// One head's `[tokens][D]` matrix of `rows` as it enters products, the tensor scale included.
    fn dense(&self, rows: &[u16], format: ElementFormat, head: usize, g: f32) -> Vec<Vec<f64>> {
        let (p, dim) = (&self.problem, self.problem.head_dim as usize);
        let row = |bits: &[u16]| -> Vec<f64> {
            let x: Vec<f32> = bits.iter().map(|&b| to_f32(p.dtype, b)).collect();
            let block = |x: &[f32; 16]| {
                let b = quantise_block(x, g);
                b.codes.map(|code| match p.numerics {
                    Numerics::Fp8 => fp8_element(code, b.scale),
                    Numerics::Exact => e2m1_decode(code) * e4m3_decode(b.scale),
                })
            };
            let elements: Vec<f32> = match format {
                ElementFormat::Nvfp4 => x.as_chunks().0.iter().flat_map(block).collect(),
                ElementFormat::Fp8E4m3 => x.iter().map(|x| e4m3_decode(e4m3_encode(x / g))).collect(),
            };
            elements.iter().map(|&x| f64::from(x) * f64::from(g)).collect()
        };
        rows.chunks_exact(dim).skip(head).step_by(HEADS).map(row).collect()
    }

    /// Keys of one head of a request.
    fn keys(&self, request: usize, head: usize) -> Vec<Vec<f64>> {
        self.dense(&self.k[request], self.problem.kv_format.k(), head, K_SCALE)
    }

    /// Values of one head of a request.
    fn values(&self, request: usize, head: usize) -> Vec<Vec<f64>> {
        self.dense(&self.v[request], self.problem.kv_format.v(), head, V_SCALE)
    }

    /// Query row (request, position, head), scale included.
    fn query(&self, row: usize) -> Vec<f64> {
        let (p, dim) = (&self.problem, self.problem.head_dim as usize);
        let value = |&bits: &u16| match (p.numerics, to_f32(p.dtype, bits)) {
            (Numerics::Exact, q) => f64::from(q),
            (Numerics::Fp8, q) => f64::from(e4m3_decode(e4m3_encode(q / Q_SCALE))) * f64::from(Q_SCALE),
        };
        self.q[row * dim..][..dim].iter().map(value).collect()
    }

    /// The answer, by the plain formula: a softmax without subtraction of a maximum.
    fn plain(&self) -> DecodeOutput {
        let p = &self.problem;
        let (q_len, group, dim) = (p.q_len as usize, p.group as usize, p.head_dim as usize);
        let mut output = DecodeOutput { out: Vec::new(), lse: Vec::new() };
        for request in 0..self.kv_len.len() {
            for (i, head) in (0..q_len).flat_map(|i| (0..HEADS * group).map(move |h| (i, h))) {
                let keys = self.keys(request, head / group);
                let values = self.values(request, head / group);
                let query = self.query((request * q_len + i) * HEADS * group + head);
                // Token number of the query, and the tokens that it sees: itself and what is before it in its window.
                let own = (keys.len() + i) as i64 - q_len as i64;
                let sees = |token: usize| {
                    let distance = own - token as i64;
                    distance >= 0 && p.window.is_none_or(|window| distance < i64::from(window))
                };
                let score = |key: &Vec<f64>| (0..dim).map(|d| query[d] * key[d]).sum::<f64>() * f64::from(SM_SCALE);
                let cap = f64::from(SOFT_CAP);
                let score = |key| if p.soft_cap { cap * (score(key) / cap).tanh() } else { score(key) };
                let weight = |(token, key)| if sees(token) { score(key).exp() } else { 0.0 };
                let weights: Vec<f64> = keys.iter().enumerate().map(weight).collect();
                let sink = self.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
                let sum: f64 = sink + weights.iter().sum::<f64>();
                for d in 0..dim {
                    let value: f64 = weights.iter().zip(&values).map(|(w, v)| w * v[d]).sum();
                    output.out.push(if sum == 0.0 { 0.0 } else { value / sum });
                }
                output.lse.push(sum.ln());
            }
        }
        output
    }
}

fn assert_close(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let close = got == want || (got - want).abs() <= 1e-12 * (1.0 + want.abs());
        assert!(close, "{what}: element {i} is {got}, not {want}");
    }
}

/// Every format, numerics class, scale order and q_len; what else there is goes round beside them.
fn matrix() -> Vec<DecodeProblem> {
    let mut all = Vec::new();
    for &kv_format in KvFormat::ALL {
        for &numerics in Numerics::ALL {
            for &v_scale_order in VScaleOrder::ALL {
                for q_len in 1..=4 {
                    let n = all.len();
                    all.push(DecodeProblem {
                        kv_format,
                        numerics,
                        head_dim: [64, 128, 256][n % 3],
                        group: [1, 2, 5, 7, 8][n % 5],
                        q_len,
                        page_size: [8, 16, 32, 64][n / 2 % 4],
                        dtype: Dtype::ALL[n / 3 % 2],
                        v_scale_order,
                        append: AppendMode::Separate,
                        window: [None, Some(1), Some(9), Some(1000)][n / 5 % 4],
                        sinks: n % 3 == 1,
                        soft_cap: n % 7 % 2 == 1,
                    });
                }
            }
        }
    }
    all
}

#[test]
fn a_ragged_batch_matches_the_plain_softmax() {
    for p in matrix() {
        let size = p.page_size as i32;
        let case = Case::new(p, &[0, 37, 1, size - 1, size, size + 1, 3], |_, _| ());
        let (got, want) = (decode(&case.inputs()), case.plain());
        assert_close(&got.out, &want.out, &format!("out of {p:?}"));
        assert_close(&got.lse, &want.lse, &format!("lse of {p:?}"));
    }
}

/// Pages that lie wholly before the window may have been given away: neither their numbers nor their bytes are read.
#[test]
fn what_is_before_the_window_is_never_read() {
    let p = DecodeProblem { q_len: 2, window: Some(5), ..problem() };
    let mut case = Case::new(p, &[30], |_, _| ());
    let want = case.plain();
    // The first query is token 28: it sees 24 and later ones, which page 3 holds.
    let given_away: Vec<i32> = case.block_table[..3].to_vec();
    for page in given_away {
        let row = case.cache.layout.k_data.row(page as u64, 0, 0);
        let bytes = case.cache.layout.k_data.strides.page as usize;
        case.cache.bytes[row..][..bytes].fill(0xff);
    }
    case.block_table[..3].fill(-1);
    assert_close(&decode(&case.inputs()).out, &want.out, "out");
}

#[test]
fn no_visible_token_gives_zero_and_minus_infinity() {
    let case = Case::new(DecodeProblem { q_len: 4, ..problem() }, &[0, 2], |_, _| ());
    let got = decode(&case.inputs());
    let per_position = HEADS * 2;
    // Request 0 sees nothing anywhere; request 1 with 2 tokens sees none at its first two positions.
    let blind = 6 * per_position;
    assert!(got.lse[..blind].iter().all(|&x| x == f64::NEG_INFINITY));
    assert!(got.out[..blind * 64].iter().all(|&x| x == 0.0));
    assert!(got.lse[blind..].iter().all(|x| x.is_finite()));
}

#[test]
fn one_head_equals_its_part_of_the_batch() {
    let p = DecodeProblem { q_len: 3, ..problem() };
    let case = Case::new(p, &[9, 20], |_, _| ());
    let (all, heads, group, dim) = (decode(&case.inputs()), HEADS * 2, 2, 64);
    for (request, kv_head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let one = decode_head(&case.inputs(), request, kv_head as u32);
        for (i, h) in (0..3).flat_map(|i| (0..group).map(move |h| (i, h))) {
            let (from, to) = (i * group + h, (request * 3 + i) * heads + kv_head * group + h);
            assert_eq!(one.out[from * dim..][..dim], all.out[to * dim..][..dim]);
            assert_eq!(one.lse[from], all.lse[to]);
        }
    }
}

/// One key so large that every other weight underflows, and exp of its score alone overflows.
#[test]
fn a_huge_key_takes_all_the_weight() {
    let p = problem();
    let (dim, huge) = (64, 11);
    let mut case = Case::new(p, &[30], |k, _| {
        k[huge * HEADS * dim..][..HEADS * dim].fill(from_f32(Dtype::F16, 30.0));
    });
    case.q.fill(from_f32(Dtype::F16, 40.0));
    let got = decode(&case.inputs());
    for head in 0..HEADS {
        let key = &case.keys(0, head)[huge];
        let value = &case.values(0, head)[huge];
        let score: f64 = key.iter().map(|k| 40.0 * k).sum::<f64>() * f64::from(SM_SCALE);
        assert!(score > 1000.0, "{score} does not overflow");
        for h in 0..2 {
            assert_close(&got.out[(head * 2 + h) * dim..][..dim], value, "the huge key's value");
            assert_close(&got.lse[head * 2 + h..][..1], &[score], "its score");
        }
    }
}

/// Scores so low that exp of each alone underflows still make a softmax.
#[test]
fn scores_far_below_zero_keep_their_weights() {
    let mut case = Case::new(problem(), &[40], |k, _| k.fill(from_f32(Dtype::F16, 30.0)));
    case.q.fill(from_f32(Dtype::F16, -40.0));
    let got = decode(&case.inputs());
    for head in 0..HEADS {
        let key = &case.keys(0, head)[0];
        let score: f64 = key.iter().map(|k| -40.0 * k).sum::<f64>() * f64::from(SM_SCALE);
        assert!(score < -1000.0, "{score} does not underflow");
        let values = case.values(0, head);
        let mean: Vec<f64> = (0..64).map(|d| values.iter().map(|v| v[d]).sum::<f64>() / 40.0).collect();
        for row in [head * 2, head * 2 + 1] {
            assert_close(&got.out[row * 64..][..64], &mean, "the mean of equal weights");
            assert_close(&got.lse[row..][..1], &[score + 40f64.ln()], "forty equal scores");
        }
    }
}

#[test]
fn constant_values_come_out_unchanged() {
    let case = Case::new(problem(), &[50], |_, v| v.fill(from_f32(Dtype::F16, 1.0)));
    let constant = case.values(0, 0)[0][0];
    assert_close(&decode(&case.inputs()).out, &vec![constant; HEADS * 2 * 64], "constant V");
}

#[test]
#[should_panic(expected = "request 0 has no page for token 8")]
fn a_token_without_a_page_is_refused() {
    let mut case = Case::new(problem(), &[9], |_, _| ());
    case.block_table[1] = -1;
    decode(&case.inputs());
}
