//! An answer in words: what serves a shape and why, what is near, and what would have to be tuned.

use crate::bundle;
use crate::find::{Choice, Trust, windows_apart};
use crate::index::Row;
use crate::runtime::Runtime;
use nvkv_spec::{Launch, Lengths, Problem, Shape, SplitPolicy, Target};
use serde::Serialize;
use std::fmt::{Display, Formatter, Result};

/// Nearest tuned shapes that are listed.
const LISTED: usize = 5;

/// What [`Runtime::find`] answers to a question, and what there is around it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The problem's key.
    pub problem: String,
    /// The shape.
    pub shape: Shape,
    /// How far the answer can be trusted; none for a miss.
    #[serde(flatten)]
    pub trust: Option<Trust>,
    /// The kernel that serves.
    pub kernel: Option<String>,
    /// Its launch.
    pub launch: Option<Launch>,
    /// The window that the serving kernels were tuned at, tokens, where it is another than the problem's: they are right
    /// at any.
    pub tuned_window: Option<u32>,
    /// Why there is none.
    pub miss: Option<String>,
    /// The problem of the bundle that differs in the fewest fields, where this one has no kernel.
    pub nearest_problem: Option<String>,
    /// The nearest tuned shapes of the problem, nearest first.
    pub nearest: Vec<Near>,
    /// What would serve instead.
    pub instead: Option<String>,
    /// The command that tunes this problem at this shape.
    pub tune_with: String,
}

/// A tuned shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Near {
    /// The shape.
    pub shape: Shape,
    /// Its distance in doublings.
    pub distance: f64,
    /// What won there.
    pub kernel: String,
    /// With which split.
    pub split: Option<SplitPolicy>,
    /// Whether it was timed or predicted.
    pub trust: bundle::Trust,
    /// Its time there, µs: measured or predicted.
    pub us: f64,
}

impl Runtime {
    /// Why [`Runtime::find`] answers as it does. Not for the hot path, and not counted.
    pub fn explain(&self, problem: &Problem, shape: &Shape) -> Explanation {
        let problem = problem.normal();
        let answer = self.choose(&problem, shape);
        let (tuned_for, entry) = self.serving(&problem).unzip();
        let apart = tuned_for.and_then(|tuned| windows_apart(tuned, &problem)).unwrap_or(0.0);
        let rows = entry.into_iter().flat_map(|entry| entry.timed.iter().chain(entry.predicted.iter()));
        let mut near: Vec<_> = rows.filter_map(|row| Some((row.shape.distance(shape)? + apart, row))).collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.shape.cmp(&b.1.shape)));
        let nearest = near.into_iter().take(LISTED).map(|(distance, row)| self.near(distance, row)).collect();
        let of = |choice: &Choice| self.kernels[choice.kernel as usize].id.to_string();
        Explanation {
            problem: problem.key(),
            shape: *shape,
            trust: answer.as_ref().ok().map(|choice| choice.trust),
            kernel: answer.as_ref().ok().map(of),
            launch: answer.as_ref().ok().map(|choice| choice.launch),
            tuned_window: tuned_for.filter(|tuned| **tuned != problem).and_then(window),
            miss: answer.err().map(|miss| miss.to_string()),
            nearest_problem: entry.is_none().then(|| self.nearest_problem(&problem).map(|p| p.key())).flatten(),
            nearest,
            instead: self.instead(&problem),
            tune_with: tune_command(self.target, &problem, Some(shape)),
        }
    }

    fn near(&self, distance: f64, row: &Row) -> Near {
        let kernel = self.kernels[row.kernel as usize].id.to_string();
        Near { shape: row.shape, distance, kernel, split: row.split, trust: row.trust, us: row.us }
    }

    /// A fused kernel that is missing is an append and a decode, one after the other.
    fn instead(&self, problem: &Problem) -> Option<String> {
        let Problem::Decode(p) = problem else { return None };
        let separate = Problem::Decode(nvkv_spec::DecodeProblem { append: nvkv_spec::AppendMode::Separate, ..*p });
        let append = Problem::Append(p.append_problem());
        let has = |problem: &Problem| self.serving(problem).is_some();
        (!has(problem) && separate != *problem && has(&separate) && has(&append)).then(|| {
            format!("{} and then {} give the same cache and output in two launches", append.key(), separate.key())
        })
    }
}

fn window(problem: &Problem) -> Option<u32> {
    match problem {
        Problem::Decode(p) => p.window,
        Problem::Append(_) => None,
    }
}

/// The command that tunes `problem` for `target`, at `shape` where one is given.
pub fn tune_command(target: Target, problem: &Problem, shape: Option<&Shape>) -> String {
    let op = problem.operation();
    let (own, shared) = match problem {
        Problem::Decode(p) => (
            format!(
                "{op} --numerics {} --group {} --q-len {}{}{}{}",
                p.numerics,
                p.group,
                p.q_len,
                p.window.map_or(String::new(), |window| format!(" --window {window}")),
                if p.sinks { " --sinks" } else { "" },
                if p.soft_cap { " --soft-cap" } else { "" }
            ),
            (p.kv_format, p.head_dim, p.page_size, p.dtype, p.v_scale_order),
        ),
        Problem::Append(p) => (op.to_string(), (p.kv_format, p.head_dim, p.page_size, p.dtype, p.v_scale_order)),
    };
    let (format, dim, page, dtype, order) = shared;
    let shape = shape.map_or(String::new(), |shape| match shape {
        Shape::Decode { batch, context, kv_heads, lengths } => {
            let lengths = if *lengths == Lengths::Equal { String::new() } else { format!(" --lengths {lengths}") };
            format!(" --batch {batch} --context {context} --kv-heads {kv_heads}{lengths}")
        }
        Shape::Append { tokens, kv_heads } => format!(" --batch {tokens} --kv-heads {kv_heads}"),
    });
    format!(
        "nvkv-tune --arch {target} --op {own} --kv-format {format} --head-dim {dim} --page-size {page} --dtype {dtype} \
         --v-scale-order {order}{shape}"
    )
}

impl Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "asked      {} at {}", self.problem, self.shape.key())?;
        if let (Some(kernel), Some(launch), Some(trust)) = (&self.kernel, &self.launch, &self.trust) {
            let [x, y, z] = launch.grid;
            writeln!(f, "trust      {}", trust.name())?;
            writeln!(f, "kernel     {kernel}")?;
            writeln!(
                f,
                "launch     grid {x} x {y} x {z}, {} threads, {} B of shared memory, {} B of workspace",
                launch.threads, launch.shared_bytes, launch.workspace_bytes
            )?;
        }
        if let Some(window) = self.tuned_window {
            writeln!(f, "window     tuned at {window}, the nearest that the bundle has; right at any")?;
        }
        for line in [("miss", &self.miss), ("nearest", &self.nearest_problem), ("instead", &self.instead)] {
            if let (name, Some(text)) = line {
                writeln!(f, "{name:<11}{text}")?;
            }
        }
        for Near { shape, distance, kernel, trust, us, .. } in &self.nearest {
            let time = match trust {
                bundle::Trust::Timed => format!("{us:.1} µs"),
                bundle::Trust::Predicted => format!("about {us:.0} µs by the model"),
            };
            writeln!(f, "tuned at   {} ({distance:.2} doublings away): {kernel}, {time}", shape.key())?;
        }
        writeln!(f, "to tune it {}", self.tune_with)
    }
}
