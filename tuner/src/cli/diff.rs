//! `nvkv-tune diff A B`: what B's winners are against A's, and whether the two agree on who wins.

use super::args::BadArguments;
use super::{Done, NOTHING, print, print_json};
use crate::report;
use nvkv_db::{Db, Difference, Pairing, Side, Verdict};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `diff`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The database before
    a: PathBuf,
    /// The database after
    b: PathBuf,
    /// Exit with 1 where B is slower beyond noise, and by more than this
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "3%", allow_negative_numbers = true)]
    fail_slower: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses `3%` or `3` to 0.03.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse().ok();
    let number = number.filter(|percent: &f64| (0.0..=1000.0).contains(percent));
    number.map(|percent| percent / 100.0).ok_or_else(|| "must be a percentage from 0, such as 3%".into())
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let pairings = nvkv_db::diff(&open(&args.a)?, &open(&args.b)?, args.fail_slower)?;
    let summary = Summary::new(&pairings, args.fail_slower);
    if args.json { print_json(&summary.json(&pairings)) } else { print(&(lines(&pairings) + &summary.text())) }?;
    let failed = summary.failed > 0 || summary.compared == 0;
    Ok(if failed { ExitCode::from(NOTHING) } else { ExitCode::SUCCESS })
}

/// A file that cannot be read is a bad argument: exit code 1 says that something is slower.
fn open(path: &Path) -> Result<Db, BadArguments> {
    Db::open_read_only(path).map_err(|error| BadArguments(error.to_string()))
}

/// Counts over all problems and shapes.
struct Summary {
    compared: usize,
    verdicts: [(Verdict, usize); 4],
    failed: usize,
    threshold: f64,
    changed: usize,
    agree: usize,
    other_gpu: usize,
    only_a: usize,
    only_b: usize,
    /// What is to be said of the searches of A's winners, and of B's.
    searched: [Option<String>; 2],
}

impl Summary {
    fn new(pairings: &[Pairing], threshold: f64) -> Self {
        let all: Vec<&Difference> = pairings.iter().filter_map(|p| p.difference.as_ref()).collect();
        let count = |of: &dyn Fn(&Difference) -> bool| all.iter().filter(|d| of(d)).count();
        let only = |in_a| pairings.iter().filter(|p| p.only_in_a == Some(in_a)).count();
        let verdicts = [Verdict::Same, Verdict::Faster, Verdict::Slower, Verdict::Ambiguous];
        Self {
            compared: all.len(),
            verdicts: verdicts.map(|verdict| (verdict, count(&|d| d.verdict == verdict))),
            failed: count(&|d| d.verdict == Verdict::Slower && d.ratio > 1.0 + threshold),
            threshold,
            changed: count(&|d| !d.same_winner),
            agree: count(&|d| d.agree),
            other_gpu: count(&|d| !d.same_gpu),
            only_a: only(true),
            only_b: only(false),
            searched: [
                report::searched(all.iter().map(|d| d.a.search.as_str())),
                report::searched(all.iter().map(|d| d.b.search.as_str())),
            ],
        }
    }

    /// Share of problems and shapes where both find the same winner, or each the other's near.
    fn agreement(&self) -> Option<f64> {
        (self.compared > 0).then(|| self.agree as f64 / self.compared as f64)
    }

    fn text(&self) -> String {
        let Self { compared, failed, changed, other_gpu, only_a, only_b, .. } = self;
        let verdicts: Vec<_> = self.verdicts.iter().map(|(verdict, n)| format!("{n} {}", word(*verdict))).collect();
        let mut text =
            format!("{compared} compared: {}; {only_a} only in A, {only_b} only in B\n", verdicts.join(", "));
        if let Some(agreement) = self.agreement() {
            text += &format!(
                "{changed} winners changed; {:.1} % agree (the same winner, or each a near tie in the other)\n",
                100.0 * agreement
            );
        }
        if *other_gpu > 0 {
            text += &format!("{other_gpu} were timed on different GPUs or drivers\n");
        }
        for (side, searched) in ["A", "B"].iter().zip(&self.searched) {
            text += &searched.as_ref().map_or(String::new(), |searched| format!("{side}: {searched}\n"));
        }
        if *compared == 0 {
            text += "nothing was timed in both\n";
        }
        text + &format!("{failed} slower by more than {} %\n", 100.0 * self.threshold)
    }

    fn json(&self, pairings: &[Pairing]) -> serde_json::Value {
        let verdicts: serde_json::Map<_, _> =
            self.verdicts.iter().map(|(verdict, n)| (word(*verdict).to_string(), json!(n))).collect();
        json!({
            "compared": self.compared,
            "verdicts": verdicts,
            "slower_beyond_threshold": self.failed,
            "threshold": self.threshold,
            "winners_changed": self.changed,
            "agreement": self.agreement(),
            "on_different_gpus": self.other_gpu,
            "only_in_a": self.only_a,
            "only_in_b": self.only_b,
            "rows": pairings,
        })
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Ambiguous => "ambiguous",
    }
}

/// A line for each problem and shape, and one more for a winner that changed.
fn lines(pairings: &[Pairing]) -> String {
    pairings.iter().map(line).collect()
}

fn line(pairing: &Pairing) -> String {
    let Pairing { target, problem, shape, difference, only_in_a } = pairing;
    let place = format!("{target} {problem} at {}", shape.key());
    let Some(d) = difference else {
        let side = if *only_in_a == Some(true) { "A" } else { "B" };
        return format!("only in {side}  {place}\n");
    };
    let change = 100.0 * (d.ratio - 1.0);
    let gpu = if d.same_gpu { String::new() } else { format!("; A on {}, B on {}", gpu(&d.a), gpu(&d.b)) };
    let times = format!("{:.1} µs to {:.1} µs ({change:+.1} %)", d.a.times.median_us, d.b.times.median_us);
    let line = format!("{:<10} {place}: {times}{gpu}\n", word(d.verdict));
    if d.same_winner {
        return line;
    }
    let near = if d.agree { "each a near tie in the other" } else { "NOT near ties of each other" };
    format!("{line}           winner changed: {} to {} ({near})\n", name(&d.a), name(&d.b))
}

fn gpu(side: &Side) -> String {
    format!("{} (driver {})", side.gpu, side.environment.driver)
}

fn name(side: &Side) -> String {
    side.split.map_or(side.kernel_id.to_string(), |split| format!("{} {split}", side.kernel_id))
}
