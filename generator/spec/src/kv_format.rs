//! How cached keys and values are stored: element formats, block size, row bytes, scale order.

use crate::name::named_enum;

/// Elements that share one block scale in NVFP4.
pub const BLOCK: u32 = 16;

named_enum! {
    /// Storage format of one cached tensor (K or V).
    ElementFormat: "element format" {
        /// E2M1 codes, two a byte with the even element in the low nibble, one E4M3 scale per
        /// [`BLOCK`] elements, one fp32 scale a tensor.
        Nvfp4 = "nvfp4",
        /// E4M3 bytes with one fp32 scale a tensor; no block scales.
        Fp8E4m3 = "fp8_e4m3",
    }
}

impl ElementFormat {
    /// Bytes of data in one row (one token, one KV head) of `head_dim` elements.
    pub fn data_row_bytes(self, head_dim: u32) -> u32 {
        match self {
            Self::Nvfp4 => head_dim / 2,
            Self::Fp8E4m3 => head_dim,
        }
    }

    /// Bytes of block scales in one row: `head_dim / 16` for NVFP4, none for FP8.
    pub fn scale_row_bytes(self, head_dim: u32) -> u32 {
        match self {
            Self::Nvfp4 => head_dim / BLOCK,
            Self::Fp8E4m3 => 0,
        }
    }

    /// Data and scale bytes of one row.
    pub fn row_bytes(self, head_dim: u32) -> u32 {
        self.data_row_bytes(head_dim) + self.scale_row_bytes(head_dim)
    }
}

named_enum! {
    /// Storage format of a whole cache: K and V each have an [`ElementFormat`].
    KvFormat: "KV format" {
        /// K and V in NVFP4.
        Nvfp4 = "nvfp4",
        /// K and V in FP8 (E4M3).
        Fp8E4m3 = "fp8_e4m3",
        /// K in FP8 (E4M3), V in NVFP4: an error of K is in the exponent of the softmax, one of V is averaged.
        Fp8E4m3Nvfp4 = "fp8_e4m3+nvfp4",
    }
}

impl KvFormat {
    /// Format of the keys.
    pub fn k(self) -> ElementFormat {
        match self {
            Self::Nvfp4 => ElementFormat::Nvfp4,
            Self::Fp8E4m3 | Self::Fp8E4m3Nvfp4 => ElementFormat::Fp8E4m3,
        }
    }

    /// Format of the values.
    pub fn v(self) -> ElementFormat {
        match self {
            Self::Nvfp4 | Self::Fp8E4m3Nvfp4 => ElementFormat::Nvfp4,
            Self::Fp8E4m3 => ElementFormat::Fp8E4m3,
        }
    }

    /// Bytes of K, V and their block scales for one token of one KV head.
    pub fn token_bytes(self, head_dim: u32) -> u32 {
        self.k().row_bytes(head_dim) + self.v().row_bytes(head_dim)
    }
}

named_enum! {
    /// Order of the V block scales inside one head's page, a `[page_size, S]` matrix, S = D/16.
    /// Mixing the two up gives wrong results without any fault, so it is always named.
    VScaleOrder: "V scale order" {
        /// Scale `s` of token `t` at `t * token_stride + s`.
        Linear = "linear",
        /// Groups of four tokens side by side: `(t / 4) * 4S + 4s + t % 4`. The matrix is dense.
        Interleaved4 = "interleaved4",
    }
}

impl VScaleOrder {
    /// Byte offset of the scale of block `s` of token `t` (in its page), from the start of the
    /// head's page; `scales` = S is the row length and `token_stride` the distance of rows, in bytes.
    pub fn offset(self, t: u32, s: u32, scales: u32, token_stride: i64) -> i64 {
        let (t, s, scales) = (i64::from(t), i64::from(s), i64::from(scales));
        match self {
            Self::Linear => t * token_stride + s,
            Self::Interleaved4 => (t / 4) * 4 * scales + 4 * s + t % 4,
        }
    }
}
