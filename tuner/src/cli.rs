//! The command line: a file a subcommand. Results go to stdout, everything else to stderr.

mod args;
mod bench;
mod cases;
mod doctor;
mod query;
mod replay;
mod space;
mod tune;
mod verify;

use crate::{pipeline, worker};
use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Nothing usable came out.
const NOTHING: u8 = 1;
/// The arguments do not fit this machine.
const BAD_ARGUMENTS: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  nvkv-tune                                  tune for the GPU that is here
  nvkv-tune --arch sm_100                    without one: compile, and predict the order
  nvkv-tune --plan --preset full             what that would take
  nvkv-tune --op decode --head-dim 128 --group 8 --batch 1,16,64 --context 4096,32768
  nvkv-tune --op decode --head-dim 64 --group 8 --window none,128 --sinks
  nvkv-tune query --arch sm_90 --head-dim 128 --group 8 --page-size 16 --batch 64 --context 16384
  nvkv-tune bench --peer flashinfer.json     the bundle's kernels against the read ceiling and a peer
  nvkv-tune verify                           the bundles in kernels-out are whole and right

Exit codes: 0 done, 1 nothing usable came out, 2 bad arguments.";

/// Generates, compiles, verifies, times and bundles attention kernels that read an NVFP4 KV cache.
///
/// Without a subcommand it tunes. With a GPU of the target present kernels are verified and timed;
/// without one they are compiled and their order is predicted, and every output says so.
#[derive(Parser)]
#[command(name = "nvkv-tune", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    tune: tune::Args,
}

#[derive(Subcommand)]
enum Command {
    /// Tune (what is done without a subcommand)
    Tune(tune::Args),
    /// Print the winner for one problem and shape, its numbers and where they come from
    Query(query::Args),
    /// Count the variants of each problem, and the rejections by reason, without compiling; --json lists them
    Space(space::Args),
    /// Check bundles: files, hashes, database rows; with a GPU, the results again
    Verify(verify::Args),
    /// Time the kernels of a bundle at a fixed list of shapes, against the read ceiling and a peer
    Bench(bench::Args),
    /// Run the search strategies over the recorded trials of an exhaustive tune: what each finds, and at what cost
    Replay(replay::Args),
    /// Say what is found or missing on this machine, and the command that mends it
    Doctor(doctor::Args),
    /// A process that compiles or owns a GPU, started by the tuner
    #[command(hide = true, subcommand)]
    Worker(Worker),
}

#[derive(Subcommand)]
enum Worker {
    /// Compiles sources
    Compile,
    /// Verifies and times kernels
    Gpu {
        /// CUDA device
        #[arg(long)]
        device: u32,
    },
}

/// What a subcommand comes to.
type Done = anyhow::Result<ExitCode>;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| explained(error).exit());
    let done = match cli.command {
        None => tune::run(&cli.tune),
        Some(Command::Tune(args)) => tune::run(&args),
        Some(Command::Query(args)) => query::run(&args),
        Some(Command::Space(args)) => space::run(&args),
        Some(Command::Verify(args)) => verify::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Replay(args)) => replay::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Worker(worker)) => return work(worker),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {}", in_words(&error));
        let bad = error.is::<pipeline::target::NoNativeTarget>()
            || error.is::<pipeline::limits::TooLarge>()
            || error.is::<args::BadArguments>();
        ExitCode::from(if bad { BAD_ARGUMENTS } else { NOTHING })
    })
}

/// clap takes any word after an option for a subcommand: here it says which of the two it is.
fn explained(error: clap::Error) -> clap::Error {
    let mut command = Cli::command();
    let word = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::ArgumentConflict, Some(ContextValue::String(word))) => word.clone(),
        _ => return error,
    };
    if command.find_subcommand(&word).is_some() {
        let text = format!("a command comes before its options: `nvkv-tune {word} ...`");
        return command.error(ErrorKind::ArgumentConflict, text);
    }
    command.error(ErrorKind::UnknownArgument, format!("unexpected argument '{word}': neither an option nor a command"))
}

/// Why no GPU is used, in short: what mends it is in the second half of the sentence, and `doctor` says it.
fn cause(why: &str) -> &str {
    why.split("; ").next().unwrap_or(why)
}

/// The error and its causes, each said once: some errors already say their cause.
fn in_words(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

fn work(worker: Worker) -> ExitCode {
    match worker {
        Worker::Compile => worker::compile_main(),
        Worker::Gpu { device } => worker::gpu_main(device),
    }
}

/// Writes to stdout. A reader that has gone away (`| head`) is no failure of the command.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the result to stdout; what was recorded and bundled is kept")
        }
        _ => Ok(()),
    }
}

/// Writes JSON to stdout.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
