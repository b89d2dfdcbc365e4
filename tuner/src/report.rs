//! What a run found, as a table for people and as JSON for programs; below it, what a whole database holds.

mod axes;
pub mod data;
pub mod export;
mod heat_map;
pub mod page;
pub mod regret;
mod roofline;
pub mod t4;

use crate::bundle::Trust;
use crate::pipeline::choices::Choice;
use crate::pipeline::compile::reason_line;
use crate::pipeline::plan::Plan;
use crate::pipeline::progress::seconds;
use crate::pipeline::space::Space;
use crate::pipeline::timing::Summary;
use crate::pipeline::{Request, Tuned};
use crate::search::Strategy;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{HumanBytes, HumanCount};
use nvkv_db::Failure;
use nvkv_spec::{Evidence, KernelId, Problem, Shape, SplitPolicy};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// Failures that are listed by name; the rest is counted and in the database.
const FAILURES_SHOWN: usize = 8;

/// One line of the table. Timed and predicted lines have the same columns, and say which they are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Problem, by its key.
    pub problem: String,
    /// Its fields.
    pub fields: Problem,
    /// The shape.
    pub shape: Shape,
    /// The kernel.
    pub kernel: KernelId,
    /// Its variant, by its key.
    pub variant: String,
    /// Split policy; none for append.
    pub split: Option<SplitPolicy>,
    /// Timed or predicted.
    pub trust: Trust,
    /// Why the kernel may be trusted.
    pub evidence: Evidence,
    /// Median of one call, µs; only where it was timed.
    pub median_us: Option<f64>,
    /// Time by the model, µs; only where nothing was timed.
    pub predicted_us: Option<f64>,
    /// Bytes moved at least over the median, GB/s.
    pub gbps: Option<f64>,
    /// The same over the read ceiling of the same run.
    pub share_of_read_ceiling: Option<f64>,
    /// Time of the default over this one's; only where both were timed.
    pub speedup_over_default: Option<f64>,
    /// Whether the winner is faster than the default beyond noise; only where both were timed.
    pub beats_default: Option<bool>,
    /// Whether it is the default: where nothing beats that beyond noise, it wins.
    pub is_default: bool,
    /// How many other kernels and splits another tune might find to win; only where it was timed.
    pub near_ties: Option<usize>,
    /// GPU that timed it.
    pub gpu: Option<String>,
    /// Which launches its run timed; only where it was timed.
    pub search: Option<String>,
}

impl From<&Choice> for Row {
    fn from(choice: &Choice) -> Self {
        let (problem, variant) = (choice.problem(), choice.kernel().variant);
        let winner = match choice {
            Choice::Timed(winner) => Some(winner),
            Choice::Predicted(_) => None,
        };
        Self {
            problem: problem.key(),
            fields: problem,
            shape: choice.shape(),
            kernel: KernelId::new(&problem, &variant),
            variant: variant.key(),
            split: choice.split(),
            trust: choice.trust(),
            evidence: choice.evidence(),
            median_us: winner.map(|w| w.times.median_us),
            predicted_us: winner.is_none().then(|| choice.us()),
            gbps: winner.map(|w| w.gbps()),
            share_of_read_ceiling: winner.and_then(|w| w.ceiling_share()),
            speedup_over_default: winner.and(choice.default_us()).map(|us| us / choice.us()),
            beats_default: winner.and_then(|w| w.default).map(|d| d.beaten),
            is_default: choice.is_default(),
            near_ties: winner.map(|w| w.near_ties.len()),
            gpu: winner.map(|w| w.environment.name.clone()),
            search: winner.map(|w| w.search.clone()),
        }
    }
}

/// The table of a run, with a headline that says what the numbers are.
pub fn table(choices: &[Choice]) -> String {
    let rows: Vec<_> = choices.iter().map(Row::from).collect();
    let of = |trust| rows.iter().filter(|row| row.trust == trust).collect::<Vec<_>>();
    let (timed, predicted) = (of(Trust::Timed), of(Trust::Predicted));
    let mut text = String::new();
    if !timed.is_empty() {
        let mut gpus: Vec<_> = timed.iter().filter_map(|row| row.gpu.as_deref()).collect();
        gpus.dedup();
        text += &format!("Verified and timed on {}: median of cold-L2 calls under graph replay.\n", gpus.join(", "));
        text += &searched(timed.iter().filter_map(|row| row.search.as_deref())).map_or(String::new(), |s| s + "\n");
        text += &render(&timed, "µs");
    }
    if !predicted.is_empty() {
        text += "PREDICTED, nothing was timed: an order by a model, not measurements.\n";
        text += &render(&predicted, "about µs");
    }
    text
}

