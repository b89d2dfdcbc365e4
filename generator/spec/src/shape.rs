//! The run-time sizes a problem is tuned and asked at.

use crate::problem::Problem;
use serde::{Deserialize, Serialize};

/// Run-time sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase", try_from = "Sizes")]
pub enum Shape {
    /// A decode step: `batch` requests of `context` cached tokens each.
    Decode {
        /// Requests.
        batch: u32,
        /// Cached tokens a request, the new ones included.
        context: u32,
        /// KV heads.
        kv_heads: u32,
    },
    /// An append of `tokens` rows a KV head.
    Append {
        /// New tokens.
        tokens: u32,
        /// KV heads.
        kv_heads: u32,
    },
}

/// A shape as files have it. A flat struct reads several times faster than a tagged enum, and bundles hold many.
#[derive(Deserialize)]
struct Sizes {
    of: Of,
    batch: Option<u32>,
    context: Option<u32>,
    tokens: Option<u32>,
    kv_heads: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Of {
    Decode,
    Append,
}

impl TryFrom<Sizes> for Shape {
    type Error = &'static str;

    fn try_from(sizes: Sizes) -> Result<Self, Self::Error> {
        let Sizes { of, batch, context, tokens, kv_heads } = sizes;
        match (of, batch, context, tokens) {
            (Of::Decode, Some(batch), Some(context), _) => Ok(Self::Decode { batch, context, kv_heads }),
            (Of::Append, _, _, Some(tokens)) => Ok(Self::Append { tokens, kv_heads }),
            (Of::Decode, ..) => Err("a decode shape has `batch`, `context` and `kv_heads`"),
            (Of::Append, ..) => Err("an append shape has `tokens` and `kv_heads`"),
        }
    }
}

impl Shape {
    /// A readable name, unique to the shape.
    pub fn key(&self) -> String {
        match self {
            Self::Decode { batch, context, kv_heads } => format!("b{batch}-c{context}-h{kv_heads}"),
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
    /// of `|log2(a / b)|`. A doubling of one size is 1, an empty size counts as 1; none between operations.
    pub fn distance(&self, other: &Self) -> Option<f64> {
        let apart = |a: u32, b: u32| (f64::from(a.max(1)).log2() - f64::from(b.max(1)).log2()).abs();
        match (*self, *other) {
            (Self::Decode { batch, context, kv_heads }, Self::Decode { batch: b, context: c, kv_heads: h }) => {
                Some(apart(batch, b) + apart(context, c) + apart(kv_heads, h))
            }
            (Self::Append { tokens, kv_heads }, Self::Append { tokens: t, kv_heads: h }) => {
                Some(apart(tokens, t) + apart(kv_heads, h))
            }
            _ => None,
        }
    }

    /// Bytes that a call must move at least: for decode the cached K, V and scales read once; for
    /// append the 16-bit rows read and the cache rows written.
    pub fn bytes(&self, problem: &Problem) -> u64 {
        let row = u64::from(problem.kv_format().token_bytes(problem.head_dim()));
        match *self {
            Self::Decode { batch, context, kv_heads } => {
                u64::from(batch) * u64::from(context) * u64::from(kv_heads) * row
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
    fn shapes_travel_as_tagged_sizes() {
        for (shape, json) in [
            (
                Shape::Decode { batch: 1, context: 2, kv_heads: 3 },
                r#"{"of":"decode","batch":1,"context":2,"kv_heads":3}"#,
            ),
            (Shape::Append { tokens: 4, kv_heads: 5 }, r#"{"of":"append","tokens":4,"kv_heads":5}"#),
        ] {
            assert_eq!(serde_json::to_string(&shape).unwrap(), json);
            assert_eq!(serde_json::from_str::<Shape>(json).unwrap(), shape);
        }
        for wrong in
            [r#"{"of":"decode","tokens":4,"kv_heads":5}"#, r#"{"of":"append","batch":1,"context":2,"kv_heads":3}"#]
        {
            assert!(serde_json::from_str::<Shape>(wrong).unwrap_err().to_string().contains("shape has"), "{wrong}");
        }
    }

    #[test]
    fn distances_are_doublings() {
        let shape = |batch, context| Shape::Decode { batch, context, kv_heads: 8 };
        assert_eq!(shape(1, 1024).distance(&shape(4, 512)), Some(3.0));
        let tokens = |tokens| Shape::Append { tokens, kv_heads: 8 };
        assert_eq!(tokens(8).distance(&tokens(64)), Some(3.0));
        assert_eq!(tokens(8).distance(&shape(8, 8)), None);
        assert_eq!(shape(1, 0).distance(&shape(1, 1)), Some(0.0), "an empty cache is as good as one token");
    }
}
