//! The run-time sizes a problem is tuned and asked at.

use crate::problem::Problem;
use serde::{Deserialize, Serialize};

/// Run-time sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "lowercase")]
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

    /// Bytes that a call must move at least: for decode the K, V and scales that its queries see, read once; for
    /// append the 16-bit rows read and the cache rows written.
    pub fn bytes(&self, problem: &Problem) -> u64 {
        let row = u64::from(problem.kv_format().token_bytes(problem.head_dim()));
        match *self {
            Self::Decode { batch, context, kv_heads } => {
                let seen = match problem {
                    Problem::Decode(p) => p.seen(context),
                    Problem::Append(_) => context,
                };
                u64::from(batch) * u64::from(seen) * u64::from(kv_heads) * row
            }
            Self::Append { tokens, kv_heads } => {
                u64::from(tokens) * u64::from(kv_heads) * (row + 4 * u64::from(problem.head_dim()))
            }
        }
    }
}