/// Says of winners, by the search of each, that not all trials were timed where that is so.
pub fn searched<'a>(searches: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut guided = BTreeMap::new();
    let mut all = 0;
    for search in searches {
        all += 1;
        if search != Strategy::Exhaustive.name() {
            *guided.entry(search).or_insert(0usize) += 1;
        }
    }
    let each: Vec<_> = guided.iter().map(|(search, n)| format!("{n} of {all} by `{search}`")).collect();
    (!each.is_empty())
        .then(|| format!("Winners of a guided search, which does not time all in full: {}.", each.join(", ")))
}

/// One table over all problems, with a line of its own for each problem: 120 columns hold it. In a narrower terminal
/// the winner's name goes over two lines.
fn render(rows: &[&Row], time: &str) -> String {
    let mut table = grid(rows, time, usize::MAX);
    if table.width().is_some_and(|columns| widest(&table) > usize::from(columns)) {
        table = grid(rows, time, NARROW_NAME);
    }
    let text = table.to_string();
    let mut lines = text.lines().map(str::trim_end);
    let mut out = format!("{}\n", lines.next().unwrap_or_default());
    let mut problem = "";
    for (row, cells) in rows.iter().zip(table.row_iter()) {
        if row.problem != problem {
            problem = &row.problem;
            out += &format!("{problem}\n");
        }
        let height = cells.cell_iter().map(|cell| cell.content().lines().count()).max().unwrap_or(1);
        lines.by_ref().take(height).for_each(|line| out += &format!("{line}\n"));
    }
    out
}

/// Columns of the longest half of a kernel's name.
const NARROW_NAME: usize = 28;

fn widest(table: &Table) -> usize {
    table.lines().map(|line| line.chars().count()).max().unwrap_or_default()
}

/// The rows as a table without problems; names are broken after a `-` where they are longer than `name_width`.
fn grid(rows: &[&Row], time: &str, name_width: usize) -> Table {
    let timed = rows.iter().any(|row| row.trust == Trust::Timed);
    let mut header = vec!["shape", "winner", "split", time];
    header.extend(if timed { ["GB/s", "ceiling", "default", "near"].as_slice() } else { &["checked"] });
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        let split = row.split.map_or("-".into(), |split| split.to_string());
        let mut cells = vec![row.shape.key(), fold(&row.variant, name_width), split];
        if timed {
            cells.push(format!("{:.1}", row.median_us.unwrap_or_default()));
            cells.push(row.gbps.map_or("-".into(), |gbps| format!("{gbps:.0}")));
            cells.push(row.share_of_read_ceiling.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share)));
            cells.push(against_default(row));
            cells.push(row.near_ties.map_or("-".into(), |n| n.to_string()));
        } else {
            cells.push(row.predicted_us.map_or("-".into(), two_digits));
            cells.push(checked(&row.evidence).into());
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// `name` in lines of at most `width` characters, broken after a `-` only.
fn fold(name: &str, width: usize) -> String {
    let (mut folded, mut column) = (String::new(), 0);
    for part in name.split_inclusive('-') {
        if column > 0 && column + part.len() > width {
            folded.push('\n');
            column = 0;
        }
        folded += part;
        column += part.len();
    }
    folded
}

/// A time to two digits: more than a model's prediction is worth.
pub fn two_digits(us: f64) -> String {
    let rounded: f64 = format!("{us:.1e}").parse().unwrap_or(us);
    let decimals = 1 - rounded.log10().floor() as i32;
    format!("{rounded:.*}", decimals.clamp(0, 9) as usize)
}

/// Where the kernel was run and agreed with the reference.
fn checked(evidence: &Evidence) -> &'static str {
    match evidence {
        Evidence::VerifiedOnGpu { .. } => "on a GPU",
        Evidence::Emulated { .. } => "emulated",
        Evidence::Predicted => "compiled only",
    }
}

