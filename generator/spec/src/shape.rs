//! The run-time sizes a problem is tuned and asked at.

use crate::name::named_enum;
use crate::problem::Problem;
use serde::{Deserialize, Serialize, Serializer};

named_enum! {
    /// How the cached tokens of a batch's requests are distributed.
    #[derive(Default)]
    Lengths: "distribution of lengths" {
        /// Every request has the context's length.
        #[default]
        Equal = "equal",
        /// From [`Lengths::SHORTEST`] to the context's length, evenly in their logarithm.
        LogUniform = "log-uniform",
    }
}

impl Lengths {
    /// Tokens of the shortest request of a log-uniform batch.
    pub const SHORTEST: u32 = 256;

    fn are_equal(&self) -> bool {
        *self == Self::Equal
    }

    /// Lengths of `batch` requests, the longest near `context`: the same for the same arguments. Log-uniform ones are the
    /// distribution's quantiles at `(i + 1/2) / batch`, long and short requests mixed.
    pub fn of(self, batch: u32, context: u32) -> Vec<u32> {
        match self {
            Self::Equal => vec![context; batch as usize],
            Self::LogUniform => {
                let shortest = f64::from(Self::SHORTEST.min(context));
                let quantile = |i: u32| (f64::from(i) + 0.5) / f64::from(batch);
                let length = |i: u32| shortest * (f64::from(context) / shortest).powf(quantile(i));
                mixed(batch).map(|i| length(i).round() as u32).collect()
            }
        }
    }
}

/// `0..n` by golden-section strides, so that neighbours are far apart.
fn mixed(n: u32) -> impl Iterator<Item = u32> {
    let wanted = (f64::from(n) * 0.618).round() as u32;
    let common = |mut a: u32, mut b: u32| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let stride = (wanted..).find(|&s| common(s, n) <= 1).unwrap_or(1);
    (0..n).map(move |i| (u64::from(i) * u64::from(stride) % u64::from(n)) as u32)
}

/// Doublings between two sizes, `|log2(a / b)|`; an empty one counts as 1.
pub fn doublings(a: u32, b: u32) -> f64 {
    (f64::from(a.max(1)).log2() - f64::from(b.max(1)).log2()).abs()
}

/// Run-time sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase", try_from = "Sizes")]
pub enum Shape {
    /// A decode step: `batch` requests of up to `context` cached tokens each.
    Decode {
        /// Requests.
        batch: u32,
        /// Cached tokens of the longest request, the new ones included.
        context: u32,
        /// KV heads.
        kv_heads: u32,
        /// Cached tokens of the others.
        #[serde(default, skip_serializing_if = "Lengths::are_equal")]
        lengths: Lengths,
    },
    /// An append of `tokens` rows a KV head.
    Append {
        /// New tokens.
        tokens: u32,
        /// KV heads.
        kv_heads: u32,
    },
}

/// A shape as files have it; which sizes there are tells the operation too. A flat struct reads several times faster than
/// a tagged enum, and bundles hold many.
#[derive(Default, Serialize, Deserialize)]
struct Sizes {
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<Of>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u32>,
    kv_heads: u32,
    #[serde(default, skip_serializing_if = "Lengths::are_equal")]
    lengths: Lengths,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Of {
    Decode,
    Append,
}

impl TryFrom<Sizes> for Shape {
    type Error = &'static str;

    fn try_from(sizes: Sizes) -> Result<Self, Self::Error> {
        let Sizes { of, batch, context, tokens, kv_heads, lengths } = sizes;
        match (of, batch, context, tokens) {
            (Some(Of::Decode), Some(batch), Some(context), _) | (None, Some(batch), Some(context), None) => {
                Ok(Self::Decode { batch, context, kv_heads, lengths })
            }
            (Some(Of::Append), _, _, Some(tokens)) | (None, None, None, Some(tokens)) => {
                Ok(Self::Append { tokens, kv_heads })
            }
            (Some(Of::Decode), ..) => Err("a decode shape has `batch`, `context` and `kv_heads`"),
            (Some(Of::Append), ..) => Err("an append shape has `tokens` and `kv_heads`"),
            (None, ..) => {
                Err("a shape has `batch`, `context` and `kv_heads` (decode), or `tokens` and `kv_heads` (append)")
            }
        }
    }
}

impl Shape {
    /// Writes the sizes without the operation, for `serialize_with` where that stands beside them; as a [`Shape`] they
    /// are read again.
    pub fn serialize_sizes<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sizes = match *self {
            Self::Decode { batch, context, kv_heads, lengths } => {
                Sizes { batch: Some(batch), context: Some(context), kv_heads, lengths, ..Sizes::default() }
            }
            Self::Append { tokens, kv_heads } => Sizes { tokens: Some(tokens), kv_heads, ..Sizes::default() },
        };
        sizes.serialize(serializer)
    }

