//! What each axis of the variant contributed: the best time with the axis held at each of its values, over the best.

use super::data::{Cell, Measured};
use nvkv_generator::Footprint;
use nvkv_spec::{Lengths, Problem, Shape, SplitPolicy, Target, Variant};
use std::collections::BTreeMap;

/// One axis.
#[derive(Debug, PartialEq)]
pub struct Axis {
    /// Its name in words.
    pub name: &'static str,
    /// Its values in their order.
    pub values: Vec<Value>,
}

/// One value of an axis, over the cells in which it was timed.
#[derive(Debug, PartialEq)]
pub struct Value {
    /// The value.
    pub name: String,
    /// Problems and shapes at which anything with this value was timed.
    pub cells: usize,
    /// Of these the ones it won.
    pub wins: usize,
    /// Geometric mean over them of the best time with this value, over the best of all.
    pub slowdown: f64,
    /// The largest of these ratios.
    pub worst: f64,
}

/// The axes of the variants that `cells` were tuned over, and of their launches; those with one value have nothing to tell.
pub fn contributions<'a>(measured: &Measured, cells: impl Iterator<Item = &'a Cell>) -> Vec<Axis> {
    // By the axis' and the value's place, so that both come in order.
    type Slowdowns = BTreeMap<(u32, String), Vec<f64>>;
    let mut found: BTreeMap<usize, (&'static str, Slowdowns)> = BTreeMap::new();
    for cell in cells {
        let mut best: BTreeMap<(usize, u32, String), (&'static str, f64)> = BTreeMap::new();
        for candidate in &cell.candidates {
            let trial = &candidate.trial;
            let axes =
                values(&cell.problem(), &trial.record.kernel.variant, trial.record.split, &cell.winner.shape, measured);
            for (place, (axis, size, value)) in axes.into_iter().enumerate() {
                let us = candidate.times.median_us;
                let entry = best.entry((place, size, value)).or_insert((axis, us));
                entry.1 = entry.1.min(us);
            }
        }
        for ((place, size, value), (axis, us)) in best {
            let values = &mut found.entry(place).or_insert((axis, BTreeMap::new())).1;
            values.entry((size, value)).or_default().push(us / cell.winner.times.median_us);
        }
    }
    let axis = |(name, values): (&'static str, BTreeMap<(u32, String), Vec<f64>>)| Axis {
        name,
        values: values.into_iter().map(|((_, name), ratios)| summary(name, &ratios)).collect(),
    };
    found.into_values().map(axis).filter(|axis| axis.values.len() > 1).collect()
}

fn summary(name: String, ratios: &[f64]) -> Value {
    Value {
        name,
        cells: ratios.len(),
        wins: ratios.iter().filter(|ratio| **ratio <= 1.0).count(),
        slowdown: geometric_mean(ratios.iter().copied()).unwrap_or(1.0),
        worst: ratios.iter().copied().fold(1.0, f64::max),
    }
}

/// The geometric mean; none of nothing.
pub fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0), |(sum, n), value| (sum + value.ln(), n + 1));
    (n > 0).then(|| (sum / f64::from(n)).exp())
}

/// The name, order and value of each axis of one launch; the same axes for all variants of an operation.
fn values(
    problem: &Problem,
    variant: &Variant,
    split: Option<SplitPolicy>,
    shape: &Shape,
    measured: &Measured,
) -> Vec<(&'static str, u32, String)> {
    match variant {
        Variant::Append(v) => vec![
            ("threads a block", v.threads, v.threads.to_string()),
            ("16-element blocks a thread", v.blocks_per_thread, v.blocks_per_thread.to_string()),
        ],
        Variant::Decode(v) => {
            let parts = split.map_or((0, "none".into()), |split| launch(problem, variant, split, shape, measured));
            vec![
                ("path of K", 0, v.k_path.to_string()),
                ("path of V", 0, v.v_path.to_string()),
                ("operand order", 0, v.operands.to_string()),
                ("query rows a block", v.query_tile, v.query_tile.to_string()),
                ("warps a block", v.warps, v.warps.to_string()),
                ("tokens a tile", v.tile_tokens, v.tile_tokens.to_string()),
                ("staging", 0, v.staging.to_string()),
                ("blocks an SM", v.blocks_per_sm, v.blocks_per_sm.to_string()),
                ("split", parts.0, parts.1),
            ]
        }
    }
}

/// A split as a launch feels it. Of equal lengths by the waves of blocks that it makes: its number of parts means
/// nothing across shapes. Of ragged ones by its policy.
fn launch(problem: &Problem, variant: &Variant, split: SplitPolicy, shape: &Shape, m: &Measured) -> (u32, String) {
    let (Shape::Decode { batch, context, kv_heads, lengths }, Variant::Decode(v)) = (*shape, variant) else {
        return (0, split.to_string());
    };
    match (lengths, split) {
        (Lengths::Equal, _) => {
            let row_tiles = Footprint::new(problem, variant).row_tiles;
            let parts = split.launch(problem.seen(context)).max_splits;
            let blocks = f64::from(batch * kv_heads * row_tiles) * f64::from(parts);
            let waves = (blocks / f64::from(sms(m.target, m.environment.sms) * v.blocks_per_sm)).ceil() as u32;
            match waves {
                0 | 1 => (1, "1 wave".into()),
                2..=4 => (waves, format!("{waves} waves")),
                _ => (5, "5 waves or more".into()),
            }
        }
        (_, SplitPolicy::Even { .. }) => (10, "ragged: even".into()),
        (_, SplitPolicy::Chunk { taper, .. }) => (11 + taper, format!("ragged: chunk, taper {taper}")),
    }
}

