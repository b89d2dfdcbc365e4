//! `nvkv-tune bench`: the kernels of a bundle at a fixed list of shapes, against the read ceiling, a plain transfer of
//! the same bytes, and a peer.

mod peer;
mod table;

use super::{Done, NOTHING, print, print_json};
use crate::bundle::{self, Kernel, Manifest, Selection};
use crate::folder::failed;
use crate::pipeline::compile::reason;
use crate::pipeline::limits;
use crate::pipeline::target::{DEVICE, Machine};
use crate::pipeline::timing::LIMITS;
use crate::worker::{CandidateKernel, GpuWorker, MeasureRequest};
use anyhow::{Context, bail};
use nvkv_db::median;
use nvkv_generator::{Preset, problems, shapes};
use nvkv_spec::{GpuEnvironment, KernelId, Operation, Outcome, Problem, Shape, SplitPolicy, Traffic};
use peer::Peers;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `bench`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The bundle of the GPU that is here, or the folder it is in
    #[arg(long, value_name = "DIR", default_value = "kernels-out")]
    bundle: PathBuf,
    /// Times of a peer on the same GPU, to be set beside ours (docs/measured/peers tells the format); may be repeated
    #[arg(long, value_name = "FILE")]
    peer: Vec<PathBuf>,
    /// Only these operations: decode, fused, append
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = super::args::named::<Operation>)]
    op: Vec<Operation>,
    /// Only rows whose name, such as `decode-nvfp4-exact-d128-g8-q1-p16-bf16-linear at b64-c16384-h8`, contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Calls timed at each shape, and of each plain transfer at each of its grids
    #[arg(long, value_name = "N", value_parser = super::args::size, default_value = "41")]
    samples: u32,
    /// Print JSON, with every sample
    #[arg(long)]
    json: bool,
}

/// One kernel at one shape.
#[derive(Serialize)]
struct Row {
    problem: Problem,
    shape: Shape,
    kernel: KernelId,
    variant: String,
    split: Option<SplitPolicy>,
    /// Bytes that a call must move at least.
    bytes: u64,
    /// Median of the samples, µs.
    median_us: f64,
    /// Time of a plain kernel that moves as many bytes, µs; none where it could not be timed.
    plain_us: Option<f64>,
    /// Times of single calls in the order taken, µs.
    samples: Vec<f64>,
    /// Peers at this shape: name, µs.
    peers: Vec<(String, f64)>,
}

impl Row {
    fn gbps(&self) -> f64 {
        self.bytes as f64 / self.median_us / 1e3
    }
}

/// A whole run.
#[derive(Serialize)]
struct Bench {
    gpu: GpuEnvironment,
    bundle: PathBuf,
    /// Highest read bandwidth that a plain read reached beside any row, GB/s.
    read_ceiling_gbps: f64,
    rows: Vec<Row>,
    /// Problems and shapes of the list that the bundle has no selection for.
    missing: Vec<String>,
    /// Rows and plain transfers that could not be timed, and why.
    failed: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let machine = Machine::find(None)?;
    let gpu = match machine.gpu {
        Ok(gpu) => gpu,
        Err(why) => bail!("nothing can be timed: {why}"),
    };
    let peers = args.peer.iter().map(|file| Peers::read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let (folder, manifest) = bundle_of(&args.bundle, machine.target)?;
    let mut bench = Bench {
        gpu,
        bundle: folder.clone(),
        read_ceiling_gbps: 0.0,
        rows: Vec::new(),
        missing: Vec::new(),
        failed: Vec::new(),
    };
    let mut worker = GpuWorker::new(DEVICE, LIMITS);
    let mut plain = BTreeMap::new();
    let operations = if args.op.is_empty() { Operation::ALL } else { &args.op };
    for problem in problems(Preset::Standard, operations) {
        for shape in shapes(&problem, Preset::Standard) {
            let name = format!("{} at {}", problem.key(), shape.key());
            if !name.contains(&args.only) {
                continue;
            }
            let Some((kernel, selection)) = selected(&manifest, &problem, &shape) else {
                bench.missing.push(name);
                continue;
            };
            limits::check(&[(problem, vec![shape])])?;
            let request = MeasureRequest {
                problem,
                shape,
                candidates: vec![candidate(&folder, selection, kernel)?],
                samples: args.samples,
            };
            let measured = worker.measure(&request).map(|mut report| {
                bench.read_ceiling_gbps = bench.read_ceiling_gbps.max(report.read_ceiling_gbps);
                report.candidates.remove(0)
            });
            let measured = measured.and_then(|samples| samples).map_err(|outcome| reason(&outcome));
            match measured.and_then(|samples| row(selection, kernel, samples, &peers)) {
                Ok(mut row) => {
                    let traffic = shape.traffic(&problem);
                    let time = || worker.transfer(traffic, args.samples);
                    row.plain_us = plain_us(&mut plain, &mut bench.failed, traffic, time);
                    bench.rows.push(row);
                }
                Err(why) => bench.failed.push(format!("{name}: {why}")),
            }
        }
    }
    if args.json {
        print_json(&bench)?
    } else {
        print(&table::render(&bench))?
    }
    Ok(if bench.rows.is_empty() { ExitCode::from(NOTHING) } else { ExitCode::SUCCESS })
}

fn bundle_of(folder: &Path, target: nvkv_spec::Target) -> anyhow::Result<(PathBuf, Manifest)> {
    for folder in bundle::find(folder)? {
        let manifest = bundle::read(&folder)?;
        if manifest.target == target {
            let problems = bundle::check(&folder, &manifest);
            if let Some(first) = problems.first() {
                bail!("{} is damaged: {first}; `nvkv-tune verify` lists everything", folder.display());
            }
            return Ok((folder, manifest));
        }
    }
    bail!("no bundle of {target} in {}: `nvkv-tune --preset standard` writes one", folder.display())
}

fn selected<'a>(manifest: &'a Manifest, problem: &Problem, shape: &Shape) -> Option<(&'a Kernel, &'a Selection)> {
    manifest.selections().find(|(kernel, selection)| kernel.problem == *problem && selection.shape == *shape)
}

