//! The kernel for a problem at a shape, how it is launched there, and how far the choice can be trusted.

use crate::bundle::Kernel;
use crate::index::{Row, Rows};
use crate::runtime::{Entry, Runtime};
use nvkv_spec::abi::COUNTER_BYTES;
pub use nvkv_spec::bucket::NEAR;
use nvkv_spec::{
    DecodeProblem, Filling, GRID_X, GRID_YZ, Launch, Problem, Shape, SplitLaunch, SplitPolicy, Target, doublings,
};
use serde::Serialize;

/// Split counters that a workspace has room for.
const COUNTERS: u64 = COUNTER_BYTES / size_of::<u32>() as u64;

/// Where a choice comes from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "trust", rename_all = "snake_case")]
pub enum Trust {
    /// Verified and timed at this very shape.
    Exact,
    /// Verified, and timed at the nearest tuned shape, or at another window.
    Bucket {
        /// Distance of that shape in doublings, those of the window among them, at most [`NEAR`].
        distance: f64,
        /// How much slower than the best kernel it was measured to be at shapes it serves, as a share; none where nobody
        /// measured that.
        regret: Option<f64>,
    },
    /// Right by the emulator or by compiling alone; the order is a model's, at the nearest shape.
    Predicted {
        /// Distance of that shape in doublings, those of the window among them, at most [`NEAR`].
        distance: f64,
    },
    /// The problem's default variant: no tuned shape is near.
    Fallback,
}

impl Trust {
    /// Its name: `exact`, `bucket`, `predicted` or `fallback`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Bucket { .. } => "bucket",
            Self::Predicted { .. } => "predicted",
            Self::Fallback => "fallback",
        }
    }
}

/// A kernel for one problem at one shape.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// How it is launched at the shape asked for, and the workspace it needs.
    pub launch: Launch,
    /// Where the choice comes from.
    pub trust: Trust,
    pub(crate) index: u32,
}

impl Found<'_> {
    /// The kernel's place in [`Runtime::kernels`].
    pub fn index(&self) -> usize {
        self.index as usize
    }
}

/// Why nothing was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Miss {
    /// The bundle has no kernel of the problem.
    #[error(
        "the bundle for {target} has no kernel for {}{}; `{command}` tunes one",
        problem.key(),
        nearest.map_or(String::new(), |near| format!(" (the nearest that it has is {})", near.key()))
    )]
    NoKernel {
        /// What was asked for.
        problem: Problem,
        /// The bundle's target.
        target: Target,
        /// The problem of the bundle that differs in the fewest fields.
        nearest: Option<Problem>,
        /// What tunes it.
        command: String,
    },
    /// A decode was asked for at the shape of an append, or the other way round.
    #[error(
        "{shape} is no shape of {problem}: decode and fused take batch, context and KV heads, append tokens and KV heads"
    )]
    OtherOperation {
        /// The problem's key.
        problem: String,
        /// The shape's.
        shape: String,
    },
    /// No work.
    #[error(
        "{0} is empty: ask for at least one request (or token) and one KV head, and launch nothing where there is none"
    )]
    Empty(String),
    /// No kernel of the problem can be launched so large.
    #[error("{shape} cannot be launched: {what} is {found}, at most {limit}; split the batch over several launches")]
    TooLarge {
        /// The shape's key.
        shape: String,
        /// What is limited.
        what: &'static str,
        /// How much of it the shape takes.
        found: u32,
        /// The limit.
        limit: u32,
    },
}

/// A found kernel without its borrow: what is remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub kernel: u32,
    pub launch: Launch,
    pub trust: Trust,
}

/// Doublings between the windows of two problems that differ in nothing else; none where they do, or have no window.
/// Kernels of such problems are the same code, each right at any window.
pub(crate) fn windows_apart(a: &Problem, b: &Problem) -> Option<f64> {
    let (Problem::Decode(a), Problem::Decode(b)) = (a, b) else { return None };
    let (from, to) = (a.window?, b.window?);
    let alike = DecodeProblem { window: a.window, ..*b } == *a;
    alike.then(|| doublings(from, to))
}

