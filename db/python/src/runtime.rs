//! `nvkv.Runtime`.
#![allow(unsafe_code)] // launches on tensors that the caller holds

use crate::answers::{PyFound, PyProblem, named, not_empty};
use crate::arguments::{Cache, Rows, new_rows, size};
use crate::device::{Scratch, Scratches, use_device};
use crate::errors::{self, call};
use crate::exchange::Exchange;
use crate::tensor::{Element, Tensor, torch};
use nvkv_runtime::spec::abi::{AppendParams, DecodeParams};
use nvkv_runtime::spec::{AppendMode, AppendProblem, DecodeProblem, Dtype, Numerics, Problem, Shape};
use nvkv_runtime::{LaunchError, Runtime};
use pyo3::intern;
use pyo3::prelude::*;
use std::path::PathBuf;

/// An open bundle: finds kernels and launches them. May be shared between threads.
#[pyclass(name = "Runtime", module = "nvkv", frozen)]
pub struct PyRuntime {
    runtime: Runtime,
    scratches: Scratches,
}

#[pymethods]
impl PyRuntime {
    #[new]
    #[pyo3(signature = (bundle, db=None))]
    fn new(py: Python<'_>, bundle: PathBuf, db: Option<PathBuf>) -> PyResult<Self> {
        let runtime = py.detach(|| Runtime::open(bundle, db.as_deref())).map_err(errors::open)?;
        Ok(Self { runtime, scratches: Scratches::default() })
    }

