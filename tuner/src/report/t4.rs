//! Trials in T4, the results format that auto-tuners share.
//!
//! The format: <https://github.com/odgaard/TuningSchema> (branch T4, `results-schema.json` 1.0.0), and Kernel Tuner's
//! `store_output_file`, whose spelling is followed where the schema leaves it open: the objective is `time`, in
//! milliseconds, and `metadata.timeunit` says so. A result needs `configuration`, `times`, `invalidity` and
//! `correctness`. What was never run on a GPU (compiled only, emulated) is no result of a tuner and is left out.

use super::data::Records;
use super::export::configuration;
use nvkv_db::Trial;
use nvkv_spec::Outcome;
use serde_json::{Map, Value, json};

/// Version of the schema.
const SCHEMA_VERSION: &str = "1.0.0";

/// The trials that were measured, or failed to be, as one T4 document.
///
/// # Errors
/// Never of these values, by the serialiser's contract.
pub fn results(records: &Records) -> anyhow::Result<String> {
    let results: Vec<Value> = records.trials.iter().filter_map(result).collect();
    let document =
        json!({ "schema_version": SCHEMA_VERSION, "metadata": { "timeunit": "milliseconds" }, "results": results });
    Ok(serde_json::to_string(&document)? + "\n")
}

fn result(trial: &Trial) -> Option<Value> {
    let invalidity = invalidity(&trial.record.outcome)?;
    let fields = configuration(trial).into_iter().filter(|(_, value)| !value.is_null());
    let configuration: Map<String, Value> = fields.map(|(name, value)| (name.to_string(), value)).collect();
    let runtimes: Vec<f64> = trial.record.samples.iter().map(|us| us / 1e3).collect();
    let measurements = trial.times.map_or_else(Vec::new, |times| {
        vec![
            json!({ "name": "time", "value": times.median_us / 1e3, "unit": "ms" }),
            json!({ "name": "bandwidth", "value": trial.record.bytes as f64 / times.median_us / 1e3, "unit": "GB/s" }),
        ]
    });
    Some(json!({
        "timestamp": trial.created_at,
        "configuration": configuration,
        "objectives": ["time"],
        "times": { "runtimes": runtimes },
        "invalidity": invalidity,
        "correctness": u8::from(invalidity == "correct"),
        "measurements": measurements,
    }))
}

/// The outcome in the words of the schema; none where nothing was tried on a GPU.
fn invalidity(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Timed { .. } => Some("correct"),
        Outcome::CompileFailed { .. } => Some("compile"),
        Outcome::Timeout { .. } => Some("timeout"),
        Outcome::LaunchFailed { .. } | Outcome::Crashed { .. } => Some("runtime"),
        Outcome::Wrong { .. } => Some("correctness"),
        Outcome::CompiledOnly { .. } | Outcome::Emulated { .. } | Outcome::Faulted { .. } => None,
    }
}
