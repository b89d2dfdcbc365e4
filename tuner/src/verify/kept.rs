//! What launches leave, kept: so that a GPU's and the emulator's results can be laid side by side.

use super::Failure;
use super::emulated::Emulated;
use super::executor::{Executor, Params};
use super::on_gpu::OnGpu;
use super::prepared::Prepared;
use crate::gpu::{Device, Geometry, Kernel};
use nvkv_emulator::Module;
use nvkv_spec::abi::DevicePtr;
use nvkv_spec::{Outcome, Stage, Variant};
use std::cell::RefCell;
use std::rc::Rc;

/// An output after a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// `out`, `lse`, `the cache`, `status` or `the workspace`.
    pub name: &'static str,
    /// All of it, gaps between rows included.
    pub bytes: Vec<u8>,
}

/// Every output of every launch of `kernel` on the GPU, over the cases of `prepared`, in the order of the launches.
///
/// # Errors
/// As a verification's.
pub fn outputs_on_gpu(
    device: &Rc<Device>,
    kernel: &Kernel,
    prepared: &Prepared,
    variant: &Variant,
) -> Result<Vec<Output>, Outcome> {
    outputs(prepared, variant, || Ok(OnGpu { device, kernel }))
}

/// The same in the emulator, from the kernel's PTX.
///
/// # Errors
/// As an emulation's.
pub fn outputs_emulated(
    prepared: &Prepared,
    variant: &Variant,
    symbol: &str,
    ptx: &str,
) -> Result<Vec<Output>, Outcome> {
    let module = Module::parse(ptx).map_err(|error| Failure::from(error).outcome(Stage::Verify))?;
    let work = RefCell::default();
    outputs(prepared, variant, || Ok(Emulated::new(&module, symbol, &work)))
}

fn outputs<E: Executor>(
    prepared: &Prepared,
    variant: &Variant,
    executor: impl Fn() -> Result<E, Failure>,
) -> Result<Vec<Output>, Outcome> {
    let kept = RefCell::default();
    let run = prepared.run(variant, || Ok(Keeping { on: executor()?, kept: &kept }));
    run.map_err(|failure| failure.outcome(Stage::Verify))?;
    Ok(kept.into_inner())
}

/// An executor that keeps every output that is read.
struct Keeping<'a, E> {
    on: E,
    kept: &'a RefCell<Vec<Output>>,
}

impl<E: Executor> Executor for Keeping<'_, E> {
    type Memory = E::Memory;

    const CANARY: usize = E::CANARY;

    fn alloc(&mut self, bytes: usize) -> Result<Self::Memory, Failure> {
        self.on.alloc(bytes)
    }

    fn address(memory: &Self::Memory) -> DevicePtr {
        E::address(memory)
    }

    fn fill(&mut self, memory: &Self::Memory, offset: usize, bytes: usize, value: u8) -> Result<(), Failure> {
        self.on.fill(memory, offset, bytes, value)
    }

    fn upload(&mut self, memory: &Self::Memory, offset: usize, data: &[u8]) -> Result<(), Failure> {
        self.on.upload(memory, offset, data)
    }

    fn download(&self, memory: &Self::Memory, offset: usize, bytes: usize) -> Result<Vec<u8>, Failure> {
        self.on.download(memory, offset, bytes)
    }

    fn launch(&mut self, geometry: Geometry, params: &impl Params) -> Result<(), Failure> {
        self.on.launch(geometry, params)
    }

    fn read(&self, name: &'static str, bytes: &[u8]) {
        self.kept.borrow_mut().push(Output { name, bytes: bytes.to_vec() });
    }
}
