//! The axes of every variant and the problem lists of the presets: the only place where they are spelled.

use nvkv_spec::{Operation, Problem, Shape, SplitPolicy, Target, Variant};

/// How much of the space a tune covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// Minutes on two cores.
    Quick,
    /// The shapes of a server, every path.
    Standard,
    /// Every axis.
    Full,
}

/// The problems of a preset, before the command line narrows or widens its lists.
pub fn problems(_preset: Preset, _operations: &[Operation]) -> Vec<Problem> {
    todo!()
}

/// The shapes at which `problem` is tuned in a preset.
pub fn shapes(_problem: &Problem, _preset: Preset) -> Vec<Shape> {
    todo!()
}

/// Every combination of the axes for `problem`, feasible or not.
pub fn variants(_problem: &Problem, _preset: Preset) -> Vec<Variant> {
    todo!()
}

/// The split policies worth trying at `shape`.
pub fn splits(
    _problem: &Problem,
    _variant: &Variant,
    _shape: &Shape,
    _target: Target,
    _preset: Preset,
) -> Vec<SplitPolicy> {
    todo!()
}

/// What an engineer without a tuner would pick: the yardstick of every tune.
pub fn default_variant(_problem: &Problem, _target: Target) -> Variant {
    todo!()
}

/// The split an engineer without a tuner would pick.
pub fn default_split(_problem: &Problem, _variant: &Variant, _shape: &Shape, _target: Target) -> SplitPolicy {
    todo!()
}
