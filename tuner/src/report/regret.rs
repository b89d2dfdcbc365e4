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
        let (Some(largest), Some(median)) = (self.largest, self.median) else {
            return format!("none of {buckets} buckets was measured");
        };
        format!(
            "{measured} of {buckets} buckets measured: regret {} at most, median {}, {} ({small}) with at most {}; \
             {split} split off",
            percent(largest),
            percent(median),
            percent(*small as f64 / *measured as f64),
            percent(MOST_REGRET),
        )
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

/// The columns of the CSV, which has a header: times and their standard errors in µs, the regret as a share of the best
/// time.
fn fields(regret: &Regret) -> [(&'static str, Value); 17] {
    let Regret { target, environment, problem, bucket, shape, winner, best, .. } = regret;
    [
        ("target", json!(target)),
        ("gpu", json!(environment.name)),
        ("driver", json!(environment.driver)),
        ("problem", json!(problem.key())),
        ("bucket", json!(bucket.key())),
        ("at", json!(shape.key())),
        ("winner", json!(variant(winner))),
        ("winner_split", json!(winner.split.map(|split| split.to_string()))),
        ("winner_us", json!(winner.times.median_us)),
        ("winner_error_us", json!(winner.times.error_us)),
        ("best", json!(variant(best))),
        ("best_split", json!(best.split.map(|split| split.to_string()))),
        ("best_us", json!(best.times.median_us)),
        ("best_error_us", json!(best.times.error_us)),
        ("regret", json!(regret.share())),
        ("within_noise", json!(regret.is_noise())),
        ("verdict", json!(verdict(regret))),
    ]
}

/// The rows as CSV.
///
/// # Errors
/// Never in memory, by the writer's contract.
pub fn csv(regrets: &[Regret]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (n, regret) in regrets.iter().enumerate() {
        let fields = fields(regret);
        if n == 0 {
            writer.write_record(fields.iter().map(|(name, _)| name))?;
        }
        writer.write_record(fields.iter().map(|(_, value)| super::export::text(value)))?;
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
