//! How well buckets serve: the winner of a bucket beside the best kernel, at shapes between the buckets.

use crate::contest::{Contender, Contest, Field, Role, contenders, decide};
use crate::row::{EnvironmentRow, KernelRow, kernel_id};
use crate::{Db, DbError, KernelRecord, Times, TrialId, WinnerFilter};
use nvkv_spec::bucket::{MOST_REGRET, speaks_for};
use nvkv_spec::{GpuEnvironment, KernelId, Problem, Shape, SplitPolicy, Target, Variant};
use serde::Serialize;
use sqlx::types::Json;
use sqlx::{FromRow, SqliteConnection};
use std::collections::{HashMap, HashSet};

/// A kernel and split as timed at one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The trial.
    pub trial: TrialId,
    /// The kernel.
    pub kernel_id: KernelId,
    /// Split policy of the launch; none for append.
    pub split: Option<SplitPolicy>,
    /// Its times.
    pub times: Times,
}

/// A bucket's winner at a shape at the bucket's border, beside the best of all that were timed there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Regret {
    /// Compile target.
    pub target: Target,
    /// Where it was measured; of several boards of this model and driver the first.
    pub environment: GpuEnvironment,
    /// The problem.
    pub problem: Problem,
    /// The shape at which the winner was chosen.
    pub bucket: Shape,
    /// The shape that the bucket serves, or served until it was split.
    pub shape: Shape,
    /// The bucket's winner at [`Self::shape`], with what its split policy becomes there ([`Problem::split_at`]).
    pub winner: Measured,
    /// The one of the lowest median there.
    pub best: Measured,
    /// Whether that shape is a bucket of its own now.
    pub is_split: bool,
}

impl Regret {
    /// How much slower the bucket's winner is, as a share of the best median: `winner / best - 1`.
    pub fn share(&self) -> f64 {
        share(&self.winner.times, &self.best.times)
    }

    /// Whether the best is not faster beyond noise.
    pub fn is_noise(&self) -> bool {
        !self.best.times.beats(&self.winner.times)
    }

    /// Whether it is more than a bucket may have.
    pub fn is_too_much(&self) -> bool {
        self.share() > MOST_REGRET
    }
}

fn share(winner: &Times, best: &Times) -> f64 {
    winner.median_us / best.median_us - 1.0
}

/// A kernel and split that may be the best between buckets, since it is one of the best at some.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// The kernel.
    pub kernel: KernelRecord,
    /// Split policy of the launch; none for append.
    pub split: Option<SplitPolicy>,
    /// Largest relative L2 error over the verification cases.
    pub error: f64,
    /// What it is at which buckets.
    pub at: Vec<(Shape, Part)>,
}

/// What a kernel is at a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The winner.
    Winner,
    /// A near tie, measured in as many rounds as the winner.
    Near,
    /// The default, and neither of these.
    Default,
}

/// What is known of the buckets of some problems.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// The kernels and splits that win them, nearly win them or are their default, each once, in the order recorded: those of
    /// the run-offs that are still ahead.
    pub serving: Vec<Serving>,
    /// What [`Db::regrets`] says of them.
    pub regrets: Vec<Regret>,
}

impl Db {
    /// Each bucket's winner at each shape that was held out there, or split from it, in order of problem, bucket and shape.
    /// A bucket is that of `filter.shape` where one is given.
    pub fn regrets(&self, filter: &WinnerFilter) -> Result<Vec<Regret>, DbError> {
        self.run(async |c| {
            let field = contenders(c, filter).await?;
            let contests = decide(&field.at_buckets);
            let named = Named::new(c, &contests).await?;
            regrets(c, filter, served(&field, &contests, &named)?, &named.shapes).await
        })
    }

    /// The same with the kernels that may be the best between the buckets.
    pub fn buckets(&self, filter: &WinnerFilter) -> Result<Buckets, DbError> {
        self.run(async |c| {
            let field = contenders(c, filter).await?;
            let contests = decide(&field.at_buckets);
            let named = Named::new(c, &contests).await?;
            let regrets = regrets(c, filter, served(&field, &contests, &named)?, &named.shapes).await?;
            Ok(Buckets { serving: serving(c, &contests, &named.shapes).await?, regrets })
        })
    }

    /// Makes `shape` a bucket of `problem`, split from the bucket `from`; one that is a bucket already stays as it is. The
    /// kernels that were timed there while it was held out compete for it from then on.
    pub fn split_bucket(
        &mut self,
        target: Target,
        problem: &Problem,
        shape: &Shape,
        from: &Shape,
    ) -> Result<(), DbError> {
        self.run(async |c| {
            sqlx::query(
                "INSERT INTO buckets (target, problem, shape, split_from)
                 VALUES (?, (SELECT id FROM problems WHERE key = ?), (SELECT id FROM shapes WHERE key = ?),
                         (SELECT id FROM shapes WHERE key = ?)) ON CONFLICT DO NOTHING",
            )
            .bind(target.name())
            .bind(problem.key())
            .bind(shape.key())
            .bind(from.key())
            .execute(c)
            .await
            .map(drop)
        })
    }
}

