//! One lookup: the winner for a problem and a shape, with how far it can be trusted.

use crate::{Db, DbError, EnvironmentKey, PredictedWinner, Winner, WinnerFilter};
use nvkv_spec::bucket::{NEAR, nearest};
use nvkv_spec::{Problem, Shape, Target};
use serde::Serialize;
use sqlx::types::Json;
use std::cmp::Reverse;
use std::collections::HashMap;

/// What is looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// Compile target.
    pub target: Target,
    /// The problem.
    pub problem: Problem,
    /// The shape.
    pub shape: Shape,
    /// Where it must have been measured; where none is given, the most recent measurement answers.
    pub environment: Option<EnvironmentKey>,
}

/// The answer, with its trust spelled out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "trust", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "one answer a process: size does not matter")]
pub enum Answer {
    /// Timed at this very shape.
    Exact {
        /// The winner.
        winner: Winner,
    },
    /// Verified, and timed at another shape of the same problem: the nearest one.
    Bucket {
        /// The winner at the shape it was timed at, `winner.shape`.
        winner: Winner,
        /// How far that shape is, see [`Shape::distance`].
        distance: f64,
    },
    /// Compiled only; the order is a model's.
    Predicted {
        /// The model's pick at `winner.shape`.
        winner: PredictedWinner,
        /// How far that shape is, 0 where it is the one asked for.
        distance: f64,
    },
    /// Nothing of use.
    Miss {
        /// What is missing, what exists instead, and the next step.
        why: String,
        /// The tuned or compiled problem of this target and kind (attention, or append) that differs in the fewest fields.
        nearest: Option<Problem>,
    },
}

/// No tuned shape is near.
fn far(query: &Query, shape: &Shape, distance: f64) -> Answer {
    let why = format!(
        "no tuned shape is within {NEAR} doublings of {}: the nearest is {}, {distance:.1} away; an engine takes the \
         problem's default kernel there",
        query.shape.key(),
        shape.key(),
    );
    Answer::Miss { why, nearest: None }
}

impl Db {
    /// The best answer to `query`: exact, else the nearest tuned shape, else predicted; a miss where none is within [`NEAR`].
    /// Of equally near shapes the smaller answers, of equal shapes the later trial.
    pub fn query(&self, query: &Query) -> Result<Answer, DbError> {
        let filter = WinnerFilter {
            target: query.target,
            environment: query.environment.clone(),
            problems: vec![query.problem],
            shape: None,
        };
        let mut winners = self.winners(&filter)?;
        winners.sort_by_key(|w| Reverse(w.trial));
        if let Some((distance, winner)) = nearest(winners, |w| w.shape, &query.shape) {
            if distance > NEAR {
                return Ok(far(query, &winner.shape, distance));
            }
            return Ok(if distance == 0.0 { Answer::Exact { winner } } else { Answer::Bucket { winner, distance } });
        }
        let mut predicted = self.predicted_winners(&filter)?;
        predicted.sort_by_key(|w| Reverse(w.trial));
        if let Some((distance, winner)) = nearest(predicted, |w| w.shape, &query.shape) {
            if distance > NEAR {
                return Ok(far(query, &winner.shape, distance));
            }
            return Ok(Answer::Predicted { winner, distance });
        }
        self.miss(query)
    }

    /// Why `query` has no answer.
    fn miss(&self, query: &Query) -> Result<Answer, DbError> {
        let recorded = self.recorded(query.target)?;
        let related = recorded.keys().filter_map(|p| Some((p.differences(&query.problem)?, p.key(), *p)));
        let nearest = related.min().map(|(.., problem)| problem);
        let why = match (recorded.get(&query.problem), nearest) {
            (Some(outcomes), _) => {
                let place = if query.environment.is_some() { " on this GPU and driver" } else { "" };
                format!("no usable trial of {}{place}; recorded: {}", query.problem.key(), outcomes.join(", "))
            }
            (None, Some(nearest)) => {
                format!(
                    "{} was never tuned for {}; the nearest is {}",
                    query.problem.key(),
                    query.target,
                    nearest.key()
                )
            }
            (None, None) => {
                let operation = query.problem.operation();
                format!("no {operation} was tuned for {0}; `nvkv-tune --arch {0} --op {operation}` does", query.target)
            }
        };
        Ok(Answer::Miss { why, nearest })
    }

    /// The problems of `target` with any trial, each with its counts by outcome and place.
    fn recorded(&self, target: Target) -> Result<HashMap<Problem, Vec<String>>, DbError> {
        self.run(async |connection| {
            let rows: Vec<(Json<Problem>, String)> = sqlx::query_as(
                "SELECT k.problem, count(*) || ' ' || t.outcome || ' on '
                            || coalesce(e.name || ' (driver ' || e.driver || ')', 'no GPU')
                 FROM trials AS t
                 JOIN kernel_records AS k ON k.kernel = t.kernel
                 JOIN runs AS r ON r.id = t.run
                 LEFT JOIN environments AS e ON e.id = r.environment
                 WHERE k.target = ?
                 GROUP BY k.problem, t.outcome, e.id
                 ORDER BY t.outcome, e.id",
            )
            .bind(target.name())
            .fetch_all(connection)
            .await?;
            let mut recorded = HashMap::<_, Vec<_>>::new();
            for (problem, outcomes) in rows {
                recorded.entry(problem.0).or_default().push(outcomes);
            }
            Ok(recorded)
        })
    }
}
