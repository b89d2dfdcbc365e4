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
/// K in E4M3, V in NVFP4.
pub const NVKV_FP8_E4M3_NVFP4: u32 = 2;
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
/// Every request has about as many cached tokens as the longest.
pub const NVKV_EQUAL: u32 = 0;
/// Short and long requests in one batch, from 256 tokens to the longest, evenly in their logarithm.
pub const NVKV_LOG_UNIFORM: u32 = 1;

/// What is asked of a kernel; fixed when it is compiled. An append reads neither numerics, group nor
/// q_len, nor what follows v_scale_order.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvkv_problem {
    /// NVKV_DECODE, NVKV_FUSED or NVKV_APPEND.
    pub operation: u32,
    /// NVKV_NVFP4, NVKV_FP8_E4M3 or NVKV_FP8_E4M3_NVFP4.
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
    /// Sliding window, tokens that a query sees, its own among them; 0 for none. Kernels are tuned at this length, and run
    /// at that of nvkv_decode_params.
    pub window: u32,
    /// 1 where each query head has a logit in the denominator of its softmax (nvkv_decode_params), else 0.
    pub sinks: u32,
    /// 1 where scores are bounded by a cap (nvkv_decode_params), else 0.
    pub soft_cap: u32,
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
    /// How the contexts of a batch are distributed up to max_context: NVKV_EQUAL or NVKV_LOG_UNIFORM. A choice of speed:
    /// either is right for any. An append does not read it.
    pub lengths: u32,
}

const NO_YES: &[bool] = &[false, true];

// The numbers above are the orders in which `nvkv_runtime::spec` lists the values: a test holds them so.
fn named<T: Copy + std::fmt::Display>(all: &[T], number: u32, field: &str) -> Result<T, Error> {
    all.get(number as usize).copied().ok_or_else(|| {
        let known: Vec<_> = all.iter().zip(0..).map(|(value, n)| format!("{n} ({value})")).collect();
        Error::argument(format!("{field} is {number}; known: {}", known.join(", ")))
    })
}

impl nvkv_problem {
    /// The same in Rust.
    pub(crate) fn to_rust(self) -> Result<Problem, Error> {
        let Self { head_dim, group, q_len, page_size, .. } = self;
        let operation = named(Operation::ALL, self.operation, "problem.operation")?;
        let kv_format = named(KvFormat::ALL, self.kv_format, "problem.kv_format")?;
        let dtype = named(Dtype::ALL, self.dtype, "problem.dtype")?;
        let v_scale_order = named(VScaleOrder::ALL, self.v_scale_order, "problem.v_scale_order")?;
        let append = match operation {
            Operation::Append => {
                return Ok(Problem::Append(AppendProblem { kv_format, head_dim, page_size, dtype, v_scale_order }));
            }
            Operation::Decode => AppendMode::Separate,
            Operation::Fused => AppendMode::Fused,
        };
        let numerics = named(Numerics::ALL, self.numerics, "problem.numerics")?;
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
            window: (self.window > 0).then_some(self.window),
            sinks: named(NO_YES, self.sinks, "problem.sinks")?,
            soft_cap: named(NO_YES, self.soft_cap, "problem.soft_cap")?,
        };
        Ok(Problem::Decode(problem))
    }
}