/// SMs of the board, or of the target's usual one where the driver did not tell.
fn sms(target: Target, sms: u32) -> u32 {
    if sms == 0 { target.facts().sms } else { sms }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::Candidate;
    use nvkv_db::{KernelRecord, NearTie, RunId, Times, Trial, TrialId, TrialRecord, Winner};
    use nvkv_generator::{Preset, problems, shapes};
    use nvkv_spec::{AppendVariant, GpuEnvironment, Operation, Outcome};

    /// A cell of an append whose variants (threads, blocks a thread) took so many µs.
    fn cell(timed: &[(u32, u32, f64)]) -> Cell {
        let problem = problems(Preset::Quick, &[Operation::Append])[0];
        let shape = shapes(&problem, Preset::Quick)[0];
        let candidate = |&(threads, blocks_per_thread, us): &(u32, u32, f64)| {
            let kernel = KernelRecord {
                target: Target::Sm90a,
                problem,
                variant: Variant::Append(AppendVariant { threads, blocks_per_thread }),
                source_hash: String::new(),
                nvrtc: String::new(),
                generator: String::new(),
                compiled: None,
            };
            let samples = vec![us, us + 1.0, us + 2.0];
            let trial = Trial {
                id: TrialId(i64::from(threads * 10 + blocks_per_thread)),
                run: RunId(1),
                created_at: String::new(),
                times: Times::of(std::slice::from_ref(&samples)),
                record: TrialRecord {
                    kernel,
                    shape: Some(shape),
                    split: None,
                    is_default: false,
                    outcome: Outcome::Timed { error: 0.0 },
                    bytes: 1,
                    samples,
                    measurements: Vec::new(),
                },
                quarantined: false,
            };
            Candidate { times: trial.times.unwrap(), trial }
        };
        let mut candidates: Vec<Candidate> = timed.iter().map(candidate).collect();
        candidates.sort_by(|a, b| a.times.median_us.total_cmp(&b.times.median_us));
        let Candidate { trial, times } = &candidates[0];
        let winner = Winner {
            trial: trial.id,
            run: trial.run,
            created_at: String::new(),
            carried_from: None,
            environment: GpuEnvironment::default(),
            kernel: trial.record.kernel.clone(),
            shape,
            split: None,
            is_default: false,
            times: *times,
            error: 0.0,
            bytes: 1,
            read_ceiling_gbps: None,
            search: "exhaustive".into(),
            measurement_policy: None,
            default: None,
            near_ties: Vec::new(),
            regret: None,
        };
        Cell { winner, candidates }
    }

    fn measured(cells: Vec<Cell>) -> Measured {
        Measured {
            target: Target::Sm90a,
            environment: GpuEnvironment::default(),
            ceiling_gbps: None,
            cells,
            regrets: Vec::new(),
        }
    }

    #[test]
    fn a_value_costs_its_best_time_over_the_best() {
        // Medians 10, 20, 40 and 10, 12: 128 threads win once and cost 2 once, where their best is 20 of 10.
        let m = measured(vec![
            cell(&[(256, 1, 9.0), (128, 1, 19.0), (128, 2, 39.0)]),
            cell(&[(128, 1, 9.0), (256, 1, 11.0)]),
        ]);
        let axes = contributions(&m, m.cells.iter());
        let value =
            |name: &str, cells, wins, slowdown: f64, worst| Value { name: name.into(), cells, wins, slowdown, worst };
        let [threads, blocks] = &axes[..] else { panic!("{axes:?}") };
        let close = |a: &Value, b: Value| {
            let same = (&a.name, a.cells, a.wins, a.worst) == (&b.name, b.cells, b.wins, b.worst);
            assert!(same && (a.slowdown - b.slowdown).abs() < 1e-12, "{a:?} {b:?}");
        };
        assert_eq!((threads.name, threads.values.len()), ("threads a block", 2));
        close(&threads.values[0], value("128", 2, 1, 2f64.sqrt(), 2.0));
        close(&threads.values[1], value("256", 2, 1, 1.2f64.sqrt(), 1.2));
        assert_eq!((blocks.name, blocks.values.len()), ("16-element blocks a thread", 2));
        close(&blocks.values[0], value("1", 2, 2, 1.0, 1.0));
        close(&blocks.values[1], value("2", 1, 0, 4.0, 4.0));
        // One value tells nothing.
        let one = measured(vec![cell(&[(128, 1, 9.0)])]);
        assert_eq!(contributions(&one, one.cells.iter()), []);
    }

    #[test]
    fn near_ties_are_the_candidates_that_the_database_names() {
        let mut cell = cell(&[(128, 1, 10.0), (128, 2, 12.9), (256, 1, 13.1)]);
        assert_eq!(cell.near_ties().count(), 0);
        let Candidate { trial, times } = &cell.candidates[1];
        let tie = NearTie { kernel_id: trial.record.kernel.key().kernel_id, split: trial.record.split, times: *times };
        cell.winner.near_ties.push(tie);
        let ties: Vec<_> = cell.near_ties().map(|tie| tie.trial.record.kernel.variant.key()).collect();
        assert_eq!(ties, ["w4-e2"]);
    }
}
