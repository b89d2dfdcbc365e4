//! Which kernel serves which shape: the database's winners, timed ones first.

use super::space::Case;
use crate::bundle::Trust;
use nvkv_db::{Db, DbError, Emulated, EnvironmentKey, KernelRecord, PredictedWinner, Winner, WinnerFilter};
use nvkv_spec::{Evidence, GpuEnvironment, Lengths, Problem, Shape, SplitPolicy, Target};

/// The kernel for one problem at one shape, and what that rests on.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Verified and timed.
    Timed(Box<Winner>),
    /// Ordered by a model.
    Predicted(Box<PredictedWinner>),
}

/// The choices for every problem and shape of `target` that the database knows. Where a shape was
/// timed on several GPUs, `here` comes first, then the latest; what was timed anywhere comes
/// before what is predicted.
pub fn all(db: &Db, target: Target, here: Option<&GpuEnvironment>) -> Result<Vec<Choice>, DbError> {
    let filter = WinnerFilter::of(target);
    let mut timed = db.winners(&filter)?;
    let here = here.map(EnvironmentKey::from);
    let is_here = |w: &Winner| here.as_ref() == Some(&EnvironmentKey::from(&w.environment));
    timed.sort_by(|a, b| is_here(b).cmp(&is_here(a)).then_with(|| b.trial.cmp(&a.trial)));
    let timed = timed.into_iter().map(|w| Choice::Timed(Box::new(w)));
    let predicted = db.predicted_winners(&filter)?.into_iter().map(|w| Choice::Predicted(Box::new(w)));
    let mut kept: Vec<Choice> = Vec::new();
    for choice in timed.chain(predicted) {
        if !kept.iter().any(|k| (k.problem(), k.shape()) == (choice.problem(), choice.shape())) {
            kept.push(choice);
        }
    }
    kept.sort_by_key(|choice| (choice.problem().key(), sizes(choice.shape())));
    Ok(kept)
}

/// The choices that this run was asked for.
pub fn of_cases(choices: Vec<Choice>, cases: &[Case]) -> Vec<Choice> {
    let asked = |choice: &Choice| {
        cases.iter().any(|(problem, shapes)| *problem == choice.problem() && shapes.contains(&choice.shape()))
    };
    choices.into_iter().filter(asked).collect()
}

/// Shapes in the order that people list them: by batch, then context.
fn sizes(shape: Shape) -> (u32, u32, u32, Lengths) {
    match shape {
        Shape::Decode { batch, context, kv_heads, lengths } => (batch, context, kv_heads, lengths),
        Shape::Append { tokens, kv_heads } => (tokens, 0, kv_heads, Lengths::Equal),
    }
}

/// The evidence of a kernel that no GPU ran.
pub fn of_emulated(emulated: Option<Emulated>) -> Evidence {
    emulated.map_or(Evidence::Predicted, |Emulated { cases, error }| Evidence::Emulated { cases, max_error: error })
}

impl Choice {
    /// What is solved.
    pub fn problem(&self) -> Problem {
        self.kernel().problem
    }

    /// The kernel.
    pub fn kernel(&self) -> &KernelRecord {
        match self {
            Self::Timed(w) => &w.kernel,
            Self::Predicted(w) => &w.kernel,
        }
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Timed(w) => w.shape,
            Self::Predicted(w) => w.shape,
        }
    }

    /// The split policy; none for append.
    pub fn split(&self) -> Option<SplitPolicy> {
        match self {
            Self::Timed(w) => w.split,
            Self::Predicted(w) => w.split,
        }
    }

    /// Whether an engineer without a tuner would have picked the same.
    pub fn is_default(&self) -> bool {
        match self {
            Self::Timed(w) => w.is_default,
            Self::Predicted(w) => w.is_default,
        }
    }

    /// Whether it was timed.
    pub fn trust(&self) -> Trust {
        match self {
            Self::Timed(_) => Trust::Timed,
            Self::Predicted(_) => Trust::Predicted,
        }
    }

    /// Why its kernel may be trusted.
    pub fn evidence(&self) -> Evidence {
        match self {
            Self::Timed(w) => {
                Evidence::VerifiedOnGpu { gpu: w.environment.name.clone(), driver: w.environment.driver.clone() }
            }
            Self::Predicted(w) => of_emulated(w.emulated),
        }
    }

    /// Time of one call, µs: a median, or the model's.
    pub fn us(&self) -> f64 {
        match self {
            Self::Timed(w) => w.times.median_us,
            Self::Predicted(w) => w.predicted_us,
        }
    }

    /// Time of the default at this shape, µs, in the same sense as [`Self::us`].
    pub fn default_us(&self) -> Option<f64> {
        match self {
            Self::Timed(w) => w.default.map(|d| d.median_us),
            Self::Predicted(w) => w.default_predicted_us,
        }
    }
}
