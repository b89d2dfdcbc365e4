//! Rows of 16-bit elements with or without gaps between them.

/// Distances in a `[tokens, heads, D]` tensor, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowStrides {
    heads: usize,
    dim: usize,
    /// From a head to the next.
    pub head: usize,
    /// From a token to the next.
    pub token: usize,
}

/// What gaps hold: NaN in both types.
pub const GAP: u16 = 0xffff;

impl RowStrides {
    /// Dense rows, or rows with a gap after each head and another after each token. Gaps keep the
    /// alignment of 16 bytes.
    pub fn new(heads: u32, dim: u32, padded: bool) -> Self {
        Self::with_gaps(heads, dim, if padded { [8, 24] } else { [0; 2] })
    }

    /// The same for V, whose gaps are not K's: a kernel that takes one's strides for the other's is wrong.
    pub fn of_v(heads: u32, dim: u32, padded: bool) -> Self {
        Self::with_gaps(heads, dim, if padded { [16, 40] } else { [0; 2] })
    }

    fn with_gaps(heads: u32, dim: u32, [head_gap, token_gap]: [usize; 2]) -> Self {
        let (heads, dim) = (heads as usize, dim as usize);
        let head = dim + head_gap;
        Self { heads, dim, head, token: heads * head + token_gap }
    }

    /// Bytes between tokens.
    pub fn token_bytes(&self) -> i64 {
        2 * self.token as i64
    }

    /// Bytes between heads.
    pub fn head_bytes(&self) -> i64 {
        2 * self.head as i64
    }

    /// Dense rows, spread out, with [`GAP`] between them.
    pub fn spread(&self, dense: &[u16]) -> Vec<u16> {
        let tokens = dense.len() / (self.heads * self.dim);
        let mut spread = vec![GAP; tokens * self.token];
        for (row, elements) in dense.chunks_exact(self.dim).enumerate() {
            spread[self.start(row)..][..self.dim].copy_from_slice(elements);
        }
        spread
    }

    /// The dense rows of `spread`, or `None` where a gap has been written to.
    pub fn gather(&self, spread: &[u16]) -> Option<Vec<u16>> {
        let tokens = spread.len() / self.token;
        let rows = (0..tokens * self.heads).map(|row| &spread[self.start(row)..][..self.dim]);
        let dense: Vec<u16> = rows.flatten().copied().collect();
        let gaps = |elements: &[u16]| elements.iter().filter(|&&e| e == GAP).count();
        let in_gaps = spread.len() - dense.len();
        (gaps(spread) - gaps(&dense) == in_gaps).then_some(dense)
    }

    fn start(&self, row: usize) -> usize {
        row / self.heads * self.token + row % self.heads * self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_rows_come_back_and_a_touched_gap_shows() {
        let dense: Vec<u16> = (0..3 * 2 * 64).collect();
        for padded in [false, true] {
            for strides in [RowStrides::new(2, 64, padded), RowStrides::of_v(2, 64, padded)] {
                let spread = strides.spread(&dense);
                assert_eq!(spread.len(), 3 * strides.token);
                assert_eq!(strides.gather(&spread).unwrap(), dense);
            }
        }
        let strides = RowStrides::new(2, 64, true);
        for gap in [64, 71, 64 + 8 + 64, strides.token - 1] {
            let mut spread = strides.spread(&dense);
            assert_eq!(spread[gap], GAP);
            spread[gap] = 0;
            assert!(strides.gather(&spread).is_none(), "gap at {gap}");
        }
    }
}
