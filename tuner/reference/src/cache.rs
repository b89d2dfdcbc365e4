//! A paged cache in host memory, byte for byte as a kernel sees it.

use crate::codec::{Block, E4M3_VALUES, element_values};
use nvkv_spec::kv_format::BLOCK;
use nvkv_spec::layout::{Arrangement, CacheLayout, PagedTensor};
use nvkv_spec::{ElementFormat, KvFormat, Numerics, VScaleOrder};

/// A paged cache in one allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct HostCache {
    /// Where rows lie in `bytes`. Any strides will do; [`HostCache::new`] makes the usual ones.
    pub layout: CacheLayout,
    /// Storage of the elements.
    pub format: KvFormat,
    /// Order of the V block scales; K block scales are always linear.
    pub order: VScaleOrder,
    /// Tokens a page.
    pub page_size: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Elements of a head, a multiple of 16.
    pub head_dim: u32,
    /// Pages.
    pub pages: u64,
    /// The allocation, `layout.bytes` long.
    pub bytes: Vec<u8>,
}

/// K or V of a cache.
#[derive(Clone, Copy)]
pub(crate) struct CachedTensor {
    pub(crate) format: ElementFormat,
    data: PagedTensor,
    scales: PagedTensor,
    order: VScaleOrder,
}

/// One token of one KV head in one page.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) page: u64,
    pub(crate) head: u32,
    pub(crate) token: u32,
}

impl CachedTensor {
    /// Offset of the row's first data byte.
    fn data(&self, row: Row) -> usize {
        self.data.row(row.page, row.head, row.token)
    }

    /// Offset of the scale of block `block` of a row of `blocks` blocks.
    fn scale(&self, row: Row, block: usize, blocks: usize) -> usize {
        let page = self.scales.row(row.page, row.head, 0);
        page + self.order.offset(row.token, block as u32, blocks as u32, self.scales.strides.token) as usize
    }
}

impl HostCache {
    /// A cache of zero bytes, and that is zeros in every format.
    ///
    /// Interleaved V scales are dense within a head's page, which leaves no place for other heads
    /// between tokens: with [`Arrangement::Nhd`] their tensor is `[pages, Hkv, page, D/16]`.
    pub fn new(
        arrangement: Arrangement,
        format: KvFormat,
        order: VScaleOrder,
        pages: u64,
        kv_heads: u32,
        page_size: u32,
        head_dim: u32,
    ) -> Self {
        let shaped = |arrangement| CacheLayout::new(arrangement, format, pages, kv_heads, page_size, head_dim);
        let mut layout = shaped(arrangement);
        if arrangement == Arrangement::Nhd && order == VScaleOrder::Interleaved4 {
            layout.v_scales = shaped(Arrangement::Hnd).v_scales;
        }
        let bytes = vec![0; layout.bytes as usize];
        Self { layout, format, order, page_size, kv_heads, head_dim, pages, bytes }
    }

    /// Writes the elements of a K row to `out` (`[D]`), without the scale of the tensor.
    ///
    /// # Panics
    /// Where the row is outside the cache or `out` is not `head_dim` long; so does [`Self::v_row`].
    pub fn k_row(&self, numerics: Numerics, page: u64, head: u32, token: u32, out: &mut [f64]) {
        self.read_row(self.k(), numerics, Row { page, head, token }, out);
    }

    /// Writes the elements of a V row to `out` (`[D]`), without the scale of the tensor.
    pub fn v_row(&self, numerics: Numerics, page: u64, head: u32, token: u32, out: &mut [f64]) {
        self.read_row(self.v(), numerics, Row { page, head, token }, out);
    }

    pub(crate) fn k(&self) -> CachedTensor {
        let (data, scales) = (self.layout.k_data, self.layout.k_scales);
        CachedTensor { format: self.format.k(), data, scales, order: VScaleOrder::Linear }
    }

    pub(crate) fn v(&self) -> CachedTensor {
        let (data, scales) = (self.layout.v_data, self.layout.v_scales);
        CachedTensor { format: self.format.v(), data, scales, order: self.order }
    }

    fn read_row(&self, tensor: CachedTensor, numerics: Numerics, row: Row, out: &mut [f64]) {
        assert_eq!(out.len(), self.head_dim as usize, "length of a row");
        self.assert_holds(row);
        let data = &self.bytes[tensor.data(row)..][..tensor.format.data_row_bytes(self.head_dim) as usize];
        match tensor.format {
            ElementFormat::Fp8E4m3 => {
                for (x, &byte) in out.iter_mut().zip(data) {
                    *x = f64::from(E4M3_VALUES[byte as usize]);
                }
            }
            ElementFormat::Nvfp4 => {
                let values = element_values(numerics);
                let blocks = out.len() / BLOCK as usize;
                let pieces = out.chunks_exact_mut(BLOCK as usize).zip(data.chunks_exact(BLOCK as usize / 2));
                for (block, (out, codes)) in pieces.enumerate() {
                    let of_code = &values[self.bytes[tensor.scale(row, block, blocks)] as usize];
                    for (pair, &byte) in out.chunks_exact_mut(2).zip(codes) {
                        pair[0] = f64::from(of_code[byte as usize & 15]);
                        pair[1] = f64::from(of_code[byte as usize >> 4]);
                    }
                }
            }
        }
    }

    /// Stores the blocks of an NVFP4 row.
    pub(crate) fn write_blocks(&mut self, tensor: CachedTensor, row: Row, blocks: &[Block]) {
        self.assert_holds(row);
        let data = tensor.data(row);
        for (i, block) in blocks.iter().enumerate() {
            let packed = block.packed();
            self.bytes[data + i * packed.len()..][..packed.len()].copy_from_slice(&packed);
            self.bytes[tensor.scale(row, i, blocks.len())] = block.scale;
        }
    }

    /// Stores the bytes of an FP8 row.
    pub(crate) fn write_bytes(&mut self, tensor: CachedTensor, row: Row, bytes: &[u8]) {
        self.assert_holds(row);
        self.bytes[tensor.data(row)..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Offsets are checked here because a row outside the cache may alias another tensor's bytes.
    fn assert_holds(&self, row: Row) {
        let Row { page, head, token } = row;
        assert!(
            page < self.pages && head < self.kv_heads && token < self.page_size,
            "row (page {page}, head {head}, token {token}) is outside a cache of {} pages, {} heads, {} tokens a page",
            self.pages,
            self.kv_heads,
            self.page_size
        );
    }
}
