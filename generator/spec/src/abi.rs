//! Kernel parameters, spelled once: the Rust struct, the CUDA struct and the manifest's list come
//! from the same table.

use serde::{Deserialize, Serialize};

/// One field of a parameter struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Name, the same in Rust and CUDA.
    pub name: &'static str,
    /// Its CUDA type.
    pub cuda_type: &'static str,
    /// Byte offset in the struct.
    pub offset: usize,
    /// Meaning, shape and unit.
    pub doc: &'static str,
}

/// A device address.
pub type DevicePtr = u64;

/// Bytes at the start of a decode kernel's workspace that hold its counters, a `u32` for each request, KV head and row
/// tile. Zeroed once, left zeroed by each launch, and at the same place for every shape and kernel: launches of different
/// shapes may share a workspace. Past them lie partial results, which need no preparation.
pub const COUNTER_BYTES: u64 = 1 << 20;

macro_rules! params {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $rust:ty = $cuda:literal, $doc:literal;)+ }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name { $(#[doc = $doc] pub $field: $rust),+ }

        impl $name {
            /// The fields in order, for the CUDA struct and the manifest.
            pub const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($field),
                cuda_type: $cuda,
                offset: std::mem::offset_of!($name, $field),
                doc: $doc,
            }),+];
        }
    };
}

params! {
    /// Parameters of a decode kernel. Strides are in bytes unless the text says otherwise.
    DecodeParams {
        q: DevicePtr = "const void*", "queries [batch * q_len, Hq, D], f16 or bf16";
        out: DevicePtr = "void*", "output [batch * q_len, Hq, D], same type as q";
        lse: DevicePtr = "float*", "log-sum-exp [batch * q_len, Hq], natural log, the sink included; may be null";
        k_data: DevicePtr = "unsigned char*", "K codes, first byte of page 0";
        k_scales: DevicePtr = "unsigned char*", "K block scales; null where the format has none";
        v_data: DevicePtr = "unsigned char*", "V codes, first byte of page 0";
        v_scales: DevicePtr = "unsigned char*", "V block scales; null where the format has none";
        block_table: DevicePtr = "const int*", "page of each block of tokens [batch, block_table_stride]";
        kv_len: DevicePtr = "const int*", "cached tokens a request, the q_len new ones included [batch]; 0 gives out = 0, lse = -inf or the sink";
        new_k: DevicePtr = "const void*", "this step's K [batch * q_len, Hkv, D]; fused append only";
        new_v: DevicePtr = "const void*", "this step's V [batch * q_len, Hkv, D]; fused append only";
        status: DevicePtr = "unsigned int*", "count of non-finite new elements, added to; fused append only";
        workspace: DevicePtr = "unsigned char*", "split counters, the first 1 MiB, zeroed once and left zeroed; then partial results. 256-byte aligned; unused where max_splits is 1";
        q_stride_token: i64 = "long long", "bytes between query tokens";
        q_stride_head: i64 = "long long", "bytes between query heads";
        out_stride_token: i64 = "long long", "bytes between output tokens";
        out_stride_head: i64 = "long long", "bytes between output heads";
        k_data_page: i64 = "long long", "bytes between pages, below 2^32, of k_data";
        k_data_head: i64 = "long long", "bytes between heads of k_data";
        k_data_token: i64 = "long long", "bytes between tokens, below 2^32, of k_data";
        k_scales_page: i64 = "long long", "bytes between pages, below 2^32, of k_scales";
        k_scales_head: i64 = "long long", "bytes between heads of k_scales";
        k_scales_token: i64 = "long long", "bytes between tokens, below 2^32, of k_scales";
        v_data_page: i64 = "long long", "bytes between pages, below 2^32, of v_data";
        v_data_head: i64 = "long long", "bytes between heads of v_data";
        v_data_token: i64 = "long long", "bytes between tokens, below 2^32, of v_data";
        v_scales_page: i64 = "long long", "bytes between pages, below 2^32, of v_scales";
        v_scales_head: i64 = "long long", "bytes between heads of v_scales";
        v_scales_token: i64 = "long long", "bytes between tokens, below 2^32, of v_scales (linear order only)";
        new_k_stride_token: i64 = "long long", "bytes between tokens of new_k";
        new_k_stride_head: i64 = "long long", "bytes between heads of new_k";
        new_v_stride_token: i64 = "long long", "bytes between tokens of new_v";
        new_v_stride_head: i64 = "long long", "bytes between heads of new_v";
        block_table_stride: i64 = "long long", "entries between rows of block_table";
        batch: u32 = "unsigned int", "requests";
        kv_heads: u32 = "unsigned int", "KV heads";
        max_splits: u32 = "unsigned int", "splits a request at most: the grid's z extent";
        min_split_tokens: u32 = "unsigned int", "tokens a split at least, before the last ones are halved";
        taper: u32 = "unsigned int", "how often a request's last split is halved; below max_splits, at most 16";
        sm_scale: f32 = "float", "softmax scale, usually 1 / sqrt(D)";
        q_scale: f32 = "float", "fp32 scale of Q where it is quantised to E4M3: q8 = RN_e4m3(q / q_scale)";
        k_scale: f32 = "float", "fp32 scale of the K tensor";
        v_scale: f32 = "float", "fp32 scale of the V tensor";
        window: u32 = "unsigned int", "tokens that a query sees, at least 1: the newest up to its own; problems with a window only";
        soft_cap: f32 = "float", "bound of the scores, natural units, positive: s becomes soft_cap * tanh(s / soft_cap); problems with a soft cap only";
        sinks: DevicePtr = "const float*", "logit of each query head that joins the denominator of its softmax, natural units; -inf is none [Hq]; problems with sinks only";
    }
}

