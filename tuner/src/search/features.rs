//! What is known of a launch before it runs, as numbers of about one unit each.

use nvkv_generator::{Footprint, launch, predicted_us, resident_blocks};
use nvkv_spec::{
    CompileFacts, DecodeProblem, DecodeVariant, Dequant, Lengths, Mma, Operands, Problem, Shape, SplitPolicy, Staging,
    Target, Variant,
};

/// Numbers of a launch in [`Point::launch`].
pub const LAUNCH: usize = KINDS + NUMBERS;
/// Numbers of the problem and shape in [`Point::case`].
pub const CASE: usize = 5;
/// Yes or no: path of K, path of V, operand order.
const KINDS: usize = Dequant::ALL.len() * Mma::ALL.len() + Dequant::ALL.len() + 1;
/// Quantities, whose squares count too: see [`numbers`].
const NUMBERS: usize = 18;
/// A yes or no of average frequency varies about as much as the quantities do.
const YES: f64 = 2.0;

/// A trial as a model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The launch: kind, geometry, compiler's facts.
    pub launch: [f64; LAUNCH],
    /// The problem and the shape: batch, tokens seen, distribution of lengths, head dim, query rows.
    pub case: [f64; CASE],
    /// Natural logarithm of the generator's prediction, µs.
    pub predicted: f64,
    /// Whether it is the default, which is timed always.
    pub is_default: bool,
}

impl Point {
    /// Of a compiled kernel with one split at one shape.
    pub fn new(
        (problem, variant, facts): (&Problem, &Variant, &CompileFacts),
        (shape, split): (&Shape, SplitPolicy),
        target: Target,
        is_default: bool,
    ) -> Self {
        let predicted = predicted_us(problem, variant, split, shape, target, facts).ln();
        let mut point = Self { launch: [0.0; LAUNCH], case: [0.0; CASE], predicted, is_default };
        if let (Problem::Decode(p), Variant::Decode(v), Shape::Decode { batch, context, lengths, .. }) =
            (problem, variant, shape)
        {
            let ragged = f64::from(u8::from(*lengths != Lengths::Equal));
            let sizes = [log2(*batch) / 3.0, log2(problem.seen(*context)) / 3.0 - 4.0, 2.0 * ragged];
            point.case[..3].copy_from_slice(&sizes);
            point.case[3..].copy_from_slice(&[log2(p.head_dim) - 7.0, log2(p.query_rows()) / 2.0 - 1.5]);
            kinds(v, &mut point.launch[..KINDS]);
            point.launch[KINDS..].copy_from_slice(&numbers((p, v, facts), (problem, variant), (shape, split), target));
        }
        point
    }

    /// What a linear model adds up: the launch, squares of its quantities, and the launch times each number of the case.
    pub fn terms(&self) -> impl Iterator<Item = f64> {
        let squares = self.launch[KINDS..].iter().map(|x| x * x);
        let crossed = self.case.iter().flat_map(|c| self.launch.iter().map(move |x| c * x));
        self.launch.iter().copied().chain(squares).chain(crossed)
    }

    /// Length of [`Self::terms`].
    pub const TERMS: usize = LAUNCH + NUMBERS + CASE * LAUNCH;

    /// Squared distance of two launches of one case.
    pub fn apart(&self, other: &Self) -> f64 {
        self.launch.iter().zip(&other.launch).map(|(a, b)| (a - b) * (a - b)).sum()
    }
}

fn log2(n: u32) -> f64 {
    f64::from(n.max(1)).log2()
}

fn kinds(v: &DecodeVariant, into: &mut [f64]) {
    let place = |dequant: Dequant| Dequant::ALL.iter().position(|d| *d == dequant).unwrap_or_default();
    let mma = Mma::ALL.iter().position(|m| *m == v.k_path.mma).unwrap_or_default();
    into[place(v.k_path.dequant) * Mma::ALL.len() + mma] = YES;
    into[Dequant::ALL.len() * Mma::ALL.len() + place(v.v_path.dequant)] = YES;
    into[KINDS - 1] = if v.operands == Operands::Swapped { YES } else { 0.0 };
}

/// Tile, occupancy, waves, splits and the compiler's facts.
fn numbers(
    (p, v, facts): (&DecodeProblem, &DecodeVariant, &CompileFacts),
    (problem, variant): (&Problem, &Variant),
    (shape, split): (&Shape, SplitPolicy),
    target: Target,
) -> [f64; NUMBERS] {
    let Footprint { row_tiles, .. } = Footprint::new(problem, variant);
    let footprint = Footprint::new(problem, variant);
    let resident = resident_blocks(&footprint, facts, target);
    let launch = launch(problem, variant, shape, split);
    let blocks: f64 = launch.grid.iter().map(|&n| f64::from(n)).product();
    let waves = blocks / (f64::from(target.facts().sms) * resident);
    let Shape::Decode { context, .. } = *shape else { return [0.0; NUMBERS] };
    let (seen, step) = (f64::from(problem.seen(context)), f64::from(v.warps * v.tile_tokens));
    let part = (seen / f64::from(launch.max_splits)).max(f64::from(launch.min_split_tokens)).max(1.0);
    let tiles = (part / step).ceil();
    let stages = match v.staging {
        Staging::Registers => 0,
        Staging::CpAsync { stages } => stages,
    };
    let spills = f64::from(1 + facts.spill_loads + facts.spill_stores);
    [
        waves.log2() / 2.0,
        2.0 * (waves.ceil() / waves - 1.0).min(1.0), // idle share of the last wave
        log2(launch.max_splits) / 2.0,
        f64::from(u8::from(launch.max_splits == 1)),
        tiles.log2() / 2.0,
        tiles * step / part - 1.0, // work on tokens that are not there
        f64::from(launch.taper) / 2.0,
        f64::from(u8::from(matches!(split, SplitPolicy::Chunk { .. }))),
        log2(row_tiles),
        (f64::from(row_tiles * v.query_tile) / f64::from(p.query_rows())).log2(),
        (resident * f64::from(v.warps)).log2(),
        resident.log2(),
        spills.log2() / 4.0,
        f64::from(facts.registers) / 64.0,
        2.0 * log2(facts.instructions) - 22.0,
        f64::from(stages),
        log2(v.tile_tokens),
        2.0 * log2(v.warps),
    ]
}
