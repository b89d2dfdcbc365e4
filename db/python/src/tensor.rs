//! Tensors on a GPU, whoever made them: address, shape, byte strides and type.
#![allow(unsafe_code)] // reads the struct that a DLPack capsule points to

use crate::errors::call;
use crate::exchange::Exchange;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyTuple, PyType};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{PoisonError, RwLock};

/// Axes that any tensor here has at most.
pub const AXES: usize = 4;

/// Type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F16,
    Bf16,
    F32,
    /// One byte: codes, scales or E4M3 by whatever name.
    Byte,
    I32,
    I64,
}

impl Element {
    fn bytes(self) -> i64 {
        match self {
            Self::Byte => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// As PyTorch names its types; unsigned integers count as the signed ones of their size.
    fn of_torch(name: &str) -> Option<Self> {
        Some(match name {
            "torch.float16" => Self::F16,
            "torch.bfloat16" => Self::Bf16,
            "torch.float32" => Self::F32,
            "torch.uint8" | "torch.int8" | "torch.float8_e4m3fn" | "torch.float4_e2m1fn_x2" => Self::Byte,
            "torch.int32" | "torch.uint32" => Self::I32,
            "torch.int64" | "torch.uint64" => Self::I64,
            _ => return None,
        })
    }

    /// As NumPy writes them; bfloat16 and E4M3, which it has not, come as void of their size.
    fn of_numpy(text: &str) -> Option<Self> {
        Some(match text.trim_start_matches(['<', '|', '=']) {
            "f2" => Self::F16,
            "V2" => Self::Bf16,
            "f4" => Self::F32,
            "u1" | "i1" | "V1" | "f1" => Self::Byte,
            "i4" | "u4" => Self::I32,
            "i8" | "u8" => Self::I64,
            _ => return None,
        })
    }

    /// By DLPack's code (0 int, 1 uint, 2 float, 4 bfloat, 7 and up narrow floats) and bits, those of all its lanes.
    fn of_dlpack(code: u8, bits: u32) -> Option<Self> {
        Some(match (code, bits) {
            (2, 16) => Self::F16,
            (4, 16) => Self::Bf16,
            (2, 32) => Self::F32,
            (_, 8) => Self::Byte,
            (0 | 1, 32) => Self::I32,
            (0 | 1, 64) => Self::I64,
            _ => return None,
        })
    }
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub address: u64,
    pub element: Element,
    /// CUDA device, where the library says it.
    pub device: Option<c_int>,
    axes: usize,
    shape: [i64; AXES],
    /// Bytes.
    strides: [i64; AXES],
}

impl Tensor {
    /// Reads `object`; `name` is for errors.
    pub fn of(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Some(exchange) = Exchange::of(object)? {
            return exchange.with(object, |dl| of_dl(name, dl))?;
        }
        if is_torch(object)? {
            return of_torch(name, object);
        }
        if let Some(interface) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
            return of_array_interface(name, &interface);
        }
        if let Some(export) = object.getattr_opt(intern!(py, "__dlpack__"))? {
            return of_dlpack(name, &export);
        }
        let type_name = object.get_type().name()?;
        Err(call(format!(
            "{name} is a {type_name}: pass a tensor on the GPU (PyTorch's, or one with __cuda_array_interface__ or __dlpack__)"
        )))
    }

    /// Shape.
    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.axes]
    }

    /// Byte strides. That of an axis of one element is never used, and libraries put anything there: it is what a dense
    /// tensor has.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.axes]
    }

    /// Refuses another type.
    pub fn require(self, name: &str, elements: &[Element]) -> PyResult<Self> {
        if elements.contains(&self.element) {
            return Ok(self);
        }
        let expected: Vec<_> = elements.iter().map(|element| format!("{element:?}").to_lowercase()).collect();
        let found = format!("{:?}", self.element).to_lowercase();
        Err(call(format!("{name} has elements of type {found}, not {}", expected.join(" or "))))
    }

    /// Refuses another number of axes, or an innermost one with gaps.
    pub fn require_axes(self, name: &str, axes: &str) -> PyResult<Self> {
        let expected = axes.split(',').count();
        if self.axes != expected {
            return Err(call(format!("{name} has shape {:?}: it must be [{axes}]", self.shape())));
        }
        match self.strides().last() {
            Some(&stride) if stride != self.element.bytes() => Err(call(format!(
                "{name}: its last axis is not contiguous ({stride} bytes between elements of {})",
                self.element.bytes()
            ))),
            _ => Ok(self),
        }
    }

    /// From strides in elements.
    fn new(
        name: &str,
        address: u64,
        element: Element,
        device: Option<c_int>,
        shape: &[i64],
        strides: Option<&[i64]>,
        unit: i64,
    ) -> PyResult<Self> {
        if shape.len() > AXES {
            return Err(call(format!("{name} has {} axes, more than any tensor here", shape.len())));
        }
        let mut tensor = Self { address, element, device, axes: shape.len(), shape: [1; AXES], strides: [0; AXES] };
        tensor.shape[..shape.len()].copy_from_slice(shape);
        let mut dense = element.bytes();
        for axis in (0..shape.len()).rev() {
            tensor.strides[axis] = match strides {
                Some(strides) if shape[axis] != 1 => strides[axis] * unit,
                _ => dense,
            };
            dense = tensor.strides[axis] * shape[axis].max(1);
        }
        Ok(tensor)
    }
}

