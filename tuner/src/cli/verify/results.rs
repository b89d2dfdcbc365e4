//! The kernels of a bundle against the reference again: on a GPU, or in the emulator.

use super::super::cause;
use crate::bundle::{Kernel, Manifest, Problems};
use crate::folder::{FolderError, failed};
use crate::pipeline::compile::reason;
use crate::pipeline::target::{DEVICE, Machine};
use crate::pipeline::timing::LIMITS;
use crate::verify::{Prepared, emulate};
use crate::worker::{CandidateKernel, Depth, GpuWorker, Limits, VerifyReport, VerifyRequest};
use nvkv_spec::{Outcome, SplitPolicy};
use rayon::prelude::*;
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long the whole matrix of one kernel may take on a GPU, its reference attention on the CPU included.
const FULL_LIMIT: Duration = Duration::from_secs(600);

/// Where kernels were run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RanOn {
    Gpu,
    Emulator,
    Nothing,
}

/// Runs every kernel on a GPU of the target, where one is here.
pub fn on_gpu(folder: &Path, manifest: &Manifest, depth: Depth) -> anyhow::Result<(RanOn, Problems)> {
    if let Err(why) = Machine::find(Some(manifest.target))?.gpu {
        eprintln!("note: results are not checked again: {}; --emulate runs the kernels on the CPU", cause(&why));
        return Ok((RanOn::Nothing, Problems::new()));
    }
    let mut worker = GpuWorker::new(DEVICE, Limits { verify: FULL_LIMIT, ..LIMITS });
    let mut problems = Problems::new();
    for (index, kernel) in manifest.kernels.iter().enumerate() {
        let result = worker.verify(&request(folder, kernel, depth)?);
        problems.extend(told((index + 1, manifest.kernels.len()), kernel, result));
    }
    Ok((RanOn::Gpu, problems))
}

fn request(folder: &Path, kernel: &Kernel, depth: Depth) -> anyhow::Result<VerifyRequest> {
    let path = folder.join(&kernel.files.cubin.path);
    let cubin = fs::read(&path).map_err(failed("read", &path))?;
    let split = SplitPolicy::Even { splits: 1 };
    let kernel_to_run = CandidateKernel { id: kernel.id.clone(), variant: kernel.variant, split, cubin };
    Ok(VerifyRequest { problem: kernel.problem, kernel: kernel_to_run, depth })
}

/// Runs the PTX of every kernel in the emulator, on all cores.
pub fn in_emulator(folder: &Path, manifest: &Manifest, depth: Depth) -> anyhow::Result<(RanOn, Problems)> {
    let ended = AtomicUsize::new(0);
    let mut problems = Problems::new();
    // Kernels are in order of their names, which begin with the problem: one reference result serves them all.
    for of_problem in manifest.kernels.chunk_by(|a, b| a.problem == b.problem) {
        let prepared = Prepared::for_emulator(&of_problem[0].problem, depth);
        let run = |kernel: &Kernel| -> Result<Option<String>, FolderError> {
            let path = folder.join(&kernel.files.ptx.path);
            let ptx = fs::read_to_string(&path).map_err(failed("read", &path))?;
            let result = emulate(&prepared, &kernel.variant, &kernel.symbol, &ptx).map(|emulation| emulation.report);
            let place = (ended.fetch_add(1, Ordering::Relaxed) + 1, manifest.kernels.len());
            Ok(told(place, kernel, result))
        };
        let told = of_problem.par_iter().map(run).collect::<Result<Vec<_>, _>>()?;
        problems.extend(told.into_iter().flatten());
    }
    Ok((RanOn::Emulator, problems))
}

/// Says that a kernel agreed, or gives what is wrong with it.
fn told((n, all): (usize, usize), kernel: &Kernel, result: Result<VerifyReport, Outcome>) -> Option<String> {
    match result {
        Ok(VerifyReport { cases, max_error }) => {
            eprintln!("[{n}/{all}] {}: {cases} cases, relative error at most {max_error:.1e}", kernel.id);
            None
        }
        Err(outcome) => Some(format!("{}: {}: {}", kernel.id, outcome.kind(), reason(&outcome))),
    }
}
