//! Who wins: of all trials of one target, environment, problem and shape the one to use, and those near to it.

use crate::WinnerFilter;
use crate::row::undecodable;
use crate::times::Times;
use crate::winners::problem_ids;
use nvkv_spec::{KernelId, SplitPolicy};
use sqlx::types::Json;
use sqlx::{FromRow, SqliteConnection};
use std::collections::{HashMap, HashSet};

/// A timed trial that may win: a row of the view `contenders`.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) trial: i64,
    pub(crate) place: Place,
    pub(crate) role: Role,
    pub(crate) kernel_id: KernelId,
    pub(crate) split: Option<Split>,
    pub(crate) is_default: bool,
    pub(crate) times: Times,
}

impl Contender {
    /// Its split policy; none for append.
    pub(crate) fn split_policy(&self) -> Result<Option<SplitPolicy>, sqlx::Error> {
        let split = self.split.as_ref().map(|split| serde_json::from_str(&split.json)).transpose();
        split.map_err(|e| undecodable("split", e))
    }
}

/// Where it was timed, by rows of `environments`, `problems` and `shapes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) environment: i64,
    pub(crate) problem: i64,
    pub(crate) shape: i64,
}

/// What a place is measured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is a bucket that a tune was asked for.
    Asked,
    /// It is a bucket, split from another one, of this row of `shapes`.
    SplitFrom(i64),
    /// It is served from buckets.
    HeldOut,
}

/// A split policy by its key, and as JSON.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Split {
    pub(crate) key: String,
    pub(crate) json: String,
}

/// The outcome at one place.
pub(crate) struct Contest<'a> {
    /// Who wins.
    pub(crate) winner: &'a Contender,
    /// The default, where it was timed.
    pub(crate) default: Option<&'a Contender>,
    /// Those near to the fastest, fastest first; the winner is one of them.
    pub(crate) near: Vec<&'a Contender>,
}

/// The contenders of a target, in order of their places.
#[derive(Default)]
pub(crate) struct Field {
    /// Those at buckets.
    pub(crate) at_buckets: Vec<Contender>,
    /// Those at shapes that are held out.
    pub(crate) held_out: Vec<Contender>,
}

/// All contenders of the problems and the environment of `filter`; its shape is left aside, since who wins at one shape
/// depends on the others.
pub(crate) async fn contenders(c: &mut SqliteConnection, filter: &WinnerFilter) -> Result<Field, sqlx::Error> {
    let mut contenders: Vec<Contender> = Vec::new();
    for problem in problem_ids(c, filter).await? {
        let rows: Vec<Row> = sqlx::query_as(CONTENDERS)
            .bind(filter.target.name())
            .bind(problem)
            .bind(filter.environment.as_ref().map(|e| &e.name))
            .bind(filter.environment.as_ref().map(|e| e.sms))
            .bind(filter.environment.as_ref().map(|e| &e.driver))
            .fetch_all(&mut *c)
            .await?;
        for row in rows {
            contenders.extend(row.contender()?);
        }
    }
    contenders.sort_by_key(|contender| contender.place);
    let (held_out, at_buckets) = contenders.into_iter().partition(|contender| contender.role == Role::HeldOut);
    Ok(Field { at_buckets, held_out })
}

const CONTENDERS: &str = "
    SELECT w.trial, w.environment, w.problem, w.shape, w.kernel_id, w.is_default, w.rounds,
           p.key AS split_key, p.json AS split_json, b.shape IS NOT NULL AS is_bucket, b.split_from
    FROM contenders AS w
    LEFT JOIN splits AS p ON p.id = w.split
    LEFT JOIN buckets AS b ON b.target = w.target AND b.problem = w.problem AND b.shape = w.shape
    WHERE w.target = ?1 AND (?2 IS NULL OR w.problem = ?2)
      AND (?3 IS NULL OR w.environment IN (
          SELECT id FROM environments WHERE name = ?3 AND sms = ?4 AND driver = ?5))";

#[derive(FromRow)]
struct Row {
    trial: i64,
    environment: i64,
    problem: i64,
    shape: i64,
    kernel_id: String,
    is_default: bool,
    rounds: Json<Vec<Vec<f64>>>,
    split_key: Option<String>,
    split_json: Option<String>,
    is_bucket: bool,
    split_from: Option<i64>,
}

impl Row {
    fn contender(self) -> Result<Option<Contender>, sqlx::Error> {
        let Some(times) = Times::of(&self.rounds) else { return Ok(None) };
        Ok(Some(Contender {
            trial: self.trial,
            place: Place { environment: self.environment, problem: self.problem, shape: self.shape },
            role: match self.split_from {
                _ if !self.is_bucket => Role::HeldOut,
                Some(bucket) => Role::SplitFrom(bucket),
                None => Role::Asked,
            },
            kernel_id: crate::row::kernel_id(self.kernel_id)?,
            split: self.split_key.zip(self.split_json).map(|(key, json)| Split { key, json }),
            is_default: self.is_default,
            times,
        }))
    }
}