/// Whether this is one of PyTorch's tensors. PyTorch is not imported for it: where nobody has, it is none.
fn is_torch(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = object.py();
    let tensor = match TENSOR.get(py) {
        Some(tensor) => tensor,
        None => match torch(py)? {
            None => return Ok(false),
            Some(torch) => {
                let tensor = torch.getattr(intern!(py, "Tensor"))?.cast_into::<PyType>()?.unbind();
                TENSOR.get_or_init(py, || tensor)
            }
        },
    };
    Ok(object.get_type().is(tensor) || object.is_instance(tensor.bind(py))?)
}

/// PyTorch, where the caller imported it.
pub fn torch(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    let torch = modules.cast::<PyDict>()?.get_item(intern!(py, "torch"))?;
    Ok(torch.filter(|torch| !torch.is_none()))
}

fn of_torch(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = object.py();
    let device: c_int = object.call_method0(intern!(py, "get_device"))?.extract()?;
    if device < 0 {
        return Err(call(format!("{name} is on the CPU: move it to the GPU")));
    }
    let element = torch_element(name, &object.getattr(intern!(py, "dtype"))?)?;
    let address = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let (mut shape, mut strides) = ([0; AXES], [0; AXES]);
    let axes = numbers(name, &object.getattr(intern!(py, "shape"))?, &mut shape)?;
    numbers(name, &object.call_method0(intern!(py, "stride"))?, &mut strides)?;
    Tensor::new(name, address, element, Some(device), &shape[..axes], Some(&strides[..axes]), element.bytes())
}

/// PyTorch's types are objects that live as long as the process: their addresses name them.
fn torch_element(name: &str, dtype: &Bound<'_, PyAny>) -> PyResult<Element> {
    static KNOWN: RwLock<Option<HashMap<usize, Element>>> = RwLock::new(None);
    let address = dtype.as_ptr() as usize;
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|k| k.get(&address).copied());
    if let Some(element) = known {
        return Ok(element);
    }
    let text = dtype.str()?.to_string();
    let element = Element::of_torch(&text).ok_or_else(|| unknown(name, &text))?;
    KNOWN.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(address, element);
    Ok(element)
}

fn unknown(name: &str, text: &str) -> PyErr {
    call(format!("{name} has elements of type {text}, which nothing here takes"))
}

/// The numbers of a tuple, and how many they are.
fn numbers(name: &str, tuple: &Bound<'_, PyAny>, into: &mut [i64; AXES]) -> PyResult<usize> {
    let tuple = tuple.cast::<PyTuple>()?;
    if tuple.len() > AXES {
        return Err(call(format!("{name} has {} axes, more than any tensor here", tuple.len())));
    }
    for (number, item) in into.iter_mut().zip(tuple.iter_borrowed()) {
        *number = item.extract()?;
    }
    Ok(tuple.len())
}

/// Version 3 of the CUDA array interface.
fn of_array_interface(name: &str, interface: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let typestr: String = interface.get_item("typestr")?.extract()?;
    let element = Element::of_numpy(&typestr).ok_or_else(|| unknown(name, &typestr))?;
    let (address, _read_only): (u64, bool) = interface.get_item("data")?.extract()?;
    let shape: Vec<i64> = interface.get_item("shape")?.extract()?;
    let strides: Option<Vec<i64>> = match interface.cast::<PyDict>()?.get_item("strides")? {
        Some(strides) => strides.extract()?,
        None => None,
    };
    Tensor::new(name, address, element, None, &shape, strides.as_deref(), 1)
}

/// `DLTensor` of dlpack.h, the start of `DLManagedTensor`: the same since its first version.
#[repr(C)]
pub struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    axes: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

impl Default for DlTensor {
    /// No tensor: on no device, without axes.
    fn default() -> Self {
        let (device_type, device_id, axes, code, bits, lanes, byte_offset) = (0, 0, 0, 0, 0, 0, 0);
        let (data, shape, strides) = (null_mut(), null(), null());
        Self { data, device_type, device_id, axes, code, bits, lanes, shape, strides, byte_offset }
    }
}

/// `kDLCUDA`, `kDLCUDAManaged`.
const CUDA_DEVICES: [i32; 2] = [2, 13];

fn of_dlpack(name: &str, export: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    // -1: the producer does not wait for a stream; the caller's order of streams holds.
    let options = PyDict::new(export.py());
    options.set_item("stream", -1)?;
    let capsule = export.call((), Some(&options))?;
    let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(c"dltensor"))?.cast::<DlTensor>();
    // SAFETY: a capsule of that name holds a `DLManagedTensor`, which lives as long as the capsule is not consumed, and
    // begins with a `DLTensor`. The tensor itself is kept alive by the caller's argument.
    of_dl(name, unsafe { pointer.as_ref() })
}

fn of_dl(name: &str, dl: &DlTensor) -> PyResult<Tensor> {
    if !CUDA_DEVICES.contains(&dl.device_type) {
        return Err(call(format!("{name} is on no CUDA device: move it to the GPU")));
    }
    // Two lanes of 4 bits are a byte of packed codes.
    let element = Element::of_dlpack(dl.code, u32::from(dl.bits) * u32::from(dl.lanes));
    let element = element.ok_or_else(|| unknown(name, &format!("DLPack {}/{}x{}", dl.code, dl.bits, dl.lanes)))?;
    let axes = dl.axes.max(0) as usize;
    // SAFETY: so many numbers by the specification; null strides mean dense.
    let list = |at: *const i64| (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at, axes) });
    let address = dl.data as u64 + dl.byte_offset;
    let shape = list(dl.shape).unwrap_or_default();
    Tensor::new(name, address, element, Some(dl.device_id), shape, list(dl.strides), element.bytes())
}