async fn regrets(
    c: &mut SqliteConnection,
    filter: &WinnerFilter,
    served: Vec<Served<'_>>,
    shapes: &HashMap<i64, Shape>,
) -> Result<Vec<Regret>, sqlx::Error> {
    let rows: Vec<(i64, Json<Problem>)> = sqlx::query_as("SELECT id, json FROM problems").fetch_all(&mut *c).await?;
    let problems: HashMap<i64, Problem> = rows.into_iter().map(|(id, problem)| (id, problem.0)).collect();
    let rows: Vec<PlatformRow> = sqlx::query_as("SELECT * FROM environments").fetch_all(c).await?;
    let places: HashMap<i64, GpuEnvironment> = rows.into_iter().map(|row| (row.id, row.environment.into())).collect();
    let mut regrets = Vec::new();
    for served in served {
        let place = served.at.place;
        let named = (places.get(&place.environment), problems.get(&place.problem), shapes.get(&place.shape));
        let (Some(environment), Some(&problem), Some(&shape)) = named else { continue };
        regrets.push(Regret {
            target: filter.target,
            environment: environment.clone(),
            problem,
            bucket: served.bucket,
            shape,
            winner: measured(served.at)?,
            best: measured(served.best)?,
            is_split: served.at.role != Role::HeldOut,
        });
    }
    regrets.retain(|regret| filter.shape.is_none_or(|shape| shape == regret.bucket));
    regrets.sort_by_key(|r| {
        (r.problem.key(), r.bucket, r.shape, r.environment.name.clone(), r.environment.driver.clone())
    });
    Ok(regrets)
}

async fn serving(
    c: &mut SqliteConnection,
    contests: &[Contest<'_>],
    shapes: &HashMap<i64, Shape>,
) -> Result<Vec<Serving>, sqlx::Error> {
    let mut parts: HashMap<i64, (Shape, Part)> = HashMap::new();
    for Contest { winner, default, near } in contests {
        let Some(&bucket) = shapes.get(&winner.place.shape) else { continue };
        let near = near.iter().filter(|near| near.times.rounds >= winner.times.rounds);
        parts.extend(default.map(|default| (default.trial, (bucket, Part::Default))));
        parts.extend(near.map(|near| (near.trial, (bucket, Part::Near))));
        parts.insert(winner.trial, (bucket, Part::Winner));
    }
    let trials = Json(parts.keys().collect::<Vec<_>>());
    let rows: Vec<ServingRow> = sqlx::query_as(SERVING).bind(trials).fetch_all(c).await?;
    let mut all: Vec<Serving> = Vec::new();
    for row in rows {
        let (kernel, split, part) = (row.kernel.record()?, row.split, parts.get(&row.trial));
        match all.iter_mut().find(|s| s.split == split && s.kernel == kernel) {
            Some(known) => known.at.extend(part),
            None => all.push(Serving { kernel, split, error: row.error, at: part.into_iter().copied().collect() }),
        }
    }
    Ok(all)
}

/// Trials by their kernels and splits.
const SERVING: &str = "
    SELECT t.id AS trial, t.error, p.json AS split, k.*
    FROM json_each(?1) AS w
    JOIN trials AS t ON t.id = w.value
    JOIN kernel_records AS k ON k.kernel = t.kernel
    LEFT JOIN splits AS p ON p.id = t.split
    ORDER BY t.id";

#[derive(FromRow)]
struct ServingRow {
    trial: i64,
    error: f64,
    #[sqlx(json(nullable))]
    split: Option<SplitPolicy>,
    #[sqlx(flatten)]
    kernel: KernelRow,
}

#[derive(FromRow)]
struct PlatformRow {
    id: i64,
    #[sqlx(flatten)]
    environment: EnvironmentRow,
}

/// A bucket's winner at another shape.
struct Served<'a> {
    bucket: Shape,
    /// The winner at the bucket.
    winner: &'a Contender,
    /// The same kernel at the other shape, as it is launched there.
    at: &'a Contender,
    /// The best there.
    best: &'a Contender,
}

