//! `nvkv-tune regret`: what is lost where a shape is served from the nearest tuned one.

use super::args::{DbArgs, RowArgs, asked_for};
use super::{Done, NOTHING, print, print_json};
use crate::report::data::name;
use crate::report::regret::{Summary, csv, json, table};
use nvkv_db::{Db, DbError, EnvironmentKey, Regret, WinnerFilter};
use nvkv_spec::{Problem, Shape, Target};
use std::process::ExitCode;

/// Arguments of `regret`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    db: DbArgs,
    #[command(flatten)]
    rows: RowArgs,
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
    let wanted = args.rows.target()?;
    let (mut winners, mut regrets) = (Vec::new(), Vec::new());
    for target in targets(&db)?.into_iter().filter(|target| wanted.is_none_or(|wanted| wanted == *target)) {
        winners.extend(db.winners(&WinnerFilter::of(target))?);
        regrets.extend(db.regrets(&WinnerFilter::of(target))?);
    }
    let all = winners.len();
    let asked = |problem: &Problem, shape: &Shape| name(problem, Some(shape)).contains(&args.rows.only);
    winners.retain(|w| asked(&w.kernel.problem, &w.shape));
    regrets.retain(|r| asked(&r.problem, &r.bucket) || asked(&r.problem, &r.shape));
    let summary = Summary::new(&winners, &regrets);
    if args.json {
        print_json(&json(&summary, &regrets))?;
    } else if args.csv {
        print(&csv(&regrets)?)?;
    } else if !winners.is_empty() {
        print(&(tables(&regrets) + &summary.text() + "\n"))?;
    }
    if regrets.is_empty() {
        eprintln!("{}", args.nothing(wanted, winners.len(), all));
        return Ok(ExitCode::from(NOTHING));
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Why there is no row, and the next step, where `named` of the `timed` winners of the target were asked for.
    fn nothing(&self, target: Option<Target>, named: usize, timed: usize) -> String {
        let none = |only| format!("{} has no timed winner{}", self.db.db.display(), asked_for(target, only));
        match (named, timed) {
            (0, 0) => format!("{}; `nvkv-tune --held-out` times kernels, where a GPU is", none("")),
            (0, _) => format!("{}; without --only it has {timed}", none(&self.rows.only)),
            _ => "`nvkv-tune --held-out` measures buckets between the tuned shapes, on a GPU".into(),
        }
    }
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
