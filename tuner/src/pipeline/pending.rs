//! What is still to be compiled and tried, given what the database knows.

use super::Request;
use super::compile::reason;
use super::recorder::Recorder;
use super::space::Candidate;
use super::timing::Timing;

/// The candidates that need compiling or trying: all that did not fail before, of every case that
/// is not settled. Predictions are cheap and repeated, on what the cache has.
pub fn pending<'a>(
    request: &Request,
    recorder: &Recorder,
    candidates: &'a [Candidate],
) -> anyhow::Result<Vec<&'a Candidate>> {
    let mut pending = Vec::new();
    for (index, case) in request.cases.iter().enumerate() {
        let of_case = candidates.iter().filter(|c| c.case == index && recorder.failed_before(c).is_none());
        let of_case: Vec<_> = of_case.collect();
        let settled = match &request.machine.gpu {
            Ok(gpu) => Timing::is_settled(request, gpu, recorder, case, &of_case)?,
            Err(_) => false,
        };
        if !settled {
            pending.extend(of_case);
        }
    }
    Ok(pending)
}

/// What is left out because it failed before, with the first reason; none where nothing is.
pub fn left_out(recorder: &Recorder, candidates: &[Candidate]) -> Option<String> {
    let mut failed = candidates.iter().filter_map(|c| Some((&c.source.id, recorder.failed_before(c)?)));
    let (id, outcome) = failed.next()?;
    let why = reason(outcome);
    let why = why.lines().find(|line| line.contains("error")).or(why.lines().next()).unwrap_or_default();
    Some(format!(
        "{} of {} kernels failed before and are left out, the first ({id}) because: {}: {why}. \
         Another nvkv or NVRTC tries them again; `nvkv-tune quarantine` lists them and lets them be tried again",
        failed.count() + 1,
        candidates.len(),
        outcome.kind(),
    ))
}
