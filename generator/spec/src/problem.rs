//! What is asked of a kernel: the compile-time facts of one attention or append problem.

use crate::kv_format::{KvFormat, VScaleOrder};
use crate::name::named_enum;
use crate::shape::Shape;
use crate::variant::{Filling, SplitPolicy};
use serde::{Deserialize, Serialize};

named_enum! {
    /// An operation as the command line names it.
    Operation: "operation" {
        /// Paged attention of 1 to 8 new tokens a request over the cache.
        Decode = "decode",
        /// The same, with this step's K and V requantised into the cache first: one kernel.
        Fused = "fused",
        /// K and V rows to cache pages by slot mapping.
        Append = "append",
    }
}

named_enum! {
    /// What the products of an attention kernel are computed from.
    Numerics: "numerics class" {
        /// Each cached element is rounded to E4M3, Q is E4M3 with a scale a tensor; P is f16;
        /// accumulation in fp32.
        Fp8 = "fp8",
        /// Each cached element is exact in f16, Q is f16; P is f16; accumulation in fp32.
        Exact = "exact",
    }
}

named_enum! {
    /// 16-bit type of Q, of the output and of new K and V rows.
    Dtype: "dtype" {
        /// IEEE binary16.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
    }
}

named_enum! {
    /// Whether a decode kernel also appends this step's K and V.
    AppendMode: "append mode" {
        /// The cache already holds the new tokens.
        Separate = "separate",
        /// The kernel requantises the new tokens into the cache and attends to them as stored.
        Fused = "fused",
    }
}

/// Paged decode attention, fixed at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DecodeProblem {
    /// Storage of the cache.
    pub kv_format: KvFormat,
    /// What products are computed from.
    pub numerics: Numerics,
    /// Elements of a head: 64, 128 or 256.
    pub head_dim: u32,
    /// Query heads a KV head, 1 to 16.
    pub group: u32,
    /// New tokens a request, 1 to 8; causal among themselves.
    pub q_len: u32,
    /// Tokens a page: 8, 16, 32, 64 or 128.
    pub page_size: u32,
    /// Type of Q, of the output and of new K and V.
    pub dtype: Dtype,
    /// Order of the V block scales.
    pub v_scale_order: VScaleOrder,
    /// Whether the kernel also appends.
    pub append: AppendMode,
    /// Sliding window: a query sees the newest so many tokens up to its own, its own among them; all where there is
    /// none. This length names the problem and is what it is tuned at; a kernel takes any, at run time
    /// ([`DecodeParams::window`](crate::abi::DecodeParams)), so that one serves all layers and models.
    #[serde(default)]
    pub window: Option<u32>,
    /// Attention sinks: a logit of each query head joins the denominator of its softmax, and nothing else
    /// ([`DecodeParams::sinks`](crate::abi::DecodeParams); gpt-oss). The log-sum-exp includes it.
    #[serde(default)]
    pub sinks: bool,
    /// Soft cap: a score s becomes `cap * tanh(s / cap)` before it is masked, with the cap given at run time
    /// ([`DecodeParams::soft_cap`](crate::abi::DecodeParams); Gemma 2's `attn_logit_softcapping`).
    #[serde(default)]
    pub soft_cap: bool,
}

/// Appending K and V rows to a paged cache, fixed at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AppendProblem {
    /// Storage of the cache.
    pub kv_format: KvFormat,
    /// Elements of a head: 64, 128 or 256.
    pub head_dim: u32,
    /// Tokens a page: 8, 16, 32, 64 or 128.
    pub page_size: u32,
    /// Type of the new K and V.
    pub dtype: Dtype,
    /// Order of the V block scales.
    pub v_scale_order: VScaleOrder,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Problem {
    /// Attention over the cache, with or without the append fused in.
    Decode(DecodeProblem),
    /// Requantisation of new rows into the cache.
    Append(AppendProblem),
}

impl DecodeProblem {
    /// Query rows that share one KV head of one request: `group * q_len`.
    pub fn query_rows(&self) -> u32 {
        self.group * self.q_len
    }

    /// Blocks that share the query rows of one KV head, where a block handles `query_tile` of them:
    /// `ceil(group * q_len / query_tile)`.
    pub fn row_tiles(&self, query_tile: u32) -> u32 {
        self.query_rows().div_ceil(query_tile.max(1))
    }

    /// How many of `context` cached tokens the queries of a request see together: with a window the newest
    /// `window + q_len - 1` at most.
    pub fn seen(&self, context: u32) -> u32 {
        let together = |window: u32| window.saturating_add(self.q_len.saturating_sub(1));
        self.window.map_or(context, |window| together(window).min(context))
    }

    /// The append that, run first, gives the same cache and output as the fused kernel.
    pub fn append_problem(&self) -> AppendProblem {
        AppendProblem {
            kv_format: self.kv_format,
            head_dim: self.head_dim,
            page_size: self.page_size,
            dtype: self.dtype,
            v_scale_order: self.v_scale_order,
        }
    }
}

impl Problem {
    /// The same with one spelling: a cache whose values have no block scales has no order of them.
    pub fn normal(mut self) -> Self {
        if self.kv_format().v().scale_row_bytes(self.head_dim()) == 0 {
            match &mut self {
                Self::Decode(p) => p.v_scale_order = VScaleOrder::Linear,
                Self::Append(p) => p.v_scale_order = VScaleOrder::Linear,
            }
        }
        self
    }

    /// [`DecodeProblem::seen`]; an append has no context, and sees what it is given.
    pub fn seen(&self, context: u32) -> u32 {
        match self {
            Self::Decode(p) => p.seen(context),
            Self::Append(_) => context,
        }
    }

