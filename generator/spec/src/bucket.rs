//! Buckets: which tuned shape serves which shapes, and where that is to be measured.
//!
//! A bucket is a tuned shape with all shapes that are nearer to it than to any other tuned shape of its problem, by
//! [`Shape::distance`]: a cell of their Voronoi diagram in the logarithms of batch, context (or tokens) and KV heads. Which
//! shapes are tuned, a preset or a user says, and a database keeps. New tokens a request, head dim, group, page size and
//! the rest of a [`Problem`](crate::Problem) are facts that kernels are compiled for: each value of theirs is a bucket of
//! its own, and nothing is served across them but another window.

use crate::shape::{Lengths, Shape};

/// How far a tuned shape may be from one that it serves, in doublings: half a step each of two sizes tuned at every eighth
/// power of two. Beyond it the default variant serves, which adapts its splits.
pub const NEAR: f64 = 3.0;

/// How much slower than the best a bucket's winner may be at a shape that it serves, as a share; where it is slower, that
/// shape becomes a bucket of its own.
pub const MOST_REGRET: f64 = 0.05;

/// Doublings from a bucket within which a shape is taken for the bucket itself: nothing is held out so near to one, so
/// that buckets are not split without end.
const SAME: f64 = 0.25;

/// By how much more than to the nearest bucket, in doublings, it may be to another one that a shape speaks for: a point
/// halfway between powers of two, rounded to whole numbers, is off by up to 0.17 (3 between 1 and 8).
const BORDER: f64 = 0.2;

/// The one of `tuned`, of the shape that `of` says, that is nearest to `shape`, with its distance in doublings; of equally
/// near ones that of the smaller shape, of those the first. None where none is of the shape's operation.
pub fn nearest<T>(tuned: impl IntoIterator<Item = T>, of: impl Fn(&T) -> Shape, shape: &Shape) -> Option<(f64, T)> {
    let apart = tuned.into_iter().filter_map(|one| Some((of(&one).distance(shape)?, one)));
    apart.min_by(|(a, one), (b, other)| a.total_cmp(b).then_with(|| of(one).cmp(&of(other))))
}

/// The buckets of `buckets` that what is measured at `shape` speaks for: those on whose border it lies, and that serve it.
/// None where the nearest is further away than [`NEAR`].
pub fn speaks_for(buckets: &[Shape], shape: &Shape) -> Vec<Shape> {
    let Some((least, _)) = nearest(buckets, |bucket| **bucket, shape) else { return Vec::new() };
    let on_border = |bucket: &&Shape| bucket.distance(shape).is_some_and(|d| d <= NEAR.min(least + BORDER));
    buckets.iter().filter(on_border).copied().collect()
}

/// The shapes at which serving from `buckets` is measured, in order: where two neighbours meet, which is as far from both
/// as what they serve between them can be.
///
/// They are the midpoints (geometric means of each size, rounded) of every two buckets of equal [`Lengths`] between which
/// no third is nearer to the midpoint than they are: Gabriel neighbours (Gabriel and Sokal 1969, "A New Statistical
/// Approach to Geographic Variation Analysis"). Those beyond [`NEAR`], where no bucket serves, and those that are as good
/// as a bucket are left out.
pub fn held_out(buckets: &[Shape]) -> Vec<Shape> {
    let pairs = buckets.iter().enumerate().flat_map(|(i, a)| buckets[i + 1..].iter().map(move |b| (a, b)));
    let held_out = |(a, b): (&Shape, &Shape)| {
        let shape = midpoint(a, b)?;
        let (least, _) = nearest(buckets, |bucket| **bucket, &shape)?;
        let of_pair = a.distance(&shape)?.min(b.distance(&shape)?);
        (of_pair <= least && (SAME..=NEAR).contains(&least)).then_some(shape)
    };
    let mut all: Vec<Shape> = pairs.filter_map(held_out).collect();
    all.sort();
    all.dedup();
    all
}