/// Decides each place of `all`, which are in order of their places.
///
/// The fastest is the one whose time is surely short (the lowest [`Times::upper_us`]), so that a few lucky samples
/// win nothing. If it does not beat the default ([`Times::beats_default`]), the default wins. Else those compete that
/// are within noise of the fastest, were measured as well, and beat the default themselves: of these the kernel that is
/// in this position at the most shapes of its environment wins, then by kernel id and split.
pub(crate) fn decide(all: &[Contender]) -> Vec<Contest<'_>> {
    let heats: Vec<Heat> = all.chunk_by(|a, b| a.place == b.place).filter_map(Heat::new).collect();
    let mut shapes = HashMap::<(i64, &KernelId), usize>::new();
    for heat in &heats {
        let kernels: HashSet<_> = heat.even.iter().map(|c| &c.kernel_id).collect();
        kernels
            .into_iter()
            .for_each(|kernel| *shapes.entry((heat.fastest.place.environment, kernel)).or_default() += 1);
    }
    let decided = heats.into_iter().map(|Heat { fastest, default, even, near }| {
        let often = |c: &Contender| shapes.get(&(c.place.environment, &c.kernel_id)).copied().unwrap_or(0);
        let order = |a: &&Contender, b: &&Contender| {
            often(b).cmp(&often(a)).then_with(|| (&a.kernel_id, &a.split).cmp(&(&b.kernel_id, &b.split)))
        };
        Contest { winner: even.into_iter().min_by(order).unwrap_or(fastest), default, near }
    });
    decided.collect()
}

/// The trials at one place, compared.
struct Heat<'a> {
    fastest: &'a Contender,
    default: Option<&'a Contender>,
    /// Those that may win.
    even: Vec<&'a Contender>,
    near: Vec<&'a Contender>,
}

impl<'a> Heat<'a> {
    fn new(of_place: &'a [Contender]) -> Option<Self> {
        let by_time = |a: &&Contender, b: &&Contender| a.times.upper_us().total_cmp(&b.times.upper_us());
        let fastest = of_place.iter().min_by(by_time)?;
        let default = of_place.iter().filter(|c| c.is_default).max_by_key(|c| c.trial);
        let even = match default {
            Some(default) if !fastest.times.beats_default(&default.times) => vec![default],
            _ => of_place.iter().filter(|c| may_win(c, fastest, default)).collect(),
        };
        let mut near: Vec<_> = of_place.iter().filter(|c| fastest.times.is_near(&c.times)).collect();
        near.sort_by(|a, b| a.times.median_us.total_cmp(&b.times.median_us));
        Some(Self { fastest, default, even, near })
    }
}

/// Neither few rounds nor scatter of its own make a trial one that may win: it counts as measured as surely as the fastest.
fn may_win(contender: &Contender, fastest: &Contender, default: Option<&Contender>) -> bool {
    let (times, best) = (&contender.times, &fastest.times);
    let as_sure = Times { error_us: times.error_us.min(best.error_us), ..*times };
    let beats_default = default.is_none_or(|default| times.beats_default(&default.times));
    !best.beats(&as_sure) && times.rounds >= best.rounds && beats_default
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::times::tests::{measured, normal};

    const SHAPES: i64 = 200;
    const KERNELS: i64 = 30;

    /// A tune of some kernels of one problem: at each shape a kernel is up to 6 % slower than the fastest, another one
    /// each time, one of them is the default, and what this tune alone is off by is 0.2 %.
    fn tune(state: &mut u64) -> Vec<Contender> {
        let mut one = |shape: i64, kernel: i64| {
            let slower = 0.002 * ((kernel * 7 + shape * 11) % KERNELS) as f64;
            let off = 0.002 * normal(state);
            Contender {
                trial: shape * KERNELS + kernel,
                place: Place { environment: 1, problem: 1, shape },
                role: Role::Asked,
                kernel_id: crate::row::kernel_id(format!("kernel{kernel}")).unwrap(),
                split: None,
                is_default: kernel == shape % KERNELS,
                times: measured(50.0 * (1.0 + slower + off), state),
            }
        };
        (0..SHAPES).flat_map(|shape| (0..KERNELS).map(move |kernel| (shape, kernel))).map(|(s, k)| one(s, k)).collect()
    }

    #[test]
    fn two_tunes_of_the_same_thing_agree_at_99_of_100_shapes() {
        let mut state = 3;
        let (first, second) = (tune(&mut state), tune(&mut state));
        let (first, second) = (decide(&first), decide(&second));
        let is_near = |a: &Contest, b: &Contest| b.near.iter().any(|near| near.kernel_id == a.winner.kernel_id);
        let agree = first.iter().zip(&second).filter(|(a, b)| is_near(a, b) && is_near(b, a)).count();
        assert!(agree * 100 >= first.len() * 99, "{agree} of {}", first.len());
        // Not since everything is near: more than half of the kernels are told from the fastest.
        let near: usize = first.iter().map(|contest| contest.near.len()).sum();
        assert!(near < first.len() * KERNELS as usize / 2, "{near}");
        let beats = |c: &&Contest| {
            c.default.is_some_and(|d| c.winner.trial == d.trial || c.winner.times.beats_default(&d.times))
        };
        assert_eq!(first.iter().filter(beats).count(), first.len(), "never worse than the default");
    }

    /// A default whose rounds fall into two classes is 4 % slower at its median and never faster: it must not win because
    /// its own median is hard to tell.
    #[test]
    fn a_default_that_scatters_upwards_is_no_winner() {
        let contender = |trial: i64, rounds: [f64; 5]| Contender {
            trial,
            place: Place { environment: 1, problem: 1, shape: 1 },
            role: Role::Asked,
            kernel_id: crate::row::kernel_id(format!("kernel{trial}")).unwrap(),
            split: None,
            is_default: trial == 0,
            times: Times::of(&rounds.map(|us| vec![us - 0.1, us, us + 0.1])).unwrap(),
        };
        let all = [contender(0, [86.5, 86.3, 86.5, 98.0, 101.0]), contender(1, [83.0, 82.9, 83.1, 83.0, 83.2])];
        assert_eq!(decide(&all)[0].winner.trial, 1);
    }
}
