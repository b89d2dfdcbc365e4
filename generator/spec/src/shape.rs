//! The run-time sizes a problem is tuned and asked at.

use crate::name::named_enum;
use crate::problem::Problem;
use serde::{Deserialize, Serialize};

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

/// Run-time sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
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

impl Shape {
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

    /// Bytes that a call must move at least: for decode the cached K, V and scales read once; for
    /// append the 16-bit rows read and the cache rows written.
    pub fn bytes(&self, problem: &Problem) -> u64 {
        let row = u64::from(problem.kv_format().token_bytes(problem.head_dim()));
        match *self {
            Self::Decode { batch, context, kv_heads, lengths } => {
                let tokens = match lengths {
                    Lengths::Equal => u64::from(batch) * u64::from(context),
                    Lengths::LogUniform => lengths.of(batch, context).into_iter().map(u64::from).sum(),
                };
                tokens * u64::from(kv_heads) * row
            }
            Self::Append { tokens, kv_heads } => {
                u64::from(tokens) * u64::from(kv_heads) * (row + 4 * u64::from(problem.head_dim()))
            }
        }
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
}
