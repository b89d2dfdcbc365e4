//! `nvkv-tune space`: variants, and rejections by reason, without compiling.

use super::args::{Arch, Scope};
use super::{Done, print, print_json, tune};
use crate::pipeline::headline;
use crate::pipeline::space::Space;
use crate::report;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `space`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    scope: Scope,
    /// Print JSON, with every feasible variant
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let target = match args.scope.arch {
        Arch::Named(target) => target,
        Arch::Native => tune::machine(Arch::Native)?.target,
    };
    eprintln!("{}", headline(target));
    let cases = args.scope.cases()?;
    let spaces: Vec<_> = cases.iter().map(|(problem, _)| Space::new(*problem, target, args.scope.preset)).collect();
    if !args.json {
        return print(&report::spaces(&spaces)).map(|()| ExitCode::SUCCESS);
    }
    let of = |space: &Space| {
        let feasible: Vec<_> = space.feasible.iter().map(|v| json!({ "key": v.key(), "variant": v })).collect();
        json!({ "problem": space.problem.key(), "fields": space.problem, "variants": space.total(),
                "feasible": feasible, "rejected": space.rejected,
                "not_applicable": space.not_applicable })
    };
    print_json(&json!({ "target": target, "problems": spaces.iter().map(of).collect::<Vec<_>>() }))?;
    Ok(ExitCode::SUCCESS)
}
