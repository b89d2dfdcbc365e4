//! What is still to be compiled and tried, given what the database knows.

use super::Request;
use super::compile::reason_line;
use super::recorder::Recorder;
use super::space::Candidate;
use super::timing::Timing;
use crate::search::Strategy;
use nvkv_db::{KernelKey, WinnerFilter};
use nvkv_spec::{Outcome, Shape};

/// The candidates that need compiling or trying: all that are not left out, of every case that
/// is not settled. Predictions are cheap and repeated, on what the cache has.
pub fn pending<'a>(
    request: &Request,
    recorder: &Recorder,
    candidates: &'a [Candidate],
) -> anyhow::Result<Vec<&'a Candidate>> {
    let mut pending = Vec::new();
    let timed = timed(request, recorder)?;
    for (index, case) in request.cases.iter().enumerate() {
        let of_case = candidates.iter().filter(|c| c.case == index && !is_left_out(request, recorder, c));
        let of_case: Vec<_> = of_case.collect();
        let settled = match &request.machine.gpu {
            Ok(gpu) => Timing::is_settled(request, gpu, recorder, case, &of_case)?,
            // What a GPU timed needs no prediction: a merged database of another host is published as it is.
            Err(_) => case.1.iter().all(|&shape| {
                timed.iter().any(|(key, at)| *at == shape && of_case.iter().any(|c| recorder.kernel_key(c) == *key))
            }),
        };
        if !settled {
            pending.extend(of_case);
        }
    }
    Ok(pending)
}

/// Whether a candidate that failed before has no part in what is done now. A search that chooses sees it among the others,
/// as it did when it first asked, if it compiled: it must ask the same again.
pub fn is_left_out(request: &Request, recorder: &Recorder, candidate: &Candidate) -> bool {
    let chooses = request.machine.gpu.is_ok() && request.search != Strategy::Exhaustive;
    let compiled = |outcome: &Outcome| !matches!(outcome, Outcome::CompileFailed { .. });
    recorder.failed_before(candidate).is_some_and(|outcome| !(chooses && compiled(outcome)))
}

/// The kernels and shapes of winners that were timed on any GPU; asked only where none is here.
fn timed(request: &Request, recorder: &Recorder) -> anyhow::Result<Vec<(KernelKey, Shape)>> {
    if request.machine.gpu.is_ok() {
        return Ok(Vec::new());
    }
    let winners = recorder.db().winners(&WinnerFilter::of(request.machine.target))?;
    Ok(winners.into_iter().map(|winner| (winner.kernel.key(), winner.shape)).collect())
}

/// What is left out because it failed before, with the first reason; none where nothing is.
pub fn left_out(recorder: &Recorder, candidates: &[Candidate]) -> Option<String> {
    let mut failed = candidates.iter().filter_map(|c| Some((&c.source.id, recorder.failed_before(c)?)));
    let (id, outcome) = failed.next()?;
    let why = reason_line(outcome);
    Some(format!(
        "{} of {} kernels failed before and are left out, the first ({id}) because: {}: {why}. \
         Another nvkv or NVRTC tries them again; `nvkv-tune quarantine` lists them and lets them be tried again",
        failed.count() + 1,
        candidates.len(),
        outcome.kind(),
    ))
}
