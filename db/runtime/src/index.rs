//! The tuned shapes of one problem, in memory, and the nearest of them.

use crate::bundle::Trust;
use nvkv_spec::{Lengths, Shape, SplitPolicy};

/// One tuned shape and what won there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Row {
    /// Where it was tuned.
    pub shape: Shape,
    /// Index of the kernel.
    pub kernel: u32,
    /// Split policy of the launch; none for append.
    pub split: Option<SplitPolicy>,
    /// Whether it was timed or predicted.
    pub trust: Trust,
    /// Its time, µs: measured or predicted.
    pub us: f64,
    /// How much slower than the best kernel there it was at other shapes that it served, as far as measured.
    pub regret: Option<f64>,
}

/// Rows sorted into lines of equal batch and KV heads, so that a search looks at two rows a line.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: Vec<Row>,
    lines: Vec<Line>,
    /// `log2` of each row's context or tokens.
    inner: Vec<f64>,
}

/// Rows with these sizes, in `log2`, by rising context or tokens.
#[derive(Debug)]
struct Line {
    batch: f64,
    kv_heads: f64,
    lengths: Lengths,
    rows: std::ops::Range<usize>,
}

/// Batch, context (or tokens), KV heads, and how lengths are distributed; an append is one request.
fn sizes(shape: &Shape) -> ([u32; 3], Lengths) {
    match *shape {
        Shape::Decode { batch, context, kv_heads, lengths } => ([batch, context, kv_heads], lengths),
        Shape::Append { tokens, kv_heads } => ([1, tokens, kv_heads], Lengths::Equal),
    }
}

/// By KV heads, batch and distribution of lengths, then by context or tokens.
fn order(row: &Row) -> (u32, u32, Lengths, u32) {
    let ([batch, inner, kv_heads], lengths) = sizes(&row.shape);
    (kv_heads, batch, lengths, inner)
}

/// Sorts the rows of one problem as [`Rows`] has them; the first shape that is there twice, if one is.
pub(crate) fn sort(rows: &mut [Row]) -> Option<Shape> {
    rows.sort_by_key(order);
    rows.windows(2).find(|two| two[0].shape == two[1].shape).map(|two| two[0].shape)
}

fn log2(size: u32) -> f64 {
    f64::from(size.max(1)).log2()
}

impl Rows {
    /// Rows of one operation; of several of one shape the last counts.
    pub fn new(mut rows: Vec<Row>) -> Self {
        rows.reverse();
        rows.sort_by_key(order);
        rows.dedup_by_key(|row| row.shape);
        let line_of = |row: &Row| (order(row).0, order(row).1, order(row).2);
        let mut lines = Vec::<Line>::new();
        let mut start = 0;
        for line in rows.chunk_by(|a, b| line_of(a) == line_of(b)) {
            let (kv_heads, batch, lengths) = line_of(&line[0]);
            let rows = start..start + line.len();
            lines.push(Line { batch: log2(batch), kv_heads: log2(kv_heads), lengths, rows });
            start += line.len();
        }
        Self { inner: rows.iter().map(|row| log2(sizes(&row.shape).0[1])).collect(), rows, lines }
    }

    /// The row nearest to `shape` by [`Shape::distance`], with its distance; of equally near ones that of the smaller shape.
    pub fn nearest(&self, shape: &Shape) -> Option<(f64, &Row)> {
        let (sizes, lengths) = sizes(shape);
        let [batch, inner, kv_heads] = sizes.map(log2);
        let mut best: Option<(f64, &Row)> = None;
        for line in &self.lines {
            let (of_batch, of_heads) = ((batch - line.batch).abs(), (kv_heads - line.kv_heads).abs());
            let of_lengths = f64::from(u8::from(lengths != line.lengths));
            if best.is_some_and(|(distance, _)| of_batch + of_heads + of_lengths > distance) {
                continue;
            }
            let after = line.rows.start + self.inner[line.rows.clone()].partition_point(|&x| x < inner);
            // The two around `inner`; where several sizes share a logarithm (0 and 1), the first of them.
            for at in [after.wrapping_sub(1), after] {
                if line.rows.contains(&at) {
                    // In the order of `Shape::distance`, so that both round alike.
                    let distance = of_batch + (inner - self.inner[at]).abs() + of_heads + of_lengths;
                    let row = &self.rows[at];
                    let nearer = |(d, b): (f64, &Row)| distance.total_cmp(&d).then(row.shape.cmp(&b.shape)).is_lt();
                    if best.is_none_or(nearer) {
                        best = Some((distance, row));
                    }
                }
            }
        }
        best
    }

    /// All rows.
    pub fn iter(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(shape: Shape, kernel: u32) -> Row {
        Row { shape, kernel, split: None, trust: Trust::Timed, us: 1.0, regret: None }
    }

    /// The definition of a bucket, a plain scan, is the specification.
    #[test]
    fn the_search_gives_what_a_scan_gives() {
        let sizes = [1u32, 2, 3, 7, 8, 24, 64, 100, 4096, 5000, 131_072];
        let all = |n: usize| sizes.iter().copied().cycle().skip(n * 7 % sizes.len());
        let mut shapes = Vec::new();
        for (batch, i) in sizes.into_iter().zip(0..) {
            for context in all(i).take(5) {
                for kv_heads in [1, 2, 8] {
                    let lengths = if context % 3 == 0 { Lengths::LogUniform } else { Lengths::Equal };
                    shapes.push(Shape::Decode { batch, context, kv_heads, lengths });
                }
            }
        }
        let appends: Vec<_> =
            sizes.iter().flat_map(|&tokens| [1, 8].map(|kv_heads| Shape::Append { tokens, kv_heads })).collect();
        for shapes in [shapes, appends] {
            let rows = Rows::new(shapes.iter().enumerate().map(|(i, &s)| row(s, i as u32)).collect());
            for asked in [0u32, 1, 5, 6, 9, 90, 640, 4500, 1 << 20].into_iter().flat_map(|a| {
                [(1, 3), (5, 2), (16, 8), (70, 5)].map(|(batch, kv_heads)| match shapes[0] {
                    Shape::Decode { .. } => Shape::Decode { batch, context: a, kv_heads, lengths: Lengths::Equal },
                    Shape::Append { .. } => Shape::Append { tokens: a, kv_heads },
                })
            }) {
                let (distance, shape) = nvkv_spec::bucket::nearest(&shapes, |s| **s, &asked).unwrap();
                let (found, at) = rows.nearest(&asked).unwrap();
                assert_eq!((found, &at.shape), (distance, shape), "{}", asked.key());
            }
        }
    }

    #[test]
    fn of_rows_of_one_shape_the_last_counts() {
        let shape = Shape::Append { tokens: 4, kv_heads: 8 };
        let rows = Rows::new(vec![row(shape, 1), row(shape, 2)]);
        assert_eq!(rows.nearest(&shape).unwrap().1.kernel, 2);
        assert_eq!(rows.iter().count(), 1);
    }
}
