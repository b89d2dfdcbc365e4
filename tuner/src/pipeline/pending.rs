//! What is still to be compiled and tried, given what the database knows.

use super::Request;
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
        let of_case = candidates.iter().filter(|c| c.case == index && !recorder.failed_before(c));
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
