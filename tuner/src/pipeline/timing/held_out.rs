//! How well buckets serve between the tuned shapes: their winners are timed where two buckets meet, beside those that are
//! likely to be the best there. A bucket whose winner is too slow at such a shape is split there, and so on in the new
//! buckets. All of it follows from the trials in the database, so that a run that was cut short goes on.

use super::super::cache::Cache;
use super::super::pantry::Pantry;
use super::super::space::yardstick;
use super::super::{devices, plan};
use super::*;
use nvkv_db::{Buckets, KernelRecord, Part, Regret, Serving};
use nvkv_generator::{Preset, default_split, render};
use nvkv_spec::bucket::{NEAR, held_out, speaks_for};
use std::sync::mpsc::channel;

/// How often, in one run, buckets are split and what came of it is measured.
const ROUNDS: usize = 3;

/// The kernels of one problem that may be the best between its buckets.
pub(super) struct Field {
    problem: Problem,
    kernels: Vec<Entrant>,
    /// As they are before anything is timed.
    known: Buckets,
}

/// A kernel that was verified on this GPU before: it is the winner, or nearly, or the default of a bucket.
struct Entrant {
    candidate: Candidate,
    artefact: Artefact,
    error: f64,
}

/// Measures the regret of every bucket of the problems of `request`, and splits those that have too much of it: on each GPU
/// whichever problem is next.
pub fn measure(
    request: &Request,
    cache: &Cache,
    (recorder, beside): (&mut Recorder, &mut [Recorder]),
    progress: (&Progress, &Stop),
) -> anyhow::Result<()> {
    let fields = fields(request, recorder, cache)?;
    let recorders = [recorder].into_iter().chain(beside);
    let on = |(board, recorder)| Timing::new(request, board, recorder, progress);
    let mut timings: Vec<_> = request.machine.boards().into_iter().zip(recorders).map(on).collect();
    let (sender, ready) = channel();
    for field in &fields {
        let _ = sender.send(field); // its other end is here
    }
    drop(sender);
    devices::share(ready, timings.iter_mut().collect(), |timing, field: &Field| timing.measure_buckets(field))
}

/// The kernels that serve, problem by problem. Those of other templates or of another NVRTC than this run's are left out:
/// they win nothing any more once this run has tuned their problem.
pub(super) fn fields(request: &Request, recorder: &Recorder, cache: &Cache) -> anyhow::Result<Vec<Field>> {
    let Ok(gpu) = &request.machine.gpu else { return Ok(Vec::new()) };
    let target = request.machine.target;
    let mut pantry = Pantry::new(request, cache);
    let problems = request.cases.iter().map(|(problem, _)| *problem).collect();
    let Buckets { serving, regrets } = recorder.db().buckets(&winners_of(problems, target, gpu))?;
    pantry.stock(serving.iter().map(|server| &server.kernel))?;
    let mut fields = Vec::new();
    for (case, (problem, _)) in request.cases.iter().enumerate() {
        let known = Buckets {
            serving: serving.iter().filter(|server| server.kernel.problem == *problem).cloned().collect(),
            regrets: regrets.iter().filter(|regret| regret.problem == *problem).cloned().collect(),
        };
        let mut kernels: Vec<Entrant> = Vec::new();
        for Serving { kernel, error, .. } in &known.serving {
            let is_default = Some(kernel.variant) == yardstick(problem, target);
            let source = render(problem, &kernel.variant, target)?;
            let candidate = Candidate { case, problem: *problem, variant: kernel.variant, is_default, source };
            let key = recorder.kernel_key(&candidate);
            if key != kernel.key() || kernels.iter().any(|k| k.candidate.source.id == key.kernel_id) {
                continue;
            }
            if let Some(artefact) = pantry.artefact(kernel)? {
                kernels.push(Entrant { candidate, artefact, error: *error });
            }
        }
        fields.push(Field { problem: *problem, kernels, known });
    }
    Ok(fields)
}

