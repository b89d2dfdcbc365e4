//! `nvkv-tune regret`: what is lost where a shape is served from the nearest tuned one.

use super::args::{self, Arch, DbArgs};
use super::{Done, NOTHING, print, print_json, tune};
use crate::report::data::name;
use crate::report::regret::{Summary, csv, json, table};
use nvkv_db::{Db, DbError, EnvironmentKey, Regret, WinnerFilter};
use nvkv_spec::Target;
use std::process::ExitCode;

/// Arguments of `regret`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    db: DbArgs,
    /// Target such as sm_90, or `native`: the GPU that is there [default: all in the database]
    #[arg(long, value_name = "ARCH", value_parser = args::arch)]
    arch: Option<Arch>,
    /// Only buckets whose name, such as `decode-nvfp4-exact-d128-g8-q1-p16-bf16-linear at b64-c16384-h8`, contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print CSV, a line a bucket and shape
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let db = Db::open_read_only(&args.db.db)?;
    let wanted = match args.arch {
        None => None,
        Some(Arch::Named(target)) => Some(target),
        Some(Arch::Native) => Some(tune::machine(Arch::Native)?.target),
    };
    let (mut winners, mut regrets) = (Vec::new(), Vec::new());
    for target in targets(&db)?.into_iter().filter(|target| wanted.is_none_or(|wanted| wanted == *target)) {
        winners.extend(db.winners(&WinnerFilter::of(target))?);
        regrets.extend(db.regrets(&WinnerFilter::of(target))?);
    }
    winners.retain(|w| name(&w.kernel.problem, Some(&w.shape)).contains(&args.only));
    regrets.retain(|r| name(&r.problem, Some(&r.bucket)).contains(&args.only));
    let summary = Summary::new(&winners, &regrets);
    if args.json {
        print_json(&json(&summary, &regrets))?;
    } else if args.csv {
        print(&csv(&regrets)?)?;
    } else {
        print(&(tables(&regrets) + &summary.text() + "\n"))?;
    }
    if regrets.is_empty() {
        eprintln!("`nvkv-tune --held-out` measures buckets between the tuned shapes, on a GPU");
        return Ok(ExitCode::from(NOTHING));
    }
    Ok(ExitCode::SUCCESS)
}

/// The targets of what was timed.
fn targets(db: &Db) -> Result<Vec<Target>, DbError> {
    let mut targets: Vec<Target> = db.measured_on()?.into_iter().map(|place| place.target).collect();
    targets.sort();
    targets.dedup();
    Ok(targets)
}

/// A table for each target, GPU and driver.
fn tables(regrets: &[Regret]) -> String {
    let mut places: Vec<(Target, EnvironmentKey, Vec<Regret>)> = Vec::new();
    for regret in regrets {
        let (target, place) = (regret.target, EnvironmentKey::from(&regret.environment));
        match places.iter_mut().find(|(of, at, _)| *of == target && *at == place) {
            Some((.., rows)) => rows.push(regret.clone()),
            None => places.push((target, place, vec![regret.clone()])),
        }
    }
    let one = |(target, place, rows): &(Target, EnvironmentKey, Vec<Regret>)| {
        let EnvironmentKey { name, driver, .. } = place;
        format!(
            "{target} on {name} (driver {driver}): the winner of a bucket where another one begins, and the best there\n{}\n",
            table(rows)
        )
    };
    places.iter().map(one).collect()
}