/// Halfway between two shapes of one operation and distribution of lengths.
fn midpoint(a: &Shape, b: &Shape) -> Option<Shape> {
    let mean = |a: u32, b: u32| (f64::from(a) * f64::from(b)).sqrt().round() as u32;
    match (*a, *b) {
        (
            Shape::Decode { batch, context, kv_heads, lengths },
            Shape::Decode { batch: n, context: c, kv_heads: h, lengths: l },
        ) if lengths == l => {
            // Log-uniform lengths reach from a fixed shortest one: up to it they would be equal.
            let context = mean(context, c);
            let ragged = lengths == Lengths::LogUniform && context <= Lengths::SHORTEST;
            let shape = Shape::Decode { batch: mean(batch, n), context, kv_heads: mean(kv_heads, h), lengths };
            (!ragged).then_some(shape)
        }
        (Shape::Append { tokens, kv_heads }, Shape::Append { tokens: t, kv_heads: h }) => {
            Some(Shape::Append { tokens: mean(tokens, t), kv_heads: mean(kv_heads, h) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(batch: u32, context: u32) -> Shape {
        Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::Equal }
    }

    fn ragged(batch: u32, context: u32) -> Shape {
        Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::LogUniform }
    }

    fn append(tokens: u32) -> Shape {
        Shape::Append { tokens, kv_heads: 8 }
    }

    #[test]
    fn the_nearest_is_the_smaller_of_two_equally_near_and_of_one_operation() {
        let near = |tuned: &[Shape], shape| nearest(tuned.to_vec(), |s| *s, &shape);
        assert_eq!(near(&[decode(4, 1024), decode(1, 1024)], decode(2, 1024)), Some((1.0, decode(1, 1024))));
        assert_eq!(near(&[decode(4, 1024), decode(1, 1024)], decode(3, 1024)).unwrap().1, decode(4, 1024));
        assert_eq!(near(&[append(8)], decode(2, 1024)), None);
    }

    #[test]
    fn neighbours_are_held_out_at_their_geometric_mean() {
        assert_eq!(held_out(&[decode(16, 4096), decode(4, 16_384)]), [decode(8, 8192)]);
        // Between the outer two lies the middle one.
        assert_eq!(held_out(&[append(1), append(64), append(16)]), [append(4), append(32)]);
        // The corners of a square in logarithms: its sides, and the centre of both diagonals once.
        let square = [decode(1, 1024), decode(1, 4096), decode(4, 1024), decode(4, 4096)];
        let sides = [decode(1, 2048), decode(2, 1024), decode(2, 2048), decode(2, 4096), decode(4, 2048)];
        assert_eq!(held_out(&square), sides);
        // Equal and ragged batches are no neighbours of each other.
        assert_eq!(held_out(&[decode(4, 4096), ragged(16, 4096), ragged(64, 4096)]), [ragged(32, 4096)]);
        assert_eq!(held_out(&[ragged(8, 64), ragged(8, 1024)]), []);
        let heads = |kv_heads| Shape::Decode { batch: 1, context: 1024, kv_heads, lengths: Lengths::Equal };
        assert_eq!(held_out(&[heads(2), heads(8)]), [heads(4)]);
    }

    #[test]
    fn nothing_is_held_out_where_no_bucket_serves_or_that_is_as_good_as_a_bucket() {
        assert_eq!(held_out(&[append(1), append(64)]), [append(8)], "3 doublings from both");
        assert_eq!(held_out(&[append(1), append(128)]), []);
        assert_eq!(held_out(&[append(1), append(2)]), [], "1 or 2");
        assert_eq!(held_out(&[decode(8, 1000), decode(8, 1200)]), []);
        assert_eq!(held_out(&[]), []);
    }

    #[test]
    fn a_held_out_shape_speaks_for_those_it_lies_between() {
        let tuned = [append(8), append(1), append(4096)];
        assert_eq!(speaks_for(&tuned, &append(3)), [append(8), append(1)], "a rounding apart");
        assert_eq!(speaks_for(&tuned, &append(2)), [append(1)]);
        assert_eq!(speaks_for(&tuned, &append(181)), []);
    }

    /// Splitting every bucket at every shape that is held out ends, since none is held out next to a bucket.
    #[test]
    fn splitting_ends() {
        let mut buckets = vec![decode(1, 1024), decode(8, 8192), decode(64, 1024)];
        for round in 0.. {
            let shapes = held_out(&buckets);
            assert!(shapes.iter().all(|shape| !speaks_for(&buckets, shape).is_empty()));
            if shapes.is_empty() {
                assert!(round >= 3, "{round}");
                break;
            }
            assert!(round < 10);
            buckets.extend(shapes);
        }
    }
}
