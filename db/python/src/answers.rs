//! Problems and answers as Python sees them.

use crate::errors::call;
use nvkv_runtime::spec::{
    AppendMode, AppendProblem, DecodeProblem, Dtype, KvFormat, Lengths, Numerics, Operation, Problem, Shape,
    VScaleOrder,
};
use nvkv_runtime::{Found, Trust};
use pyo3::prelude::*;
use std::str::FromStr;

/// What is asked of a kernel; fixed when it is compiled.
#[pyclass(name = "Problem", module = "nvkv", frozen, eq, hash, from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PyProblem(pub Problem);

/// A named value, or an error that lists the known ones.
pub fn named<T: FromStr<Err = String>>(text: &str) -> PyResult<T> {
    text.parse().map_err(call)
}

/// A window that holds the query itself, or none.
pub fn not_empty(window: Option<u32>) -> PyResult<Option<u32>> {
    match window {
        Some(0) => Err(call("window is 0: a query sees itself at least; pass tokens, or None for no window")),
        window => Ok(window),
    }
}

#[pymethods]
impl PyProblem {
    #[new]
    #[pyo3(signature = (op, *, head_dim, page_size, group=1, q_len=1, kv_format="nvfp4", numerics="fp8", dtype="bf16", v_scale_order="linear", window=None, sinks=false, soft_cap=false))]
    #[allow(clippy::too_many_arguments)] // keywords of Python
    fn new(
        op: &str,
        head_dim: u32,
        page_size: u32,
        group: u32,
        q_len: u32,
        kv_format: &str,
        numerics: &str,
        dtype: &str,
        v_scale_order: &str,
        window: Option<u32>,
        sinks: bool,
        soft_cap: bool,
    ) -> PyResult<Self> {
        let (kv_format, dtype): (KvFormat, Dtype) = (named(kv_format)?, named(dtype)?);
        let (numerics, v_scale_order): (Numerics, VScaleOrder) = (named(numerics)?, named(v_scale_order)?);
        let append = match named::<Operation>(op)? {
            Operation::Append => {
                let problem = AppendProblem { kv_format, head_dim, page_size, dtype, v_scale_order };
                return Ok(Self(Problem::Append(problem)));
            }
            Operation::Decode => AppendMode::Separate,
            Operation::Fused => AppendMode::Fused,
        };
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
            window: not_empty(window)?,
            sinks,
            soft_cap,
        };
        Ok(Self(Problem::Decode(problem)))
    }

    /// Its name, as in bundles and tables.
    #[getter]
    fn key(&self) -> String {
        self.0.key()
    }

    fn __repr__(&self) -> String {
        format!("<nvkv.Problem {}>", self.0.key())
    }
}

impl PyProblem {
    /// The shape of this operation.
    pub fn shape(&self, batch: u32, max_context: Option<u32>, kv_heads: u32, lengths: &str) -> PyResult<Shape> {
        let lengths: Lengths = named(lengths)?;
        match (&self.0, max_context) {
            (Problem::Decode(_), Some(context)) => Ok(Shape::Decode { batch, context, kv_heads, lengths }),
            (Problem::Decode(_), None) => Err(call("a decode has contexts: pass max_context, tokens")),
            (Problem::Append(_), _) if lengths != Lengths::Equal => {
                Err(call("an append has no context: leave lengths out"))
            }
            (Problem::Append(_), None) => Ok(Shape::Append { tokens: batch, kv_heads }),
            (Problem::Append(_), Some(_)) => Err(call("an append has no context: leave max_context out")),
        }
    }
}

/// A kernel for one problem at one shape, and how it is launched.
#[pyclass(name = "Found", module = "nvkv", frozen, get_all)]
pub struct PyFound {
    /// Its id.
    kernel: String,
    /// `exact`, `bucket`, `predicted` or `fallback`.
    trust: &'static str,
    /// Distance of the tuned shape in doublings; None for a fallback.
    distance: Option<f64>,
    /// How much slower than the best it was measured to be at shapes it serves, as a share; None where not known.
    regret: Option<f64>,
    /// Blocks in x, y, z.
    grid: (u32, u32, u32),
    /// Threads a block.
    threads: u32,
    /// Dynamic shared memory a block, bytes.
    shared_bytes: u32,
    /// Splits a request at most.
    max_splits: u32,
    /// Tokens a split at least.
    min_split_tokens: u32,
    /// How often a request's last split is halved.
    taper: u32,
    /// Workspace that the launch needs, bytes.
    workspace_bytes: u64,
}

impl From<Found<'_>> for PyFound {
    fn from(found: Found) -> Self {
        let (distance, regret) = match found.trust {
            Trust::Exact => (Some(0.0), None),
            Trust::Bucket { distance, regret } => (Some(distance), regret),
            Trust::Predicted { distance } => (Some(distance), None),
            Trust::Fallback => (None, None),
        };
        let launch = found.launch;
        Self {
            kernel: found.kernel.id.to_string(),
            trust: found.trust.name(),
            distance,
            regret,
            grid: launch.grid.into(),
            threads: launch.threads,
            shared_bytes: launch.shared_bytes,
            max_splits: launch.max_splits,
            min_split_tokens: launch.min_split_tokens,
            taper: launch.taper,
            workspace_bytes: launch.workspace_bytes,
        }
    }
}

#[pymethods]
impl PyFound {
    fn __repr__(&self) -> String {
        format!("<nvkv.Found {}: {}, {} B of workspace>", self.kernel, self.trust, self.workspace_bytes)
    }
}
