//! The answer to a query, for people and for programs.

use crate::report::regret::percent;
use crate::report::two_digits;
use nvkv_db::{Answer, Emulated, KernelRecord, NearTie, PredictedWinner, Query, Winner};
use nvkv_runtime::tune_command;
use nvkv_spec::{KernelId, Launch, Shape, SplitPolicy};
use serde_json::{Value, json};

/// The kernel that answers, what its split becomes at the shape asked for, and how far its shape is from the one asked for, in doublings.
fn found<'a>(query: &Query, answer: &'a Answer) -> Option<(&'a KernelRecord, Option<SplitPolicy>, f64)> {
    let split_at = |kernel: &KernelRecord, split: Option<SplitPolicy>, tuned, sms| {
        let filling = kernel.variant.filling(&kernel.problem, sms);
        split.map(|split| kernel.problem.split_at(split, tuned, &query.shape, filling))
    };
    match answer {
        Answer::Exact { winner } => Some((&winner.kernel, winner.split, 0.0)),
        Answer::Bucket { winner, distance } => Some((
            &winner.kernel,
            split_at(&winner.kernel, winner.split, &winner.shape, winner.environment.sms),
            *distance,
        )),
        Answer::Predicted { winner, distance } => Some((
            &winner.kernel,
            split_at(&winner.kernel, winner.split, &winner.shape, query.target.facts().sms),
            *distance,
        )),
        Answer::Miss { .. } => None,
    }
}

/// How the kernel is launched at the shape that was asked for.
fn launch(query: &Query, kernel: &KernelRecord, split: Option<SplitPolicy>) -> Launch {
    let split = split.unwrap_or(SplitPolicy::WHOLE);
    nvkv_generator::launch(&query.problem, &kernel.variant, &query.shape, split)
}

/// The answer for programs: what was asked, the kernel and its launch at that shape, and the winner's record.
pub fn json(query: &Query, answer: &Answer) -> Value {
    let found = found(query, answer);
    let (trust, winner, why) = match answer {
        Answer::Exact { winner } => ("exact", json!(winner), None),
        Answer::Bucket { winner, .. } => ("bucket", json!(winner), None),
        Answer::Predicted { winner, .. } => ("predicted", json!(winner), None),
        Answer::Miss { why, .. } => ("miss", Value::Null, Some(why)),
    };
    let nearest = if let Answer::Miss { nearest, .. } = answer { nearest.map(|p| p.key()) } else { None };
    json!({
        "trust": trust,
        "target": query.target,
        "problem": query.problem.key(),
        "fields": query.problem,
        "shape": query.shape,
        "distance_doublings": found.map(|(.., distance)| distance),
        "kernel": found.map(|(kernel, ..)| KernelId::new(&kernel.problem, &kernel.variant)),
        "split": found.and_then(|(_, split, _)| split),
        "launch": found.map(|(kernel, split, _)| launch(query, kernel, split)),
        "winner": winner,
        "why": why,
        "nearest_problem": nearest,
        "tune_with": tune_command(query.target, &query.problem, Some(&query.shape)),
    })
}

/// The answer for people.
pub fn describe(query: &Query, answer: &Answer) -> String {
    let asked = format!("asked      {} at {}\n", query.problem.key(), query.shape.key());
    let kernel = found(query, answer).map_or(String::new(), |(kernel, split, _)| describe_kernel(query, kernel, split));
    let body = match answer {
        Answer::Exact { winner } => timed("timed at this shape", winner),
        Answer::Bucket { winner, distance } => {
            timed(&format!("timed at {}", near(winner.shape, *distance)), winner) + &regret(winner.regret)
        }
        Answer::Predicted { winner, distance } => predicted(winner, *distance),
        Answer::Miss { why, nearest } => {
            let nearest = nearest.map_or(String::new(), |p| format!("nearest    {}\n", p.key()));
            format!("miss       {why}\n{nearest}")
        }
    };
    let exact = found(query, answer).is_some_and(|(_, _, distance)| distance == 0.0);
    let next = if exact {
        String::new()
    } else {
        format!("to tune it {}\n", tune_command(query.target, &query.problem, Some(&query.shape)))
    };
    asked + &kernel + &body + &next
}

