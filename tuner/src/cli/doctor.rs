//! `nvkv-tune doctor`: what is found or missing, and the command that mends it.

use super::args::DbArgs;
use super::{Done, NOTHING, print, print_json};
use crate::gpu::{NvrtcError, working_nvrtc};
use crate::pipeline::target::DEVICE;
use crate::worker::probe_device;
use nvkv_db::{Db, DbError};
use nvkv_spec::Target;
use serde::Serialize;
use std::process::ExitCode;

/// Arguments of `doctor`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    db: DbArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How one thing that a tune needs is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Found,
    Missing,
    /// It is there, and cannot be used.
    Unusable,
}

/// One line of the answer.
#[derive(Serialize)]
struct Finding {
    what: &'static str,
    state: State,
    text: String,
}

/// Runs the command. It succeeds where this machine can at least compile.
pub fn run(args: &Args) -> Done {
    let findings = [("GPU", gpu()), ("NVRTC", nvrtc()), ("database", database(args))];
    let findings = findings.map(|(what, (state, text))| Finding { what, state, text });
    if args.json {
        print_json(&findings)?;
    } else {
        findings.iter().try_for_each(|Finding { what, state, text }| {
            print(&format!("{what:9}{:9} {text}\n", format!("{state:?}").to_lowercase()))
        })?;
    }
    let compiles = findings.iter().any(|f| f.what == "NVRTC" && f.state == State::Found);
    Ok(if compiles { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
}

fn gpu() -> (State, String) {
    let gpu = match probe_device(DEVICE) {
        Ok(gpu) => gpu,
        Err(error) => {
            let text = format!("{error}. Without a GPU, name the target: `nvkv-tune --arch sm_100`");
            return (State::Missing, text);
        }
    };
    let (major, minor) = gpu.capability;
    let about = format!("{}, driver {}", gpu.name, gpu.driver);
    match Target::of_capability(major, minor) {
        Some(target) => (State::Found, format!("{about}, target {target}")),
        None => (State::Unusable, format!("{about}: capability {major}.{minor} is not a target")),
    }
}

fn nvrtc() -> (State, String) {
    // Any target shows whether it works.
    match working_nvrtc(Target::Sm90a) {
        Ok(nvrtc) => (State::Found, format!("{} at {}", nvrtc.version(), nvrtc.path().display())),
        Err(error @ NvrtcError::Missing(_)) => (State::Missing, error.to_string()),
        Err(error) => (State::Unusable, error.to_string()),
    }
}

fn database(args: &Args) -> (State, String) {
    match Db::open_read_only(&args.db.db) {
        Ok(_) => (State::Found, args.db.db.display().to_string()),
        Err(DbError::Missing { path }) => {
            (State::Missing, format!("{}; the first tune makes it: `nvkv-tune`", path.display()))
        }
        Err(error) => (State::Unusable, error.to_string()),
    }
}
