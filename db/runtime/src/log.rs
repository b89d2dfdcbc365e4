//! What was asked for and how it was served: remembered answers, and counts that tuning can follow.

use crate::find::Choice;
use foldhash::fast::RandomState;
use nvkv_spec::{Problem, Shape, Target};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Answers remembered at most; past it all are forgotten and found again.
const ANSWERS: usize = 1 << 14;
/// Distinct rounded shapes that are counted; further ones are only counted together.
const COUNTS: usize = 1 << 14;

/// Version of the histogram's format.
pub const HISTOGRAM_SCHEMA: u32 = 1;

/// The shapes that were asked for: written by [`crate::Runtime::shape_histogram`], read by `nvkv-tune --shapes`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// [`HISTOGRAM_SCHEMA`] of the writer.
    pub schema: u32,
    /// Target of the bundle that served.
    pub target: Target,
    /// Shapes, the most asked for first.
    pub shapes: Vec<Asked>,
    /// Asks for shapes beyond those that are told apart.
    pub others: u64,
}

/// A problem at a rounded shape, and how often it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The problem.
    pub problem: Problem,
    /// The shape, its sizes rounded up to two bits past the leading one ([`rounded`]).
    pub shape: Shape,
    /// `exact`, `bucket`, `predicted`, `fallback` or `miss`.
    pub served: String,
    /// How often.
    pub count: u64,
}

type Key = (Problem, Shape);
type Map<K, V> = RwLock<HashMap<K, V, RandomState>>;

/// The log of one runtime. A remembered answer costs a shared lock and one addition.
#[derive(Debug, Default)]
pub(crate) struct Log {
    answers: Map<Key, (Choice, Arc<AtomicU64>)>,
    counts: Map<(Problem, Shape, &'static str), Arc<AtomicU64>>,
    others: Arc<AtomicU64>,
}

/// `shape` with batch, context and tokens rounded up to 1, 1.25, 1.5 or 1.75 times a power of two: a context that grows
/// with each step falls into few shapes, and no size grows by more than a quarter.
pub fn rounded(shape: &Shape) -> Shape {
    let up = |size: u32| {
        let step = (size.max(1).ilog2()).saturating_sub(2);
        u32::try_from(u64::from(size).next_multiple_of(1 << step)).unwrap_or(u32::MAX)
    };
    match *shape {
        Shape::Decode { batch, context, kv_heads, lengths } => {
            Shape::Decode { batch: up(batch), context: up(context), kv_heads, lengths }
        }
        Shape::Append { tokens, kv_heads } => Shape::Append { tokens: up(tokens), kv_heads },
    }
}

// A map whose writer panicked is still a map: nothing in it is half written.
macro_rules! locked {
    ($lock:expr) => {
        $lock.unwrap_or_else(PoisonError::into_inner)
    };
}

impl Log {
    /// The answer that this question got before, counted once more.
    pub fn recall(&self, problem: &Problem, shape: &Shape) -> Option<Choice> {
        let answers = locked!(self.answers.read());
        let (choice, count) = answers.get(&(*problem, *shape))?;
        count.fetch_add(1, Ordering::Relaxed);
        Some(*choice)
    }

    /// Counts a question that was worked out, and keeps its answer if it has one.
    pub fn remember(&self, problem: &Problem, shape: &Shape, choice: Option<&Choice>) {
        let count = self.counter(problem, shape, choice.map_or("miss", |choice| choice.trust.name()));
        count.fetch_add(1, Ordering::Relaxed);
        let Some(&choice) = choice else { return };
        let mut answers = locked!(self.answers.write());
        if answers.len() >= ANSWERS {
            answers.clear();
        }
        answers.insert((*problem, *shape), (choice, count));
    }

    /// Forgets the answers, not the counts: something that they rest on has changed.
    pub fn forget(&self) {
        locked!(self.answers.write()).clear();
    }

    fn counter(&self, problem: &Problem, shape: &Shape, served: &'static str) -> Arc<AtomicU64> {
        let key = (*problem, rounded(shape), served);
        if let Some(count) = locked!(self.counts.read()).get(&key) {
            return count.clone();
        }
        let mut counts = locked!(self.counts.write());
        if counts.len() >= COUNTS && !counts.contains_key(&key) {
            return self.others.clone();
        }
        counts.entry(key).or_default().clone()
    }

    /// What was asked for since the runtime was opened.
    pub fn histogram(&self, target: Target) -> Histogram {
        let counts = locked!(self.counts.read());
        let mut shapes: Vec<_> = counts
            .iter()
            .map(|((problem, shape, served), count)| Asked {
                problem: *problem,
                shape: *shape,
                served: served.to_string(),
                count: count.load(Ordering::Relaxed),
            })
            .collect();
        shapes.sort_by_key(|a| (std::cmp::Reverse(a.count), a.problem, a.shape, a.served.clone()));
        Histogram { schema: HISTOGRAM_SCHEMA, target, shapes, others: self.others.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_spec::Lengths;

    #[test]
    fn sizes_round_up_by_a_quarter_at_most_and_powers_stay() {
        for size in (1..2000).chain([65_536, 131_072, 131_073, u32::MAX]) {
            let Shape::Append { tokens, .. } = rounded(&Shape::Append { tokens: size, kv_heads: 1 }) else {
                unreachable!()
            };
            assert!(tokens >= size && f64::from(tokens) <= 1.25 * f64::from(size), "{size} to {tokens}");
            assert!(!size.is_power_of_two() || tokens == size);
        }
        let shape = |batch, context| Shape::Decode { batch, context, kv_heads: 7, lengths: Lengths::Equal };
        assert_eq!(rounded(&shape(33, 5000)), shape(40, 5120));
    }
}