impl nvkv_shape {
    /// The same in Rust, as the operation of `problem` has it.
    pub(crate) fn of(self, problem: &Problem) -> Result<Shape, Error> {
        let Self { batch, max_context: context, kv_heads, lengths } = self;
        Ok(match problem {
            Problem::Decode(_) => {
                let lengths = named(Lengths::ALL, lengths, "shape.lengths")?;
                Shape::Decode { batch, context, kv_heads, lengths }
            }
            Problem::Append(_) => Shape::Append { tokens: batch, kv_heads },
        })
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
        assert_eq!(KvFormat::ALL[NVKV_FP8_E4M3_NVFP4 as usize], KvFormat::Fp8E4m3Nvfp4);
        assert_eq!(Numerics::ALL[NVKV_NUMERICS_FP8 as usize], Numerics::Fp8);
        assert_eq!(Numerics::ALL[NVKV_NUMERICS_EXACT as usize], Numerics::Exact);
        assert_eq!(Dtype::ALL[NVKV_F16 as usize], Dtype::F16);
        assert_eq!(Dtype::ALL[NVKV_BF16 as usize], Dtype::Bf16);
        assert_eq!(VScaleOrder::ALL[NVKV_LINEAR as usize], VScaleOrder::Linear);
        assert_eq!(VScaleOrder::ALL[NVKV_INTERLEAVED4 as usize], VScaleOrder::Interleaved4);
        assert_eq!(Lengths::ALL[NVKV_EQUAL as usize], Lengths::Equal);
        assert_eq!(Lengths::ALL[NVKV_LOG_UNIFORM as usize], Lengths::LogUniform);
    }

    const PLAIN: nvkv_problem = nvkv_problem {
        operation: NVKV_DECODE,
        kv_format: NVKV_NVFP4,
        numerics: NVKV_NUMERICS_FP8,
        head_dim: 64,
        group: 8,
        q_len: 1,
        page_size: 16,
        dtype: NVKV_BF16,
        v_scale_order: NVKV_LINEAR,
        window: 0,
        sinks: 0,
        soft_cap: 0,
    };

    #[test]
    fn problems_and_shapes_are_those_of_their_fields() {
        let key = |problem: nvkv_problem| problem.to_rust().map(|problem| problem.key());
        let plain = "decode-nvfp4-fp8-d64-g8-q1-p16-bf16-linear";
        assert_eq!(key(PLAIN).unwrap(), plain);
        assert_eq!(key(nvkv_problem { window: 128, ..PLAIN }).unwrap(), format!("{plain}-w128"));
        assert_eq!(key(nvkv_problem { sinks: 1, ..PLAIN }).unwrap(), format!("{plain}-sinks"));
        assert_eq!(key(nvkv_problem { soft_cap: 1, ..PLAIN }).unwrap(), format!("{plain}-cap"));
        let mixed = nvkv_problem { kv_format: NVKV_FP8_E4M3_NVFP4, operation: NVKV_APPEND, sinks: 9, ..PLAIN };
        assert_eq!(key(mixed).unwrap(), "append-fp8_e4m3+nvfp4-d64-p16-bf16-linear", "an append does not read sinks");

        let shape = |lengths| nvkv_shape { batch: 4, max_context: 8192, kv_heads: 2, lengths };
        let decode = PLAIN.to_rust().unwrap();
        assert_eq!(shape(NVKV_EQUAL).of(&decode).unwrap().key(), "b4-c8192-h2");
        assert_eq!(shape(NVKV_LOG_UNIFORM).of(&decode).unwrap().key(), "b4-c256to8192-h2");
        assert_eq!(shape(9).of(&mixed.to_rust().unwrap()).unwrap().key(), "t4-h2");
    }

    #[test]
    fn a_number_that_names_nothing_is_refused_with_those_that_do() {
        let said = |problem: nvkv_problem| problem.to_rust().unwrap_err().message;
        assert_eq!(said(nvkv_problem { sinks: 2, ..PLAIN }), "problem.sinks is 2; known: 0 (false), 1 (true)");
        assert!(said(nvkv_problem { soft_cap: 50, ..PLAIN }).starts_with("problem.soft_cap is 50; known: 0"));
        assert!(said(nvkv_problem { kv_format: 3, ..PLAIN }).ends_with("1 (fp8_e4m3), 2 (fp8_e4m3+nvfp4)"));
        let shape = nvkv_shape { batch: 4, max_context: 8192, kv_heads: 2, lengths: 2 };
        let said = shape.of(&PLAIN.to_rust().unwrap()).unwrap_err().message;
        assert_eq!(said, "shape.lengths is 2; known: 0 (equal), 1 (log-uniform)");
    }
}