/// What was measured of each bucket: at shapes that are held out, for the buckets that these speak for; at a bucket that was
/// split from another one, for that one.
fn served<'a>(
    field: &'a Field,
    contests: &[Contest<'a>],
    Named { shapes, sms, kernels }: &Named,
) -> Result<Vec<Served<'a>>, sqlx::Error> {
    let mut winners: HashMap<(i64, i64), Vec<(Shape, &Contender)>> = HashMap::new();
    for Contest { winner, .. } in contests {
        let of = winners.entry((winner.place.environment, winner.place.problem)).or_default();
        of.extend(shapes.get(&winner.place.shape).map(|&shape| (shape, *winner)));
    }
    let split = field.at_buckets.chunk_by(|a, b| a.place == b.place);
    let held_out = field.held_out.chunk_by(|a, b| a.place == b.place);
    let mut all = Vec::new();
    for of_place in split.chain(held_out) {
        let (place, role) = (of_place[0].place, of_place[0].role);
        let Some(winners) = winners.get(&(place.environment, place.problem)) else { continue };
        let buckets: Vec<Shape> = match (role, shapes.get(&place.shape)) {
            (Role::HeldOut, Some(shape)) => speaks_for(&winners.iter().map(|(s, _)| *s).collect::<Vec<_>>(), shape),
            (Role::SplitFrom(bucket), _) => shapes.get(&bucket).copied().into_iter().collect(),
            _ => continue,
        };
        let best = of_place.iter().min_by(|a, b| a.times.median_us.total_cmp(&b.times.median_us));
        for (bucket, winner) in winners.iter().filter(|(shape, _)| buckets.contains(shape)) {
            let known = (shapes.get(&place.shape), kernels.get(&winner.kernel_id), sms.get(&place.environment));
            let split = match (winner.split_policy()?, known) {
                (Some(split), (Some(shape), Some((problem, variant)), Some(&sms))) => {
                    Some(problem.split_at(split, bucket, shape, variant.filling(problem, sms)))
                }
                _ => None,
            };
            let mut at = None;
            for contender in of_place.iter().filter(|c| c.kernel_id == winner.kernel_id) {
                if contender.split_policy()? == split {
                    at = Some(contender);
                    break;
                }
            }
            all.extend(at.zip(best).map(|(at, best)| Served { bucket: *bucket, winner, at, best }));
        }
    }
    Ok(all)
}

/// The regret of each bucket, by its winner's trial: the largest that was measured at the shapes that it still serves.
pub(crate) async fn worst(
    c: &mut SqliteConnection,
    field: &Field,
    contests: &[Contest<'_>],
) -> Result<HashMap<i64, f64>, sqlx::Error> {
    if field.held_out.is_empty() {
        return Ok(HashMap::new());
    }
    let mut worst = HashMap::new();
    for Served { winner, at, best, .. } in served(field, contests, &Named::new(c, contests).await?)? {
        if at.role == Role::HeldOut {
            let regret = share(&at.times, &best.times);
            worst.entry(winner.trial).and_modify(|known: &mut f64| *known = known.max(regret)).or_insert(regret);
        }
    }
    Ok(worst)
}

/// What rows stand for.
struct Named {
    /// All shapes.
    shapes: HashMap<i64, Shape>,
    /// SMs of all environments.
    sms: HashMap<i64, u32>,
    /// What the winners' kernels are.
    kernels: HashMap<KernelId, (Problem, Variant)>,
}

impl Named {
    async fn new(c: &mut SqliteConnection, contests: &[Contest<'_>]) -> Result<Self, sqlx::Error> {
        let shapes: Vec<(i64, Json<Shape>)> = sqlx::query_as("SELECT id, json FROM shapes").fetch_all(&mut *c).await?;
        let sms: Vec<(i64, u32)> = sqlx::query_as("SELECT id, sms FROM environments").fetch_all(&mut *c).await?;
        let winners: HashSet<&KernelId> = contests.iter().map(|contest| &contest.winner.kernel_id).collect();
        let kernels: Vec<(String, Json<Problem>, Json<Variant>)> = sqlx::query_as(
            "SELECT v.kernel_id, p.json, v.json FROM variants AS v JOIN problems AS p ON p.id = v.problem
             WHERE v.kernel_id IN (SELECT value FROM json_each(?))",
        )
        .bind(Json(winners))
        .fetch_all(c)
        .await?;
        let named = |(id, problem, variant): (String, Json<Problem>, Json<Variant>)| {
            Ok((kernel_id(id)?, (problem.0, variant.0)))
        };
        Ok(Self {
            shapes: shapes.into_iter().map(|(id, shape)| (id, shape.0)).collect(),
            sms: sms.into_iter().collect(),
            kernels: kernels.into_iter().map(named).collect::<Result<_, sqlx::Error>>()?,
        })
    }
}

fn measured(contender: &Contender) -> Result<Measured, sqlx::Error> {
    let Contender { trial, kernel_id, times, .. } = contender;
    let (trial, kernel_id, times) = (TrialId(*trial), kernel_id.clone(), *times);
    Ok(Measured { trial, kernel_id, split: contender.split_policy()?, times })
}