    /// A readable name, unique to the shape.
    pub fn key(&self) -> String {
        match self {
            Self::Decode { batch, context, kv_heads, lengths: Lengths::Equal } => {
                format!("b{batch}-c{context}-h{kv_heads}")
            }
            Self::Decode { batch, context, kv_heads, lengths: Lengths::LogUniform } => {
                format!("b{batch}-c{}to{context}-h{kv_heads}", Lengths::SHORTEST)
            }
            Self::Append { tokens, kv_heads } => format!("t{tokens}-h{kv_heads}"),
        }
    }

    /// KV heads.
    pub fn kv_heads(&self) -> u32 {
        match *self {
            Self::Decode { kv_heads, .. } | Self::Append { kv_heads, .. } => kv_heads,
        }
    }

    /// Distance of two shapes of one operation: the sum over their sizes (batch, context, KV heads; or tokens, KV heads)
    /// of `|log2(a / b)|`. A doubling of one size is 1, and so is another distribution of lengths; an empty size counts as
    /// 1; none between operations.
    pub fn distance(&self, other: &Self) -> Option<f64> {
        match (*self, *other) {
            (
                Self::Decode { batch, context, kv_heads, lengths },
                Self::Decode { batch: b, context: c, kv_heads: h, lengths: l },
            ) => Some(
                doublings(batch, b)
                    + doublings(context, c)
                    + doublings(kv_heads, h)
                    + f64::from(u8::from(lengths != l)),
            ),
            (Self::Append { tokens, kv_heads }, Self::Append { tokens: t, kv_heads: h }) => {
                Some(doublings(tokens, t) + doublings(kv_heads, h))
            }
            _ => None,
        }
    }

    /// Tokens of all requests that the queries of `problem` see; of an append the new ones.
    pub fn tokens(&self, problem: &Problem) -> u64 {
        let seen = |tokens| u64::from(problem.seen(tokens));
        match *self {
            Self::Decode { batch, context, lengths: Lengths::Equal, .. } => u64::from(batch) * seen(context),
            Self::Decode { batch, context, lengths, .. } => lengths.of(batch, context).into_iter().map(seen).sum(),
            Self::Append { tokens, .. } => tokens.into(),
        }
    }

    /// What a call must move at least: for decode the K, V and scales that its queries see, read once; for append the
    /// 16-bit rows read and the cache rows written.
    pub fn traffic(&self, problem: &Problem) -> Traffic {
        let rows = self.tokens(problem) * u64::from(self.kv_heads());
        let cached = rows * u64::from(problem.kv_format().token_bytes(problem.head_dim()));
        match self {
            Self::Decode { .. } => Traffic { read: cached, written: 0 },
            Self::Append { .. } => Traffic { read: rows * 4 * u64::from(problem.head_dim()), written: cached },
        }
    }

    /// Bytes that a call must move at least: its [`Traffic`], both ways.
    pub fn bytes(&self, problem: &Problem) -> u64 {
        self.traffic(problem).total()
    }
}

