//! `nvkv-tune doctor`: what is found or missing, and the command that mends it.

use super::args::DbArgs;
use super::{Done, NOTHING, print};
use crate::gpu::working_nvrtc;
use crate::pipeline::target::DEVICE;
use crate::worker::probe_device;
use nvkv_db::{Db, DbError};
use nvkv_spec::Target;
use std::process::ExitCode;

/// Arguments of `doctor`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    db: DbArgs,
}

/// Runs the command. It succeeds where this machine can at least compile.
pub fn run(args: &Args) -> Done {
    let nvrtc = nvrtc();
    let lines = [gpu(), nvrtc.clone(), database(args)];
    for (what, line) in ["GPU", "NVRTC", "database"].into_iter().zip(lines) {
        let (found, text) = match line {
            Ok(text) => ("found  ", text),
            Err(text) => ("missing", text),
        };
        print(&format!("{what:9}{found}  {text}\n"))?;
    }
    Ok(if nvrtc.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
}

fn gpu() -> Result<String, String> {
    let gpu = probe_device(DEVICE)
        .map_err(|error| format!("{error}. Without a GPU, name the target: `nvkv-tune --arch sm_100`"))?;
    let (major, minor) = gpu.capability;
    let target = match Target::of_capability(major, minor) {
        Some(target) => format!("target {target}"),
        None => format!("capability {major}.{minor} is not a target"),
    };
    Ok(format!("{}, driver {}, {target}", gpu.name, gpu.driver))
}

fn nvrtc() -> Result<String, String> {
    // Any target shows whether it works.
    let nvrtc = working_nvrtc(Target::Sm90a).map_err(|error| error.to_string())?;
    Ok(format!("{} at {}", nvrtc.version(), nvrtc.path().display()))
}

fn database(args: &Args) -> Result<String, String> {
    match Db::open_read_only(&args.db.db) {
        Ok(_) => Ok(args.db.db.display().to_string()),
        Err(DbError::Missing { path }) => Err(format!("{}; the first tune makes it: `nvkv-tune`", path.display())),
        Err(error) => Err(error.to_string()),
    }
}
