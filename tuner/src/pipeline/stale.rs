//! After an upgrade: what won before is tried again first, so that a run that is cut short has the most likely winners.

use super::Request;
use super::recorder::Recorder;
use super::space::Candidate;
use super::timing::RUNOFF;
use nvkv_db::{KernelKey, Remembered};
use nvkv_spec::{GpuEnvironment, KernelId};
use std::collections::HashSet;

/// Of `pending` those that were among the best of a shape under an older source, NVRTC or driver, and the default of
/// their problem: none of a problem whose best are already those of today.
pub fn first<'a>(
    request: &Request,
    recorder: &Recorder,
    gpu: &GpuEnvironment,
    pending: &[&'a Candidate],
) -> anyhow::Result<Vec<&'a Candidate>> {
    let mut chosen = Vec::new();
    for (index, (problem, shapes)) in request.cases.iter().enumerate() {
        let of_case: Vec<_> = pending.iter().copied().filter(|candidate| candidate.case == index).collect();
        if of_case.is_empty() {
            continue;
        }
        let today: HashSet<_> = of_case.iter().map(|candidate| recorder.kernel_key(candidate)).collect();
        let mut best = HashSet::new();
        for &shape in shapes {
            let times = recorder.db().remembered(request.machine.target, (problem, shape), gpu, true)?;
            best.extend(best_of_before(&times, &today, &gpu.driver));
        }
        let is_chosen = |c: &&Candidate| !best.is_empty() && (c.is_default || best.contains(&c.source.id));
        chosen.extend(of_case.into_iter().filter(is_chosen));
    }
    // Where all of it is chosen, its order means nothing.
    if chosen.len() == pending.len() { Ok(Vec::new()) } else { Ok(chosen) }
}

/// The fastest kernels of `times`, which come fastest first, where nothing was timed as of today.
fn best_of_before(times: &[Remembered], today: &HashSet<KernelKey>, driver: &str) -> Vec<KernelId> {
    if times.iter().any(|time| time.driver == driver && today.contains(&time.kernel)) {
        return Vec::new();
    }
    let mut best = Vec::new();
    for time in times {
        if best.len() < RUNOFF && !best.contains(&time.kernel.kernel_id) {
            best.push(time.kernel.kernel_id.clone());
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::space::{Space, render_all};
    use crate::pipeline::target::Machine;
    use crate::pipeline::{cache::Artefact, new_run};
    use nvkv_db::Measurement;
    use nvkv_generator::Preset;
    use nvkv_spec::{CompileFacts, Outcome, Shape, SplitPolicy, Target, Toolchain};
    use serde_json::Value;

    const SHAPE: Shape = Shape::Append { tokens: 64, kv_heads: 8 };

    fn gpu(driver: &str) -> GpuEnvironment {
        GpuEnvironment {
            name: "H200".into(),
            uuid: "GPU-1".into(),
            sms: 132,
            driver: driver.into(),
            ..Default::default()
        }
    }

    fn request(folder: &std::path::Path, driver: &str) -> Request {
        let machine = Machine { target: Target::Sm90a, gpu: Ok(gpu(driver)), device: 0, beside: Vec::new() };
        Request::of_appends(machine, folder, vec![SHAPE])
    }

    fn artefact(candidate: &Candidate, toolchain: &Toolchain) -> Artefact {
        let cubin_hash = format!("cubin of {}", candidate.source.id);
        Artefact { folder: "none".into(), cubin_hash, facts: CompileFacts::default(), toolchain: toolchain.clone() }
    }

    /// A tune of every kernel, the n-th in n µs; then an upgrade to `driver` and `nvrtc`.
    fn after_upgrade<T>(
        driver: &str,
        nvrtc: &str,
        look: impl FnOnce(&Request, &mut Recorder, &[Candidate], Toolchain) -> T,
    ) -> T {
        let folder = tempfile::tempdir().unwrap();
        let old = request(folder.path(), "580");
        let candidates =
            render_all(&[Space::new(old.cases[0].0, Target::Sm90a, Preset::Quick)], Target::Sm90a).unwrap();
        let toolchain = |nvrtc: &str| Toolchain { nvrtc: nvrtc.into(), generator: "0".into() };
        let begin = |request: &Request, nvrtc| {
            let run = new_run(request, &toolchain(nvrtc), request.machine.gpu.as_ref().ok());
            Recorder::begin(&request.db, &run, &candidates).unwrap()
        };
        let mut recorder = begin(&old, "13.0");
        let split = SplitPolicy::Even { splits: 1 };
        let round = |round| Measurement {
            round,
            read_ceiling_gbps: 4000.0,
            sentinel_us: None,
            retaken: 0,
            missing: 0,
            state_before: Value::Null,
            state_after: Value::Null,
        };
        let rounds: Vec<_> = (1..=3).map(|n| recorder.measured(&round(n)).unwrap()).collect();
        let measurements: Vec<_> = rounds.iter().flat_map(|&round| [round; 3]).collect();
        for (candidate, us) in candidates.iter().zip(1..) {
            let artefact = artefact(candidate, &toolchain("13.0"));
            let outcome = Outcome::Timed { error: 1e-4 };
            let samples = (vec![f64::from(us); 9], measurements.clone());
            recorder.tried((candidate, &artefact), (SHAPE, split), outcome, samples).unwrap();
        }
        let new = request(folder.path(), driver);
        look(&new, &mut begin(&new, nvrtc), &candidates, toolchain(nvrtc))
    }

    #[test]
    fn the_old_best_and_the_default_come_first_and_nothing_does_without_an_upgrade() {
        for (driver, nvrtc, is_upgrade) in [("580", "13.1", true), ("590", "13.0", true), ("580", "13.0", false)] {
            after_upgrade(driver, nvrtc, |request, recorder, candidates, _| {
                let pending: Vec<_> = candidates.iter().collect();
                let chosen = first(request, recorder, &gpu(driver), &pending).unwrap();
                let mut expected: Vec<_> = pending[..RUNOFF].to_vec();
                expected.extend(pending[RUNOFF..].iter().filter(|c| c.is_default));
                expected.retain(|_| is_upgrade);
                assert!(candidates.len() > RUNOFF + 1);
                let ids = |list: Vec<&Candidate>| list.iter().map(|c| c.source.id.clone()).collect::<Vec<_>>();
                assert_eq!(ids(chosen), ids(expected), "{driver}, {nvrtc}");
            });
        }
    }

    #[test]
    fn an_identical_cubin_is_settled_without_a_gpu_and_under_another_driver_needs_its_run_off() {
        for (driver, nvrtc, settled, error) in [("580", "13.1", true, Some(1e-4)), ("590", "13.0", false, None)] {
            after_upgrade(driver, nvrtc, |request, recorder, candidates, toolchain| {
                for candidate in candidates {
                    let carried = recorder.carry_over(candidate, &artefact(candidate, &toolchain)).unwrap();
                    assert_eq!((carried.keys.len(), carried.error), (1, error));
                    assert!(recorder.is_done(candidate, SHAPE, SplitPolicy::Even { splits: 1 }));
                }
                let of_case: Vec<_> = candidates.iter().collect();
                let case = &request.cases[0];
                let is = crate::pipeline::timing::Timing::is_settled(request, &gpu(driver), recorder, case, &of_case);
                assert_eq!(is.unwrap(), settled, "{driver}, {nvrtc}");
            });
        }
    }
}
