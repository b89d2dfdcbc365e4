//! Paged cache layouts: byte strides of data and block scales, for the layouts that engines hold.

use crate::kv_format::{ElementFormat, KvFormat};
use crate::name::named_enum;
use serde::{Deserialize, Serialize};

/// Byte distances inside one paged tensor. The innermost dimension is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Strides {
    /// From a page to the next.
    pub page: i64,
    /// From a KV head to the next, in one page.
    pub head: i64,
    /// From a token to the next, in one page of one head.
    pub token: i64,
}

impl Strides {
    /// Byte offset of row (`page`, `head`, `token`).
    pub fn offset(&self, page: u64, head: u32, token: u32) -> i64 {
        page as i64 * self.page + i64::from(head) * self.head + i64::from(token) * self.token
    }
}

named_enum! {
    /// The arrangements that engines use.
    Arrangement: "cache arrangement" {
        /// `[pages, Hkv, page, row]`, four separate tensors (FlashInfer's HND).
        Hnd = "hnd",
        /// `[pages, page, Hkv, row]`, four separate tensors (FlashInfer's NHD).
        Nhd = "nhd",
        /// Each page holds K data, K scales, V data and V scales back to back (vLLM), HND inside.
        OneBlock = "one_block",
    }
}

/// One tensor of a cache: where it starts in the allocation, and its strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagedTensor {
    /// First byte, from the start of the allocation.
    pub base: u64,
    /// Byte strides.
    pub strides: Strides,
}

impl PagedTensor {
    /// Byte offset of row (`page`, `head`, `token`) from the start of the allocation.
    pub fn row(&self, page: u64, head: u32, token: u32) -> usize {
        (self.base as i64 + self.strides.offset(page, head, token)) as usize
    }
}

/// A paged cache in one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLayout {
    /// K codes.
    pub k_data: PagedTensor,
    /// K block scales (unused where the format has none).
    pub k_scales: PagedTensor,
    /// V codes.
    pub v_data: PagedTensor,
    /// V block scales (unused where the format has none).
    pub v_scales: PagedTensor,
    /// Bytes of the allocation.
    pub bytes: u64,
}

impl CacheLayout {
    /// The layout of `pages` pages of `page_size` tokens, `kv_heads` heads of `head_dim` elements.
    pub fn new(
        arrangement: Arrangement,
        format: KvFormat,
        pages: u64,
        kv_heads: u32,
        page_size: u32,
        head_dim: u32,
    ) -> Self {
        let row = |f: ElementFormat| [f.data_row_bytes(head_dim), f.scale_row_bytes(head_dim)];
        let [kd, ks] = row(format.k());
        let [vd, vs] = row(format.v());
        let page_bytes = |row: u32| u64::from(row) * u64::from(page_size) * u64::from(kv_heads);
        let mut base = 0;
        let mut place = |row: u32| {
            let (in_page, all) = (page_bytes(row), page_bytes(row) * pages);
            let page = match arrangement {
                Arrangement::OneBlock => page_bytes(kd + ks + vd + vs),
                _ => in_page,
            } as i64;
            let (outer, inner) = (i64::from(row), i64::from(row));
            let strides = match arrangement {
                Arrangement::Nhd => Strides { page, head: inner, token: outer * i64::from(kv_heads) },
                _ => Strides { page, head: outer * i64::from(page_size), token: inner },
            };
            let tensor = PagedTensor { base, strides };
            base += if arrangement == Arrangement::OneBlock { in_page } else { all };
            tensor
        };
        let (k_data, k_scales, v_data, v_scales) = (place(kd), place(ks), place(vd), place(vs));
        Self { k_data, k_scales, v_data, v_scales, bytes: page_bytes(kd + ks + vd + vs) * pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_format::VScaleOrder;

    #[test]
    fn strides_follow_the_documented_shapes() {
        let hnd = CacheLayout::new(Arrangement::Hnd, KvFormat::Nvfp4, 10, 8, 16, 128);
        assert_eq!(hnd.k_data.strides, Strides { page: 8 * 16 * 64, head: 16 * 64, token: 64 });
        assert_eq!(hnd.v_scales.strides, Strides { page: 8 * 16 * 8, head: 16 * 8, token: 8 });
        let nhd = CacheLayout::new(Arrangement::Nhd, KvFormat::Nvfp4, 10, 8, 16, 128);
        assert_eq!(nhd.k_data.strides, Strides { page: 8 * 16 * 64, head: 64, token: 8 * 64 });
        let one = CacheLayout::new(Arrangement::OneBlock, KvFormat::Nvfp4, 10, 8, 16, 128);
        assert_eq!(one.k_scales.base, 8 * 16 * 64);
        assert_eq!(one.v_data.base, 8 * 16 * 72);
        assert_eq!(one.k_data.strides.page, 8 * 16 * 144);
        assert_eq!(one.bytes, hnd.bytes);
    }

    #[test]
    fn every_row_of_every_arrangement_is_disjoint() {
        for &arrangement in Arrangement::ALL {
            let l = CacheLayout::new(arrangement, KvFormat::Nvfp4, 3, 2, 8, 64);
            let mut owner = vec![false; l.bytes as usize];
            for (tensor, row) in [(l.k_data, 32), (l.k_scales, 4), (l.v_data, 32), (l.v_scales, 4)] {
                for (page, head, token) in (0..3).flat_map(|p| (0..2).flat_map(move |h| (0..8).map(move |t| (p, h, t))))
                {
                    let at = tensor.row(page, head, token);
                    for byte in &mut owner[at..at + row] {
                        assert!(!std::mem::replace(byte, true), "{arrangement}: overlapping rows");
                    }
                }
            }
            assert!(owner.iter().all(|&b| b), "{arrangement}: a gap");
        }
    }

    #[test]
    fn interleaved_scales_cover_the_page_once() {
        let mut seen = [false; 16 * 8];
        for t in 0..16 {
            for s in 0..8 {
                let at = VScaleOrder::Interleaved4.offset(t, s, 8, 8) as usize;
                assert!(!std::mem::replace(&mut seen[at], true));
            }
        }
        assert_eq!(VScaleOrder::Interleaved4.offset(5, 3, 8, 8), 32 + 12 + 1);
    }
}
