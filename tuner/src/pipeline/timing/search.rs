//! What of a problem is timed at a shape before the run-off: what the search asks for and the database does not answer.

use super::trials::Trial;
use super::{BATCH, Heat, Ready, Timing};
use crate::search::{Answers, Knowledge, Point, Search, Strategy};
use nvkv_db::EnvironmentKey;
use nvkv_spec::{Problem, Shape};

impl<'a> Timing<'a> {
    /// Asks the search until it has no more questions, answers from the database or by timing, and gives how many trials
    /// were timed.
    pub(super) fn search(
        &mut self,
        case: (Problem, Shape),
        kernels: &mut [Ready<'a>],
        trials: &[Trial],
    ) -> anyhow::Result<usize> {
        let heat = Heat::new(case, kernels);
        let points: Vec<_> = trials.iter().map(|trial| self.point(heat, trial)).collect();
        let (mut answers, knowledge) = self.recorded(heat, trials)?;
        let mut search = Search::new(self.request.search, &points, &knowledge);
        let mut count = 0;
        while let Some(ask) = search.ask() {
            let mut fresh = Vec::new();
            for trial in ask.trials {
                let recorded = answers.next(trial, ask.samples);
                match recorded.or_else(|| self.known(Heat::new(case, kernels), &trials[trial])) {
                    Some(us) => search.tell(trial, us),
                    None => fresh.push(trial),
                }
            }
            for batch in fresh.chunks(BATCH) {
                if self.stop.reason().is_some() {
                    return Ok(count);
                }
                batch.iter().try_for_each(|&trial| self.verify(&mut kernels[trials[trial].kernel]))?;
                let asked = batch.iter().map(|&trial| trials[trial]).collect();
                for timed in self.first_look(Heat::new(case, kernels), asked, ask.samples)? {
                    let is_it = |&&trial: &&usize| trials[trial].is(&timed);
                    if let Some(&trial) = batch.iter().find(is_it) {
                        search.tell(trial, timed.timed.map(|(us, _)| us));
                    }
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    fn point(&self, heat: Heat<'_, 'a>, trial: &Trial) -> Point {
        let Ready { candidate, artefact, .. } = &heat.kernels[trial.kernel];
        let kernel = (&heat.problem, &candidate.variant, &artefact.facts);
        Point::new(kernel, (&heat.shape, trial.split), self.target, heat.is_default(trial, self.target))
    }

    /// What the database answers, and what it taught before the first answer. Where all is timed neither matters.
    fn recorded(&mut self, heat: Heat<'_, 'a>, trials: &[Trial]) -> anyhow::Result<(Answers, Knowledge)> {
        let mut launches = Vec::new();
        if self.request.search != Strategy::Exhaustive {
            let past = self.recorder.db().past(self.target, &EnvironmentKey::from(&self.gpu), self.history.last)?;
            self.history.extend(past);
            launches.extend(trials.iter().map(|trial| self.recorder.launch(heat.candidate(trial), trial.split)));
        }
        let (answers, first) = self.history.answers((heat.problem, heat.shape), &launches);
        Ok((
            answers,
            match self.request.search {
                Strategy::Model => {
                    let now = || self.recorder.db().now(self.recorder.run());
                    self.history.knowledge(first.map_or_else(now, Ok)?).clone()
                }
                _ => Knowledge::default(),
            },
        ))
    }

    /// How a trial without a recorded time came out, where that is known.
    fn known(&self, heat: Heat<'_, 'a>, trial: &Trial) -> Option<Option<f64>> {
        let candidate = heat.candidate(trial);
        // Where all is timed, times decide nothing and are not read.
        let is_done =
            || self.request.search == Strategy::Exhaustive && self.recorder.is_done(candidate, heat.shape, trial.split);
        (self.recorder.failed_before(candidate).is_some() || is_done()).then_some(None)
    }
}
