//! The command line: a file a subcommand. Results go to stdout, everything else to stderr.

mod args;
mod bench;
mod cases;
mod diff;
mod doctor;
mod merge;
mod models;
mod quarantine;
mod query;
mod regret;
mod replay;
mod report;
mod shell;
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
  nvkv-tune --model gpt-oss-120b --tp 2      what that model asks of each of two GPUs
  nvkv-tune --preset standard --held-out     and measure how the winners serve between the tuned shapes
  nvkv-tune query --arch sm_90 --head-dim 128 --group 8 --page-size 16 --batch 64 --context 16384
  nvkv-tune bench --peer flashinfer.json     the bundle's kernels against the read ceiling and a peer
  nvkv-tune diff before.sqlite after.sqlite  what became slower, as a gate: exit code 1 beyond 3 %
  nvkv-tune report -o report.html            what was measured, as a page
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
    #[command(after_help = EXAMPLES)]
    Tune(tune::Args),
    /// Print the winner for one problem and shape, its numbers and where they come from
    #[command(after_help = "\
Examples:
  nvkv-tune query --head-dim 128 --group 8 --page-size 16 --batch 64 --context 16384
  nvkv-tune query --arch sm_90 --op append --head-dim 128 --page-size 16 --tokens 512 --json")]
    Query(query::Args),
    /// Count the variants of each problem, and the rejections by reason, without compiling; --json lists them
    #[command(after_help = "\
Examples:
  nvkv-tune space --arch sm_100 --preset standard
  nvkv-tune space --arch sm_90 --op decode --head-dim 256 --group 2 --soft-cap --json")]
    Space(space::Args),
    /// Check bundles: files, hashes, database rows; with a GPU, the results again
    #[command(after_help = "\
Examples:
  nvkv-tune verify                           every bundle in kernels-out
  nvkv-tune verify --bundle kernels-out/sm_100a --emulate
  compute-sanitizer --target-processes all nvkv-tune verify --quick")]
    Verify(verify::Args),
    /// Time the kernels of a bundle at a fixed list of shapes, against the read ceiling, plain transfers and a peer
    #[command(after_help = "\
Examples:
  nvkv-tune bench --op decode
  nvkv-tune bench --only b64-c16384 --peer flashinfer.json --json")]
    Bench(bench::Args),
    /// Compare two databases: what became faster or slower beyond noise, and whether they agree on who wins
    #[command(after_help = "\
Examples:
  nvkv-tune diff before.sqlite after.sqlite
  nvkv-tune diff main.sqlite branch.sqlite --fail-slower 5% --json")]
    Diff(diff::Args),
    /// Make one database of several: of hosts, of shards
    #[command(after_help = "\
Examples:
  nvkv-tune merge db/*.shard* -o db/nvkv.sqlite
  nvkv-tune merge hostA.sqlite hostB.sqlite -o all.sqlite --force")]
    Merge(merge::Args),
    /// List the kernels that are left out because they failed, and let them be tried again
    #[command(after_help = "\
Examples:
  nvkv-tune quarantine
  nvkv-tune quarantine --release wrong")]
    Quarantine(quarantine::Args),
    /// Write what the database holds: a page for people, CSV, JSON, or the format that auto-tuners share
    #[command(after_help = "\
Examples:
  nvkv-tune report -o report.html            a page that needs no network
  nvkv-tune report -o trials.csv             every trial in force, a line each
  nvkv-tune report --format csv -o - | head  to stdout
  nvkv-tune report --format t4 --only 'decode-nvfp4-fp8-d128-g8-q1-p16-bf16-linear at b64-c16384-h8'")]
    Report(report::Args),
    /// List the models that --model knows, and what they ask of one GPU
    #[command(after_help = "\
Examples:
  nvkv-tune models --tp 8
  nvkv-tune models --config nvkv.toml --json")]
    Models(models::Args),
    /// List how much slower a bucket's winner is than the best kernel where the next bucket begins, and which were split
    #[command(after_help = "\
Examples:
  nvkv-tune regret                           what --held-out measured
  nvkv-tune regret --only decode-nvfp4-fp8-d128 --csv")]
    Regret(regret::Args),
    /// Run the search strategies over the recorded trials of an exhaustive tune: what each finds, and at what cost
    #[command(after_help = "\
Examples:
  nvkv-tune replay db/nvkv.sqlite            every strategy over its trials
  nvkv-tune replay db/nvkv.sqlite --search model --json")]
    Replay(replay::Args),
    /// Say what is found or missing on this machine, and the command that mends it
    #[command(after_help = "\
Examples:
  nvkv-tune doctor
  NVKV_NVRTC=/opt/cuda/lib64 nvkv-tune doctor --json")]
    Doctor(doctor::Args),
    /// Print a script that completes commands and options in your shell
    #[command(after_help = "\
Examples:
  nvkv-tune completions bash > ~/.local/share/bash-completion/completions/nvkv-tune
  nvkv-tune completions zsh > ~/.zfunc/_nvkv-tune
  nvkv-tune completions fish > ~/.config/fish/completions/nvkv-tune.fish")]
    Completions(shell::CompletionsArgs),
    /// Print the manual page
    #[command(after_help = "\
Examples:
  nvkv-tune man > nvkv-tune.1
  nvkv-tune man query | man -l -")]
    Man(shell::ManArgs),
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
        Some(Command::Diff(args)) => diff::run(&args),
        Some(Command::Merge(args)) => merge::run(&args),
        Some(Command::Quarantine(args)) => quarantine::run(&args),
        Some(Command::Report(args)) => report::run(&args),
        Some(Command::Models(args)) => models::run(&args),
        Some(Command::Regret(args)) => regret::run(&args),
        Some(Command::Replay(args)) => replay::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Completions(args)) => shell::completions(&args),
        Some(Command::Man(args)) => shell::man(&args),
        Some(Command::Worker(worker)) => return work(worker),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {}", in_words(&error));
        let bad = error.is::<pipeline::target::NoNativeTarget>()
            || error.is::<pipeline::target::BadDevices>()
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

/// The command line as typed.
fn command_line() -> String {
    std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
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
