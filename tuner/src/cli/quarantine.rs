//! `nvkv-tune quarantine`: the kernels that are left out because they failed, and letting them be tried again.

use super::args::DbArgs;
use super::{Done, NOTHING, command_line, print, print_json};
use crate::pipeline::compile::{reason, reason_line};
use crate::pipeline::now;
use comfy_table::{ContentArrangement, Table, presets};
use nvkv_db::{Db, Quarantined, Release};
use serde_json::json;
use std::process::ExitCode;

/// The kinds of failure that keep a kernel out.
const KINDS: [&str; 6] = ["compile_failed", "launch_failed", "wrong", "faulted", "timeout", "crashed"];

/// Arguments of `quarantine`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    db: DbArgs,
    /// Let a kernel be tried again, named by its id, or all that failed in one way: compile_failed, launch_failed, wrong,
    /// faulted, timeout, crashed. Their failures stay in the database
    #[arg(long, value_name = "ID|REASON")]
    release: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let db = Db::open_read_only(&args.db.db)?;
    let Some(what) = &args.release else {
        let quarantined = db.quarantined()?;
        if args.json {
            print_json(&quarantined.iter().map(row).collect::<Vec<_>>())?;
        } else {
            print(&table(&quarantined))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    drop(db); // It is there, or that was said.
    let which =
        if KINDS.contains(&what.as_str()) { Release::Kind(what.clone()) } else { Release::Kernel(what.clone()) };
    let released = Db::open(&args.db.db)?.release(&which, &now(), &command_line())?;
    if args.json {
        print_json(&json!({ "released": released }))?;
    } else if released > 0 {
        print(&format!("{released} kernels are tried again by the next tune; their failures stay in the database\n"))?;
    }
    if released == 0 {
        eprintln!("no kernel in quarantine is or failed as `{what}`; `nvkv-tune quarantine` lists them");
    }
    Ok(ExitCode::from(if released > 0 { 0 } else { NOTHING }))
}

fn table(quarantined: &[Quarantined]) -> String {
    if quarantined.is_empty() {
        return "no kernel is in quarantine\n".into();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["target", "kernel", "reason", "where", "when"]);
    for one in quarantined {
        let place =
            one.place.as_ref().map_or("no GPU".into(), |p| format!("{}, driver {}, {}", p.gpu, p.driver, p.uuid));
        let why = format!("{}: {}", one.outcome.kind(), reason_line(&one.outcome));
        table.add_row([one.target.name(), one.kernel.as_str(), &why, &place, &one.created_at]);
    }
    let next = "`nvkv-tune quarantine --release ID` (or a reason, such as crashed) lets them be tried again";
    format!("{table}\n{} kernels are left out; {next}\n", quarantined.len())
}

/// The kernel for programs, with its reason in words.
fn row(one: &Quarantined) -> serde_json::Value {
    let mut row = json!(one);
    row["reason"] = reason(&one.outcome).into();
    row
}
