//! Device memory, and plain data that may travel to it.
#![allow(unsafe_code)] // driver calls on memory that `Buffer` owns; views of plain data as bytes

use super::{CudaError, Device};
use nvkv_runtime::cu;
use nvkv_spec::abi::{AppendParams, DecodeParams, DevicePtr};
use std::rc::Rc;

/// Data whose bytes may be copied to and from the device.
///
/// # Safety
/// The type has no padding that is read, and every bit pattern is a value of it.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain { ($($type:ty),+) => { $(
    // SAFETY: a number.
    unsafe impl Plain for $type {}
)+ } }
plain!(u8, u16, u32, i32, i64, u64, f32);

/// A struct that a kernel takes by value as its only argument.
///
/// # Safety
/// `#[repr(C)]`, with the layout that the kernel's parameter has in CUDA.
pub unsafe trait KernelParams: Copy {}

// SAFETY: `spec::abi` spells both sides and tests the offsets.
unsafe impl KernelParams for DecodeParams {}
// SAFETY: as above.
unsafe impl KernelParams for AppendParams {}
// SAFETY: an array is laid out as CUDA's; the kernel takes so many 64-bit words.
unsafe impl<const N: usize> KernelParams for [u64; N] {}

/// Device memory of a fixed size, freed on drop.
pub struct Buffer {
    device: Rc<Device>,
    address: DevicePtr,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` of device memory, aligned to 256 bytes at least; what it holds is not defined.
    pub fn new(device: &Rc<Device>, bytes: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        // The driver refuses zero bytes; the address is written to a local.
        cu!(cuMemAlloc_v2(&mut address, bytes.max(1)))?;
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Allocates memory that holds `data`.
    pub fn from_slice<T: Plain>(device: &Rc<Device>, data: &[T]) -> Result<Self, CudaError> {
        let buffer = Self::new(device, size_of_val(data))?;
        buffer.upload(0, data)?;
        Ok(buffer)
    }

    /// Address of the first byte.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Size, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `data` to byte `offset`, in stream order.
    pub fn upload<T: Plain>(&self, offset: usize, data: &[T]) -> Result<(), CudaError> {
        self.assert_holds(offset, size_of_val(data));
        // Pageable host memory: the driver has read it by the time it returns.
        cu!(cuMemcpyHtoDAsync_v2(
            self.address + offset as u64,
            data.as_ptr().cast(),
            size_of_val(data),
            self.device.stream
        ))
    }

    /// Waits for all work, then copies `count` values from byte `offset`.
    pub fn download<T: Plain + Default>(&self, offset: usize, count: usize) -> Result<Vec<T>, CudaError> {
        let mut data = vec![T::default(); count];
        self.assert_holds(offset, size_of_val(&data[..]));
        // The destination is a vector of that size and lives until the synchronisation below.
        cu!(cuMemcpyDtoHAsync_v2(
            data.as_mut_ptr().cast(),
            self.address + offset as u64,
            size_of_val(&data[..]),
            self.device.stream
        ))?;
        self.device.synchronize()?;
        Ok(data)
    }

    /// Sets `bytes` bytes from `offset` on to `value`, in stream order.
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<(), CudaError> {
        self.assert_holds(offset, bytes);
        if bytes == 0 {
            return Ok(());
        }
        // The range is inside the allocation.
        cu!(cuMemsetD8Async(self.address + offset as u64, value, bytes, self.device.stream))
    }

    fn assert_holds(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes, "{bytes} bytes at {offset} of a buffer of {}", self.bytes);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // An error here follows one that was already reported, and the process ends after it.
        let _ = cu!(cuMemFree_v2(self.address));
    }
}
