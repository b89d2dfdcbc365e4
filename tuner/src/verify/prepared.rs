//! The cases of one problem with their reference results: made once, run by all its variants.

use super::case::{self, AppendCase, DecodeCase};
use super::executor::Executor;
use super::host::{AppendData, DecodeData};
use super::{Failure, append, decode};
use crate::worker::{Depth, VerifyReport};
use nvkv_spec::{AppendProblem, DecodeProblem, Problem, Variant};

/// Cases of one problem, with inputs and the reference's results.
#[derive(Debug)]
pub struct Prepared {
    problem: Problem,
    cases: Cases,
}

#[derive(Debug)]
enum Cases {
    Decode(Vec<DecodeData>),
    Append(Vec<AppendData>),
}

impl Prepared {
    /// The cases that a GPU runs.
    pub(crate) fn for_gpu(problem: &Problem, depth: Depth) -> Self {
        match problem {
            Problem::Decode(p) => Self::decode(p, &case::decode_cases(p, depth)),
            Problem::Append(p) => Self::append(p, &case::append_cases(depth)),
        }
    }

    /// Those that the emulator runs: the same, cut to what a CPU does in seconds.
    pub fn for_emulator(problem: &Problem, depth: Depth) -> Self {
        match problem {
            Problem::Decode(p) => Self::decode(p, &case::emulated_cases(p, depth)),
            Problem::Append(p) => Self::append(p, &case::append_cases(depth)),
        }
    }

    /// The given cases of a decode or fused problem.
    pub fn decode(problem: &DecodeProblem, cases: &[DecodeCase]) -> Self {
        let data = cases.iter().map(|case| DecodeData::new(problem, case)).collect();
        Self { problem: Problem::Decode(*problem), cases: Cases::Decode(data) }
    }

    /// The given cases of an append problem.
    pub fn append(problem: &AppendProblem, cases: &[AppendCase]) -> Self {
        let data = cases.iter().map(|case| AppendData::new(problem, case)).collect();
        Self { problem: Problem::Append(*problem), cases: Cases::Append(data) }
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Runs every case of `variant`, each on what `executor` makes.
    pub(super) fn run<E: Executor>(
        &self,
        variant: &Variant,
        executor: impl Fn() -> Result<E, Failure>,
    ) -> Result<VerifyReport, Failure> {
        let mut report = VerifyReport { max_error: 0.0, cases: 0 };
        match (&self.problem, variant, &self.cases) {
            (Problem::Decode(problem), Variant::Decode(_), Cases::Decode(cases)) => {
                for data in cases {
                    let error = decode::run(&mut executor()?, problem, variant, data)
                        .map_err(|failure| failure.at(&data.case.name))?;
                    report.max_error = report.max_error.max(error);
                    report.cases += data.case.splits.len() as u32;
                }
            }
            (Problem::Append(problem), Variant::Append(_), Cases::Append(cases)) => {
                for data in cases {
                    append::run(&mut executor()?, problem, variant, data)
                        .map_err(|failure| failure.at(&data.case.name))?;
                    report.cases += 1;
                }
            }
            _ => {
                let detail = format!("{} is no variant of {}", variant.key(), self.problem.key());
                return Err(Failure::Wrong { error: f64::NAN, detail });
            }
        }
        Ok(report)
    }
}
