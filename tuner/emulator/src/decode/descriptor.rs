//! Matrices in shared memory as `wgmma` describes them (PTX ISA, "Shared memory matrix layout" and "Matrix
//! descriptor format"; the canonical layouts in the words of CUTLASS's `mma_sm90_desc.hpp`).

/// Bytes along K of one instruction, whatever the type.
const K_BYTES: u32 = 32;
/// Bytes that lie side by side in every layout.
const CHUNK: u32 = 16;
/// Rows of a core matrix.
const CORE_ROWS: u32 = 8;

/// A matrix in shared memory: K-major, or with its M or N innermost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    start: u32,
    /// "Leading dimension byte offset".
    leading: u32,
    /// "Stride dimension byte offset".
    stride: u32,
    /// Chunks of a swizzled row: 1 (no swizzle), 2, 4 or 8.
    width: u32,
    k_major: bool,
}

/// 16 bytes of a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub address: u64,
    /// First row (of A; column of B) and first element along K.
    pub row: usize,
    pub k: usize,
}

impl Matrix {
    /// Reads a descriptor; none where it has a base offset, for matrices that do not begin where the swizzle does.
    pub fn new(bits: u64, k_major: bool) -> Option<Self> {
        let field = |at: u32| ((bits >> at & 0x3FFF) << 4) as u32;
        let width = [1, 8, 4, 2][(bits >> 62) as usize];
        let has_offset = bits >> 49 & 7 != 0;
        (!has_offset).then(|| Self { start: field(0), leading: field(16), stride: field(32), width, k_major })
    }

    pub fn is_k_major(&self) -> bool {
        self.k_major
    }

    /// Chunks of `rows` rows from `first`, both multiples of 8, of elements of `element` bytes.
    pub fn chunks(self, first: u32, rows: u32, element: u32) -> impl Iterator<Item = Chunk> {
        let elements = CHUNK / element;
        let (lines, across) = if self.k_major { (rows, K_BYTES / CHUNK) } else { (K_BYTES / element, rows / elements) };
        (0..lines).flat_map(move |line| {
            (0..across).map(move |chunk| {
                let (row, k) = if self.k_major { (line, chunk * elements) } else { (chunk * elements, line) };
                let address = self.address(first + row, k, elements);
                Chunk { address, row: row as usize, k: k as usize }
            })
        })
    }

    /// Address of the chunk with that row and K index.
    fn address(&self, row: u32, k: u32, elements: u32) -> u64 {
        let offset = match (self.k_major, self.width) {
            (true, 1) => row / CORE_ROWS * self.stride + row % CORE_ROWS * CHUNK + k / elements * self.leading,
            (true, width) => row / CORE_ROWS * self.stride + (row % CORE_ROWS * width + k / elements) * CHUNK,
            (false, 1) => row / elements * self.stride + k % CORE_ROWS * CHUNK + k / CORE_ROWS * self.leading,
            (false, width) => {
                let chunk = row / elements;
                let within = (k % CORE_ROWS * width + chunk % width) * CHUNK;
                within + chunk / width * self.leading + k / CORE_ROWS * self.stride
            }
        };
        let plain = self.start + offset;
        // Bits 4 and up are exchanged with bits 7 and up: as many as the row has chunks.
        u64::from(plain ^ ((plain >> 3) & ((self.width - 1) * CHUNK)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(start: u64, leading: u64, stride: u64, swizzle: u64, k_major: bool) -> Matrix {
        Matrix::new(start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62, k_major).unwrap()
    }

    #[test]
    fn swizzled_rows_of_128_bytes_permute_their_chunks_by_row() {
        // Row 3, K bytes 16 to 31 of the second 32 bytes: chunk 3 of its row, exchanged with row 3's bits.
        let chunks: Vec<_> = matrix(1024 + 32, 0, 1024, 1, true).chunks(0, 16, 1).collect();
        let at = |row, k| chunks.iter().find(|c| (c.row, c.k) == (row, k)).unwrap().address;
        assert_eq!(at(3, 16), 1024 + 3 * 128);
        assert_eq!(at(11, 0), 2048 + 3 * 128 + 16);
    }

    #[test]
    fn narrower_swizzles_repeat_sooner() {
        let address = |swizzle, row: usize, stride| {
            let chunks = matrix(1024, 0, stride, swizzle, true).chunks(0, 8, 2);
            chunks.into_iter().find(|c| (c.row, c.k) == (row, 8)).unwrap().address
        };
        // 64 bytes a row: two rows share one pattern; 32 bytes: four do.
        assert_eq!(address(2, 5, 512), 1024 + 5 * 64 + (1 ^ 2) * 16);
        assert_eq!(address(3, 5, 256), 1024 + 5 * 32);
        assert_eq!(address(3, 3, 256), 1024 + 3 * 32 + 16);
    }

    #[test]
    fn with_rows_innermost_each_k_is_a_line() {
        let chunks: Vec<_> = matrix(1024, 4096, 1024, 1, false).chunks(0, 128, 2).collect();
        let at = |row, k| chunks.iter().find(|c| (c.row, c.k) == (row, k)).unwrap().address;
        assert_eq!(at(16, 5), 1024 + 5 * 128 + (2 ^ 5) * 16);
        assert_eq!(at(72, 13), 1024 + 4096 + 1024 + 5 * 128 + (1 ^ 5) * 16);
        let plain: Vec<_> = matrix(1024, 128, 256, 0, false).chunks(0, 16, 2).collect();
        let at = |row, k| plain.iter().find(|c| (c.row, c.k) == (row, k)).unwrap().address;
        assert_eq!(at(8, 9), 1024 + 256 + 128 + 16);
    }

    #[test]
    fn base_offsets_are_not_read() {
        assert!(Matrix::new(1 << 49, true).is_none());
    }
}