    /// What the bundle's machine code is compiled for, such as `sm_90a`.
    #[getter]
    fn target(&self) -> &'static str {
        self.runtime.target().name()
    }

    /// The problems that have a kernel.
    fn problems(&self) -> Vec<PyProblem> {
        self.runtime.problems().into_iter().map(PyProblem).collect()
    }

    /// Rows of the database that were left out, since the bundle lacks their kernel.
    fn refused(&self) -> Vec<String> {
        self.runtime.refused().iter().map(ToString::to_string).collect()
    }

    #[pyo3(signature = (problem, batch, max_context=None, kv_heads=8, *, lengths="equal"))]
    fn find(
        &self,
        problem: &PyProblem,
        batch: u32,
        max_context: Option<u32>,
        kv_heads: u32,
        lengths: &str,
    ) -> PyResult<PyFound> {
        let shape = problem.shape(batch, max_context, kv_heads, lengths)?;
        self.runtime.find(&problem.0, &shape).map(PyFound::from).map_err(errors::miss)
    }

    #[pyo3(signature = (problem, batch, max_context=None, kv_heads=8, *, lengths="equal", json=false))]
    fn explain(
        &self,
        problem: &PyProblem,
        batch: u32,
        max_context: Option<u32>,
        kv_heads: u32,
        lengths: &str,
        json: bool,
    ) -> PyResult<String> {
        let explanation = self.runtime.explain(&problem.0, &problem.shape(batch, max_context, kv_heads, lengths)?);
        let text = json
            .then(|| serde_json::to_string(&explanation).map_err(|error| errors::Error::new_err(error.to_string())));
        text.unwrap_or_else(|| Ok(explanation.to_string()))
    }

    fn shape_histogram(&self) -> PyResult<String> {
        serde_json::to_string_pretty(&self.runtime.shape_histogram())
            .map_err(|error| errors::Error::new_err(error.to_string()))
    }

    #[pyo3(signature = (problems=None, *, device=0))]
    fn prepare(&self, py: Python<'_>, problems: Option<Vec<PyProblem>>, device: i32) -> PyResult<()> {
        let problems: Vec<_> = problems.into_iter().flatten().map(|problem| problem.0).collect();
        use_device(device)?;
        py.detach(|| self.runtime.prepare(&problems)).map_err(errors::load)
    }

    #[pyo3(signature = (bytes, *, device=0, stream=0))]
    fn reserve(&self, bytes: u64, device: i32, stream: usize) -> PyResult<()> {
        use_device(device)?;
        self.scratches.at_least(&self.runtime, (device, stream), bytes).map(drop)
    }

    #[pyo3(signature = (
        q, k_cache, v_cache, k_scales, v_scales, block_table, kv_len, *, k=None, v=None, out=None, lse=None,
        workspace=None, status=None, layout="HND", v_scale_order="linear", numerics="fp8", max_context=None,
        lengths="equal", sm_scale=None, q_scale=1.0, k_scale=1.0, v_scale=1.0, window=None, sinks=None, soft_cap=None,
        stream=None
    ))]
    #[allow(clippy::too_many_arguments)] // keywords of Python
    fn decode<'py>(
        &self,
        q: &Bound<'py, PyAny>,
        k_cache: &Bound<'py, PyAny>,
        v_cache: &Bound<'py, PyAny>,
        k_scales: Option<&Bound<'py, PyAny>>,
        v_scales: Option<&Bound<'py, PyAny>>,
        block_table: &Bound<'py, PyAny>,
        kv_len: &Bound<'py, PyAny>,
        k: Option<&Bound<'py, PyAny>>,
        v: Option<&Bound<'py, PyAny>>,
        out: Option<Bound<'py, PyAny>>,
        lse: Option<&Bound<'py, PyAny>>,
        workspace: Option<&Bound<'py, PyAny>>,
        status: Option<&Bound<'py, PyAny>>,
        layout: &str,
        v_scale_order: &str,
        numerics: &str,
        max_context: Option<u32>,
        lengths: &str,
        sm_scale: Option<f32>,
        q_scale: f32,
        k_scale: f32,
        v_scale: f32,
        window: Option<u32>,
        sinks: Option<&Bound<'py, PyAny>>,
        soft_cap: Option<f32>,
        stream: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queries = Tensor::of("q", q)?.require("q", &[Element::F16, Element::Bf16])?;
        let table = Tensor::of("block_table", block_table)?.require("block_table", &[Element::I32])?;
        let table = table.require_axes("block_table", "batch, pages")?;
        let kv_len =
            Tensor::of("kv_len", kv_len)?.require("kv_len", &[Element::I32])?.require_axes("kv_len", "batch")?;
        let batch = table.shape()[0];
        same("kv_len", "batch", kv_len.shape()[0], batch)?;
        let cache = Cache::of(layout, v_scale_order, [k_cache, v_cache], [k_scales, v_scales])?;
        let rows = Rows::of("q", &queries, Some(batch))?;
        same("q", "head dim", rows.dim, cache.head_dim)?;
        let (heads, kv_heads) = (rows.heads, cache.kv_heads);
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(call(format!("q has {heads} heads, no multiple of the cache's {kv_heads}")));
        }
        let new = match (k, v) {
            (None, None) => None,
            (Some(k), Some(v)) => Some([("k", k), ("v", v)]),
            _ => return Err(call("fused: pass both k and v, this step's rows")),
        };
        let append = if new.is_some() { AppendMode::Fused } else { AppendMode::Separate };
        let sinks = match sinks {
            None => None,
            Some(sinks) => {
                let sinks = Tensor::of("sinks", sinks)?.require("sinks", &[Element::F32])?;
                let sinks = sinks.require_axes("sinks", "Hq")?;
                same("sinks", "heads", sinks.shape()[0], heads)?;
                Some(sinks)
            }
        };
        let problem = DecodeProblem {
            kv_format: cache.format,
            numerics: named::<Numerics>(numerics)?,
            head_dim: size("head dim", cache.head_dim)?,
            group: size("group", heads / kv_heads)?,
            q_len: size("q_len", rows.tokens.checked_div(batch).unwrap_or(0))?,
            page_size: size("page size", cache.page_size)?,
            dtype: dtype(queries.element),
            v_scale_order: cache.order,
            append,
            window: not_empty(window)?,
            sinks: sinks.is_some(),
            soft_cap: soft_cap.is_some(),
        };
        let (batch, kv_heads) = (size("batch", batch)?, size("KV heads", kv_heads)?);
        let pages = table.shape()[1];
        let context = match max_context {
            Some(context) => context,
            None => size("max_context, pages times page size,", pages * cache.page_size)?,
        };
        let shape = Shape::Decode { batch, context, kv_heads, lengths: named(lengths)? };
        let problem = Problem::Decode(problem);
        let found = self.runtime.find(&problem, &shape).map_err(errors::miss)?;

        let out = match out {
            Some(out) => out,
            None => like(q)?,
        };
        let output = Tensor::of("out", &out)?.require("out", &[queries.element])?;
        if output.shape() != queries.shape() {
            return Err(call(format!(
                "out has shape {:?}, q {:?}: they are the same",
                output.shape(),
                queries.shape()
            )));
        }
        let out_rows = Rows::of("out", &output, Some(i64::from(batch)))?;
        let sizes = (rows.tokens, i64::from(kv_heads), rows.dim);
        let [new_k, new_v] = match new {
            None => [Rows::NONE; 2],
            Some(new) => {
                let read = |(name, tensor)| new_rows(name, tensor, queries.element, sizes, Some(i64::from(batch)));
                let [k, v] = new.map(read);
                [k?, v?]
            }
        };
        let device = queries.device.unwrap_or(0);
        for (name, tensor) in [("out", &output), ("block_table", &table), ("kv_len", &kv_len), ("k_cache", &cache.k)] {
            same_device(name, tensor, device)?;
        }
        sinks.iter().try_for_each(|sinks| same_device("sinks", sinks, device))?;
        let lse = match lse {
            None => 0,
            Some(lse) => {
                let lse = Tensor::of("lse", lse)?.require("lse", &[Element::F32])?;
                let lse = lse.require_axes("lse", "batch * q_len, Hq")?;
                if lse.shape() != [rows.tokens, heads] || lse.strides()[0] != 4 * heads {
                    return Err(call(format!(
                        "lse has shape {:?}: it must be dense [{}, {heads}]",
                        lse.shape(),
                        rows.tokens
                    )));
                }
                lse.address
            }
        };
        let stream = match stream {
            Some(stream) => stream,
            None => current_stream(q, device)?,
        };
        use_device(device)?;
        let (workspace, workspace_bytes) = match workspace {
            Some(tensor) => bytes_of("workspace", tensor)?,
            None => (0, 0),
        };
        let needs_scratch =
            (workspace == 0 && found.launch.workspace_bytes > 0) || (append == AppendMode::Fused && status.is_none());
        let scratch = if needs_scratch {
            let bytes = if workspace == 0 { found.launch.workspace_bytes } else { 0 };
            self.scratches.at_least(&self.runtime, (device, stream), bytes)?
        } else {
            Scratch::default()
        };
        let (workspace, workspace_bytes) =
            if workspace == 0 { (scratch.workspace, scratch.bytes) } else { (workspace, workspace_bytes) };
        let params = cache.on_device().decode_params(DecodeParams {
            q: queries.address,
            out: output.address,
            lse,
            block_table: table.address,
            kv_len: kv_len.address,
            new_k: new_k.address,
            new_v: new_v.address,
            status: status_word(status, scratch)?,
            workspace,
            q_stride_token: rows.token,
            q_stride_head: rows.head,
            out_stride_token: out_rows.token,
            out_stride_head: out_rows.head,
            new_k_stride_token: new_k.token,
            new_k_stride_head: new_k.head,
            new_v_stride_token: new_v.token,
            new_v_stride_head: new_v.head,
            block_table_stride: table.strides()[0] / 4,
            batch,
            kv_heads,
            sm_scale: sm_scale.unwrap_or(1.0 / (rows.dim as f32).sqrt()),
            q_scale,
            k_scale,
            v_scale,
            window: window.unwrap_or(0),
            soft_cap: soft_cap.unwrap_or(0.0),
            sinks: sinks.map_or(0, |sinks| sinks.address),
            ..DecodeParams::default()
        });
        // SAFETY: the tensors are held by the caller's arguments, and their shapes were compared with the problem's;
        // what the tables and lengths in them say is the caller's.
        let launch = || unsafe { self.runtime.decode(&found, &params, workspace_bytes, stream as *mut _) };
        self.launched(&problem, launch)?;
        Ok(out)
    }

    #[pyo3(signature = (
        k, v, slot_mapping, k_cache, v_cache, k_scales, v_scales, *, status=None, layout="HND",
        v_scale_order="linear", k_scale=1.0, v_scale=1.0, stream=None
    ))]
    #[allow(clippy::too_many_arguments)] // keywords of Python
    fn append<'py>(
        &self,
        k: &Bound<'py, PyAny>,
        v: &Bound<'py, PyAny>,
        slot_mapping: &Bound<'py, PyAny>,
        k_cache: &Bound<'py, PyAny>,
        v_cache: &Bound<'py, PyAny>,
        k_scales: Option<&Bound<'py, PyAny>>,
        v_scales: Option<&Bound<'py, PyAny>>,
        status: Option<&Bound<'py, PyAny>>,
        layout: &str,
        v_scale_order: &str,
        k_scale: f32,
        v_scale: f32,
        stream: Option<usize>,
    ) -> PyResult<()> {
        let slots = Tensor::of("slot_mapping", slot_mapping)?.require("slot_mapping", &[Element::I64])?;
        let slots = slots.require_axes("slot_mapping", "tokens")?;
        let cache = Cache::of(layout, v_scale_order, [k_cache, v_cache], [k_scales, v_scales])?;
        let keys = Tensor::of("k", k)?.require("k", &[Element::F16, Element::Bf16])?;
        let sizes = (slots.shape()[0], cache.kv_heads, cache.head_dim);
        let [new_k, new_v] = [("k", k), ("v", v)].map(|(name, t)| new_rows(name, t, keys.element, sizes, None));
        let (new_k, new_v) = (new_k?, new_v?);
        let problem = Problem::Append(AppendProblem {
            kv_format: cache.format,
            head_dim: size("head dim", cache.head_dim)?,
            page_size: size("page size", cache.page_size)?,
            dtype: dtype(keys.element),
            v_scale_order: cache.order,
        });
        let (tokens, kv_heads) = (size("tokens", sizes.0)?, size("KV heads", cache.kv_heads)?);
        let found = self.runtime.find(&problem, &Shape::Append { tokens, kv_heads }).map_err(errors::miss)?;
        let device = keys.device.unwrap_or(0);
        same_device("k_cache", &cache.k, device)?;
        same_device("slot_mapping", &slots, device)?;
        let stream = match stream {
            Some(stream) => stream,
            None => current_stream(k, device)?,
        };
        use_device(device)?;
        let scratch = match status {
            Some(_) => Scratch::default(),
            None => self.scratches.at_least(&self.runtime, (device, stream), 0)?,
        };
        let params = cache.on_device().append_params(AppendParams {
            k: new_k.address,
            v: new_v.address,
            slot_mapping: slots.address,
            status: status_word(status, scratch)?,
            k_stride_token: new_k.token,
            k_stride_head: new_k.head,
            v_stride_token: new_v.token,
            v_stride_head: new_v.head,
            tokens,
            kv_heads,
            k_scale,
            v_scale,
            ..AppendParams::default()
        });
        // SAFETY: as for `decode`; slots are the caller's.
        let launch = || unsafe { self.runtime.append(&found, &params, stream as *mut _) };
        self.launched(&problem, launch)
    }
}

