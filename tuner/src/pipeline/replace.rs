//! What a new bundle takes from the one in its place: said, or refused.

use super::Request;
use super::choices::{self, Choice};
use crate::bundle::{self, FILE_NAME, Kernel, Manifest, Selection, Trust, Unreadable};
use nvkv_db::Db;
use std::path::{Path, PathBuf};

/// Why the bundle that is there stays.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It cannot be read, or a newer nvkv wrote it.
    #[error("{0}; its place is not taken: give another --out, or delete its folder")]
    Unreadable(#[from] Unreadable),
    /// It was timed where the new one would only be predicted.
    #[error(
        "the bundle {} was timed at {shapes} shapes for which only predictions would take its place, the first {first}; \
         it stays. Give the --db that has those times, give another --out, or delete the folder", folder.display()
    )]
    Timed {
        /// The bundle.
        folder: PathBuf,
        /// How many selections.
        shapes: usize,
        /// Problem and shape of the first.
        first: String,
    },
}

/// Finds out before the work whether its bundle would be refused.
pub fn check_before(request: &Request, db: &Db) -> anyhow::Result<()> {
    let folder = request.out.join(request.machine.target.name());
    let Some(old) = previous(&folder).map_err(Refused::from)? else { return Ok(()) };
    if request.machine.gpu.is_ok() {
        return Ok(()); // What is asked for will be timed.
    }
    let known = choices::all(db, request.machine.target, None)?;
    let asked = |kernel: &Kernel, s: &Selection| {
        request.cases.iter().any(|(problem, shapes)| *problem == kernel.problem && shapes.contains(&s.shape))
    };
    let new =
        |kernel: &Kernel, s: &Selection| trust(&known, kernel, s).or(asked(kernel, s).then_some(Trust::Predicted));
    Ok(refuse_predictions(&folder, &old, new)?)
}

/// Refuses to put `choices` in the place of better ones, and says which selections of the bundle in
/// `folder` will be gone; none where nothing is lost.
pub fn check(folder: &Path, choices: &[Choice]) -> Result<Option<String>, Refused> {
    let Some(old) = previous(folder)? else { return Ok(None) };
    refuse_predictions(folder, &old, |kernel, s| trust(choices, kernel, s))?;
    let mut lost = old.selections().filter(|(kernel, s)| trust(choices, kernel, s).is_none());
    Ok(lost.next().map(|(kernel, first)| {
        format!(
            "the bundle {} had {} selections of which this database knows nothing usable, the first {} at {}; \
             the new one goes without them",
            folder.display(),
            1 + lost.count(),
            kernel.problem.key(),
            first.shape.key()
        )
    }))
}

/// The manifest of the bundle in `folder`. One that is damaged holds nothing that could be kept.
fn previous(folder: &Path) -> Result<Option<Manifest>, Unreadable> {
    if !folder.join(FILE_NAME).exists() {
        return Ok(None);
    }
    match bundle::read(folder) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(Unreadable::Malformed { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn refuse_predictions(
    folder: &Path,
    old: &Manifest,
    new: impl Fn(&Kernel, &Selection) -> Option<Trust>,
) -> Result<(), Refused> {
    let mut worse =
        old.selections().filter(|(kernel, s)| s.trust == Trust::Timed && new(kernel, s) == Some(Trust::Predicted));
    let Some((kernel, first)) = worse.next() else { return Ok(()) };
    let shapes = 1 + worse.count();
    let first = format!("{} at {}", kernel.problem.key(), first.shape.key());
    Err(Refused::Timed { folder: folder.to_path_buf(), shapes, first })
}

fn trust(choices: &[Choice], kernel: &Kernel, selection: &Selection) -> Option<Trust> {
    let same = |c: &&Choice| c.shape() == selection.shape && c.problem() == kernel.problem;
    choices.iter().find(same).map(Choice::trust)
}