fn against_default(row: &Row) -> String {
    match (row.is_default, row.speedup_over_default) {
        (true, _) => "default".into(),
        (_, None) => "-".into(),
        (_, Some(speedup)) => format!("{speedup:.2}×"),
    }
}

/// The whole result for programs.
pub fn json(request: &Request, tuned: &Tuned) -> serde_json::Value {
    let rows: Vec<_> = tuned.choices.iter().map(Row::from).collect();
    json!({
        "target": request.machine.target,
        "gpu": request.machine.gpu.as_ref().ok(),
        "not_timed_because": request.machine.gpu.as_ref().err(),
        "preset": format!("{:?}", request.preset).to_lowercase(),
        "search": request.search.name(),
        "database": request.db,
        "bundle": tuned.bundle.as_ref().map(|bundle| &bundle.folder),
        "stopped": tuned.stopped,
        "pace": tuned.pace,
        "regret": tuned.regret,
        "rows": rows,
        "failures": tuned.failures,
    })
}

/// How fast the GPU went through trials, in words.
pub fn pace(pace: &Summary) -> String {
    format!(
        "{} trials in {} since the first kernel was built: {} an hour; the GPU waited for compilers {:.0} % of that",
        HumanCount(pace.trials),
        seconds(Duration::from_secs_f64(pace.seconds)),
        HumanCount(pace.trials_an_hour as u64),
        100.0 * pace.idle_share,
    )
}

/// The failures of a run: counts by kind, and the first few with their reasons.
pub fn failures(failures: &[Failure]) -> String {
    let mut text = String::new();
    for failure in failures.iter().take(FAILURES_SHOWN) {
        let at = failure.shape.map_or(String::new(), |shape| format!(" at {}", shape.key()));
        let why = reason_line(&failure.outcome);
        text += &format!("  {}: {}{at}: {why}\n", failure.outcome.kind(), failure.kernel_id);
    }
    if failures.len() > FAILURES_SHOWN {
        text += &format!("  and {} more, all in the database\n", failures.len() - FAILURES_SHOWN);
    }
    text
}

/// The plan in words.
pub fn plan(plan: &Plan, jobs: usize) -> String {
    let count = |n: usize| HumanCount(n as u64);
    let many = |n: usize, word: &str| format!("{} {word}{}", count(n), if n == 1 { "" } else { "s" });
    let rejected =
        plan.rejected.iter().map(|(reason, &n)| format!("\n{:>18} rejected: {reason}", count(n).to_string()));
    let rejected: String = rejected.collect();
    let timings = if plan.timed {
        format!("{}{}", if plan.search == Strategy::Exhaustive.name() { "" } else { "at most " }, count(plan.timings))
    } else {
        "none: no GPU of the target is here".into()
    };
    let emulations =
        if plan.timed { String::new() } else { format!("emulations {} at most\n", count(plan.emulations)) };
    let held_out = match plan.held_out {
        0 => String::new(),
        n => format!(", and about {} between them", count(n)),
    };
    format!(
        "problems   {}, at {}{held_out}\nvariants   {}{rejected}\ncompiles   {} with {}\ntimings    {timings}\n\
         {emulations}time       about {}, from nothing: what is stored or cached already makes it shorter\n\
         disk       about {}\nnothing was written\n",
        count(plan.problems),
        many(plan.shapes, "shape"),
        count(plan.variants),
        count(plan.compiles),
        many(jobs, "job"),
        roughly(plan.seconds),
        HumanBytes(plan.bytes),
    )
}

/// A duration as exact as an estimate is: one unit, of which there are at least two.
fn roughly(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(24 * 3600, "days"), (3600, "h"), (60, "min")];
    match UNITS.into_iter().find(|(unit, _)| seconds >= 2 * unit) {
        Some((unit, name)) => format!("{} {name}", HumanCount((seconds + unit / 2) / unit)),
        None => format!("{} s", seconds.max(1).next_multiple_of(if seconds > 10 { 10 } else { 1 })),
    }
}

