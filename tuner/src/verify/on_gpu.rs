//! Kernels under test on a GPU.

use super::Failure;
use super::executor::{Executor, Params};
use crate::gpu::{Buffer, Device, Geometry, Kernel};
use nvkv_spec::abi::DevicePtr;
use std::rc::Rc;

/// A loaded kernel on its device.
pub(super) struct OnGpu<'a> {
    pub device: &'a Rc<Device>,
    pub kernel: &'a Kernel,
}

impl Executor for OnGpu<'_> {
    type Memory = Buffer;

    const CANARY: usize = 256;

    fn alloc(&mut self, bytes: usize) -> Result<Buffer, Failure> {
        Ok(Buffer::new(self.device, bytes)?)
    }

    fn address(memory: &Buffer) -> DevicePtr {
        memory.address()
    }

    fn fill(&mut self, memory: &Buffer, offset: usize, bytes: usize, value: u8) -> Result<(), Failure> {
        Ok(memory.fill(offset, bytes, value)?)
    }

    fn upload(&mut self, memory: &Buffer, offset: usize, data: &[u8]) -> Result<(), Failure> {
        Ok(memory.upload(offset, data)?)
    }

    fn download(&self, memory: &Buffer, offset: usize, bytes: usize) -> Result<Vec<u8>, Failure> {
        Ok(memory.download(offset, bytes)?)
    }

    fn launch(&mut self, geometry: Geometry, params: &impl Params) -> Result<(), Failure> {
        self.kernel.allow_shared(geometry.shared_bytes)?;
        self.kernel.launch(geometry, params)?;
        Ok(self.device.synchronize()?)
    }
}
