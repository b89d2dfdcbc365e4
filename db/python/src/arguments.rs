//! What a call's tensors say together: rows of queries and of new tokens, and the four tensors of a cache.

use crate::answers::named;
use crate::errors::call;
use crate::tensor::{Element, Tensor};
use nvkv_runtime::spec::layout::Strides;
use nvkv_runtime::spec::{DeviceCache, DeviceTensor, KvFormat, VScaleOrder};
use pyo3::prelude::*;

/// A size as kernels take it.
pub fn size(what: &str, value: i64) -> PyResult<u32> {
    u32::try_from(value).map_err(|_| call(format!("{what} is {value}, which no launch takes")))
}

/// Rows of 16-bit elements, `[tokens, heads, dim]`; strides in bytes.
#[derive(Clone, Copy)]
pub struct Rows {
    pub address: u64,
    pub tokens: i64,
    pub heads: i64,
    pub dim: i64,
    pub token: i64,
    pub head: i64,
}

impl Rows {
    /// Of a call without them.
    pub const NONE: Self = Self { address: 0, tokens: 0, heads: 0, dim: 0, token: 0, head: 0 };

    /// Of `[tokens, heads, dim]`, or of `[batch, q_len, heads, dim]` whose tokens lie at one distance.
    pub fn of(name: &str, tensor: &Tensor, batch: Option<i64>) -> PyResult<Self> {
        let address = tensor.address;
        let row = match (tensor.shape(), tensor.strides()) {
            (&[tokens, heads, dim], &[token, head, _]) => Self { address, tokens, heads, dim, token, head },
            (&[outer, q_len, heads, dim], &[request, token, head, _]) => {
                // An axis of one element has the stride of a dense tensor, so one of them says the distance.
                let distance = if q_len == 1 { request } else { token };
                if outer > 1 && q_len > 1 && request != q_len * token {
                    return Err(call(format!(
                        "{name}: its requests are not {q_len} tokens apart; pass [tokens, heads, dim]"
                    )));
                }
                Self { address, tokens: outer * q_len, heads, dim, token: distance, head }
            }
            _ => {
                let shape = tensor.shape();
                return Err(call(format!("{name} has shape {shape:?}: it must be [batch * q_len, heads, dim]")));
            }
        };
        tensor.require_axes(
            name,
            if tensor.shape().len() == 3 { "tokens, heads, dim" } else { "batch, q_len, heads, dim" },
        )?;
        match batch {
            Some(batch) if batch == 0 || row.tokens % batch != 0 => {
                Err(call(format!("{name} has {} tokens, no multiple of the {batch} requests", row.tokens)))
            }
            _ => Ok(row),
        }
    }
}

/// New K or V rows of these tokens, KV heads and head dim.
pub fn new_rows(
    name: &str,
    tensor: &Bound<'_, PyAny>,
    element: Element,
    (tokens, heads, dim): (i64, i64, i64),
    batch: Option<i64>,
) -> PyResult<Rows> {
    let rows = Rows::of(name, &Tensor::of(name, tensor)?.require(name, &[element])?, batch)?;
    if (rows.tokens, rows.heads, rows.dim) == (tokens, heads, dim) {
        return Ok(rows);
    }
    let found = [rows.tokens, rows.heads, rows.dim];
    Err(call(format!("{name} has shape {found:?}: it must be [{tokens}, {heads}, {dim}] (tokens, KV heads, head dim)")))
}

/// The four tensors of a paged cache.
pub struct Cache {
    pub k: Tensor,
    v: Tensor,
    k_scales: Option<Tensor>,
    v_scales: Option<Tensor>,
    pub format: KvFormat,
    pub order: VScaleOrder,
    pub head_dim: i64,
    pub page_size: i64,
    pub kv_heads: i64,
    /// Axes of tokens and heads.
    token: usize,
    head: usize,
}