impl PyRuntime {
    /// Launches; the first time in a context the problem's kernels are loaded.
    fn launched(&self, problem: &Problem, launch: impl Fn() -> Result<(), LaunchError>) -> PyResult<()> {
        match launch() {
            Err(LaunchError::NotLoaded { .. }) => {
                self.runtime.prepare(std::slice::from_ref(problem)).map_err(errors::load)?;
                launch().map_err(errors::launch)
            }
            done => done.map_err(errors::launch),
        }
    }
}

fn dtype(element: Element) -> Dtype {
    if element == Element::F16 { Dtype::F16 } else { Dtype::Bf16 }
}

fn same(name: &str, what: &str, found: i64, expected: i64) -> PyResult<()> {
    if found == expected { Ok(()) } else { Err(call(format!("{name} has {what} {found}, not {expected}"))) }
}

fn same_device(name: &str, tensor: &Tensor, device: i32) -> PyResult<()> {
    match tensor.device {
        Some(other) if other != device => Err(call(format!("{name} is on device {other}, q (or k) on {device}"))),
        _ => Ok(()),
    }
}

/// An output like `q`, which only PyTorch can make here.
fn like<'py>(q: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match torch(q.py())? {
        Some(torch) => torch.call_method1(intern!(q.py(), "empty_like"), (q,)),
        None => Err(call("out is missing: pass a tensor like q (without PyTorch none is made here)")),
    }
}

