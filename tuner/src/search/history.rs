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
    recorded: HashMap<(Problem, Shape), Vec<(Launch, Moment, Vec<f64>)>>,
    lessons: Vec<Lesson>,
    learned: HashSet<(Launch, Shape, String)>,
    /// What was known in each run, so far.
    known: HashMap<RunId, (i64, Knowledge)>,
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
                self.recorded.entry(case).or_default().push((launch, trial.moment, trial.samples));
            }
        }
    }

    fn lesson(&mut self, trial: &PastTrial, launch: &Launch, case: (Problem, Shape)) -> Option<Lesson> {
        let us = median(&mut trial.samples.clone()).filter(|_| !trial.carried)?;
        let compiled = trial.kernel.compiled.as_ref()?;
        if !self.learned.insert((launch.clone(), trial.shape, trial.driver.clone())) {
            return None; // a run-off, say
        }
        let split = trial.split.unwrap_or(SplitPolicy::Even { splits: 1 });
        let kernel = (&trial.kernel.problem, &trial.kernel.variant, &compiled.facts);
        let point = Point::new(kernel, (&trial.shape, split), self.target, trial.is_default);
        Some(Lesson { moment: trial.moment, case, point, us })
    }

    /// What is recorded of `launches` of one case, and when the first of it was.
    pub fn answers(&self, case: (Problem, Shape), launches: &[Launch]) -> (Answers, Option<Moment>) {
        let mut trials = vec![Vec::new(); launches.len()];
        let place: HashMap<&Launch, usize> = launches.iter().zip(0..).collect();
        let mut first: Option<Moment> = None;
        for (launch, moment, samples) in self.recorded.get(&case).into_iter().flatten() {
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