/// The winners of some problems on this GPU.
fn winners_of(problems: Vec<Problem>, target: Target, gpu: &GpuEnvironment) -> WinnerFilter {
    WinnerFilter { environment: Some(gpu.into()), problems, ..WinnerFilter::of(target) }
}

impl<'a> Timing<'a> {
    /// Measures the buckets of one problem, splits those that serve badly, and measures the new ones, in rounds. A shape that
    /// was measured is measured again only where another bucket's winner serves there now.
    pub(super) fn measure_buckets(&mut self, field: &'a Field) -> anyhow::Result<()> {
        let ready = |entrant: &'a Entrant| {
            let Entrant { candidate, artefact, error } = entrant;
            Ready { candidate, artefact: artefact.clone(), carried: Some(*error), verified: None }
        };
        let mut kernels: Vec<Ready<'a>> = field.kernels.iter().map(ready).collect();
        let candidates: Vec<&Candidate> = field.kernels.iter().map(|entrant| &entrant.candidate).collect();
        let scope = (self.target, self.request.preset, self.gpu.sms);
        let filter = winners_of(vec![field.problem], self.target, &self.gpu);
        let mut known = field.known.clone();
        for round in 1..=ROUNDS {
            let serving = &known.serving;
            let buckets = buckets(serving);
            let settled = self.settled(&known.regrets)?;
            let mut due = Vec::new();
            for shape in held_out(&buckets) {
                let servers = servers(serving, &candidates, (&speaks_for(&buckets, &shape), shape), self.gpu.sms);
                let is_done = |&(k, split): &Launched| self.recorder.is_done(candidates[k], shape, split);
                if !settled.contains(&shape) || !servers.iter().all(is_done) {
                    due.push((shape, servers, entered(serving, &candidates, shape, scope)));
                }
            }
            let work = |(shape, _, launches): &(Shape, _, Vec<Launched>)| {
                plan::first_look_ms(launches.len()) + plan::runoff_ms(&[*shape])
            };
            self.progress.expect(due.iter().map(work).sum());
            let is_known = due.is_empty();
            for (shape, servers, launches) in due {
                self.time_held_out((field.problem, shape), &mut kernels, &servers, launches)?;
            }
            if self.stop.reason().is_some() {
                break;
            }
            if !is_known {
                known.regrets = self.recorder.db().regrets(&filter)?;
            }
            if !self.split_buckets(known.regrets, buckets.len())? {
                break;
            }
            known = self.recorder.db().buckets(&filter)?;
            if round == ROUNDS {
                let problem = field.problem.key();
                self.progress.note(&format!("{problem}: split in {ROUNDS} rounds; the same command measures the rest"));
            }
        }
        Ok(())
    }

    /// As [`Self::time`], of these launches alone.
    fn time_held_out(
        &mut self,
        case: (Problem, Shape),
        kernels: &mut [Ready<'a>],
        servers: &[Launched],
        launches: Vec<Launched>,
    ) -> anyhow::Result<()> {
        kernels.iter_mut().try_for_each(|kernel| self.verify(kernel))?;
        let heat = Heat { held_out: Some(servers), ..Heat::new(case, kernels) };
        let trial = |(kernel, split)| Trial { kernel, split, timed: None };
        let mut trials: Vec<Trial> = launches.into_iter().map(trial).collect();
        let mut fresh = trials.clone();
        fresh.retain(|t| !self.recorder.is_done(heat.candidate(t), heat.shape, t.split));
        self.recall(&mut trials, heat)?;
        for batch in fresh.chunks(BATCH) {
            let timed = self.first_look(heat, batch.to_vec(), ROUND_SAMPLES)?;
            merge(&mut trials, &timed);
        }
        self.run_off(case, kernels, Some(servers), trials)
    }

    /// The shapes at which the winners that serve there, and the best, were in a run-off under this driver.
    fn settled(&self, regrets: &[Regret]) -> anyhow::Result<HashSet<Shape>> {
        let (mut settled, mut not) = (HashSet::new(), HashSet::new());
        for Regret { shape, winner, best, .. } in regrets {
            settled.insert(*shape);
            for measured in [winner, best] {
                if measured.times.rounds <= 1 || self.recorder.db().is_of_another_driver(measured.trial)? {
                    not.insert(*shape);
                }
            }
        }
        Ok(&settled - &not)
    }

    /// Splits each of `buckets` buckets that has too much regret at its worst shape, and says what became of all. Whether one
    /// was split.
    fn split_buckets(&mut self, regrets: Vec<Regret>, buckets: usize) -> anyhow::Result<bool> {
        let mut worst: Vec<Regret> = Vec::new();
        for regret in regrets.into_iter().filter(|regret| !regret.is_split) {
            match worst.iter_mut().find(|known| known.bucket == regret.bucket) {
                Some(known) if known.share() >= regret.share() => {}
                Some(known) => *known = regret,
                None => worst.push(regret),
            }
        }
        // Where two buckets are worst at one shape, it is split from the worse one.
        worst.sort_by(|a, b| b.share().total_cmp(&a.share()));
        let (split, kept): (Vec<_>, Vec<_>) = worst.into_iter().partition(Regret::is_too_much);
        for Regret { problem, bucket, shape, .. } in &split {
            self.recorder.split_bucket(problem, shape, bucket)?;
        }
        split.iter().for_each(|regret| self.progress.note(&split_line(regret)));
        if let (Some(largest), true) = (kept.first(), split.is_empty()) {
            self.progress.note(&kept_line(largest, kept.len(), buckets));
        }
        Ok(!split.is_empty())
    }
}

