//! Paged decode attention in float64, for both numerics classes.

use crate::cache::HostCache;
use crate::codec::{e4m3_decode, e4m3_encode, to_f32};
use nvkv_spec::{DecodeProblem, Numerics};
use rayon::prelude::*;
use std::ops::Range;

/// What a decode kernel is given. Where the problem fuses the append, append first.
#[derive(Clone, Copy, Debug)]
pub struct DecodeInputs<'a> {
    /// What is asked.
    pub problem: &'a DecodeProblem,
    /// Queries `[batch * q_len, Hq, D]`, bit patterns of `problem.dtype`.
    pub q: &'a [u16],
    /// The cache, this step's tokens included.
    pub cache: &'a HostCache,
    /// Page of each block of tokens `[batch, block_table_stride]`.
    pub block_table: &'a [i32],
    /// Entries a row of `block_table`.
    pub block_table_stride: usize,
    /// Cached tokens of each request, the `q_len` new ones included `[batch]`.
    pub kv_len: &'a [i32],
    /// Softmax scale, usually 1 / sqrt(D).
    pub sm_scale: f32,
    /// Scale of Q in numerics class `fp8`; not used in `exact`.
    pub q_scale: f32,
    /// Scale of the K tensor.
    pub k_scale: f32,
    /// Scale of the V tensor.
    pub v_scale: f32,
    /// Tokens that a query sees: the newest up to its own. Where the problem has a window, and only there.
    pub window: Option<u32>,
    /// Bound of the scores. Where the problem has a soft cap, and only there.
    pub soft_cap: Option<f32>,
    /// A logit of each query head, natural units `[Hq]`. Where the problem has sinks, and only there.
    pub sinks: Option<&'a [f32]>,
}

/// Result of one KV head of one request. Row `i * group + h` is query position i, head h of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeRows {
    /// Outputs `[q_len * group, D]`; zeros where no token is visible.
    pub out: Vec<f64>,
    /// Log-sum-exp of the scores and the sink, natural log `[q_len * group]`; -inf where there is neither.
    pub lse: Vec<f64>,
}

/// Result of a whole batch.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeOutput {
    /// Outputs `[batch * q_len, Hq, D]`.
    pub out: Vec<f64>,
    /// Log-sum-exp `[batch * q_len, Hq]`.
    pub lse: Vec<f64>,
}