impl Runtime {
    /// The kernel for `problem` at `shape`: timed there, else timed at the nearest shape, else predicted, else the
    /// problem's default variant; where the bundle lacks the window, the kernels of the nearest one serve. For decode,
    /// `shape.context` is the longest context of any launch, in tokens: lengths are read on the device, so any shorter one
    /// is served by the same launch.
    ///
    /// Never a kernel of another target, numerics class or order of scales: any of them would compute something else.
    pub fn find(&self, problem: &Problem, shape: &Shape) -> Result<Found<'_>, Miss> {
        let found = match self.log.recall(problem, shape) {
            Some(choice) => Ok(choice),
            None => {
                let choice = self.choose(problem, shape);
                // What no tuning could serve is a mistake of the caller, not traffic.
                if matches!(choice, Ok(_) | Err(Miss::NoKernel { .. })) {
                    self.log.remember(problem, shape, choice.as_ref().ok());
                }
                choice
            }
        };
        found.map(|Choice { kernel, launch, trust }| Found {
            kernel: &self.kernels[kernel as usize],
            launch,
            trust,
            index: kernel,
        })
    }

    pub(crate) fn choose(&self, problem: &Problem, shape: &Shape) -> Result<Choice, Miss> {
        let problem = problem.normal();
        let empty = match (&problem, *shape) {
            (Problem::Decode(_), Shape::Decode { batch, kv_heads, .. }) => batch == 0 || kv_heads == 0,
            (Problem::Append(_), Shape::Append { tokens, kv_heads }) => tokens == 0 || kv_heads == 0,
            _ => return Err(Miss::OtherOperation { problem: problem.key(), shape: shape.key() }),
        };
        if empty {
            return Err(Miss::Empty(shape.key()));
        }
        let Some((of, entry)) = self.serving(&problem) else {
            return Err(Miss::NoKernel {
                problem,
                target: self.target,
                nearest: self.nearest_problem(&problem),
                command: crate::tune_command(self.target, &problem, Some(shape)),
            });
        };
        let wanted = self.wanted(entry, &problem, windows_apart(of, &problem).unwrap_or(0.0), shape);
        let others = entry.kernels.iter().map(|&kernel| (kernel, SplitPolicy::WHOLE, Trust::Fallback));
        let mut too_large = None;
        for (kernel, split, trust) in wanted.chain(others) {
            match self.launch(kernel, split, &problem, shape) {
                Ok(launch) => return Ok(Choice { kernel, launch, trust }),
                Err(miss) => too_large = too_large.or(Some(miss)),
            }
        }
        // An entry has a kernel, so there is a reason.
        Err(too_large.unwrap_or_else(|| Miss::Empty(shape.key())))
    }

    /// The kernels that serve `problem`, and the problem that they were tuned for: its own, or the same but for the window.
    pub(crate) fn serving(&self, problem: &Problem) -> Option<(&Problem, &Entry)> {
        let other = || {
            let others = self.entries.iter().filter_map(|of| Some((windows_apart(of.0, problem)?, of)));
            others.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.0.cmp(b.1.0))).map(|(_, of)| of)
        };
        self.entries.get_key_value(problem).or_else(other)
    }

    /// What is wanted, best first: what was tuned nearby, the default variant, what was tuned far away. The kernels were
    /// tuned at a window `apart` doublings from that of `problem`.
    fn wanted(
        &self,
        entry: &Entry,
        problem: &Problem,
        apart: f64,
        shape: &Shape,
    ) -> impl Iterator<Item = (u32, SplitPolicy, Trust)> {
        let nearest = |rows: &Rows| rows.nearest(shape).map(|(distance, row)| (distance + apart, *row));
        let tuned = nearest(&entry.timed).or_else(|| nearest(&entry.predicted));
        let split = |row: &Row| {
            let launch = &self.kernels[row.kernel as usize].launch;
            let filling = Filling { row_tiles: launch.row_tiles, warps: launch.threads / 32, sms: self.sms() };
            problem.split_at(row.split.unwrap_or(SplitPolicy::WHOLE), &row.shape, shape, filling)
        };
        let near = tuned.filter(|(distance, _)| *distance <= NEAR).map(|(distance, row)| {
            let trust = match row.trust {
                crate::bundle::Trust::Predicted => Trust::Predicted { distance },
                crate::bundle::Trust::Timed if row.shape == *shape && apart == 0.0 => Trust::Exact,
                crate::bundle::Trust::Timed => Trust::Bucket { distance, regret: row.regret },
            };
            (row.kernel, split(&row), trust)
        });
        let default = entry.default.map(|kernel| (kernel, self.default_split(kernel, problem, shape), Trust::Fallback));
        let far = tuned.map(|(_, row)| (row.kernel, split(&row), Trust::Fallback));
        near.into_iter().chain(default).chain(far)
    }

    /// Even splits that fill the device once.
    fn default_split(&self, kernel: u32, problem: &Problem, shape: &Shape) -> SplitPolicy {
        let rule = &self.kernels[kernel as usize].launch;
        match *shape {
            Shape::Decode { batch, context, kv_heads, .. } => {
                let SplitLaunch { max_splits, .. } =
                    rule.default_splits(self.sms(), batch, kv_heads, problem.seen(context));
                SplitPolicy::Even { splits: max_splits }
            }
            Shape::Append { .. } => SplitPolicy::WHOLE,
        }
    }

    /// The launch of `kernel` for `problem` at `shape`, if a device takes it. Where the workspace's counters do not reach,
    /// it is not split: so many requests fill the device anyway.
    fn launch(&self, kernel: u32, split: SplitPolicy, problem: &Problem, shape: &Shape) -> Result<Launch, Miss> {
        let Kernel { launch: rule, .. } = &self.kernels[kernel as usize];
        let launch = match *shape {
            Shape::Decode { batch, context, kv_heads, .. } => {
                let fits = rule.counters(batch, kv_heads) <= COUNTERS;
                let split = if fits { split } else { SplitPolicy::WHOLE };
                rule.decode(batch, kv_heads, split.launch(problem.seen(context)))
            }
            Shape::Append { tokens, kv_heads } => rule.append(problem, tokens, kv_heads),
        };
        let [x, y, z] = launch.grid;
        let limits = [
            ("the grid's x extent", x, GRID_X),
            ("the grid's y extent, the batch (of an append the KV heads),", y, GRID_YZ),
            ("the number of splits", z, GRID_YZ),
        ];
        match limits.into_iter().find(|(_, found, limit)| found > limit) {
            None => Ok(launch),
            Some((what, found, limit)) => Err(Miss::TooLarge { shape: shape.key(), what, found, limit }),
        }
    }

    pub(crate) fn nearest_problem(&self, problem: &Problem) -> Option<Problem> {
        let related = self.entries.keys().filter_map(|p| Some((p.differences(problem)?, p.key(), *p)));
        related.min().map(|(.., problem)| problem)
    }
}
