//! Every trial in force as CSV and as JSON, a row each: what it was about, field by field, and what came of it.
//!
//! Columns, in order: those of [`configuration`], then
//!
//! | column | meaning |
//! |---|---|
//! | `trial`, `run` | rows of the database |
//! | `created_at` | UTC, RFC 3339 |
//! | `target`, `gpu`, `driver`, `nvrtc` | where it ran, and what compiled it; no GPU for what was compiled only |
//! | `search` | which launches its run timed: `exhaustive` (all), or the strategy that chose them |
//! | `problem`, `shape`, `variant` | their keys |
//! | `outcome` | `timed`, `compiled_only` (predicted), `emulated`, or the failure's kind |
//! | `is_default` | whether an engineer without a tuner would have picked it |
//! | `winner` | whether it is the fastest of its target, GPU, problem and shape; of predictions, the first by the model |
//! | `quarantined` | whether its kernel failed somewhere on that GPU, so that it cannot win |
//! | `median_us`, `min_us`, `iqr_us` | of the samples, µs |
//! | `samples` | their number; in JSON `samples_us` has them, µs, in the order taken |
//! | `predicted_us` | by a model, µs; never beside a median |
//! | `bytes` | that a call must move at least |
//! | `gbps` | `bytes` over the median, 10^9 bytes/s |
//! | `share_of_read_ceiling` | `gbps` over what a plain read reached in the same run |
//! | `error` | largest relative L2 error against the reference |
//! | `registers`, `spill_bytes`, `instructions` | the compiler's facts: registers a thread, spilled bytes (loads and stores) |
//! | `reason` | of a failure |

