//! What was tried before, as a search at one problem and shape sees it: answers to what it asks, and lessons.
//!
//! A search that is asked again must ask the same. So what its model rests on is fixed by its first trial: the trials
//! that were recorded before the run of that one began, and those that this run recorded before it. Trials that others
//! record meanwhile do not count, nor does what was found later.

use super::features::Point;
use super::model::Knowledge;
use super::recorded::Answers;
use nvkv_db::{KernelKey, Moment, PastTrial, RunId, TrialId, median};
use nvkv_spec::{Problem, Shape, SplitPolicy, Target};
use std::collections::{HashMap, HashSet};

/// A kernel, and its split policy at one shape; none for append.
pub type Launch = (KernelKey, Option<SplitPolicy>);

/// Trials on boards of one model.
pub struct History {
    target: Target,
    driver: String,
    /// The last trial that is in it.
    pub last: Option<TrialId>,
    /// Those of the driver at hand.
    recorded: HashMap<(Problem, Shape), Vec<Answer>>,
    lessons: Vec<Lesson>,
    learned: HashSet<(Launch, Shape, String)>,
    /// What was known in each run, so far.
    known: HashMap<RunId, (i64, Knowledge)>,
}

/// One trial of a launch.
struct Answer {
    launch: Launch,
    moment: Moment,
    samples: Vec<f64>,
}

/// The first time of a launch.
struct Lesson {
    moment: Moment,
    case: (Problem, Shape),
    point: Point,
    us: f64,
}

impl History {
    /// An empty one, whose answers will be those of trials under `driver`.
    pub fn new(target: Target, driver: &str) -> Self {
        Self {
            target,
            driver: driver.to_string(),
            last: None,
            recorded: HashMap::new(),
            lessons: Vec::new(),
            learned: HashSet::new(),
            known: HashMap::new(),
        }
    }

    /// Adds what was recorded since.
    pub fn extend(&mut self, trials: Vec<PastTrial>) {
        for trial in trials {
            self.last = Some(trial.id);
            let launch = (trial.kernel.key(), trial.split);
            let case = (trial.kernel.problem, trial.shape);
            let lesson = self.lesson(&trial, &launch, case);
            self.lessons.extend(lesson);
            if trial.driver == self.driver {
                let answer = Answer { launch, moment: trial.moment, samples: trial.samples };
                self.recorded.entry(case).or_default().push(answer);
            }
        }
    }

    fn lesson(&mut self, trial: &PastTrial, launch: &Launch, case: (Problem, Shape)) -> Option<Lesson> {
        let us = median(&mut trial.samples.clone()).filter(|_| !trial.carried)?;
        let compiled = trial.kernel.compiled.as_ref()?;
        if !self.learned.insert((launch.clone(), trial.shape, trial.driver.clone())) {
            return None; // a run-off, say
        }
        let split = trial.split.unwrap_or(SplitPolicy::WHOLE);
        let kernel = (&trial.kernel.problem, &trial.kernel.variant, &compiled.facts);
        let point = Point::new(kernel, (&trial.shape, split), self.target, trial.is_default);
        Some(Lesson { moment: trial.moment, case, point, us })
    }

    /// What is recorded of `launches` of one case, and when the first of it was.
    pub fn answers(&self, case: (Problem, Shape), launches: &[Launch]) -> (Answers, Option<Moment>) {
        let mut trials = vec![Vec::new(); launches.len()];
        let place: HashMap<&Launch, usize> = launches.iter().zip(0..).collect();
        let mut first: Option<Moment> = None;
        for Answer { launch, moment, samples } in self.recorded.get(&case).into_iter().flatten() {
            if let Some(&at) = place.get(launch) {
                trials[at].push(samples.clone());
                first = Some(first.filter(|first| first.clock <= moment.clock).unwrap_or(*moment));
            }
        }
        (Answers::new(trials), first)
    }

    /// What a search knows whose first trial is recorded at `moment`.
    pub fn knowledge(&mut self, moment: Moment) -> &Knowledge {
        let (since, mut knowledge) = match self.known.remove(&moment.run) {
            Some((until, knowledge)) if until <= moment.clock => (until, knowledge),
            _ => {
                let mut before = Knowledge::default();
                self.teach(&mut before, |past| past.run != moment.run && past.clock < moment.began);
                (i64::MIN, before)
            }
        };
        self.teach(&mut knowledge, |past| past.run == moment.run && (since..moment.clock).contains(&past.clock));
        &self.known.entry(moment.run).insert_entry((moment.clock, knowledge)).into_mut().1
    }