impl DecodeInputs<'_> {
    /// Query heads.
    fn heads(&self) -> usize {
        (self.problem.group * self.cache.kv_heads) as usize
    }

    /// Where row `row` of (`request`, `kv_head`) lies among the rows of `[batch * q_len, Hq]`.
    fn query_row(&self, request: usize, kv_head: u32, row: usize) -> usize {
        let (group, q_len) = (self.problem.group as usize, self.problem.q_len as usize);
        (request * q_len + row / group) * self.heads() + kv_head as usize * group + row % group
    }

    /// Tokens that row `row` of `request` sees: those up to its own, causal among the new ones, and of these the
    /// newest of its window.
    fn visible(&self, request: usize, row: usize) -> Range<usize> {
        let position = (row / self.problem.group as usize) as i64;
        let hidden = i64::from(self.problem.q_len) - 1 - position;
        let end = (i64::from(self.kv_len[request]) - hidden).max(0) as usize;
        self.window.map_or(0, |window| end.saturating_sub(window as usize))..end
    }

    /// Query rows of (`request`, `kv_head`) as multiplied, without `q_scale`: `[q_len * group, D]`.
    fn queries(&self, request: usize, kv_head: u32) -> Vec<f64> {
        let dim = self.problem.head_dim as usize;
        let value = |&bits: &u16| {
            let q = to_f32(self.problem.dtype, bits);
            f64::from(match self.problem.numerics {
                Numerics::Exact => q,
                Numerics::Fp8 => e4m3_decode(e4m3_encode(q / self.q_scale)),
            })
        };
        let rows = 0..self.problem.query_rows() as usize;
        rows.flat_map(|row| self.q[self.query_row(request, kv_head, row) * dim..][..dim].iter().map(value)).collect()
    }

    /// What a sum of products is multiplied by to give a score.
    fn score_scale(&self) -> f64 {
        let scale = f64::from(self.sm_scale) * f64::from(self.k_scale);
        match self.problem.numerics {
            Numerics::Exact => scale,
            Numerics::Fp8 => scale * f64::from(self.q_scale),
        }
    }

    /// A score, bounded where there is a soft cap.
    fn capped(&self, score: f64) -> f64 {
        let bounded = |cap: f32| f64::from(cap) * (score / f64::from(cap)).tanh();
        self.soft_cap.map_or(score, bounded)
    }

    /// The sink of query head `head` of the group of `kv_head`; -inf, a weight of 0, where there are none.
    fn sink(&self, kv_head: u32, head: usize) -> f64 {
        let index = (kv_head * self.problem.group) as usize + head;
        self.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[index]))
    }

    /// Page, and token in it, of token `token` of `request`.
    fn locate(&self, request: usize, token: usize) -> (u64, u32) {
        let page_size = self.problem.page_size as usize;
        let page = self.block_table[request * self.block_table_stride + token / page_size];
        let page = u64::try_from(page).unwrap_or_else(|_| panic!("request {request} has no page for token {token}"));
        (page, (token % page_size) as u32)
    }

    fn assert_shapes(&self) {
        let (p, cache) = (self.problem, self.cache);
        assert_eq!(
            (cache.format, cache.head_dim, cache.page_size, cache.order),
            (p.kv_format, p.head_dim, p.page_size, p.v_scale_order),
            "cache of another problem"
        );
        let rows = self.kv_len.len() * p.q_len as usize * self.heads();
        assert_eq!(self.q.len(), rows * p.head_dim as usize, "elements of q");
        assert_eq!(self.window.is_some(), p.window.is_some(), "a window where the problem has one");
        assert_eq!(self.soft_cap.is_some(), p.soft_cap, "a soft cap where the problem has one");
        assert_eq!(self.sinks.map(<[f32]>::len), p.sinks.then(|| self.heads()), "sinks where the problem has them");
    }
}

/// Attention of one KV head of one request.
///
/// `score = sm_scale * g_k * sum(q k)` (times `q_scale` in class `fp8`; then bounded by a soft cap), softmax over the visible tokens with
/// the maximum subtracted, `out = g_v * sum(p v)`; sums in f64. Query position i is token `kv_len - q_len + i`; it sees
/// itself and the tokens before it, with a window of W the newest W of these (Hugging Face's `sliding_window`;
/// FlashInfer's `window_left` is W - 1). Tokens that no query sees are never read. A sink adds `exp(sink)` to the
/// softmax's denominator, and so to the log-sum-exp (as in Hugging Face's gpt-oss: a column that is dropped again).
///
/// # Panics
/// Where the inputs have another shape than the problem, or the block table names a page that the cache lacks.
pub fn decode_head(inputs: &DecodeInputs, request: usize, kv_head: u32) -> DecodeRows {
    inputs.assert_shapes();
    let rows = inputs.problem.query_rows() as usize;
    let visible: Vec<Range<usize>> = (0..rows).map(|row| inputs.visible(request, row)).collect();
    let mut weights = scores(inputs, request, kv_head, &visible);
    let group = inputs.problem.group as usize;
    let softmax = |(row, scores): (usize, &mut Vec<f64>)| softmax(scores, inputs.sink(kv_head, row % group));
    let lse = weights.iter_mut().enumerate().map(softmax).collect();
    DecodeRows { out: weighted_values(inputs, request, kv_head, &visible, &weights), lse }
}

/// The tokens that any of the rows sees.
fn seen(visible: &[Range<usize>]) -> Range<usize> {
    let ends = visible.iter().filter(|range| !range.is_empty());
    let first = ends.clone().map(|range| range.start).min().unwrap_or(0);
    first..ends.map(|range| range.end).max().unwrap_or(0)
}

