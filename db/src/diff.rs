//! Two databases compared: what became faster or slower, beyond noise, and whether they agree on who wins.

use crate::times::Times;
use crate::{Db, DbError, EnvironmentKey, NearTie, Winner, WinnerFilter};
use nvkv_spec::{KernelId, Shape, SplitPolicy, Target};
use serde::Serialize;
use std::collections::BTreeMap;

/// What the samples say of B against A. (As the verdicts of nvbench's `nvbench_compare`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B takes longer, beyond noise.
    Slower,
    /// Within noise, and that leaves room for a difference beyond the threshold: more samples would tell.
    Ambiguous,
    /// B takes less time, beyond noise.
    Faster,
    /// Within noise, and not beyond the threshold; or the samples are the same ones.
    Same,
}

/// The winner of one database.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The kernel.
    pub kernel_id: KernelId,
    /// Its split policy; none for append.
    pub split: Option<SplitPolicy>,
    /// Its times.
    pub times: Times,
    /// Name of the GPU that timed it.
    pub gpu: String,
    /// Board and driver.
    pub environment: EnvironmentKey,
    /// Which launches its run timed: a guided search may have passed over a faster one.
    pub search: String,
    #[serde(skip)]
    near_ties: Vec<NearTie>,
}

/// One problem and shape in both databases.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// A's winner.
    pub a: Side,
    /// B's winner.
    pub b: Side,
    /// B against A.
    pub verdict: Verdict,
    /// B's median over A's.
    pub ratio: f64,
    /// Whether both were timed on the same board with the same driver.
    pub same_gpu: bool,
    /// Whether kernel and split are the same.
    pub same_winner: bool,
    /// Whether the winner is the same, or each one's is a near tie in the other.
    pub agree: bool,
}

/// A target's problem and shape, and what the two databases know of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pairing {
    /// Compile target.
    pub target: Target,
    /// [`nvkv_spec::Problem::key`].
    pub problem: String,
    /// The shape.
    pub shape: Shape,
    /// The comparison; none where one database lacks it.
    pub difference: Option<Difference>,
    /// Whether it is in A alone (true) or B alone (false); none where it is in both.
    pub only_in_a: Option<bool>,
}

/// Compares the winners of `b` with those of `a` at every problem and shape that either has. A difference within noise
/// is the same where it cannot well be beyond `threshold` (0.03 is 3 %). Where a database has several GPUs, one that
/// both have is compared; else the one that was measured last.
pub fn diff(a: &Db, b: &Db, threshold: f64) -> Result<Vec<Pairing>, DbError> {
    let mut pairings = Vec::new();
    for &target in Target::ALL {
        let (of_a, of_b) = (by_shape(a, target)?, by_shape(b, target)?);
        let mut keys: Vec<_> = of_a.keys().chain(of_b.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let (problem, shape) = key.clone();
            let pairing = Pairing { target, problem, shape, difference: None, only_in_a: None };
            pairings.push(match (of_a.get(key), of_b.get(key)) {
                (Some(a), Some(b)) => {
                    Pairing { difference: pair(a, b).map(|(a, b)| compare(a, b, threshold)), ..pairing }
                }
                (a, _) => Pairing { only_in_a: Some(a.is_some()), ..pairing },
            });
        }
    }
    Ok(pairings)
}

fn by_shape(db: &Db, target: Target) -> Result<BTreeMap<(String, Shape), Vec<Winner>>, DbError> {
    let mut winners = BTreeMap::<_, Vec<_>>::new();
    for winner in db.winners(&WinnerFilter::of(target))? {
        winners.entry((winner.kernel.problem.key(), winner.shape)).or_default().push(winner);
    }
    Ok(winners)
}

/// The winners of two databases at one place that are compared.
fn pair<'a>(a: &'a [Winner], b: &'a [Winner]) -> Option<(&'a Winner, &'a Winner)> {
    let environment = |winner: &Winner| EnvironmentKey::from(&winner.environment);
    let all = || a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    let last = |(a, b): &(&Winner, &Winner)| (a.trial, b.trial);
    let same = all().filter(|(a, b)| environment(a) == environment(b)).max_by_key(last);
    same.or_else(|| all().max_by_key(last))
}

fn compare(a: &Winner, b: &Winner, threshold: f64) -> Difference {
    let verdict = if is_one_trial(a, b) { Verdict::Same } else { verdict(&a.times, &b.times, threshold) };
    let (a, b) = (Side::from(a), Side::from(b));
    let same_winner = (&a.kernel_id, a.split) == (&b.kernel_id, b.split);
    Difference {
        verdict,
        ratio: b.times.median_us / a.times.median_us,
        same_gpu: a.environment == b.environment,
        same_winner,
        agree: same_winner || (a.is_near_in(&b) && b.is_near_in(&a)),
        a,
        b,
    }
}

/// Whether both winners rest on the samples of one trial, as in copies of a database: the same launch, on the same board at
/// the same moment, with the same times.
fn is_one_trial(a: &Winner, b: &Winner) -> bool {
    let launch = |winner: &Winner| (winner.kernel.key(), winner.split);
    launch(a) == launch(b) && (&a.environment, &a.created_at, a.times) == (&b.environment, &b.created_at, b.times)
}

fn verdict(a: &Times, b: &Times, threshold: f64) -> Verdict {
    match () {
        () if a.beats_in_another_run(b) => Verdict::Slower,
        () if b.beats_in_another_run(a) => Verdict::Faster,
        () if a.largest_gap(b) > threshold * a.median_us => Verdict::Ambiguous,
        () => Verdict::Same,
    }
}

impl Side {
    fn is_near_in(&self, other: &Self) -> bool {
        other.near_ties.iter().any(|near| (&near.kernel_id, near.split) == (&self.kernel_id, self.split))
    }
}

impl From<&Winner> for Side {
    fn from(winner: &Winner) -> Self {
        Self {
            kernel_id: winner.kernel.key().kernel_id,
            split: winner.split,
            times: winner.times,
            gpu: winner.environment.name.clone(),
            environment: EnvironmentKey::from(&winner.environment),
            search: winner.search.clone(),
            near_ties: winner.near_ties.clone(),
        }
    }
}
