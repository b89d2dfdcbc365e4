//! Problems to rendered kernels: variants, pruning by named reasons, sources.

use nvkv_generator::{
    Preset, Rejection, RenderError, Source, default_split, default_variant, feasible, render, variants,
};
use nvkv_spec::{Problem, Shape, SplitPolicy, Target, Variant};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// A problem with the shapes it is tuned at.
pub type Case = (Problem, Vec<Shape>);

/// The variants of one problem: those worth compiling, and how many were rejected for which reason.
#[derive(Clone, Debug)]
pub struct Space {
    /// The problem.
    pub problem: Problem,
    /// Worth compiling.
    pub feasible: Vec<Variant>,
    /// What an engineer without a tuner would pick; none where nothing is feasible.
    pub default: Option<Variant>,
    /// Rejected, by reason.
    pub rejected: BTreeMap<Rejection, usize>,
    /// Combinations of the axes that are for another storage format or numerics class: not variants of this problem.
    pub not_applicable: usize,
}

/// A kernel that is worth compiling.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Index of its problem among the cases.
    pub case: usize,
    /// What it solves.
    pub problem: Problem,
    /// What was chosen.
    pub variant: Variant,
    /// Whether it is the default variant, the yardstick of its problem.
    pub is_default: bool,
    /// Its source.
    pub source: Source,
}

impl Space {
    /// The space of `problem` on `target`. The default variant is always in it: it is the yardstick.
    pub fn new(problem: Problem, target: Target, preset: Preset) -> Self {
        let mut all = variants(&problem, preset);
        let default = yardstick(&problem, target);
        all.extend(default.filter(|default| !all.contains(default)));
        let mut space = Self { problem, feasible: Vec::new(), default, rejected: BTreeMap::new(), not_applicable: 0 };
        for variant in all {
            match feasible(&problem, &variant, target) {
                Ok(()) => space.feasible.push(variant),
                Err(reason) if reason.is_of_another_problem() => space.not_applicable += 1,
                Err(reason) => *space.rejected.entry(reason).or_default() += 1,
            }
        }
        space
    }

    /// Variants before pruning.
    pub fn total(&self) -> usize {
        self.feasible.len() + self.rejected.values().sum::<usize>()
    }
}

/// The default variant, which exists where any variant of the standard space is feasible.
pub fn yardstick(problem: &Problem, target: Target) -> Option<Variant> {
    let exists = variants(problem, Preset::Standard).iter().any(|v| feasible(problem, v, target).is_ok());
    exists.then(|| default_variant(problem, target))
}

/// Renders every feasible variant, problem by problem.
pub fn render_all(spaces: &[Space], target: Target) -> Result<Vec<Candidate>, RenderError> {
    let of = |(case, space): (usize, &Space)| {
        let of_variant = |&variant| (case, space.problem, variant, space.default == Some(variant));
        space.feasible.iter().map(of_variant).collect::<Vec<_>>()
    };
    let all: Vec<_> = spaces.iter().enumerate().flat_map(of).collect();
    all.into_par_iter()
        .map(|(case, problem, variant, is_default)| {
            Ok(Candidate { case, problem, variant, is_default, source: render(&problem, &variant, target)? })
        })
        .collect()
}

impl Candidate {
    /// Whether this is what an engineer without a tuner would launch at `shape`.
    pub fn is_default_launch(&self, shape: Shape, split: SplitPolicy, target: Target) -> bool {
        let of_decode = || split == default_split(&self.problem, &self.variant, &shape, target);
        self.is_default && (matches!(self.problem, Problem::Append(_)) || of_decode())
    }
}

/// The split policies to try: for decode those of the preset and the default, for append one that means nothing.
pub fn splits(problem: &Problem, variant: &Variant, shape: &Shape, target: Target, preset: Preset) -> Vec<SplitPolicy> {
    if matches!(problem, Problem::Append(_)) {
        return vec![SplitPolicy::Even { splits: 1 }];
    }
    let mut all = nvkv_generator::splits(problem, variant, shape, target, preset);
    let usual = default_split(problem, variant, shape, target);
    if !all.contains(&usual) {
        all.push(usual);
    }
    all
}