/// Scores of each query row, over the tokens that it sees.
fn scores(inputs: &DecodeInputs, request: usize, kv_head: u32, visible: &[Range<usize>]) -> Vec<Vec<f64>> {
    let p = inputs.problem;
    let dim = p.head_dim as usize;
    let queries = inputs.queries(request, kv_head);
    let scale = inputs.score_scale();
    let mut scores: Vec<Vec<f64>> = visible.iter().map(|tokens| Vec::with_capacity(tokens.len())).collect();
    let mut key = vec![0.0; dim];
    for token in seen(visible) {
        let (page, offset) = inputs.locate(request, token);
        inputs.cache.k_row(p.numerics, page, kv_head, offset, &mut key);
        for ((scores, query), visible) in scores.iter_mut().zip(queries.chunks_exact(dim)).zip(visible) {
            if visible.contains(&token) {
                scores.push(inputs.capped(scale * dot(query, &key)));
            }
        }
    }
    scores
}

/// Turns scores into weights that sum to 1 with that of the sink; returns the log-sum-exp of all, for nothing -inf as the
/// logarithm of 0.
fn softmax(scores: &mut [f64], sink: f64) -> f64 {
    let max = scores.iter().copied().fold(sink, f64::max);
    if max == f64::NEG_INFINITY {
        return max;
    }
    scores.iter_mut().for_each(|s| *s = (*s - max).exp());
    let sum = scores.iter().sum::<f64>() + (sink - max).exp();
    scores.iter_mut().for_each(|s| *s /= sum);
    max + sum.ln()
}

/// Outputs `[rows, D]` of the weights of each row, over the tokens that it sees.
fn weighted_values(
    inputs: &DecodeInputs,
    request: usize,
    kv_head: u32,
    visible: &[Range<usize>],
    weights: &[Vec<f64>],
) -> Vec<f64> {
    let p = inputs.problem;
    let dim = p.head_dim as usize;
    let mut out = vec![0.0; weights.len() * dim];
    let mut value = vec![0.0; dim];
    for token in seen(visible) {
        let (page, offset) = inputs.locate(request, token);
        inputs.cache.v_row(p.numerics, page, kv_head, offset, &mut value);
        for ((out, weights), visible) in out.chunks_exact_mut(dim).zip(weights).zip(visible) {
            if !visible.contains(&token) {
                continue;
            }
            let weight = weights[token - visible.start];
            out.iter_mut().zip(&value).for_each(|(out, v)| *out += weight * v);
        }
    }
    out.iter_mut().for_each(|x| *x *= f64::from(inputs.v_scale));
    out
}

/// Sum of products. Eight partial sums let the compiler use vector registers.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, _) = a.as_chunks::<8>();
    let (b, _) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}

/// Attention of a whole batch: [`decode_head`] of every request and KV head, on all cores.
///
/// # Panics
/// As [`decode_head`] does.
pub fn decode(inputs: &DecodeInputs) -> DecodeOutput {
    let dim = inputs.problem.head_dim as usize;
    let kv_heads = inputs.cache.kv_heads;
    let tasks = 0..inputs.kv_len.len() * kv_heads as usize;
    let heads: Vec<_> = tasks
        .into_par_iter()
        .map(|task| (task / kv_heads as usize, (task % kv_heads as usize) as u32))
        .map(|(request, kv_head)| (request, kv_head, decode_head(inputs, request, kv_head)))
        .collect();
    let rows = inputs.kv_len.len() * inputs.problem.q_len as usize * inputs.heads();
    let mut output = DecodeOutput { out: vec![0.0; rows * dim], lse: vec![0.0; rows] };
    for (request, kv_head, head) in heads {
        for (row, (out, lse)) in head.out.chunks_exact(dim).zip(head.lse).enumerate() {
            let to = inputs.query_row(request, kv_head, row);
            output.out[to * dim..][..dim].copy_from_slice(out);
            output.lse[to] = lse;
        }
    }
    output
}
