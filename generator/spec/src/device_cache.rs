//! Kernel parameters that describe a cache: one place where a layout becomes addresses and strides.

use crate::abi::{AppendParams, DecodeParams, DevicePtr};
use crate::kv_format::{ElementFormat, KvFormat};
use crate::layout::{CacheLayout, PagedTensor};

/// A cache in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCache<'a> {
    /// Address of the allocation.
    pub base: DevicePtr,
    /// Where the tensors lie in it.
    pub layout: &'a CacheLayout,
    /// Storage of the elements.
    pub format: KvFormat,
}

/// The 16 cache fields that both parameter structs have under the same names.
macro_rules! with_cache {
    ($cache:expr, $struct:ident, $rest:expr) => {{
        let DeviceCache { base, layout, .. } = *$cache;
        let at = |tensor: PagedTensor| base + tensor.base;
        $struct {
            k_data: at(layout.k_data),
            k_scales: $cache.scales(layout.k_scales, $cache.format.k()),
            v_data: at(layout.v_data),
            v_scales: $cache.scales(layout.v_scales, $cache.format.v()),
            k_data_page: layout.k_data.strides.page,
            k_data_head: layout.k_data.strides.head,
            k_data_token: layout.k_data.strides.token,
            k_scales_page: layout.k_scales.strides.page,
            k_scales_head: layout.k_scales.strides.head,
            k_scales_token: layout.k_scales.strides.token,
            v_data_page: layout.v_data.strides.page,
            v_data_head: layout.v_data.strides.head,
            v_data_token: layout.v_data.strides.token,
            v_scales_page: layout.v_scales.strides.page,
            v_scales_head: layout.v_scales.strides.head,
            v_scales_token: layout.v_scales.strides.token,
            ..$rest
        }
    }};
}

impl DeviceCache<'_> {
    /// `rest` with the cache fields of a decode call set.
    pub fn decode_params(&self, rest: DecodeParams) -> DecodeParams {
        with_cache!(self, DecodeParams, rest)
    }

    /// `rest` with the cache fields of an append call set.
    pub fn append_params(&self, rest: AppendParams) -> AppendParams {
        with_cache!(self, AppendParams, rest)
    }

    /// Null where the format has no block scales.
    fn scales(&self, tensor: PagedTensor, format: ElementFormat) -> DevicePtr {
        match format.scale_row_bytes(16) {
            0 => 0,
            _ => self.base + tensor.base,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Arrangement;

    #[test]
    fn formats_without_block_scales_get_null() {
        for (format, [k_has, v_has]) in [
            (KvFormat::Nvfp4, [true, true]),
            (KvFormat::Fp8E4m3, [false, false]),
            (KvFormat::Fp8E4m3Nvfp4, [false, true]),
        ] {
            let layout = CacheLayout::new(Arrangement::Nhd, format, 4, 2, 16, 128);
            let cache = DeviceCache { base: 1 << 20, layout: &layout, format };
            let params = cache.decode_params(DecodeParams::default());
            assert_eq!(params.v_data, (1 << 20) + layout.v_data.base);
            assert_eq!([params.k_scales != 0, params.v_scales != 0], [k_has, v_has]);
            assert_eq!(params.k_data_token, layout.k_data.strides.token);
            let append = cache.append_params(AppendParams { tokens: 3, ..AppendParams::default() });
            assert_eq!((append.tokens, append.v_scales != 0), (3, v_has));
        }
    }
}
