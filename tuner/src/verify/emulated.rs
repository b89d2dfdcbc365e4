//! Kernels under test in the emulator: the PTX itself, on the CPU.

use super::Failure;
use super::executor::{Executor, Params};
use super::prepared::Prepared;
use crate::gpu::Geometry;
use crate::worker::VerifyReport;
use nvkv_emulator::{Memory, Module, Stats};
use nvkv_spec::abi::DevicePtr;
use nvkv_spec::{Outcome, Stage, Variant};
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// What the emulator says of a kernel that agrees with the reference.
#[derive(Clone, Copy, Debug)]
pub struct Emulation {
    /// How well it agrees.
    pub report: VerifyReport,
    /// What its launches were.
    pub work: Work,
}

/// Launches in the emulator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Their number.
    pub launches: u32,
    /// What they executed.
    pub stats: Stats,
    /// How long they took, without preparing memory and comparing results.
    pub time: Duration,
    /// CPU time of the process in that time, which other work on the machine hardly touches.
    pub cpu: Duration,
}

/// CPU time of this process so far, of all its threads.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Runs kernel `symbol` of `ptx` over the cases of `prepared` in the emulator. It rounds as the PTX's own `.target`.
///
/// # Errors
/// [`Outcome::Wrong`] where a result is not the reference's; [`Outcome::Faulted`] where the kernel does what it must
/// not (a race, an access out of bounds, data that was not waited for), with PTX line, block, warp and lane.
pub fn emulate(prepared: &Prepared, variant: &Variant, symbol: &str, ptx: &str) -> Result<Emulation, Outcome> {
    let work = RefCell::default();
    let run = || {
        let module = Module::parse(ptx)?;
        let report = prepared.run(variant, || Ok(Emulated::new(&module, symbol, &work)))?;
        Ok(Emulation { report, work: *work.borrow() })
    };
    run().map_err(|failure: Failure| failure.outcome(Stage::Verify))
}

/// A kernel of a module, with the memory of one case.
pub(super) struct Emulated<'a> {
    module: &'a Module,
    symbol: &'a str,
    memory: Memory,
    work: &'a RefCell<Work>,
}

impl<'a> Emulated<'a> {
    /// With memory of its own; `work` counts its launches.
    pub fn new(module: &'a Module, symbol: &'a str, work: &'a RefCell<Work>) -> Self {
        Self { module, symbol, memory: Memory::new(), work }
    }
}

impl Executor for Emulated<'_> {
    type Memory = DevicePtr;

    const CANARY: usize = 0;

    fn alloc(&mut self, bytes: usize) -> Result<DevicePtr, Failure> {
        Ok(self.memory.alloc(bytes))
    }

    fn address(memory: &DevicePtr) -> DevicePtr {
        *memory
    }

    fn fill(&mut self, memory: &DevicePtr, offset: usize, bytes: usize, value: u8) -> Result<(), Failure> {
        self.upload(memory, offset, &vec![value; bytes])
    }

    fn upload(&mut self, memory: &DevicePtr, offset: usize, data: &[u8]) -> Result<(), Failure> {
        Ok(self.memory.write(memory + offset as u64, data)?)
    }

    fn download(&self, memory: &DevicePtr, offset: usize, bytes: usize) -> Result<Vec<u8>, Failure> {
        Ok(self.memory.read(memory + offset as u64, bytes)?)
    }

    fn launch(&mut self, geometry: Geometry, params: &impl Params) -> Result<(), Failure> {
        let Geometry { grid, threads, shared_bytes } = geometry;
        let (block, target) = ([threads, 1, 1], self.module.target());
        let (module, symbol, params) = (self.module, self.symbol, params.bytes());
        let (start, start_cpu) = (Instant::now(), cpu_time());
        let stats =
            nvkv_emulator::launch(module, symbol, grid, block, shared_bytes, &params, &mut self.memory, target)?;
        let mut work = self.work.borrow_mut();
        work.launches += 1;
        work.stats += stats;
        work.time += start.elapsed();
        work.cpu += cpu_time().saturating_sub(start_cpu);
        Ok(())
    }
}