    /// What `split`, which won at `tuned`, becomes at `shape`: [`SplitPolicy::at`] of what the queries see of both contexts.
    pub fn split_at(&self, split: SplitPolicy, tuned: &Shape, shape: &Shape, filling: Filling) -> SplitPolicy {
        let [tuned, shape] = [*tuned, *shape].map(|shape| match shape {
            Shape::Decode { batch, context, kv_heads, lengths } => {
                Shape::Decode { batch, context: self.seen(context), kv_heads, lengths }
            }
            append @ Shape::Append { .. } => append,
        });
        split.at(&tuned, &shape, filling)
    }

    /// The operation, as the command line names it.
    pub fn operation(&self) -> Operation {
        match self {
            Self::Decode(p) if p.append == AppendMode::Fused => Operation::Fused,
            Self::Decode(_) => Operation::Decode,
            Self::Append(_) => Operation::Append,
        }
    }

    /// Storage of the cache.
    pub fn kv_format(&self) -> KvFormat {
        match self {
            Self::Decode(p) => p.kv_format,
            Self::Append(p) => p.kv_format,
        }
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> u32 {
        match self {
            Self::Decode(p) => p.head_dim,
            Self::Append(p) => p.head_dim,
        }
    }

    /// In how many fields two problems of one kind differ; none between attention and append, which say nothing about
    /// each other.
    pub fn differences(&self, other: &Self) -> Option<usize> {
        let differing = |fields: &[bool]| Some(fields.iter().filter(|differs| **differs).count());
        match (self, other) {
            (Self::Decode(a), Self::Decode(b)) => differing(&[
                a.kv_format != b.kv_format,
                a.numerics != b.numerics,
                a.head_dim != b.head_dim,
                a.group != b.group,
                a.q_len != b.q_len,
                a.page_size != b.page_size,
                a.dtype != b.dtype,
                a.v_scale_order != b.v_scale_order,
                a.append != b.append,
                a.window != b.window,
                a.sinks != b.sinks,
                a.soft_cap != b.soft_cap,
            ]),
            (Self::Append(a), Self::Append(b)) => differing(&[
                a.kv_format != b.kv_format,
                a.head_dim != b.head_dim,
                a.page_size != b.page_size,
                a.dtype != b.dtype,
                a.v_scale_order != b.v_scale_order,
            ]),
            _ => None,
        }
    }

    /// A readable name, unique to the problem: rows, tables and kernel ids use it.
    pub fn key(&self) -> String {
        let op = self.operation();
        match self {
            Self::Decode(p) => {
                let window = p.window.map_or(String::new(), |window| format!("-w{window}"));
                let sinks = if p.sinks { "-sinks" } else { "" };
                let cap = if p.soft_cap { "-cap" } else { "" };
                format!(
                    "{op}-{}-{}-d{}-g{}-q{}-p{}-{}-{}{window}{sinks}{cap}",
                    p.kv_format, p.numerics, p.head_dim, p.group, p.q_len, p.page_size, p.dtype, p.v_scale_order
                )
            }
            Self::Append(p) => {
                format!("{op}-{}-d{}-p{}-{}-{}", p.kv_format, p.head_dim, p.page_size, p.dtype, p.v_scale_order)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: DecodeProblem = DecodeProblem {
        kv_format: KvFormat::Fp8E4m3Nvfp4,
        numerics: Numerics::Fp8,
        head_dim: 64,
        group: 8,
        q_len: 2,
        page_size: 16,
        dtype: Dtype::Bf16,
        v_scale_order: VScaleOrder::Linear,
        append: AppendMode::Separate,
        window: None,
        sinks: false,
        soft_cap: false,
    };

    #[test]
    fn a_feature_that_is_absent_is_not_in_the_name() {
        let plain = "decode-fp8_e4m3+nvfp4-fp8-d64-g8-q2-p16-bf16-linear";
        assert_eq!(Problem::Decode(PLAIN).key(), plain);
        let all = DecodeProblem { window: Some(128), sinks: true, soft_cap: true, ..PLAIN };
        assert_eq!(Problem::Decode(all).key(), format!("{plain}-w128-sinks-cap"));
        assert_eq!(Problem::Decode(all).differences(&Problem::Decode(PLAIN)), Some(3));
    }

    /// 129 tokens are all that queries with a window of 128 see: to cut them is worth less than a block costs. Without a
    /// window 16,384 tokens in three parts fill the SMs better.
    #[test]
    fn a_window_is_not_cut_into_parts_for_tokens_that_nobody_sees() {
        let shape =
            |batch, context| Shape::Decode { batch, context, kv_heads: 8, lengths: crate::shape::Lengths::Equal };
        let splits = |problem: DecodeProblem| {
            Problem::Decode(problem).split_at(
                SplitPolicy::WHOLE,
                &shape(16, 32_768),
                &shape(11, 16_384),
                Filling { row_tiles: 1, warps: 4, sms: 132 },
            )
        };
        assert_eq!(splits(PLAIN), SplitPolicy::Even { splits: 3 });
        assert_eq!(splits(DecodeProblem { window: Some(128), ..PLAIN }), SplitPolicy::WHOLE);
    }

    /// Query 0 of two sees 128 tokens, query 1 one token more and one less.
    #[test]
    fn the_queries_of_a_request_see_their_windows_together() {
        let windowed = |window| DecodeProblem { window: Some(window), ..PLAIN };
        assert_eq!(PLAIN.seen(1000), 1000);
        assert_eq!(windowed(128).seen(1000), 129);
        assert_eq!(windowed(128).seen(100), 100);
        assert_eq!(windowed(u32::MAX).seen(u32::MAX), u32::MAX);
    }
}
