//! Matrices in shared memory, as `wgmma` reads them (PTX ISA, "Asynchronous warpgroup-level matrix shared memory
//! layout" and "Matrix descriptor format").

/// How a matrix lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layout {
    /// Chunks of 16 bytes of a swizzled row: 2, 4 or 8; 1 without a swizzle.
    pub width: usize,
    /// Whether K is innermost, or M or N.
    pub k_major: bool,
}

/// Bytes of a chunk.
const CHUNK: usize = 16;
/// Rows of a core matrix.
const ROWS: usize = 8;

impl Layout {
    /// That of a kernel whose name ends so.
    pub fn named(name: &str) -> Option<Self> {
        let (k_major, width) = match name.strip_prefix("shared") {
            Some(swizzle) => (true, swizzle),
            None => (false, name.strip_prefix("columns")?),
        };
        let width = match width {
            "" => 1,
            bytes => bytes.parse::<usize>().ok()? / CHUNK,
        };
        Some(Self { width, k_major })
    }

    /// Bytes of `rows` rows of 32 bytes, and of what lies between them.
    pub fn bytes(self, rows: usize) -> usize {
        rows * if self.k_major { CHUNK * self.width.max(2) } else { 2 * CHUNK }
    }

    /// Where a narrow K of a wide row begins: a chunk that is not the first.
    fn first_chunk(self) -> usize {
        if self.k_major && self.width > 2 { self.width / 2 } else { 0 }
    }

    /// Bytes between core matrices: leading dimension, stride dimension.
    fn strides(self) -> [usize; 2] {
        match (self.k_major, self.width) {
            (_, 1) => [CHUNK * ROWS, 2 * CHUNK * ROWS],
            (true, width) => [CHUNK, CHUNK * ROWS * width],
            // Groups of rows of a swizzle's width, each with its 16 elements along K.
            (false, width) => [2 * CHUNK * ROWS * width, CHUNK * ROWS * width],
        }
    }

    /// The descriptor of a matrix `start` bytes behind an address whose bits from 4 on are joined to it.
    pub fn descriptor(self, start: usize) -> u64 {
        let [leading, stride] = self.strides();
        let swizzle = [0, 3, 2, 1][self.width.ilog2() as usize];
        let start = start + CHUNK * self.first_chunk();
        (start / CHUNK) as u64 | ((leading / CHUNK) as u64) << 16 | ((stride / CHUNK) as u64) << 32 | swizzle << 62
    }

    /// Byte where the chunk of row `row` begins that holds element `k`; a chunk has `elements` along its own dimension.
    fn place(self, row: usize, k: usize, elements: usize) -> usize {
        let [leading, stride] = self.strides();
        let plain = match (self.k_major, self.width) {
            (true, 1) => row / ROWS * stride + row % ROWS * CHUNK + k / elements * leading,
            (true, width) => row / ROWS * stride + (row % ROWS * width + self.first_chunk() + k / elements) * CHUNK,
            (false, 1) => row / elements * stride + k % ROWS * CHUNK + k / ROWS * leading,
            (false, width) => {
                let chunk = row / elements;
                chunk / width * leading + k / ROWS * stride + (k % ROWS * width + chunk % width) * CHUNK
            }
        };
        plain ^ (plain / 128 % self.width * CHUNK)
    }

    /// The bytes of a matrix of `rows`, elements of `size` bytes. What no element fills counts up.
    pub fn image(self, rows: &[Vec<u32>], size: usize) -> Vec<u8> {
        let mut image: Vec<u8> = (0..self.bytes(rows.len())).map(|i| i as u8).collect();
        let elements = CHUNK / size;
        for (row, codes) in rows.iter().enumerate() {
            for (k, code) in codes.iter().enumerate() {
                let within = if self.k_major { k % elements } else { row % elements };
                let at = self.place(row, k, elements) + within * size;
                image[at..at + size].copy_from_slice(&code.to_le_bytes()[..size]);
            }
        }
        image
    }
}