impl Cache {
    /// Reads and compares them. Which of them have block scales says the format, K's rows and the format the head dim.
    pub fn of(
        layout: &str,
        order: &str,
        [k, v]: [&Bound<'_, PyAny>; 2],
        [k_scales, v_scales]: [Option<&Bound<'_, PyAny>>; 2],
    ) -> PyResult<Self> {
        let (axes, scale_axes, token, head) = match layout {
            "HND" | "hnd" => ("pages, Hkv, page, row", "pages, Hkv, page, D/16", 2, 1),
            "NHD" | "nhd" => ("pages, page, Hkv, row", "pages, page, Hkv, D/16", 1, 2),
            _ => return Err(call(format!("layout is {layout}; known: HND, NHD"))),
        };
        let bytes = |name: &str, tensor: &Bound<'_, PyAny>, axes: &str| {
            Tensor::of(name, tensor)?.require(name, &[Element::Byte])?.require_axes(name, axes)
        };
        let (k, v) = (bytes("k_cache", k, axes)?, bytes("v_cache", v, axes)?);
        let order = named::<VScaleOrder>(order)?;
        let (row, format) = (k.shape()[3], format(k_scales.is_some(), v_scales.is_some())?);
        let head_dim = if k_scales.is_some() { 2 * row } else { row };
        let dim = size("head dim", head_dim)?;
        let of_rows = |row: u32| [k.shape()[0], k.shape()[1], k.shape()[2], i64::from(row)];
        same_shape("v_cache", &v, &of_rows(format.v().data_row_bytes(dim)))?;
        let scales = |name, tensor: Option<&Bound<'_, PyAny>>, row| {
            let Some(tensor) = tensor else { return Ok(None) };
            let tensor = bytes(name, tensor, scale_axes)?;
            same_shape(name, &tensor, &of_rows(row)).map(|()| Some(tensor))
        };
        let k_scales = scales("k_scales", k_scales, format.k().scale_row_bytes(dim))?;
        let v_scales = scales("v_scales", v_scales, format.v().scale_row_bytes(dim))?;
        if order == VScaleOrder::Interleaved4 && v_scales.is_some_and(|scales| scales.strides()[token] != head_dim / 16)
        {
            return Err(call(
                "v_scales: interleaved4 needs a dense [page, D/16] matrix a head, as in HND; its tokens have gaps",
            ));
        }
        let (kv_heads, page_size) = (k.shape()[head], k.shape()[token]);
        Ok(Self { k, v, k_scales, v_scales, format, order, head_dim, page_size, kv_heads, token, head })
    }
}

/// The format whose K and V have, or have no, block scales.
fn format(k_scales: bool, v_scales: bool) -> PyResult<KvFormat> {
    match (k_scales, v_scales) {
        (true, true) => Ok(KvFormat::Nvfp4),
        (false, true) => Ok(KvFormat::Fp8E4m3Nvfp4),
        (false, false) => Ok(KvFormat::Fp8E4m3),
        (true, false) => {
            Err(call("pass k_scales and v_scales (NVFP4), v_scales alone (K in FP8, V in NVFP4), or neither (FP8)"))
        }
    }
}

fn same_shape(name: &str, tensor: &Tensor, expected: &[i64]) -> PyResult<()> {
    if tensor.shape() == expected {
        return Ok(());
    }
    Err(call(format!("{name} has shape {:?}: beside this k_cache it must be {expected:?}", tensor.shape())))
}

impl Cache {
    /// Its tensors as kernels take them.
    pub fn on_device(&self) -> DeviceCache {
        let of = |tensor: &Tensor| {
            let [page, head, token] = [0, self.head, self.token].map(|axis| tensor.strides()[axis]);
            DeviceTensor { address: tensor.address, strides: Strides { page, head, token } }
        };
        let scales = |tensor: &Option<Tensor>| tensor.as_ref().map_or(DeviceTensor::NONE, of);
        let (k_scales, v_scales) = (scales(&self.k_scales), scales(&self.v_scales));
        DeviceCache { k_data: of(&self.k), k_scales, v_data: of(&self.v), v_scales }
    }
}
