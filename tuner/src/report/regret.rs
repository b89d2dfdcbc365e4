//! What buckets cost between the tuned shapes: a row for each bucket's winner at each shape where it was measured.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use nvkv_db::{Measured, Regret, Winner, median};
use nvkv_spec::bucket::MOST_REGRET;
use serde::Serialize;
use serde_json::{Value, json};

/// What became of a bucket at a shape.
pub fn verdict(regret: &Regret) -> &'static str {
    match (regret.is_split, regret.is_too_much()) {
        (true, _) => "split",
        (false, true) => "too slow",
        (false, false) => "kept",
    }
}

/// What is to be said of a difference that may be none.
pub fn remark(regret: &Regret) -> &'static str {
    if regret.winner.trial == regret.best.trial {
        ", the best"
    } else if regret.is_noise() {
        ", within noise"
    } else {
        ""
    }
}

/// All buckets in numbers. A bucket's regret is the largest of the shapes that it still serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Buckets that were timed.
    pub buckets: usize,
    /// Those whose regret was measured.
    pub measured: usize,
    /// Their largest regret, as a share.
    pub largest: Option<f64>,
    /// Their median regret.
    pub median: Option<f64>,
    /// Those of them with at most [`MOST_REGRET`].
    pub small: usize,
    /// Buckets that were split from another one.
    pub split: usize,
}

impl Summary {
    /// Of winners and their regrets.
    pub fn new<'a>(winners: impl IntoIterator<Item = &'a Winner>, regrets: &[Regret]) -> Self {
        let winners: Vec<Option<f64>> = winners.into_iter().map(|winner| winner.regret).collect();
        let mut measured: Vec<f64> = winners.iter().copied().flatten().collect();
        Self {
            buckets: winners.len(),
            measured: measured.len(),
            largest: measured.iter().copied().reduce(f64::max),
            median: median(&mut measured),
            small: measured.iter().filter(|regret| **regret <= MOST_REGRET).count(),
            split: regrets.iter().filter(|regret| regret.is_split).count(),
        }
    }

    /// In words, without a full stop.
    pub fn text(&self) -> String {
        let Self { buckets, measured, small, split, .. } = self;
        let measured = match (self.largest, self.median) {
            (Some(largest), Some(median)) => format!(
                "{measured} of {buckets} buckets measured: regret {} at most, median {}, {} ({small}) with at most {}",
                percent(largest),
                percent(median),
                percent(*small as f64 / *measured as f64),
                percent(MOST_REGRET),
            ),
            _ => format!("none of {buckets} buckets was measured"),
        };
        match split {
            0 => measured,
            n => format!("{measured}; {n} split off, and what served there before (verdict `split`) is not counted"),
        }
    }
}

/// The rows as a table, problem by problem.
pub fn table(regrets: &[Regret]) -> String {
    let mut table = Table::new();
    let header = ["bucket", "winner", "split", "at", "µs", "best", "regret", "verdict"];
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for regret in regrets {
        let Regret { bucket, shape, winner, best, .. } = regret;
        table.add_row([
            bucket.key(),
            variant(winner).into(),
            split(winner),
            shape.key(),
            format!("{:.1}", winner.times.median_us),
            format!("{:.1}", best.times.median_us),
            percent(regret.share()),
            format!("{}{}", verdict(regret), remark(regret)),
        ]);
    }
    for column in table.column_iter_mut().skip(4).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    let mut lines = text.lines().map(str::trim_end);
    let mut out = format!("{}\n", lines.next().unwrap_or_default());
    let mut problem = None;
    for (regret, line) in regrets.iter().zip(lines) {
        if problem.replace(regret.problem) != Some(regret.problem) {
            out += &format!("{}\n", regret.problem.key());
        }
        out += &format!("{line}\n");
    }
    out
}

/// The part of a kernel's name after its problem.
fn variant(measured: &Measured) -> &str {
    let name = measured.kernel_id.as_str();
    name.split_once("--").map_or(name, |(_, variant)| variant)
}

fn split(measured: &Measured) -> String {
    measured.split.map_or("-".into(), |split| split.to_string())
}

/// A share in percent to a tenth.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A column: its name, and a row's value in it.
type Column = (&'static str, fn(&Regret) -> Value);

/// The columns of the CSV: times and their standard errors in µs, the regret as a share of the best time.
const COLUMNS: [Column; 17] = [
    ("target", |r| json!(r.target)),
    ("gpu", |r| json!(r.environment.name)),
    ("driver", |r| json!(r.environment.driver)),
    ("problem", |r| json!(r.problem.key())),
    ("bucket", |r| json!(r.bucket.key())),
    ("at", |r| json!(r.shape.key())),
    ("winner", |r| json!(variant(&r.winner))),
    ("winner_split", |r| json!(r.winner.split.map(|split| split.to_string()))),
    ("winner_us", |r| json!(r.winner.times.median_us)),
    ("winner_error_us", |r| json!(r.winner.times.error_us)),
    ("best", |r| json!(variant(&r.best))),
    ("best_split", |r| json!(r.best.split.map(|split| split.to_string()))),
    ("best_us", |r| json!(r.best.times.median_us)),
    ("best_error_us", |r| json!(r.best.times.error_us)),
    ("regret", |r| json!(r.share())),
    ("within_noise", |r| json!(r.is_noise())),
    ("verdict", |r| json!(verdict(r))),
];

/// The rows as CSV with a header.
///
/// # Errors
/// Never in memory, by the writer's contract.
pub fn csv(regrets: &[Regret]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS.iter().map(|(name, _)| name))?;
    for regret in regrets {
        writer.write_record(COLUMNS.iter().map(|(_, value)| super::export::text(&value(regret))))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// The rows for programs, with the summary.
pub fn json(summary: &Summary, regrets: &[Regret]) -> Value {
    let row = |regret: &Regret| {
        let mut row = json!(regret);
        row["regret"] = regret.share().into();
        row["within_noise"] = regret.is_noise().into();
        row["verdict"] = verdict(regret).into();
        row["problem_key"] = regret.problem.key().into();
        row
    };
    json!({ "summary": summary, "rows": regrets.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_says_which_rows_it_leaves_out() {
        let none = Summary { buckets: 4, measured: 2, largest: Some(0.06), median: Some(0.03), small: 1, split: 0 };
        assert!(none.text().ends_with("50.0 % (1) with at most 5.0 %"), "{}", none.text());
        let unmeasured = Summary { measured: 0, largest: None, median: None, small: 0, ..none.clone() };
        for summary in [none, unmeasured] {
            let two = Summary { split: 2, ..summary.clone() }.text();
            let end = "; 2 split off, and what served there before (verdict `split`) is not counted";
            assert_eq!(two, format!("{}{end}", summary.text()));
        }
    }
}
