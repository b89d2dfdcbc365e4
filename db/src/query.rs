//! One lookup: the winner for a problem and a shape, with how far it can be trusted.

use crate::{Db, DbError, EnvironmentKey, PredictedWinner, Winner};
use nvkv_spec::{Problem, Shape, Target};
use serde::Serialize;

/// What is looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// Compile target.
    pub target: Target,
    /// The problem.
    pub problem: Problem,
    /// The shape.
    pub shape: Shape,
    /// Where it must have been measured; where none is given, the most recent measurement answers.
    pub environment: Option<EnvironmentKey>,
}

/// The answer, with its trust spelled out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "trust", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one answer a process: size does not matter")]
pub enum Answer {
    /// Timed at this very shape.
    Exact {
        /// The winner.
        winner: Winner,
    },
    /// Verified, and timed at another shape of the same problem: the nearest one.
    Bucket {
        /// The winner at the shape it was timed at, `winner.shape`.
        winner: Winner,
        /// How far that shape is, see [`distance`].
        distance: f64,
    },
    /// Compiled only; the order is a model's.
    Predicted {
        /// The model's pick at `winner.shape`.
        winner: PredictedWinner,
        /// How far that shape is, 0 where it is the one asked for.
        distance: f64,
    },
    /// Nothing of use.
    Miss {
        /// What is missing, what exists instead, and the next step.
        why: String,
        /// The tuned or compiled problem of this target that differs in the fewest fields.
        nearest: Option<Problem>,
    },
}

/// Distance of two shapes of one operation: the sum over their sizes (batch, context, KV heads;
/// or tokens, KV heads) of `|log2(a / b)|`. A doubling of one size is 1; none between operations.
pub fn distance(a: &Shape, b: &Shape) -> Option<f64> {
    let sizes = |s: &Shape| match *s {
        Shape::Decode { batch, context, kv_heads } => vec![batch, context, kv_heads],
        Shape::Append { tokens, kv_heads } => vec![tokens, kv_heads],
    };
    let (a, b) = (sizes(a), sizes(b));
    let log2 = |size: u32| f64::from(size.max(1)).log2();
    (a.len() == b.len()).then(|| a.into_iter().zip(b).map(|(a, b)| (log2(a) - log2(b)).abs()).sum())
}

impl Db {
    /// The best answer to `query`: exact, else the nearest tuned shape, else predicted, else a miss.
    pub fn query(&self, _query: &Query) -> Result<Answer, DbError> {
        todo!()
    }
}