use super::data::Records;
use crate::pipeline::compile::reason;
use nvkv_db::{Run, RunId, Trial, TrialId};
use nvkv_spec::{Outcome, Problem, Shape, SplitPolicy, Variant};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// A field with its value; null where it means nothing.
pub type Field = (&'static str, Value);

/// What a trial was about: the fields of its problem, shape, variant and split, the same for every trial. Sizes are in
/// elements (`head_dim`), query heads a KV head (`group`), tokens (`q_len`, `page_size`, `window`, `context`, `tokens`,
/// `tile_tokens`, `split_tokens`), requests (`batch`), 32-thread warps a block (`warps`).
pub fn configuration(trial: &Trial) -> Vec<Field> {
    let problem = trial.record.kernel.problem;
    let attention = match problem {
        Problem::Decode(p) => Some(p),
        Problem::Append(_) => None,
    };
    let (page_size, dtype, order) = match problem {
        Problem::Decode(p) => (p.page_size, p.dtype, p.v_scale_order),
        Problem::Append(p) => (p.page_size, p.dtype, p.v_scale_order),
    };
    let (batch, context, tokens, lengths) = match trial.record.shape {
        Some(Shape::Decode { batch, context, lengths, .. }) => (Some(batch), Some(context), None, Some(lengths)),
        Some(Shape::Append { tokens, .. }) => (None, None, Some(tokens), None),
        None => (None, None, None, None),
    };
    let (decode, append) = match trial.record.kernel.variant {
        Variant::Decode(v) => (Some(v), None),
        Variant::Append(v) => (None, Some(v)),
    };
    let (parts, split_tokens, taper) = match trial.record.split {
        Some(SplitPolicy::Even { splits }) => (Some(splits), None, None),
        Some(SplitPolicy::Chunk { tokens, taper }) => (None, Some(tokens), Some(taper)),
        None => (None, None, None),
    };
    vec![
        ("op", json!(problem.operation())),
        ("kv_format", json!(problem.kv_format())),
        ("numerics", json!(attention.map(|p| p.numerics))),
        ("head_dim", json!(problem.head_dim())),
        ("group", json!(attention.map(|p| p.group))),
        ("q_len", json!(attention.map(|p| p.q_len))),
        ("page_size", json!(page_size)),
        ("dtype", json!(dtype)),
        ("v_scale_order", json!(order)),
        ("window", json!(attention.and_then(|p| p.window))),
        ("sinks", json!(attention.map(|p| p.sinks))),
        ("soft_cap", json!(attention.map(|p| p.soft_cap))),
        ("batch", json!(batch)),
        ("context", json!(context)),
        ("lengths", json!(lengths)),
        ("tokens", json!(tokens)),
        ("kv_heads", json!(trial.record.shape.map(|shape| shape.kv_heads()))),
        ("k_path", json!(decode.map(|v| v.k_path.to_string()))),
        ("v_path", json!(decode.map(|v| v.v_path.to_string()))),
        ("operands", json!(decode.map(|v| v.operands))),
        ("query_tile", json!(decode.map(|v| v.query_tile))),
        ("warps", json!(decode.map_or_else(|| append.map(|v| v.threads / 32), |v| Some(v.warps)))),
        ("tile_tokens", json!(decode.map(|v| v.tile_tokens))),
        ("staging", json!(decode.map(|v| v.staging.to_string()))),
        ("blocks_per_sm", json!(decode.map(|v| v.blocks_per_sm))),
        ("blocks_per_thread", json!(append.map(|v| v.blocks_per_thread))),
        ("split_parts", json!(parts)),
        ("split_tokens", json!(split_tokens)),
        ("split_taper", json!(taper)),
    ]
}

/// What came of a trial.
fn results(trial: &Trial, run: Option<&Run>, wins: bool) -> Vec<Field> {
    let times = trial.times;
    let gbps = times.map(|times| trial.record.bytes as f64 / times.median_us / 1e3);
    let ceiling = run.and_then(|run| run.read_ceiling_gbps);
    let gpu = run.and_then(|run| run.start.environment.as_ref());
    let facts = trial.record.kernel.compiled.as_ref().map(|compiled| &compiled.facts);
    let (error, predicted, failure) = match &trial.record.outcome {
        Outcome::Timed { error } | Outcome::Emulated { error, .. } => (Some(*error), None, None),
        Outcome::CompiledOnly { predicted_us } => (None, Some(*predicted_us), None),
        Outcome::Wrong { error, .. } => (Some(*error), None, Some(reason(&trial.record.outcome))),
        other => (None, None, Some(reason(other))),
    };
    vec![
        ("trial", json!(trial.id)),
        ("run", json!(trial.run)),
        ("created_at", json!(trial.created_at)),
        ("target", json!(trial.record.kernel.target)),
        ("gpu", json!(gpu.map(|gpu| &gpu.name))),
        ("driver", json!(gpu.map(|gpu| &gpu.driver))),
        ("nvrtc", json!(trial.record.kernel.nvrtc)),
        ("search", json!(run.map(|run| &run.start.search))),
        ("problem", json!(trial.record.kernel.problem.key())),
        ("shape", json!(trial.record.shape.map(|shape| shape.key()))),
        ("variant", json!(trial.record.kernel.variant.key())),
        ("outcome", json!(trial.record.outcome.kind())),
        ("is_default", json!(trial.record.is_default)),
        ("winner", json!(wins)),
        ("quarantined", json!(trial.quarantined)),
        ("median_us", json!(times.map(|times| times.median_us))),
        ("min_us", json!(times.map(|times| times.min_us))),
        ("iqr_us", json!(times.map(|times| times.iqr_us))),
        ("samples", json!(trial.record.samples.len())),
        ("predicted_us", json!(predicted)),
        ("bytes", json!(trial.record.bytes)),
        ("gbps", json!(gbps)),
        ("share_of_read_ceiling", json!(gbps.zip(ceiling).map(|(gbps, ceiling)| gbps / ceiling))),
        ("error", json!(error)),
        ("registers", json!(facts.map(|facts| facts.registers))),
        ("spill_bytes", json!(facts.map(|facts| facts.spill_loads + facts.spill_stores))),
        ("instructions", json!(facts.map(|facts| facts.instructions))),
        ("reason", json!(failure)),
    ]
}

/// The trials with their fields.
fn rows(records: &Records) -> impl Iterator<Item = (&Trial, Vec<Field>)> {
    let runs: HashMap<RunId, &Run> = records.runs.iter().map(|run| (run.id, run)).collect();
    let timed = records.winners.iter().map(|winner| winner.trial);
    let winners: HashSet<TrialId> = timed.chain(records.predicted.iter().map(|winner| winner.trial)).collect();
    records.trials.iter().map(move |trial| {
        let mut fields = configuration(trial);
        fields.extend(results(trial, runs.get(&trial.run).copied(), winners.contains(&trial.id)));
        (trial, fields)
    })
}

/// The trials as CSV with a header; a field that means nothing is empty.
///
/// # Errors
/// Never in memory, by the writer's contract.
pub fn csv(records: &Records) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (n, (_, fields)) in rows(records).enumerate() {
        if n == 0 {
            writer.write_record(fields.iter().map(|(name, _)| name))?;
        }
        writer.write_record(fields.iter().map(|(_, value)| text(value)))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// A value as a field of CSV.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The trials as JSON: `{"schema": 1, "trials": [{column: value, …, "samples_us": [µs, …]}, …]}`, a line a trial.
///
/// # Errors
/// Never of these values, by the serialiser's contract.
pub fn json(records: &Records) -> anyhow::Result<String> {
    let lines = rows(records).map(|(trial, fields)| {
        let mut row: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        row.insert("samples_us".into(), json!(trial.record.samples));
        serde_json::to_string(&row)
    });
    Ok(format!("{{\"schema\": 1, \"trials\": [\n{}\n]}}\n", lines.collect::<Result<Vec<_>, _>>()?.join(",\n")))
}