/// Bytes that a call moves between the device's memory and its SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Traffic {
    /// Bytes read and written.
    pub fn total(self) -> u64 {
        self.read + self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_uniform_lengths_have_the_distributions_mean_and_every_quantile_once() {
        let (batch, context) = (1000, 65_536);
        let lengths = Lengths::LogUniform.of(batch, context);
        let mean = lengths.iter().map(|&n| f64::from(n)).sum::<f64>() / f64::from(batch);
        // The mean of a log-uniform variable on [a, b] is (b - a) / ln(b / a).
        let expected = (65_536.0 - 256.0) / (65_536.0f64 / 256.0).ln();
        assert!((mean / expected - 1.0).abs() < 1e-3, "{mean} {expected}");
        let (mut sorted, distinct) = (lengths.clone(), lengths.iter().collect::<std::collections::HashSet<_>>());
        sorted.sort();
        assert!(sorted[0] >= 256 && sorted[999] <= context && distinct.len() > 900 && sorted != lengths);
        assert_eq!(Lengths::LogUniform.of(2, 100), [100, 100]);
    }

    #[test]
    fn shapes_travel_as_tagged_sizes() {
        for (shape, json) in [
            (
                Shape::Decode { batch: 1, context: 2, kv_heads: 3, lengths: Lengths::Equal },
                r#"{"of":"decode","batch":1,"context":2,"kv_heads":3}"#,
            ),
            (
                Shape::Decode { batch: 1, context: 2, kv_heads: 3, lengths: Lengths::LogUniform },
                r#"{"of":"decode","batch":1,"context":2,"kv_heads":3,"lengths":"log-uniform"}"#,
            ),
            (Shape::Append { tokens: 4, kv_heads: 5 }, r#"{"of":"append","tokens":4,"kv_heads":5}"#),
        ] {
            assert_eq!(serde_json::to_string(&shape).unwrap(), json);
            assert_eq!(serde_json::from_str::<Shape>(json).unwrap(), shape);
            let mut untagged = Vec::new();
            shape.serialize_sizes(&mut serde_json::Serializer::new(&mut untagged)).unwrap();
            assert!(
                json.ends_with(std::str::from_utf8(&untagged[1..]).unwrap()) && json.len() > untagged.len(),
                "{json}"
            );
            assert_eq!(serde_json::from_slice::<Shape>(&untagged).unwrap(), shape);
        }
        for wrong in [
            r#"{"of":"decode","tokens":4,"kv_heads":5}"#,
            r#"{"of":"append","batch":1,"context":2,"kv_heads":3}"#,
            r#"{"batch":1,"kv_heads":3}"#,
            r#"{"batch":1,"context":2,"tokens":4,"kv_heads":3}"#,
        ] {
            assert!(serde_json::from_str::<Shape>(wrong).unwrap_err().to_string().contains("shape has"), "{wrong}");
        }
    }

    #[test]
    fn traffic_is_16_bit_rows_in_and_cache_rows_out_for_append_and_the_cache_in_for_decode() {
        let append = crate::AppendProblem {
            kv_format: crate::KvFormat::Nvfp4,
            head_dim: 128,
            page_size: 16,
            dtype: crate::Dtype::Bf16,
            v_scale_order: crate::VScaleOrder::Linear,
        };
        let decode = crate::DecodeProblem {
            kv_format: append.kv_format,
            numerics: crate::Numerics::Exact,
            head_dim: append.head_dim,
            group: 8,
            q_len: 1,
            page_size: append.page_size,
            dtype: append.dtype,
            v_scale_order: append.v_scale_order,
            append: crate::AppendMode::Separate,
            window: None,
            sinks: false,
            soft_cap: false,
        };
        // 64 tokens of 8 heads, K and V: 128 elements of 2 bytes; 64 bytes of codes and 8 scales.
        let [rows, cached] = [2 * 64 * 8 * (128 * 2), 2 * 64 * 8 * (128 / 2 + 128 / 16)];
        let appended = Shape::Append { tokens: 64, kv_heads: 8 };
        assert_eq!(appended.traffic(&Problem::Append(append)), Traffic { read: rows, written: cached });
        let seen = Shape::Decode { batch: 4, context: 16, kv_heads: 8, lengths: Lengths::Equal };
        assert_eq!(seen.traffic(&Problem::Decode(decode)), Traffic { read: cached, written: 0 });
        assert_eq!(appended.bytes(&Problem::Append(append)), rows + cached);
    }

    #[test]
    fn distances_are_doublings() {
        let shape = |batch, context| Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::Equal };
        assert_eq!(shape(1, 1024).distance(&shape(4, 512)), Some(3.0));
        let tokens = |tokens| Shape::Append { tokens, kv_heads: 8 };
        assert_eq!(tokens(8).distance(&tokens(64)), Some(3.0));
        assert_eq!(tokens(8).distance(&shape(8, 8)), None);
        assert_eq!(shape(1, 0).distance(&shape(1, 1)), Some(0.0), "an empty cache is as good as one token");
    }
}