params! {
    /// Parameters of an append kernel. Strides are in bytes.
    AppendParams {
        k: DevicePtr = "const void*", "new keys [tokens, Hkv, D], f16 or bf16";
        v: DevicePtr = "const void*", "new values [tokens, Hkv, D], f16 or bf16";
        slot_mapping: DevicePtr = "const long long*", "page * page_size + offset of each token; negative skips it, though its rows of k and v are read [tokens]";
        k_data: DevicePtr = "unsigned char*", "K codes, first byte of page 0";
        k_scales: DevicePtr = "unsigned char*", "K block scales; null where the format has none";
        v_data: DevicePtr = "unsigned char*", "V codes, first byte of page 0";
        v_scales: DevicePtr = "unsigned char*", "V block scales; null where the format has none";
        status: DevicePtr = "unsigned int*", "count of non-finite elements, added to";
        k_stride_token: i64 = "long long", "bytes between tokens of k";
        k_stride_head: i64 = "long long", "bytes between heads of k";
        v_stride_token: i64 = "long long", "bytes between tokens of v";
        v_stride_head: i64 = "long long", "bytes between heads of v";
        k_data_page: i64 = "long long", "bytes between pages, below 2^32, of k_data";
        k_data_head: i64 = "long long", "bytes between heads of k_data";
        k_data_token: i64 = "long long", "bytes between tokens, below 2^32, of k_data";
        k_scales_page: i64 = "long long", "bytes between pages, below 2^32, of k_scales";
        k_scales_head: i64 = "long long", "bytes between heads of k_scales";
        k_scales_token: i64 = "long long", "bytes between tokens, below 2^32, of k_scales";
        v_data_page: i64 = "long long", "bytes between pages, below 2^32, of v_data";
        v_data_head: i64 = "long long", "bytes between heads of v_data";
        v_data_token: i64 = "long long", "bytes between tokens, below 2^32, of v_data";
        v_scales_page: i64 = "long long", "bytes between pages, below 2^32, of v_scales";
        v_scales_head: i64 = "long long", "bytes between heads of v_scales";
        v_scales_token: i64 = "long long", "bytes between tokens, below 2^32, of v_scales (linear order only)";
        tokens: u32 = "unsigned int", "new tokens";
        kv_heads: u32 = "unsigned int", "KV heads";
        k_scale: f32 = "float", "fp32 scale of the K tensor";
        v_scale: f32 = "float", "fp32 scale of the V tensor";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CUDA lays out a struct of these types like C does: each field at the next multiple of its size.
    #[test]
    fn offsets_are_those_of_the_cuda_struct() {
        for fields in [DecodeParams::FIELDS, AppendParams::FIELDS] {
            let mut next = 0;
            for field in fields {
                let size = if field.cuda_type.ends_with('*') || field.cuda_type == "long long" { 8usize } else { 4 };
                next = usize::next_multiple_of(next, size);
                assert_eq!(field.offset, next, "{}", field.name);
                next += size;
            }
        }
    }
}
