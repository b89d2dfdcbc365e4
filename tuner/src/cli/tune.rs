//! `nvkv-tune [tune]`: the whole job.

use super::args::{Arch, BadArguments, DbArgs, Scope};
use super::{Done, NOTHING, cause, command_line, print, print_json};
use crate::pipeline::limits;
use crate::pipeline::plan::Plan;
use crate::pipeline::shard::Shard;
use crate::pipeline::stop::{self, Stop};
use crate::pipeline::target::{Devices, Machine};
use crate::pipeline::{Request, Tuned, headline, tune};
use crate::report;
use crate::search::Strategy;
use nvkv_spec::Target;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `tune`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    db: DbArgs,
    /// Folder of bundles: OUT/<target>/manifest.json and a folder a kernel
    #[arg(long, value_name = "DIR", default_value = "kernels-out")]
    out: PathBuf,
    /// Then measure, between the tuned shapes, how much slower the winner of the nearest is than the best of those nearby, and
    /// split buckets where that is more than 5 %: `nvkv-tune regret` lists it
    #[arg(long)]
    held_out: bool,
    /// Compilers at a time [default: one a core]
    #[arg(long, value_name = "N", value_parser = super::args::size, allow_negative_numbers = true)]
    jobs: Option<u32>,
    /// CUDA devices, boards of one model: a list such as 0,1, or all. Each problem is timed on whichever is free [default: 0]
    #[arg(long, value_name = "LIST")]
    devices: Option<Devices>,
    /// Tune part I of N (I from 0), into a database of its own beside --db, and write no bundle: `nvkv-tune merge` joins the
    /// parts. The same command with another I on each machine covers all
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Which variants and splits are timed; all are compiled
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    search: Strategy,
    /// Stop cleanly after so many minutes; the same command goes on from there
    #[arg(long, value_name = "MINUTES", value_parser = minutes, allow_negative_numbers = true)]
    time_limit: Option<Duration>,
    /// Print what would be compiled and timed, with a time and disk estimate, and write nothing
    #[arg(long)]
    plan: bool,
    /// Print JSON to stdout instead of a table
    #[arg(long)]
    json: bool,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse().ok().filter(|minutes: &f64| *minutes > 0.0 && *minutes < 1e6);
    let limit = minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes));
    limit.ok_or_else(|| "must be a number of minutes, more than 0".into())
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let request = request(args)?;
    eprintln!("{}", headline(request.machine.target));
    if args.plan {
        let plan = Plan::new(&request);
        if let (true, Err(why)) = (request.held_out, &request.machine.gpu) {
            eprintln!(
                "note: --held-out times kernels between the tuned shapes, and {}; planned is the work at the tuned shapes. \
                 Those between them are timed where a GPU is, {} at first, and what comes of these decides which others",
                cause(why),
                plan.held_out
            );
        }
        let text = report::plan(&plan, request.jobs);
        return (if args.json { print_json(&plan) } else { print(&text) }).map(|()| ExitCode::SUCCESS);
    }
    announce(&request);
    if let Some(shard) = request.shard {
        eprintln!("shard {shard}: {} problems", request.cases.len());
    }
    let tuned = tune(&request, &Stop::new(args.time_limit))?;
    if args.json { print_json(&report::json(&request, &tuned)) } else { print(&report::table(&tuned.choices)) }?;
    conclude(&request, &tuned);
    let empty = tuned.choices.is_empty() && !request.cases.is_empty();
    Ok(match tuned.stopped {
        Some(stop::INTERRUPTED) => ExitCode::from(stop::EXIT_CODE),
        _ if empty => ExitCode::from(NOTHING),
        _ => ExitCode::SUCCESS,
    })
}