fn near(shape: Shape, distance: f64) -> String {
    format!("{}, the nearest shape ({distance:.2} doublings away)", shape.key())
}

fn describe_kernel(query: &Query, record: &KernelRecord, split: Option<SplitPolicy>) -> String {
    let launch = launch(query, record, split);
    let [x, y, z] = launch.grid;
    let split = split.map_or(String::new(), |split| {
        let Launch { max_splits, min_split_tokens, taper, .. } = launch;
        format!("split      {split}: max_splits {max_splits}, min_split_tokens {min_split_tokens}, taper {taper}\n")
    });
    format!(
        "kernel     {}\n{split}launch     grid {x} x {y} x {z}, {} threads, {} B of shared memory, {} B of workspace\n",
        record.key().kernel_id,
        launch.threads,
        launch.shared_bytes,
        launch.workspace_bytes,
    )
}

fn timed(trust: &str, winner: &Winner) -> String {
    let share = winner.ceiling_share().map_or(String::new(), |s| format!(", {:.0} % of the read ceiling", 100.0 * s));
    let default = winner.default.map_or("not timed".into(), |d| {
        let verdict = if d.beaten { "" } else { ", within noise" };
        format!("{:.1} µs ({:.2}×{verdict})", d.median_us, d.median_us / winner.times.median_us)
    });
    let carried = winner.carried_from.map_or(String::new(), |origin| {
        format!("carried    from trial {} of an identical cubin; it was not timed again\n", origin.0)
    });
    let times = &winner.times;
    let gpu = &winner.environment;
    format!(
        "trust      {trust}\ntime       {:.1} µs median of {} in {} rounds (error {:.2}, iqr {:.1}), {:.0} GB/s{share}\n\
             default    {default}\nnear ties  {}\n\
             error      {:.1e} relative, the largest of the verification\n\
             measured   {} on {}, driver {}, NVRTC {}; search {}\n{carried}",
        times.median_us,
        times.samples,
        times.rounds,
        times.error_us,
        times.iqr_us,
        winner.gbps(),
        near_ties(&winner.near_ties),
        winner.error,
        winner.created_at,
        gpu.name,
        gpu.driver,
        winner.kernel.nvrtc,
        winner.search,
    )
}

/// What a bucket costs between the tuned shapes.
fn regret(regret: Option<f64>) -> String {
    match regret {
        Some(regret) => format!(
            "regret     at most {} over the best kernel, at the shapes of this bucket where it was measured\n",
            percent(regret)
        ),
        None => "regret     not measured: `nvkv-tune --held-out` measures buckets between the tuned shapes\n".into(),
    }
}

/// Near ties that are listed; the rest is counted, and in the JSON.
const NEAR_TIES_SHOWN: usize = 5;

/// The kernels that another tune might find to win, each with its time.
fn near_ties(near: &[NearTie]) -> String {
    let one = |NearTie { kernel_id, split, times }: &NearTie| {
        let split = split.map_or(String::new(), |split| format!(" {split}"));
        format!("\n           {kernel_id}{split}: {:.1} µs (error {:.2})", times.median_us, times.error_us)
    };
    let shown: String = near.iter().take(NEAR_TIES_SHOWN).map(one).collect();
    let rest = near.len().saturating_sub(NEAR_TIES_SHOWN);
    let rest = if rest > 0 { format!("\n           and {rest} more") } else { String::new() };
    match near.len() {
        0 => "none: another tune would find the same".into(),
        n => format!("{n}, which another tune might find to win{shown}{rest}"),
    }
}

fn predicted(winner: &PredictedWinner, distance: f64) -> String {
    let shape = if distance == 0.0 { winner.shape.key() } else { near(winner.shape, distance) };
    let checked = winner.emulated.map_or("compiled only, never run".into(), |Emulated { cases, error }| {
        format!("right in the emulator ({cases} cases, relative error at most {error:.1e}), on no GPU")
    });
    format!(
        "trust      PREDICTED for {shape}: {checked}\ntime       about {} µs by the model, not a measurement\n\
             compiled   {}, NVRTC {}\n",
        two_digits(winner.predicted_us),
        winner.created_at,
        winner.kernel.nvrtc,
    )
}
