//! Kernel parameters that describe a cache: one place where its tensors become fields.

use crate::abi::{AppendParams, DecodeParams, DevicePtr};
use crate::kv_format::{ElementFormat, KvFormat};
use crate::layout::{CacheLayout, PagedTensor, Strides};

/// A tensor of a cache in device memory; address 0 where the format has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTensor {
    /// First byte of page 0.
    pub address: DevicePtr,
    /// Byte strides.
    pub strides: Strides,
}

impl DeviceTensor {
    /// No tensor.
    pub const NONE: Self = Self { address: 0, strides: Strides { page: 0, head: 0, token: 0 } };
}

/// A paged cache in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCache {
    /// K codes.
    pub k_data: DeviceTensor,
    /// K block scales.
    pub k_scales: DeviceTensor,
    /// V codes.
    pub v_data: DeviceTensor,
    /// V block scales.
    pub v_scales: DeviceTensor,
}

/// The 16 cache fields that both parameter structs have under the same names.
macro_rules! with_cache {
    ($cache:expr, $struct:ident, $rest:expr) => {{
        let DeviceCache { k_data, k_scales, v_data, v_scales } = *$cache;
        $struct {
            k_data: k_data.address,
            k_scales: k_scales.address,
            v_data: v_data.address,
            v_scales: v_scales.address,
            k_data_page: k_data.strides.page,
            k_data_head: k_data.strides.head,
            k_data_token: k_data.strides.token,
            k_scales_page: k_scales.strides.page,
            k_scales_head: k_scales.strides.head,
            k_scales_token: k_scales.strides.token,
            v_data_page: v_data.strides.page,
            v_data_head: v_data.strides.head,
            v_data_token: v_data.strides.token,
            v_scales_page: v_scales.strides.page,
            v_scales_head: v_scales.strides.head,
            v_scales_token: v_scales.strides.token,
            ..$rest
        }
    }};
}

impl DeviceCache {
    /// Of an allocation at `base` with this layout.
    pub fn new(base: DevicePtr, layout: &CacheLayout, format: KvFormat) -> Self {
        let at = |tensor: PagedTensor| DeviceTensor { address: base + tensor.base, strides: tensor.strides };
        let scales = |tensor, format: ElementFormat| match format.scale_row_bytes(16) {
            0 => DeviceTensor::NONE,
            _ => at(tensor),
        };
        Self {
            k_data: at(layout.k_data),
            k_scales: scales(layout.k_scales, format.k()),
            v_data: at(layout.v_data),
            v_scales: scales(layout.v_scales, format.v()),
        }
    }

    /// `rest` with the cache fields of a decode call set.
    pub fn decode_params(&self, rest: DecodeParams) -> DecodeParams {
        with_cache!(self, DecodeParams, rest)
    }

    /// `rest` with the cache fields of an append call set.
    pub fn append_params(&self, rest: AppendParams) -> AppendParams {
        with_cache!(self, AppendParams, rest)
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
            let cache = DeviceCache::new(1 << 20, &layout, format);
            let params = cache.decode_params(DecodeParams::default());
            assert_eq!(params.v_data, (1 << 20) + layout.v_data.base);
            assert_eq!([params.k_scales != 0, params.v_scales != 0], [k_has, v_has]);
            assert_eq!(params.k_data_token, layout.k_data.strides.token);
            let append = cache.append_params(AppendParams { tokens: 3, ..AppendParams::default() });
            assert_eq!((append.tokens, append.v_scales != 0), (3, v_has));
        }
    }
}
