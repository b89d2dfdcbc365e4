//! Where a kernel under test runs: on a GPU, or in the emulator. Cases, poison and comparison are the same for both.

use super::Failure;
use crate::gpu::{Geometry, KernelParams};
use nvkv_spec::abi::{AppendParams, DecodeParams, DevicePtr, Field};
use serde::Serialize;

/// One kernel, memory beside it, and launches to their end.
pub(super) trait Executor {
    /// A piece of device memory.
    type Memory;

    /// Bytes of a canary at each end of an output, a multiple of 256; 0 where any access outside is an error anyway.
    const CANARY: usize;

    /// `bytes` of memory, aligned to 256 bytes.
    fn alloc(&mut self, bytes: usize) -> Result<Self::Memory, Failure>;

    /// Address of its first byte.
    fn address(memory: &Self::Memory) -> DevicePtr;

    /// Sets `bytes` bytes from `offset` on to `value`.
    fn fill(&mut self, memory: &Self::Memory, offset: usize, bytes: usize, value: u8) -> Result<(), Failure>;

    /// Copies `data` to byte `offset`.
    fn upload(&mut self, memory: &Self::Memory, offset: usize, data: &[u8]) -> Result<(), Failure>;

    /// `bytes` bytes from `offset` on.
    fn download(&self, memory: &Self::Memory, offset: usize, bytes: usize) -> Result<Vec<u8>, Failure>;

    /// Runs the kernel once, and waits for its end.
    fn launch(&mut self, geometry: Geometry, params: &impl Params) -> Result<(), Failure>;

    /// Told of each output that was read; most have no use for it.
    fn read(&self, _name: &'static str, _bytes: &[u8]) {}

    /// Memory that holds `data`.
    fn hold<T: Number>(&mut self, data: &[T]) -> Result<Self::Memory, Failure> {
        let bytes = T::to_bytes(data);
        let memory = self.alloc(bytes.len())?;
        self.upload(&memory, 0, &bytes)?;
        Ok(memory)
    }
}

/// A parameter struct, for a driver and for the emulator.
pub(super) trait Params: KernelParams {
    /// It as a launch passes it.
    fn bytes(&self) -> Vec<u8>;
}

impl Params for DecodeParams {
    fn bytes(&self) -> Vec<u8> {
        bytes_of(Self::FIELDS, self)
    }
}

impl Params for AppendParams {
    fn bytes(&self) -> Vec<u8> {
        bytes_of(Self::FIELDS, self)
    }
}

/// A parameter struct from its table of fields: each at its offset, little-endian. All fields are numbers, and a float
/// that JSON does not have, an infinity or a NaN, counts as zero.
fn bytes_of(fields: &[Field], params: &impl Serialize) -> Vec<u8> {
    let values = serde_json::to_value(params).unwrap_or_default();
    let mut bytes = Vec::new();
    for Field { name, cuda_type, offset, .. } in fields {
        let value = &values[name];
        bytes.resize(*offset, 0);
        match *cuda_type {
            "float" => bytes.extend((value.as_f64().unwrap_or_default() as f32).to_le_bytes()),
            "unsigned int" => bytes.extend((value.as_u64().unwrap_or_default() as u32).to_le_bytes()),
            "long long" => bytes.extend(value.as_i64().unwrap_or_default().to_le_bytes()),
            _ => bytes.extend(value.as_u64().unwrap_or_default().to_le_bytes()),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// A number in device memory, little-endian.
pub(super) trait Number: Copy {
    /// Numbers as bytes.
    fn to_bytes(numbers: &[Self]) -> Vec<u8>;
    /// Bytes as numbers; what is left at the end is no number.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! numbers { ($($type:ty),+) => { $(
    impl Number for $type {
        fn to_bytes(numbers: &[Self]) -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        }

        fn from_bytes(bytes: &[u8]) -> Vec<Self> {
            bytes.as_chunks().0.iter().map(|&chunk| Self::from_le_bytes(chunk)).collect()
        }
    }
)+ } }
numbers!(u16, u32, i32, i64, f32);

impl Number for u8 {
    fn to_bytes(numbers: &[Self]) -> Vec<u8> {
        numbers.to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_their_fields_at_their_offsets() {
        let params = DecodeParams { out: 0x0807_0605_0403_0201, batch: 7, v_scale: 1.5, ..DecodeParams::default() };
        let bytes = params.bytes();
        let at = |name: &str| DecodeParams::FIELDS.iter().find(|field| field.name == name).unwrap().offset;
        assert_eq!(bytes.len(), size_of::<DecodeParams>());
        assert_eq!(bytes[at("out")..][..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[at("batch")..][..4], [7, 0, 0, 0]);
        assert_eq!(bytes[at("v_scale")..][..4], 0x3FC0_0000u32.to_le_bytes());
        assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 8 + 1 + 2, "nothing else");
    }
}
