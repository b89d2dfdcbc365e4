//! Device memory between two canaries: a write outside it shows.

use super::Failure;
use crate::gpu::{Buffer, CudaError, Device, Plain};
use nvkv_spec::abi::DevicePtr;
use std::rc::Rc;

/// Bytes of each canary; keeps the alignment that `Buffer` gives.
const CANARY: usize = 256;
const CANARY_BYTE: u8 = 0xa5;
/// What outputs hold before a launch: NaN in every float type.
const POISON: u8 = 0xff;

/// Device memory with a canary at each end.
pub struct Guarded {
    buffer: Buffer,
    name: &'static str,
    bytes: usize,
}

impl Guarded {
    /// `bytes` of memory that hold `value`; `name` is for messages.
    pub fn filled(device: &Rc<Device>, name: &'static str, bytes: usize, value: u8) -> Result<Self, CudaError> {
        let buffer = Buffer::new(device, bytes + 2 * CANARY)?;
        buffer.fill(0, CANARY, CANARY_BYTE)?;
        buffer.fill(CANARY, bytes, value)?;
        buffer.fill(CANARY + bytes, CANARY, CANARY_BYTE)?;
        Ok(Self { buffer, name, bytes })
    }

    /// Memory for an output: poisoned.
    pub fn poisoned(device: &Rc<Device>, name: &'static str, bytes: usize) -> Result<Self, CudaError> {
        Self::filled(device, name, bytes, POISON)
    }

    /// Memory that holds `data`.
    pub fn holding<T: Plain>(device: &Rc<Device>, name: &'static str, data: &[T]) -> Result<Self, CudaError> {
        let guarded = Self::filled(device, name, size_of_val(data), POISON)?;
        guarded.upload(data)?;
        Ok(guarded)
    }

    /// Poisons it again.
    pub fn poison(&self) -> Result<(), CudaError> {
        self.buffer.fill(CANARY, self.bytes, POISON)
    }

    /// Overwrites its start with `data`.
    pub fn upload<T: Plain>(&self, data: &[T]) -> Result<(), CudaError> {
        self.buffer.upload(CANARY, data)
    }

    /// Address of its first byte.
    pub fn address(&self) -> DevicePtr {
        self.buffer.address() + CANARY as u64
    }

    /// Its content, once the canaries are found whole. Waits for all work.
    pub fn read<T: Plain + Default>(&self) -> Result<Vec<T>, Failure> {
        for (end, offset) in [("before", 0), ("past", CANARY + self.bytes)] {
            let canary: Vec<u8> = self.buffer.download(offset, CANARY)?;
            if let Some(at) = canary.iter().position(|&b| b != CANARY_BYTE) {
                let detail = format!("wrote {end} {} (byte {at} of the canary)", self.name);
                return Err(Failure::Wrong { error: f64::NAN, detail });
            }
        }
        Ok(self.buffer.download(CANARY, self.bytes / size_of::<T>())?)
    }
}
