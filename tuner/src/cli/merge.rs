//! `nvkv-tune merge`: several databases become one.

use super::{Done, print, print_json};
use nvkv_db::Db;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `merge`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Example:
  nvkv-tune merge db/nvkv.shard-*.sqlite -o db/nvkv.sqlite && nvkv-tune --arch sm_90 --db db/nvkv.sqlite

In any order and grouping the result is the same, and a database merged twice counts once.")]
pub struct Args {
    /// Databases; they stay as they are
    #[arg(value_name = "FILE", required = true)]
    inputs: Vec<PathBuf>,
    /// Where the result goes
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the output where it exists; it may be one of the inputs
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let merged = Db::merge(&args.inputs, &args.output, args.force)?;
    if args.json {
        return print_json(&merged).map(|()| ExitCode::SUCCESS);
    }
    for (input, trials) in args.inputs.iter().zip(&merged.inputs) {
        print(&format!("{trials:>9} trials in {}\n", input.display()))?;
    }
    let (runs, trials, output) = (merged.runs, merged.trials, args.output.display());
    print(&format!("{trials:>9} trials of {runs} runs in {output}, each once\n"))?;
    Ok(ExitCode::SUCCESS)
}
