//! The public face: a module, and its launch.

use crate::EmulationError;
use crate::decode::{Placed, Target, decode};
use crate::exec::{Environment, Grid, Program, run_block};
use crate::memory::Memory;
use crate::read::{Statement, Syntax, VariableSpace, read};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A PTX module.
#[derive(Clone, Debug)]
pub struct Module {
    syntax: Syntax,
    decoded: Arc<Mutex<Decoded>>,
}

/// Kernels that were decoded, by name and target: further launches find them.
type Decoded = HashMap<(String, Target), Arc<Program>>;

/// What a launch executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks.
    pub blocks: u64,
    /// Instructions, a warp's counted once.
    pub warp_instructions: u64,
    /// Instructions, each counted for every lane that executed it.
    pub thread_instructions: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.warp_instructions += other.warp_instructions;
        self.thread_instructions += other.thread_instructions;
    }
}

impl Module {
    /// Reads PTX.
    ///
    /// # Errors
    /// [`EmulationError::Syntax`] with line and text.
    pub fn parse(ptx: &str) -> Result<Self, EmulationError> {
        Ok(Self { syntax: read(ptx)?, decoded: Arc::default() })
    }

    /// `.target` of the module, such as `sm_90a`.
    pub fn target(&self) -> &str {
        &self.syntax.target
    }

    /// Names of its kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.syntax.kernels.iter().map(|kernel| kernel.name.as_str())
    }

    /// Opcodes of all instructions of its kernels, with their modifiers, such as `add.rn.f32`.
    pub fn opcodes(&self) -> impl Iterator<Item = &str> {
        let body = self.syntax.kernels.iter().flat_map(|kernel| &kernel.body);
        body.filter_map(|statement| match statement {
            Statement::Instruction(instruction) => Some(instruction.opcode.as_str()),
            _ => None,
        })
    }

    /// The kernel, decoded for `target`.
    fn program(&self, symbol: &str, target: &str, memory: &mut Memory) -> Result<Arc<Program>, EmulationError> {
        let launch = |problem| EmulationError::Launch { symbol: symbol.to_string(), problem };
        let family = Target::named(target)
            .ok_or_else(|| launch(format!("target `{target}` is not emulated; sm_80 to sm_121 are")))?;
        if self.syntax.variables.iter().any(|variable| variable.space == VariableSpace::Global) {
            // Its variables lie elsewhere in every launch.
            return self.decode(symbol, family, memory).map(Arc::new);
        }
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = decoded.get(&(symbol.to_string(), family)) {
            return Ok(program.clone());
        }
        let program = Arc::new(self.decode(symbol, family, memory)?);
        decoded.insert((symbol.to_string(), family), program.clone());
        Ok(program)
    }

    /// Decodes a kernel, placing the module's variables in `memory`.
    fn decode(&self, symbol: &str, target: Target, memory: &mut Memory) -> Result<Program, EmulationError> {
        let Some(kernel) = self.syntax.kernels.iter().find(|kernel| kernel.name == symbol) else {
            let known = self.kernels().collect::<Vec<_>>().join(", ");
            return Err(EmulationError::NoKernel { symbol: symbol.to_string(), known });
        };
        let mut placed = Vec::new();
        for variable in &self.syntax.variables {
            let address = match variable.space {
                VariableSpace::Global => memory.alloc_with(&variable.initial_bytes()),
                VariableSpace::Shared | VariableSpace::Local | VariableSpace::Param => 0,
            };
            placed.push(Placed { variable, address });
        }
        decode(kernel, target, &placed)
    }
}

/// Threads of a block along x, y and z (CUDA C++ Programming Guide, "Compute Capabilities").
const MOST_THREADS: [u32; 3] = [1024, 1024, 64];
/// Blocks of a grid along x, y and z (the same table).
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Local memory of a thread (the same table).
const MOST_LOCAL_BYTES: u32 = 512 << 10;

/// Shared memory that a block of a target may have, bytes (the same table).
fn most_shared_bytes(target: &str) -> u32 {
    let digits = target.trim_start_matches("sm_").trim_end_matches(['a', 'f']);
    match digits {
        "80" | "87" => 163 << 10,
        "86" | "89" | "120" | "121" => 99 << 10,
        _ => 227 << 10,
    }
}

/// Checks the extents of a block or a grid along x, y and z.
fn check_extents(of: &str, what: &str, extents: [u32; 3], most: [u32; 3]) -> Result<(), String> {
    let fits = extents.iter().zip(most).all(|(&n, most)| (1..=most).contains(&n));
    if fits { Ok(()) } else { Err(format!("a {of} of {extents:?} {what}; a {of} has 1 to {most:?}")) }
}

/// Runs kernel `symbol` of `module` to its end.
///
/// `grid` is in blocks, `block` in threads, `shared_bytes` of dynamic shared memory; `params` are the bytes of the
/// kernel's parameters as a CUDA launch passes them; `target` such as `sm_90a` says how tensor cores round. Blocks
/// run in parallel and in any order, each to its end: a block must not wait for a later one. Variables of the module
/// start afresh with each launch.
///
/// # Errors
/// Where the kernel has an unknown instruction, the launch does not fit, or the kernel does what it must not.
#[allow(clippy::too_many_arguments, reason = "these are the arguments of a CUDA launch")]
pub fn launch(
    module: &Module,
    symbol: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: &[u8],
    memory: &mut Memory,
    target: &str,
) -> Result<Stats, EmulationError> {
    let program = module.program(symbol, target, memory)?;
    let launch = |problem| EmulationError::Launch { symbol: symbol.to_string(), problem };
    if params.len() != program.param_bytes as usize {
        return Err(launch(format!("{} bytes of parameters, not {}", params.len(), program.param_bytes)));
    }
    check_extents("block", "threads", block, MOST_THREADS).map_err(launch)?;
    check_extents("grid", "blocks", grid, MOST_BLOCKS).map_err(launch)?;
    let threads = block.iter().product::<u32>();
    if threads > 1024 {
        return Err(launch(format!("{threads} threads; a block has 1 to 1024")));
    }
    let most_shared = most_shared_bytes(target);
    let shared_bytes = u64::from(program.shared_bytes) + u64::from(shared_bytes);
    if shared_bytes > u64::from(most_shared) {
        return Err(launch(format!("{shared_bytes} bytes of shared memory; a block of {target} has {most_shared}")));
    }
    if program.local_bytes > MOST_LOCAL_BYTES {
        let bytes = program.local_bytes;
        return Err(launch(format!("{bytes} bytes of local memory; a thread has {MOST_LOCAL_BYTES}")));
    }
    let blocks = grid.iter().map(|&n| u64::from(n)).product::<u64>();
    let number = memory.begin_launch();
    let env = Environment { program: &program, memory, launch: number, params };
    let extents = Grid { blocks: grid, threads: block, shared_bytes: shared_bytes as u32 };
    let index = |n: u64| {
        let (x, y) = (u64::from(grid[0]), u64::from(grid[1]));
        [(n % x) as u32, (n / x % y) as u32, (n / x / y) as u32]
    };
    // The first block that fails is the one reported; those behind it need not run.
    let failed = AtomicU64::new(u64::MAX);
    let run = |n| {
        if n > failed.load(Ordering::Relaxed) {
            return Ok(Stats::default());
        }
        run_block(env, extents, index(n)).inspect_err(|_| {
            failed.fetch_min(n, Ordering::Relaxed);
        })
    };
    let results: Vec<_> = (0..blocks).into_par_iter().map(run).collect();
    let mut stats = Stats::default();
    for result in results {
        stats += result?;
    }
    Ok(stats)
}
