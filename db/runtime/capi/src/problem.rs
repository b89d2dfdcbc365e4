//! Problems and shapes as C spells them.

use crate::status::Error;
use nvkv_runtime::spec::{
    AppendMode, AppendProblem, DecodeProblem, Dtype, KvFormat, Lengths, Numerics, Operation, Problem, Shape,
    VScaleOrder,
};

/// Paged attention of 1 to 8 new tokens a request over the cache.
pub const NVKV_DECODE: u32 = 0;
/// The same, with this step's K and V requantised into the cache first.
pub const NVKV_FUSED: u32 = 1;
/// K and V rows to cache pages by slot mapping.
pub const NVKV_APPEND: u32 = 2;
/// K and V in NVFP4: E2M1 codes, an E4M3 scale for 16 elements.
pub const NVKV_NVFP4: u32 = 0;
/// K and V in E4M3.
pub const NVKV_FP8_E4M3: u32 = 1;
/// Cached elements rounded to E4M3, Q in E4M3 with a scale a tensor.
pub const NVKV_NUMERICS_FP8: u32 = 0;
/// Cached elements exact in f16, Q in f16.
pub const NVKV_NUMERICS_EXACT: u32 = 1;
/// IEEE binary16.
pub const NVKV_F16: u32 = 0;
/// bfloat16.
pub const NVKV_BF16: u32 = 1;
/// V scale s of token t at t * token stride + s.
pub const NVKV_LINEAR: u32 = 0;
/// Groups of four tokens side by side: (t / 4) * 4S + 4s + t % 4, S = head_dim / 16.
pub const NVKV_INTERLEAVED4: u32 = 1;

/// What is asked of a kernel; fixed when it is compiled. An append reads neither numerics, group nor q_len.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvkv_problem {
    /// NVKV_DECODE, NVKV_FUSED or NVKV_APPEND.
    pub operation: u32,
    /// NVKV_NVFP4 or NVKV_FP8_E4M3.
    pub kv_format: u32,
    /// NVKV_NUMERICS_FP8 or NVKV_NUMERICS_EXACT.
    pub numerics: u32,
    /// Elements of a head: 64, 128 or 256.
    pub head_dim: u32,
    /// Query heads a KV head, 1 to 16.
    pub group: u32,
    /// New tokens a request, 1 to 8.
    pub q_len: u32,
    /// Tokens a page: 8, 16, 32, 64 or 128.
    pub page_size: u32,
    /// Type of Q, of the output and of new K and V: NVKV_F16 or NVKV_BF16.
    pub dtype: u32,
    /// NVKV_LINEAR or NVKV_INTERLEAVED4: that of the cache.
    pub v_scale_order: u32,
}

/// Run-time sizes of a call.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvkv_shape {
    /// Requests; for an append, new tokens.
    pub batch: u32,
    /// Longest context of any request, tokens; shorter ones are served too. An append does not read it.
    pub max_context: u32,
    /// KV heads.
    pub kv_heads: u32,
}

// The numbers above are the orders in which `nvkv_runtime::spec` lists the values: a test holds them so.
fn named<T: Copy + std::fmt::Display>(all: &[T], number: u32, field: &str) -> Result<T, Error> {
    all.get(number as usize).copied().ok_or_else(|| {
        let known: Vec<_> = all.iter().zip(0..).map(|(value, n)| format!("{n} ({value})")).collect();
        Error::argument(format!("problem.{field} is {number}; known: {}", known.join(", ")))
    })
}

impl nvkv_problem {
    /// The same in Rust.
    pub(crate) fn to_rust(self) -> Result<Problem, Error> {
        let Self { head_dim, group, q_len, page_size, .. } = self;
        let operation = named(Operation::ALL, self.operation, "operation")?;
        let kv_format = named(KvFormat::ALL, self.kv_format, "kv_format")?;
        let dtype = named(Dtype::ALL, self.dtype, "dtype")?;
        let v_scale_order = named(VScaleOrder::ALL, self.v_scale_order, "v_scale_order")?;
        let append = match operation {
            Operation::Append => {
                return Ok(Problem::Append(AppendProblem { kv_format, head_dim, page_size, dtype, v_scale_order }));
            }
            Operation::Decode => AppendMode::Separate,
            Operation::Fused => AppendMode::Fused,
        };
        let numerics = named(Numerics::ALL, self.numerics, "numerics")?;
        let problem = DecodeProblem {
            kv_format,
            numerics,
            head_dim,
            group,
            q_len,
            page_size,
            dtype,
            v_scale_order,
            append,
            window: None,
            sinks: false,
            soft_cap: false,
        };
        Ok(Problem::Decode(problem))
    }
}

impl nvkv_shape {
    /// The same in Rust, as the operation of `problem` has it.
    pub(crate) fn of(self, problem: &Problem) -> Shape {
        let Self { batch, max_context: context, kv_heads } = self;
        match problem {
            Problem::Decode(_) => Shape::Decode { batch, context, kv_heads, lengths: Lengths::Equal },
            Problem::Append(_) => Shape::Append { tokens: batch, kv_heads },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_name_the_values() {
        assert_eq!(Operation::ALL[NVKV_DECODE as usize], Operation::Decode);
        assert_eq!(Operation::ALL[NVKV_FUSED as usize], Operation::Fused);
        assert_eq!(Operation::ALL[NVKV_APPEND as usize], Operation::Append);
        assert_eq!(KvFormat::ALL[NVKV_NVFP4 as usize], KvFormat::Nvfp4);
        assert_eq!(KvFormat::ALL[NVKV_FP8_E4M3 as usize], KvFormat::Fp8E4m3);
        assert_eq!(Numerics::ALL[NVKV_NUMERICS_FP8 as usize], Numerics::Fp8);
        assert_eq!(Numerics::ALL[NVKV_NUMERICS_EXACT as usize], Numerics::Exact);
        assert_eq!(Dtype::ALL[NVKV_F16 as usize], Dtype::F16);
        assert_eq!(Dtype::ALL[NVKV_BF16 as usize], Dtype::Bf16);
        assert_eq!(VScaleOrder::ALL[NVKV_LINEAR as usize], VScaleOrder::Linear);
        assert_eq!(VScaleOrder::ALL[NVKV_INTERLEAVED4 as usize], VScaleOrder::Interleaved4);
    }
}
