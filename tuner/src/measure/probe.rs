//! The read ceiling, the L2 flush, plain transfers and the fill kernel: templates/probe.cu on the device.

use super::fill::Pattern;
use crate::gpu::{
    Buffer, CompileError, CudaError, Device, FillParams, Geometry, Graph, Kernel, Nvrtc, ReadParams, Timer,
    TransferParams, compile,
};
use nvkv_spec::abi::DevicePtr;
use nvkv_spec::{Target, Traffic};
use std::rc::Rc;

const SOURCE: &str = include_str!("../../../templates/probe.cu");
const READ: &str = "nvkv_probe_read";
const TRANSFER: &str = "nvkv_probe_transfer";
const FILL: &str = "nvkv_probe_fill";
const THREADS: u32 = 512;
/// Bytes read for the ceiling, where that much memory is free.
const CEILING_BYTES: u64 = 4 << 30;
/// The flush and the sentinel after it read this many times the L2 together.
const FLUSH_L2S: u64 = 4;
/// Grids tried for the ceiling and for a transfer, blocks an SM.
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
    device: Rc<Device>,
    read_kernel: Kernel,
    transfer: Kernel,
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
            device: device.clone(),
            read_kernel: Kernel::load(device, &cubin, READ)?,
            transfer: Kernel::load(device, &cubin, TRANSFER)?,
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

    /// A plain transfer of so many bytes, each number rounded up to a multiple of 16. Its memory is its own, so that
    /// none of it is in the L2 after [`Self::flush`] and [`Self::sentinel`].
    pub(crate) fn transfer(&self, traffic: Traffic) -> Result<Transfer, CudaError> {
        let Traffic { read, written } = traffic;
        let (read, written) = (read.div_ceil(16), written.div_ceil(16));
        let source = Buffer::new(&self.device, 16 * read as usize)?;
        let destination = Buffer::new(&self.device, 16 * written as usize)?;
        if read > 0 {
            self.fill(source.address(), 16 * read, 0, Pattern { keep: u32::MAX, add: 0 })?;
        }
        let params = TransferParams {
            source: source.address(),
            destination: destination.address(),
            sink: self.sink.address(),
            read,
            written,
        };
        let capture = |grid| Graph::capture(&self.device, || self.transfer.launch(self.geometry(grid), &params));
        let graphs = transfer_grids(self.sms, read.max(written)).into_iter().map(capture).collect::<Result<_, _>>()?;
        Ok(Transfer { graphs, _source: source, _destination: destination })
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

/// A plain transfer, and what it needs to stay alive.
pub(crate) struct Transfer {
    /// It as a graph of one launch, once for each grid.
    pub(crate) graphs: Vec<Graph>,
    _source: Buffer,
    _destination: Buffer,
}

/// Grids to try for a transfer of so many vectors: none with blocks that have nothing to do, which would cost time.
fn transfer_grids(sms: u32, vectors: u64) -> Vec<u32> {
    let most = vectors.div_ceil(u64::from(THREADS)).max(1);
    let mut grids = BLOCKS_PER_SM.map(|blocks| u64::from(blocks * sms).min(most) as u32).to_vec();
    grids.dedup();
    grids
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_emulator::{EmulationError, Memory, Module, launch};

    #[test]
    fn a_transfer_has_no_idle_blocks_and_no_grid_twice() {
        assert_eq!(transfer_grids(132, 1 << 30), [264, 528, 1056, 2112]);
        assert_eq!(transfer_grids(132, 512 * 600), [264, 528, 600]);
        assert_eq!(transfer_grids(132, 513), [2]);
        assert_eq!(transfer_grids(132, 0), [1]);
    }

    /// Runs the transfer kernel, 2 blocks, on `source` of which it is told to read `read` vectors; gives the destination.
    fn emulated(module: &Module, source: &[u8], read: u64, written: u64) -> Result<Vec<u8>, EmulationError> {
        let mut memory = Memory::new();
        let [from, to, sink] = [source.len(), 16 * written as usize, 4].map(|bytes| memory.alloc(bytes));
        memory.write(from, source)?;
        let params: Vec<u8> = [from, to, sink, read, written].into_iter().flat_map(u64::to_le_bytes).collect();
        launch(module, TRANSFER, [2, 1, 1], [THREADS, 1, 1], 0, &params, &mut memory, module.target())?;
        memory.read(to, 16 * written as usize)
    }

    /// The emulator refuses accesses outside the buffers, so what is right here reads and writes what it was told to.
    #[test]
    fn the_transfer_kernel_reads_and_writes_every_vector() {
        let nvrtc = Nvrtc::load().unwrap_or_else(|error| panic!("this test needs NVRTC: {error}"));
        let ptx = compile(&nvrtc, SOURCE, Target::Sm90a.name(), TRANSFER).unwrap().ptx;
        let module = Module::parse(&ptx).unwrap();
        // Not a multiple of the 1024 threads, and beyond one sweep of 8 loads each.
        let vectors = 9 * 1024 + 17;
        let source: Vec<u8> = (0..16 * vectors).map(|at| Pattern { keep: u32::MAX, add: 0 }.byte(at)).collect();
        let run = |read, written| emulated(&module, &source, read, written);
        for written in [0, 1000, vectors] {
            assert_eq!(run(vectors, written).unwrap(), source[..16 * written as usize], "{written}");
        }
        let past = run(vectors, vectors + 3).unwrap();
        assert_eq!(past, [&source[..], &[0; 48]].concat(), "zeros where nothing was read");
        assert!(run(vectors + 1, 0).is_err(), "the last vector is read, even where none is written");
    }
}
