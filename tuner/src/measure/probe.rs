//! The read ceiling, the L2 flush and the fill kernel: templates/probe.cu on the device.

use super::fill::Pattern;
use crate::gpu::{
    Buffer, CompileError, CudaError, Device, FillParams, Geometry, Kernel, Nvrtc, ReadParams, Timer, compile,
};
use nvkv_spec::Target;
use nvkv_spec::abi::DevicePtr;
use std::rc::Rc;

const SOURCE: &str = include_str!("../../../templates/probe.cu");
const READ: &str = "nvkv_probe_read";
const FILL: &str = "nvkv_probe_fill";
const THREADS: u32 = 512;
/// Bytes read for the ceiling, where that much memory is free.
const CEILING_BYTES: u64 = 4 << 30;
/// The flush and the sentinel after it read this many times the L2 together.
const FLUSH_L2S: u64 = 4;
/// Grids tried for the ceiling, blocks an SM.
const BLOCKS_PER_SM: [u32; 4] = [2, 4, 8, 16];
/// Passes of each grid; the best counts, since a ceiling is what can be reached.
const PASSES: usize = 3;

/// Why the probe cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// It does not compile.
    #[error("templates/probe.cu: {0}")]
    Compile(#[from] CompileError),
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The probe's kernels and its buffer.
pub(crate) struct Probe {
    read_kernel: Kernel,
    fill: Kernel,
    buffer: Buffer,
    sink: Buffer,
    timer: Timer,
    sms: u32,
    l2_bytes: u64,
    best_grid: u32,
}

impl Probe {
    /// Compiles the kernels for the device, and fills a buffer with random bytes: 4 GiB, or what a
    /// quarter of the free memory allows, but 4 times the L2 at least.
    pub(crate) fn new(device: &Rc<Device>, nvrtc: &Nvrtc) -> Result<Self, ProbeError> {
        let (major, minor) = device.capability()?;
        let known = Target::of_capability(major, minor).map(|target| target.name().to_string());
        let arch = known.unwrap_or_else(|| format!("sm_{major}{minor}"));
        let cubin = compile(nvrtc, SOURCE, &arch, READ)?.cubin;
        let l2_bytes = device.l2_bytes()?;
        let bytes = CEILING_BYTES.min(device.free_memory()? / 4).max(FLUSH_L2S * l2_bytes).next_multiple_of(16);
        let sms = device.sms()?;
        let probe = Self {
            read_kernel: Kernel::load(device, &cubin, READ)?,
            fill: Kernel::load(device, &cubin, FILL)?,
            buffer: Buffer::new(device, bytes as usize)?,
            sink: Buffer::from_slice(device, &[0u32])?,
            timer: Timer::new(device)?,
            sms,
            l2_bytes,
            best_grid: 8 * sms,
        };
        probe.fill(probe.buffer.address(), bytes, 0, Pattern { keep: u32::MAX, add: 0 })?;
        device.synchronize()?;
        Ok(probe)
    }

    /// Fills `bytes` bytes at `address`, both multiples of 16, from byte `first` of the random
    /// sequence on (a multiple of 4).
    pub(crate) fn fill(&self, address: DevicePtr, bytes: u64, first: u64, pattern: Pattern) -> Result<(), CudaError> {
        let Pattern { keep, add } = pattern;
        let params = FillParams { data: address, vectors: bytes / 16, first: first / 4, keep, add };
        self.fill.launch(self.geometry(8 * self.sms), &params)
    }

    /// Evicts what a kernel left in the L2, dirty lines too: reads over three times its size. [`Self::sentinel`] reads
    /// over the rest.
    pub(crate) fn flush(&self) -> Result<(), CudaError> {
        self.read(self.best_grid, self.l2_bytes, (FLUSH_L2S - 1) * self.l2_bytes)
    }

    /// Work that is the same each time, after [`Self::flush`]: reads as much as the L2 holds, and none of it is there.
    pub(crate) fn sentinel(&self) -> Result<(), CudaError> {
        self.read(self.best_grid, 0, self.l2_bytes)
    }

    /// Read bandwidth, GB/s: the best of several grids over the whole buffer. Keeps that grid.
    pub(crate) fn ceiling(&mut self) -> Result<f64, CudaError> {
        let mut best = (0.0, self.best_grid);
        for grid in BLOCKS_PER_SM.map(|blocks| blocks * self.sms) {
            let rate = self.rate(grid)?;
            if rate > best.0 {
                best = (rate, grid);
            }
        }
        self.best_grid = best.1;
        Ok(best.0)
    }

    /// The ceiling again, with the grid found before.
    pub(crate) fn ceiling_again(&self) -> Result<f64, CudaError> {
        self.rate(self.best_grid)
    }

    fn rate(&self, grid: u32) -> Result<f64, CudaError> {
        let bytes = self.buffer.bytes() as u64;
        let mut best = f64::INFINITY;
        self.read(grid, 0, bytes)?;
        for _ in 0..PASSES {
            best = best.min(self.timer.time(|| self.read(grid, 0, bytes))?);
        }
        Ok(bytes as f64 / best / 1e3)
    }

    /// Reads `bytes` bytes from byte `first` of the buffer on, multiples of 16 (rounded down).
    fn read(&self, grid: u32, first: u64, bytes: u64) -> Result<(), CudaError> {
        let data = self.buffer.address() + first / 16 * 16;
        let params = ReadParams { data, sink: self.sink.address(), vectors: bytes / 16 };
        self.read_kernel.launch(self.geometry(grid), &params)
    }

    fn geometry(&self, blocks: u32) -> Geometry {
        Geometry { grid: [blocks, 1, 1], threads: THREADS, shared_bytes: 0 }
    }
}