/// The launches to compare at `shape`: those that win or nearly win a bucket that is near, split as they would serve here,
/// the kernels of the winners with the splits that a tune would try at this shape, and the default's.
fn entered(
    serving: &[Serving],
    kernels: &[&Candidate],
    shape: Shape,
    (target, preset, sms): (Target, Preset, u32),
) -> Vec<Launched> {
    let mut launches: Vec<Launched> = Vec::new();
    for server in serving {
        let Some(kernel) = index(server, kernels) else { continue };
        let Candidate { problem, variant, is_default, .. } = kernels[kernel];
        let is_near = |bucket: &Shape| bucket.distance(&shape).is_some_and(|distance| distance <= NEAR);
        for (bucket, part) in server.at.iter().filter(|(bucket, _)| is_near(bucket)) {
            if *part == Part::Winner {
                let splits = splits(problem, variant, &shape, target, preset);
                launches.extend(splits.into_iter().map(|split| (kernel, split)));
            }
            if *part != Part::Default {
                launches.push((kernel, split_at(server, bucket, &shape, sms)));
            }
        }
        if *is_default {
            launches.push((kernel, default_split(problem, variant, &shape, target)));
        }
    }
    let mut seen = HashSet::new();
    launches.retain(|launch| seen.insert(*launch));
    launches
}

/// The shapes that have a winner.
fn buckets(serving: &[Serving]) -> Vec<Shape> {
    let parts = serving.iter().flat_map(|server| &server.at);
    let mut buckets: Vec<_> = parts.filter(|(_, part)| *part == Part::Winner).map(|(bucket, _)| *bucket).collect();
    buckets.sort();
    buckets
}

/// The winners of `buckets`, as they are launched at `shape`.
fn servers(
    serving: &[Serving],
    kernels: &[&Candidate],
    (buckets, shape): (&[Shape], Shape),
    sms: u32,
) -> Vec<Launched> {
    let mut servers = Vec::new();
    for server in serving {
        let won = buckets.iter().filter(|&&bucket| server.at.contains(&(bucket, Part::Winner)));
        let launch = |bucket| Some((index(server, kernels)?, split_at(server, bucket, &shape, sms)));
        servers.extend(won.filter_map(launch));
    }
    servers
}

/// The server's kernel.
fn index(server: &Serving, kernels: &[&Candidate]) -> Option<usize> {
    kernels.iter().position(|kernel| kernel.variant == server.kernel.variant)
}