fn candidate(folder: &Path, selection: &Selection, kernel: &Kernel) -> anyhow::Result<CandidateKernel> {
    let path = folder.join(&kernel.files.cubin.path);
    let cubin = fs::read(&path).map_err(failed("read", &path)).context("the bundle changed while it was read")?;
    let split = selection.split.unwrap_or(SplitPolicy::WHOLE);
    Ok(CandidateKernel { id: kernel.id.clone(), variant: kernel.variant, split, cubin })
}

/// Why there is no time where the GPU gave samples.
const DISTURBED: &str = "no sample was undisturbed: something else uses the GPU, or its clocks do not settle";

/// Time of a plain transfer, µs, as `known` has it or as `time` takes it. Where that fails, it is not tried again for
/// another row, and `failed` says why.
fn plain_us(
    known: &mut BTreeMap<Traffic, Option<f64>>,
    failed: &mut Vec<String>,
    traffic: Traffic,
    time: impl FnOnce() -> Result<Option<f64>, Outcome>,
) -> Option<f64> {
    *known.entry(traffic).or_insert_with(|| {
        let timed = time().map_err(|outcome| reason(&outcome)).and_then(|us| us.ok_or_else(|| DISTURBED.into()));
        let Traffic { read, written } = traffic;
        let note = |why| failed.push(format!("a plain transfer, {read} bytes read and {written} written: {why}"));
        timed.map_err(note).ok()
    })
}

/// A row whose plain transfer is still to be timed; or why there is none.
fn row(selection: &Selection, kernel: &Kernel, samples: Vec<f64>, peers: &[Peers]) -> Result<Row, String> {
    let (problem, shape) = (kernel.problem, selection.shape);
    Ok(Row {
        problem,
        shape,
        kernel: kernel.id.clone(),
        variant: kernel.variant.key(),
        split: selection.split,
        bytes: shape.bytes(&problem),
        median_us: median(&mut samples.clone()).ok_or(DISTURBED)?,
        plain_us: None,
        samples,
        peers: peers.iter().filter_map(|p| Some((p.name().to_string(), p.us(&problem, &shape)?))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::fake;

    #[test]
    fn a_plain_transfer_is_timed_once_and_a_failed_one_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = fake::worker(folder.path(), &GpuEnvironment::default(), &[]);
        let (mut known, mut failed) = (BTreeMap::new(), Vec::new());
        let small = Traffic { read: 3_000_000, written: 1_000_000 };
        let us = plain_us(&mut known, &mut failed, small, || worker.transfer(small, 3));
        assert_eq!(us, Some(1.0), "4 MB at 4,000 GB/s");
        assert_eq!(plain_us(&mut known, &mut failed, small, || panic!("timed again")), us);

        let large = Traffic { read: 1 << 40, written: 0 };
        let refused = || Err(Outcome::LaunchFailed { error: "out of memory".into() });
        assert_eq!(plain_us(&mut known, &mut failed, large, refused), None);
        assert_eq!(plain_us(&mut known, &mut failed, large, || panic!("tried again")), None);
        let disturbed = Traffic { read: 16, written: 0 };
        assert_eq!(plain_us(&mut known, &mut failed, disturbed, || Ok(None)), None);
        let words = [["1099511627776 bytes read and 0 written", "out of memory"], ["16 bytes read", "undisturbed"]];
        assert!(failed.iter().zip(words).all(|(line, words)| words.iter().all(|w| line.contains(w))), "{failed:?}");
        assert_eq!(failed.len(), words.len());
    }
}