    /// Adds the lessons of some moments: those of one run and case without a break are compared with each other.
    fn teach(&self, knowledge: &mut Knowledge, of: impl Fn(&Moment) -> bool) {
        let mut lessons: Vec<&Lesson> = self.lessons.iter().filter(|lesson| of(&lesson.moment)).collect();
        lessons.sort_by_key(|lesson| lesson.moment.run); // Boards record at the same time.
        for piece in lessons.chunk_by(|a, b| (a.moment.run, a.case) == (b.moment.run, b.case)) {
            knowledge.learn(&piece.iter().map(|lesson| (&lesson.point, lesson.us)).collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::space::{Space, splits};
    use nvkv_db::{Compiled, KernelRecord};
    use nvkv_generator::{Preset, problems};
    use nvkv_spec::{CompileFacts, Lengths, Operation};
    use std::sync::Arc;

    const TARGET: Target = Target::Sm90a;

    fn shape(context: u32) -> Shape {
        Shape::Decode { batch: 4, context, kv_heads: 8, lengths: Lengths::Equal }
    }

    /// Trials of a case by one run, at clocks from `clock` in steps of `step`.
    fn trials(run: i64, began: i64, (clock, step): (i64, i64), shape: Shape) -> Vec<PastTrial> {
        let problem = problems(Preset::Quick, &[Operation::Decode])[1];
        let mut all = Vec::new();
        for variant in Space::new(problem, TARGET, Preset::Quick).feasible {
            let kernel = Arc::new(KernelRecord {
                target: TARGET,
                problem,
                variant,
                source_hash: variant.key(),
                nvrtc: "13.0".into(),
                generator: "0".into(),
                compiled: Some(Compiled { cubin_hash: "c".into(), facts: CompileFacts::default() }),
            });
            for split in splits(&problem, &variant, &shape, TARGET, Preset::Quick) {
                let clock = clock + step * all.len() as i64;
                all.push(PastTrial {
                    id: TrialId(clock),
                    moment: Moment { run: RunId(run), began, clock },
                    carried: false,
                    kernel: kernel.clone(),
                    shape,
                    split: Some(split),
                    is_default: false,
                    driver: "580".into(),
                    samples: vec![10.0 + (clock % 7) as f64; 7],
                });
            }
        }
        all
    }

    fn history(mut trials: Vec<PastTrial>) -> History {
        trials.sort_by_key(|trial| trial.id);
        let mut history = History::new(TARGET, "580");
        history.extend(trials);
        history
    }

    #[test]
    fn what_a_search_knew_is_what_it_knows_when_it_is_asked_again() {
        // Two boards at once, after an earlier run: clocks 100, 102, ... and 101, 103, ...
        let before = trials(1, 0, (1, 1), shape(1024));
        let (here, beside) = (trials(2, 50, (100, 2), shape(2048)), trials(3, 51, (101, 2), shape(4096)));
        let n = here.len();
        let next = trials(2, 50, (200, 2), shape(8192));
        let later = trials(4, 300, (400, 1), shape(512));
        let at = next[0].moment;
        let points: Vec<_> = history(next.clone()).lessons.into_iter().map(|lesson| lesson.point).collect();

        // As the search began: nothing of its own case was there, and some of the other board's.
        let told = [&before[..], &here, &beside[..n / 2]].concat();
        let mut then = history(told);
        let now = Moment { clock: 200, ..at };
        assert_eq!(then.knowledge(now).trials(), before.len() + n, "not the other board's");
        let expected = then.knowledge(now).expect(&points);

        // Asked again by another process, case after case.
        let known = before.len();
        let all = [before, here.clone(), beside, next.clone(), later].concat();
        let mut again = history(all.clone());
        assert_eq!(again.knowledge(here[0].moment).trials(), known);
        assert_eq!(again.knowledge(at).expect(&points), expected, "to the bit");
        assert_eq!(history(all).knowledge(at).expect(&points), expected, "at once or in steps");

        // Its own answers are found, the first of them says when it began.
        let launches: Vec<Launch> = next.iter().map(|trial| (trial.kernel.key(), trial.split)).collect();
        let (mut answers, first) = again.answers((next[0].kernel.problem, shape(8192)), &launches);
        assert_eq!(first, Some(at));
        assert_eq!(answers.next(0, 7), Some(Some(next[0].samples[0])));
        assert_eq!(again.answers((next[0].kernel.problem, shape(7)), &launches).1, None);
    }

    #[test]
    fn a_run_off_and_a_copy_teach_nothing_and_another_driver_answers_nothing() {
        let first = trials(1, 0, (1, 1), shape(1024));
        let n = first.len();
        let run_off = trials(1, 0, (100, 1), shape(1024));
        let copies = trials(2, 200, (201, 1), shape(2048)).into_iter().map(|t| PastTrial { carried: true, ..t });
        let elsewhere = trials(2, 200, (301, 1), shape(4096)).into_iter();
        let elsewhere: Vec<_> = elsewhere.map(|t| PastTrial { driver: "590".into(), ..t }).collect();
        let taught = n + elsewhere.len();
        let mut history = history(first.clone().into_iter().chain(run_off).chain(copies).chain(elsewhere).collect());
        let now = Moment { run: RunId(9), began: 999, clock: 999 };
        assert_eq!(history.knowledge(now).trials(), taught);
        let launches: Vec<Launch> = first.iter().map(|trial| (trial.kernel.key(), trial.split)).collect();
        let problem = first[0].kernel.problem;
        assert!(history.answers((problem, shape(2048)), &launches).1.is_some());
        assert!(history.answers((problem, shape(4096)), &launches).1.is_none());
    }
}