/// The spaces of some problems: how many variants each has, and why the others are none.
pub fn spaces(spaces: &[Space]) -> String {
    let mut text = String::new();
    for space in spaces {
        let Space { problem, feasible, not_applicable, rejected, .. } = space;
        text += &format!("{}: {} of {} variants are feasible", problem.key(), feasible.len(), space.total());
        if *not_applicable > 0 {
            text += &format!("; {not_applicable} more are for another format or numerics class");
        }
        text += "\n";
        for (reason, n) in rejected {
            text += &format!("{n:>8} rejected: {reason}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_told_in_one_unit() {
        let day = 24 * 3600;
        for (seconds, text) in [
            (0, "1 s"),
            (7, "7 s"),
            (101, "110 s"),
            (150, "3 min"),
            (7100, "118 min"),
            (30 * 3600, "30 h"),
            (53 * day + 7, "53 days"),
            (4000 * day, "4,000 days"),
        ] {
            assert_eq!(roughly(seconds), text);
        }
    }

    #[test]
    fn winners_of_a_guided_search_are_counted_and_others_are_not_spoken_of() {
        assert_eq!(searched(["exhaustive"; 3].into_iter()), None);
        let said = searched(["model", "exhaustive", "halving", "model"].into_iter()).unwrap();
        assert!(said.contains("1 of 4 by `halving`, 2 of 4 by `model`") && !said.contains("exhaustive"), "{said}");
    }

    #[test]
    fn names_are_broken_after_a_dash_only() {
        let name = "k_table_wgmma-v_table_f16-swapped-n8-w4-t64-cp2-b2";
        assert_eq!(fold(name, NARROW_NAME), "k_table_wgmma-v_table_f16-\nswapped-n8-w4-t64-cp2-b2");
        assert_eq!(fold(name, usize::MAX), name);
        assert_eq!(fold("longer_than_the_column-b2", 5), "longer_than_the_column-\nb2");
    }

    fn timed(problem: &str, shape: Shape, variant: &str) -> Row {
        let fields = nvkv_generator::problems(nvkv_generator::Preset::Quick, &[nvkv_spec::Operation::Decode])[0];
        Row {
            problem: problem.into(),
            fields,
            shape,
            kernel: KernelId::new(&fields, &nvkv_generator::default_variant(&fields, nvkv_spec::Target::Sm90a)),
            variant: variant.into(),
            split: Some(SplitPolicy::Chunk { tokens: 4096, taper: 0 }),
            trust: Trust::Timed,
            evidence: Evidence::VerifiedOnGpu { gpu: "H200".into(), driver: "580".into() },
            median_us: Some(12345.6),
            predicted_us: None,
            gbps: Some(4700.0),
            share_of_read_ceiling: Some(0.98),
            speedup_over_default: Some(1.01),
            beats_default: Some(false),
            is_default: false,
            near_ties: Some(12),
            gpu: None,
            search: None,
        }
    }

    #[test]
    fn a_table_has_a_line_a_problem_and_fits_120_columns() {
        let shape = |batch| Shape::Decode { batch, context: 131_072, kv_heads: 8, lengths: nvkv_spec::Lengths::Equal };
        let winner = "k_table_wgmma-v_table_f16-swapped-n16-w8-t64-cp3-b2";
        let rows =
            [timed("first", shape(1), winner), timed("first", shape(128), winner), timed("second", shape(1), "w")];
        for name_width in [usize::MAX, NARROW_NAME] {
            let width = widest(&grid(&rows.iter().collect::<Vec<_>>(), "µs", name_width));
            assert!(width <= if name_width == NARROW_NAME { 100 } else { 120 }, "{width}");
        }
        let text = render(&rows.iter().collect::<Vec<_>>(), "µs");
        let starts: Vec<_> = text.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
        assert_eq!(starts, ["shape", "first", "b1-c131072-h8", "b128-c131072-h8", "second", "b1-c131072-h8"], "{text}");
    }

    #[test]
    fn predictions_have_two_digits() {
        let all = [(0.05, "0.050"), (0.1234, "0.12"), (9.99, "10"), (9.94, "9.9"), (14.6, "15"), (1234.5, "1200")];
        for (us, text) in all {
            assert_eq!(two_digits(us), text);
        }
    }
}
