//! `nvkv-tune replay`: what each search would have found in a recorded tune, and at what cost.

use super::args::BadArguments;
use super::{Done, print, print_json};
use crate::pipeline::replay::{NEAR, Score, Start, replay};
use crate::search::{Strategy, recorded};
use nvkv_db::{Db, EnvironmentKey, MeasuredOn, Run};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `replay`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Database of an exhaustive tune; it is read only
    #[arg(value_name = "DB")]
    db: PathBuf,
    /// This strategy alone [default: all]
    #[arg(long, value_enum, value_name = "NAME")]
    search: Option<Strategy>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let db = Db::open_read_only(&args.db)?;
    let Some(place) = db.measured_on()?.into_iter().next() else {
        let db = args.db.display();
        return Err(BadArguments(format!("{db} has no timed trial; tune on a GPU first")).into());
    };
    let guided = |run: &Run| run.start.environment.is_some() && run.start.search != Strategy::Exhaustive.name();
    if db.runs(Some(place.target))?.iter().any(guided) {
        eprintln!("note: some runs here chose what they timed: a replay knows nothing of what they passed over");
    }
    let trials = db.timed(place.target, &EnvironmentKey::from(&place.environment))?;
    let cases = recorded(&trials, place.target);
    let launches: usize = cases.iter().map(|case| case.points.len()).sum();
    let chosen = Strategy::ALL.into_iter().filter(|s| args.search.is_none_or(|only| only == *s));
    let starts = chosen.flat_map(|strategy| match strategy {
        Strategy::Model => vec![(strategy, Start::OtherProblems), (strategy, Start::Empty)],
        _ => vec![(strategy, Start::Unused)],
    });
    let scores: Vec<Score> = starts.map(|(strategy, start)| replay(strategy, start, &cases)).collect();
    if args.json {
        let MeasuredOn { target, environment, last_run, .. } = &place;
        let record = json!({ "target": target, "environment": environment, "last_run": last_run,
                             "trials": place.trials, "launches": launches });
        print_json(&json!({ "record": record, "near": NEAR, "scores": scores }))?;
    } else {
        print(&(heading(&place, launches) + &table(&scores)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn heading(place: &MeasuredOn, launches: usize) -> String {
    let gpu = &place.environment;
    format!(
        "{} (driver {}), {}, {} timed trials of {launches} launches, last run {}\n",
        gpu.name, gpu.driver, place.target, place.trials, place.last_run
    )
}

fn table(scores: &[Score]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let near = format!("within {:.0} %", 100.0 * NEAR);
    table.set_header([
        "search", "knows", "cases", "winner", &near, "worst", "trials", "samples", "GPU time", "worst at",
    ]);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for score in scores {
        let knows = match score.start {
            Start::Unused => "-",
            Start::OtherProblems => "other problems",
            Start::Empty => "nothing at first",
        };
        table.add_row([
            score.search.to_string(),
            knows.into(),
            score.cases.to_string(),
            percent(score.winner),
            percent(score.near),
            percent(score.worst),
            percent(score.trials),
            percent(score.samples),
            percent(score.gpu_time),
            score.worst_at.clone(),
        ]);
    }
    format!("{table}\n")
}
