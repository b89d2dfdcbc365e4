//! One part of the work of several machines: each tunes its shard into a database of its own, and `merge` joins them.

use super::plan;
use super::space::Case;
use nvkv_generator::Preset;
use nvkv_spec::{Shape, Target};
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Shard `index` of `count`, counted from 0 as array jobs count their tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.trim().parse().ok()?, n.trim().parse().ok()?)));
        match parts {
            Some((index, count)) if index < count => Ok(Self { index, count }),
            _ => Err("must be I/N with I from 0 to N - 1, such as 0/8".into()),
        }
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} (from 0)", self.index, self.count)
    }
}

impl Shard {
    /// This shard's part of `cases`, in their order. The parts are disjoint and together all of it, and depend on
    /// nothing but the cases, the preset and the target: not on the machine, nor on the order of the cases.
    pub fn part(&self, cases: &[Case], preset: Preset, target: Target) -> Vec<Case> {
        let cost = |case: &Case| plan::case_ms(case, preset, target);
        let mine = partition(cases, self.count, cost).swap_remove(self.index);
        // A problem whose shapes came here in several pieces is one case: its kernels are compiled once.
        let of = |(problem, shapes): &Case| {
            let here = |shape: &Shape| mine.iter().any(|(p, s)| p == problem && s.contains(shape));
            (*problem, shapes.iter().copied().filter(here).collect::<Vec<_>>())
        };
        cases.iter().map(of).filter(|(_, shapes)| !shapes.is_empty()).collect()
    }

    /// The database of this shard beside `db`: `nvkv.sqlite` gives `nvkv.shard-2-of-8.sqlite`, so that the same command
    /// on every machine writes as many files.
    pub fn database(&self, db: &Path) -> PathBuf {
        let name = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_owned();
        let mut file = name(db.file_stem());
        file.push(format!(".shard-{}-of-{}", self.index, self.count));
        if let Some(extension) = db.extension() {
            file.push(".");
            file.push(extension);
        }
        db.with_file_name(file)
    }
}

/// Pieces of `cases` for each of `count` shards, by longest processing time first (Graham 1969, "Bounds on Multiprocessing
/// Timing Anomalies"): the dearest piece goes to the shard that has least. A piece is a problem with its shapes; one that
/// costs more than a shard's fair share is cut by its shapes, at the price of compiling its kernels in each.
fn partition(cases: &[Case], count: usize, cost: impl Fn(&Case) -> u64) -> Vec<Vec<Case>> {
    let fair = (cases.iter().map(&cost).sum::<u64>() / count as u64).max(1);
    let mut pieces: Vec<(u64, Case)> = Vec::new();
    for case in cases {
        let parts = cost(case).div_ceil(fair).clamp(1, case.1.len().max(1) as u64) as usize;
        pieces.extend(cut(case, parts).into_iter().map(|piece| (cost(&piece), piece)));
    }
    pieces.sort_by_cached_key(|(cost, (problem, shapes))| (Reverse(*cost), problem.key(), shapes.first().copied()));
    let mut shards = vec![(0, Vec::new()); count];
    for (cost, piece) in pieces {
        if let Some((load, shard)) = shards.iter_mut().min_by_key(|(load, _)| *load) {
            *load += cost;
            shard.push(piece);
        }
    }
    shards.into_iter().map(|(_, pieces)| pieces).collect()
}

/// The case in `parts` pieces; its sorted shapes are dealt like cards, so that each piece has large and small ones.
fn cut((problem, shapes): &Case, parts: usize) -> Vec<Case> {
    let mut sorted = shapes.clone();
    sorted.sort();
    (0..parts).map(|part| (*problem, sorted.iter().copied().skip(part).step_by(parts).collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_generator::{problems, shapes};
    use nvkv_spec::{Operation, Problem};
    use std::collections::HashSet;

    fn cases() -> Vec<Case> {
        let problems = problems(Preset::Standard, Operation::ALL);
        problems.into_iter().map(|problem| (problem, shapes(&problem, Preset::Standard))).collect()
    }

    /// What a case would cost: like the plan's, a part for its kernels and one for each shape.
    fn cost((problem, shapes): &Case) -> u64 {
        let kernels = 1 + problem.key().len() as u64 % 7;
        10 * kernels + shapes.iter().map(|shape| 1 + shape.key().len() as u64 % 5).sum::<u64>()
    }

    fn pairs(cases: &[Case]) -> Vec<(Problem, Shape)> {
        cases.iter().flat_map(|(problem, shapes)| shapes.iter().map(|shape| (*problem, *shape))).collect()
    }

    #[test]
    fn shards_are_disjoint_complete_and_even_in_any_order() {
        let cases = cases();
        let all: HashSet<_> = pairs(&cases).into_iter().collect();
        let mut reordered = cases.clone();
        reordered.reverse();
        reordered.iter_mut().for_each(|(_, shapes)| shapes.rotate_left(1));
        for count in [1, 2, 3, 8, 100, 1000] {
            let shards = partition(&cases, count, cost);
            let dealt: Vec<_> = shards.iter().flat_map(|shard| pairs(shard)).collect();
            assert_eq!(dealt.len(), all.len(), "{count} shards share something");
            assert_eq!(dealt.into_iter().collect::<HashSet<_>>(), all, "{count}");
            assert_eq!(partition(&reordered, count, cost), shards, "{count}");
            // Graham's bound of greedy lists: no shard has more than a fair share and one piece.
            let load = |shard: &Vec<Case>| shard.iter().map(cost).sum::<u64>();
            let largest = shards.iter().flatten().map(cost).max().unwrap();
            let total: u64 = shards.iter().map(load).sum();
            assert!(shards.iter().map(load).max().unwrap() <= total / count as u64 + largest, "{count}");
        }
    }

    #[test]
    fn a_shard_keeps_the_order_of_the_cases_and_each_problem_once() {
        let cases = &cases()[..4];
        let parts: Vec<Vec<Case>> =
            (0..3).map(|index| Shard { index, count: 3 }.part(cases, Preset::Quick, Target::Sm90a)).collect();
        let all: HashSet<_> = parts.iter().flat_map(|part| pairs(part)).collect();
        assert_eq!(all, pairs(cases).into_iter().collect());
        for part in &parts {
            let places: Vec<_> = part.iter().map(|(p, _)| cases.iter().position(|(q, _)| p == q).unwrap()).collect();
            assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
        }
    }

    #[test]
    fn a_shard_is_named_from_0() {
        assert_eq!("7/8".parse(), Ok(Shard { index: 7, count: 8 }));
        for text in ["8/8", "1", "/", "a/2", "0/0", "-1/2"] {
            assert!(text.parse::<Shard>().unwrap_err().contains("0/8"), "{text}");
        }
        let shard = Shard { index: 2, count: 8 };
        assert_eq!(shard.database(Path::new("db/nvkv.sqlite")), Path::new("db/nvkv.shard-2-of-8.sqlite"));
        assert_eq!(shard.database(Path::new("trials")), Path::new("trials.shard-2-of-8"));
    }
}