/// The current stream of the tensor's library, or PyTorch's where it is there, else the default stream.
fn current_stream(tensor: &Bound<'_, PyAny>, device: i32) -> PyResult<usize> {
    let py = tensor.py();
    if let Some(exchange) = Exchange::of(tensor)?
        && let Some(stream) = exchange.current_stream(py, device)?
    {
        return Ok(stream);
    }
    let Some(torch) = torch(py)? else { return Ok(0) };
    // What `torch.cuda.current_stream(device).cuda_stream` gives, without making a stream object a call.
    if let Some(raw) = torch.getattr(intern!(py, "_C"))?.getattr_opt(intern!(py, "_cuda_getCurrentRawStream"))? {
        return raw.call1((device,))?.extract();
    }
    let stream = torch.getattr(intern!(py, "cuda"))?.call_method1(intern!(py, "current_stream"), (device,))?;
    stream.getattr(intern!(py, "cuda_stream"))?.extract()
}

/// Address and size of a dense tensor of bytes.
fn bytes_of(name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let tensor = Tensor::of(name, tensor)?.require(name, &[Element::Byte])?.require_axes(name, "bytes")?;
    Ok((tensor.address, tensor.shape()[0] as u64))
}

/// The word that counts non-finite elements: the caller's, or one that nobody reads.
fn status_word(status: Option<&Bound<'_, PyAny>>, scratch: Scratch) -> PyResult<u64> {
    match status {
        None => Ok(scratch.status),
        Some(status) => {
            let status = Tensor::of("status", status)?.require("status", &[Element::I32])?;
            Ok(status.require_axes("status", "1")?.address)
        }
    }
}