/// What the split that serves `bucket` becomes at `shape`.
fn split_at(server: &Serving, bucket: &Shape, shape: &Shape, sms: u32) -> SplitPolicy {
    let KernelRecord { problem, variant, .. } = &server.kernel;
    let split = server.split.unwrap_or(SplitPolicy::WHOLE);
    problem.split_at(split, bucket, shape, variant.filling(problem, sms))
}

fn split_line(regret: &Regret) -> String {
    let Regret { problem, bucket, shape, winner, best, .. } = regret;
    format!(
        "split: {} at {}: the winner takes {:.1} µs at {} and the best {:.1} µs ({:+.1} %); {} is a bucket now",
        problem.key(),
        bucket.key(),
        winner.times.median_us,
        shape.key(),
        best.times.median_us,
        100.0 * regret.share(),
        shape.key(),
    )
}

fn kept_line(largest: &Regret, measured: usize, buckets: usize) -> String {
    format!(
        "kept: {}: {measured} of {buckets} buckets measured, regret at most {:.1} % ({} at {})",
        largest.problem.key(),
        100.0 * largest.share(),
        largest.bucket.key(),
        largest.shape.key(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::faults::{SHAPES, Tune};
    use super::*;
    use crate::pipeline::space::{Space, render_all};
    use crate::worker::fake::{At, Fault};
    use nvkv_spec::{KernelId, Lengths};

    const BETWEEN: Shape = Shape::Append { tokens: 128, kv_heads: 8 };

    /// Kernels 0 and 1 win a bucket each. Between them 0 takes twice the time of the others, and is split off there.
    fn times(tune: &Tune) -> Vec<(At, Fault)> {
        let at = |n: usize, shape, us: f64| (At::Launch(tune.id(n), shape), Fault::Takes(us));
        vec![at(0, SHAPES[0], 5.0), at(1, SHAPES[1], 5.0), at(0, BETWEEN, 20.0), at(1, BETWEEN, 9.0)]
    }

    fn shapes_and_winners(recorder: &Recorder) -> Vec<(Shape, KernelId, Option<f64>)> {
        let winners = recorder.db().winners(&WinnerFilter::of(Target::Sm90a)).unwrap();
        winners.into_iter().map(|w| (w.shape, w.kernel.key().kernel_id, w.regret)).collect()
    }

    #[test]
    fn a_bucket_that_serves_badly_is_split_and_the_new_ones_are_measured_once() {
        let tune = Tune::new();
        let times = times(&tune);
        tune.run(&times).0.unwrap();
        let (end, recorder) = tune.measure_buckets(&times);
        end.unwrap();
        // Between 64, 128 and 256 tokens all take 10 µs, but for nobody's bucket is that too slow.
        let expected = [(SHAPES[0], 0), (BETWEEN, 1), (SHAPES[1], 1)].map(|(shape, n)| (shape, tune.id(n), Some(0.0)));
        assert_eq!(shapes_and_winners(&recorder), expected);
        let regrets = recorder.db().regrets(&WinnerFilter::of(Target::Sm90a)).unwrap();
        let split: Vec<_> = regrets.iter().filter(|r| r.is_split).map(|r| (r.bucket, r.shape, r.share())).collect();
        assert_eq!(split, [(SHAPES[0], BETWEEN, 20.0 / 9.0 - 1.0)]);
        let tokens = |r: &Regret| match r.shape {
            Shape::Append { tokens, .. } => tokens,
            Shape::Decode { .. } => panic!("{r:?}"),
        };
        let mut held_out: Vec<_> = regrets.iter().filter(|r| !r.is_split).map(tokens).collect();
        held_out.sort();
        assert_eq!(held_out, [91, 91, 181, 181], "of each the two buckets that it lies between");
        let measured = regrets.iter().flat_map(|r| [&r.winner, &r.best]);
        assert!(measured.into_iter().all(|m| m.times.rounds == u64::from(RUNOFF_ROUNDS)), "{regrets:?}");
        drop(recorder);
        let (end, recorder) = tune.measure_buckets(&times);
        end.unwrap();
        assert_eq!(recorder.db().outcomes(recorder.run()).unwrap().len(), 0, "nothing is left to do");
    }

    #[test]
    fn what_is_best_nearby_competes_with_its_own_splits_and_the_default_with_those_of_the_shape() {
        let (target, preset) = (Target::Sm90a, Preset::Quick);
        let problem = nvkv_generator::problems(preset, &[nvkv_spec::Operation::Decode])[0];
        let candidates = render_all(&[Space::new(problem, target, preset)], target).unwrap();
        let default = candidates.iter().find(|candidate| candidate.is_default).unwrap();
        let others: Vec<_> = candidates.iter().filter(|candidate| !candidate.is_default).take(3).collect();
        let kernels = [others[0], default, others[1], others[2]];
        let shape = |batch, context| Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::Equal };
        let (here, far) = (shape(64, 4096), shape(1, 65_536));
        let even = |splits| SplitPolicy::Even { splits };
        let serving = |kernel: usize, splits, at: (Shape, Part)| Serving {
            kernel: KernelRecord {
                target,
                problem,
                variant: kernels[kernel].variant,
                source_hash: kernels[kernel].source.hash.clone(),
                nvrtc: "13.0".into(),
                generator: "0".into(),
                compiled: None,
            },
            split: Some(even(splits)),
            error: 0.0,
            at: vec![at],
        };
        let serving = [
            serving(0, 77, (here, Part::Winner)),
            serving(1, 78, (far, Part::Default)),
            serving(2, 79, (here, Part::Near)),
            serving(3, 80, (far, Part::Winner)),
        ];
        let between = shape(64, 8192);
        let mut launches = entered(&serving, &kernels, between, (target, preset, 132));
        let mut expected = vec![(0, even(77)), (2, even(79))];
        expected.push((1, default_split(&problem, &default.variant, &between, target)));
        let of_shape = splits(&problem, &kernels[0].variant, &between, target, preset);
        assert!(!of_shape.is_empty() && between.distance(&far).is_some_and(|distance| distance > NEAR));
        expected.extend(of_shape.into_iter().map(|split| (0, split)));
        launches.sort();
        expected.sort();
        assert_eq!(launches, expected);
        let between_servers = speaks_for(&buckets(&serving), &between);
        assert_eq!(
            (servers(&serving, &kernels, (&between_servers, between), 132), between_servers),
            (vec![(0, even(77))], vec![here])
        );
    }

    #[test]
    fn the_plan_counts_what_is_between_the_shapes_where_that_is_asked_for() {
        let machine = crate::pipeline::target::Machine {
            target: Target::Sm90a,
            gpu: Ok(GpuEnvironment::default()),
            device: 0,
            beside: Vec::new(),
        };
        let request = Request::of_appends(machine, std::path::Path::new("none"), SHAPES.to_vec());
        let without = plan::Plan::new(&request);
        let with = plan::Plan::new(&Request { held_out: true, ..request });
        assert_eq!((without.held_out, with.held_out), (0, held_out(&SHAPES).len()));
        assert!(with.held_out == 1 && with.timings > without.timings && with.seconds >= without.seconds);
    }

    #[test]
    fn a_run_that_is_cut_short_between_buckets_goes_on() {
        let tune = Tune::new();
        let times = times(&tune);
        tune.run(&times).0.unwrap();
        let gone = (At::Shape(Shape::Append { tokens: 181, kv_heads: 8 }), Fault::Gone);
        let (end, recorder) = tune.measure_buckets(&[&times[..], &[gone]].concat());
        assert!(format!("{:#}", end.unwrap_err()).contains("no longer answers"));
        let done = recorder.db().outcomes(recorder.run()).unwrap()["timed"];
        assert_eq!(shapes_and_winners(&recorder).len(), 3, "the split is kept");
        drop(recorder);
        let (end, recorder) = tune.measure_buckets(&times);
        end.unwrap();
        assert!(shapes_and_winners(&recorder).iter().all(|(.., regret)| *regret == Some(0.0)));
        assert!(recorder.db().outcomes(recorder.run()).unwrap()["timed"] < done, "only what was missing");
    }
}