fn request(args: &Args) -> anyhow::Result<Request> {
    if args.held_out && args.shard.is_some() {
        return Err(BadArguments(HELD_OUT_NEEDS_ALL.into()).into());
    }
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut cases = args.scope.cases()?;
    limits::check(&cases)?;
    let machine = Machine::with_devices(named(args.scope.arch), &args.devices.clone().unwrap_or_default())?;
    let preset = args.scope.preset;
    if args.held_out && !args.plan {
        require_gpu(&machine)?;
    }
    if let Some(shard) = &args.shard {
        cases = shard.part(&cases, preset, machine.target);
    }
    Ok(Request {
        machine,
        cases,
        preset,
        search: args.search,
        db: args.shard.map_or(args.db.db.clone(), |shard| shard.database(&args.db.db)),
        shard: args.shard,
        held_out: args.held_out,
        out: args.out.clone(),
        jobs: args.jobs.map_or(cores, |jobs| jobs as usize),
        command: command_line(),
    })
}

const HELD_OUT_NEEDS_ALL: &str = "--held-out measures between all tuned shapes, and a shard has a part of them: join the \
    shards with `nvkv-tune merge`, then give it with --db and without --shard";

/// Refuses to measure buckets where nothing is timed.
fn require_gpu(machine: &Machine) -> Result<(), BadArguments> {
    let Err(why) = &machine.gpu else { return Ok(()) };
    Err(BadArguments(format!(
        "--held-out times kernels between the tuned shapes, and {}; run the same command on a machine with a GPU of {}",
        cause(why),
        machine.target
    )))
}

/// The machine that `--arch` names.
pub fn machine(arch: Arch) -> anyhow::Result<Machine> {
    Ok(Machine::find(named(arch))?)
}

fn named(arch: Arch) -> Option<Target> {
    match arch {
        Arch::Native => None,
        Arch::Named(target) => Some(target),
    }
}

/// Says where a shard's trials are, and how they come together.
fn conclude_shard(request: &Request) {
    let (db, target) = (request.db.display(), request.machine.target);
    eprintln!(
        "the trials of this shard are in {db}; when all shards are done, `nvkv-tune merge FILE... -o ALL` joins them, and \
         the tune without --shard, `--arch {target} --db ALL`, writes the bundle"
    );
}

/// Says what will be done: whether anything is timed.
fn announce(request: &Request) {
    match &request.machine.gpu {
        Ok(gpu) => {
            let boards = 1 + request.machine.beside.len();
            let times = if boards > 1 { format!("{boards} x ") } else { String::new() };
            let chosen = match request.search {
                Strategy::Exhaustive => String::new(),
                chooses => format!("; which ones are timed, the search `{}` says", chooses.name()),
            };
            eprintln!("GPU {times}{} (driver {}): kernels will be verified and timed{chosen}", gpu.name, gpu.driver);
        }
        Err(why) => {
            eprintln!(
                "nothing is timed: {}. Kernels will be compiled, their order PREDICTED, and the winners run in the emulator",
                cause(why)
            );
            if request.search != Strategy::Exhaustive {
                eprintln!("note: --search {} has no part in this: all kernels are predicted", request.search.name());
            }
        }
    }
}

/// Says last what came out, and what to do next.
fn conclude(request: &Request, tuned: &Tuned) {
    if !tuned.failures.is_empty() {
        eprintln!("{} trials failed; each is stored with its reason:", tuned.failures.len());
        eprint!("{}", report::failures(&tuned.failures));
    }
    match &tuned.bundle {
        Some(bundle) => {
            let size = indicatif::HumanBytes(bundle.bytes);
            eprintln!("bundle {} ({} kernels, {size})", bundle.folder.display(), bundle.kernels);
        }
        None if request.shard.is_some() => conclude_shard(request),
        None => eprintln!("nothing usable came out: no bundle was written"),
    }
    if let Some(regret) = &tuned.regret {
        eprintln!("{}; `nvkv-tune regret` lists them", regret.text());
    }
    if let Some(pace) = &tuned.pace {
        eprintln!("{}", report::pace(pace));
    }
    if let Some(why) = tuned.stopped {
        eprintln!("{why}: run the same command again to go on");
    }
    if request.machine.gpu.is_err() {
        let target = request.machine.target;
        let device = target.facts().device;
        eprintln!("to time these kernels, run the same command on a machine with a GPU of {target}, such as {device}");
    }
}
