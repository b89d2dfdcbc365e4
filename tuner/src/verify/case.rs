//! The cases a kernel must pass. They depend on the problem alone, so that all its variants share
//! one reference result.

use super::host::K_SCALE;
use crate::worker::Depth;
use nvkv_spec::SplitPolicy;
use nvkv_spec::layout::Arrangement;
use nvkv_spec::{AppendMode, DecodeProblem};

/// What the cache and the new rows hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Random codes; mostly moderate block scales, some tiny, subnormal or zero.
    Random,
    /// The same, and in each request one key of the largest magnitude: softmax is one-hot or skips it.
    HugeKey,
    /// Every V row is the same, so the output is that row whatever the weights are.
    ConstantValues,
    /// Some new elements are NaN or infinite (fused append only).
    NonFinite,
    /// New elements that are hard to requantise, and a K scale at which their blocks' are subnormal (fused append only).
    /// What attention makes of such magnitudes is not compared: the cache is, and the count of elements that are not finite.
    HardTokens,
    /// Queries of zeros, and a K scale so small that their rows' scales vanish in f32: all tokens count alike.
    NoScores,
}

/// One batch for a decode kernel.
#[derive(Clone, Debug)]
pub struct DecodeCase {
    /// Names the case in messages, and seeds its random numbers.
    pub name: String,
    /// Where rows lie.
    pub arrangement: Arrangement,
    /// KV heads.
    pub kv_heads: u32,
    /// Cached tokens of each request.
    pub kv_len: Vec<u32>,
    /// What the cache holds.
    pub content: Content,
    /// Whether log-sum-exp is asked for.
    pub with_lse: bool,
    /// Whether rows of Q, output and new K and V have gaps between them.
    pub padded: bool,
    /// Split policies to run it with.
    pub splits: Vec<SplitPolicy>,
    /// Tokens that a query sees, where the problem has a window: this many, or as many as the problem says.
    pub window: Option<u32>,
}

impl DecodeCase {
    /// Longest request.
    pub fn context(&self) -> u32 {
        self.kv_len.iter().copied().max().unwrap_or(0)
    }

    /// The window of this case of `problem`, if it has one.
    pub fn window(&self, problem: &DecodeProblem) -> Option<u32> {
        problem.window.map(|own| self.window.unwrap_or(own))
    }

    /// Scale of the K tensor.
    pub fn k_scale(&self) -> f32 {
        match self.content {
            Content::NoScores => 1e-12,
            Content::HardTokens => 100.0,
            _ => K_SCALE,
        }
    }

    /// The first token of a request of `len` tokens that any of its queries sees.
    pub fn first_seen(&self, problem: &DecodeProblem, len: u32) -> u32 {
        let before_first_query = (len + 1).saturating_sub(problem.q_len);
        self.window(problem).map_or(0, |window| before_first_query.saturating_sub(window))
    }
}

/// One call of an append kernel.
#[derive(Clone, Debug)]
pub struct AppendCase {
    /// Names the case in messages, and seeds its random numbers.
    pub name: String,
    /// Where rows lie.
    pub arrangement: Arrangement,
    /// KV heads.
    pub kv_heads: u32,
    /// New tokens, the skipped ones included.
    pub tokens: u32,
    /// Scale of the K tensor; the V tensor's is three times that.
    pub k_scale: f32,
    /// Whether rows of K and V have gaps between them.
    pub padded: bool,
}

const fn even(splits: u32) -> SplitPolicy {
    SplitPolicy::Even { splits }
}

const fn chunk(tokens: u32) -> SplitPolicy {
    SplitPolicy::Chunk { tokens, taper: 0 }
}

const fn tapered(tokens: u32, taper: u32) -> SplitPolicy {
    SplitPolicy::Chunk { tokens, taper }
}

/// The decode cases of `problem` at `depth`.
pub fn decode_cases(problem: &DecodeProblem, depth: Depth) -> Vec<DecodeCase> {
    let mut cases = quick(problem).to_vec();
    if depth == Depth::Full {
        cases.extend(matrix(problem));
        cases.extend(long(problem));
    }
    with_windows(problem, &mut cases);
    with_new_tokens(problem, cases)
}

/// Longest request that is emulated: several steps of every tiling, and a ragged end.
const LONGEST_EMULATED: u32 = 1025;
/// Requests that a case of the matrix keeps in the emulator.
const REQUESTS_EMULATED: usize = 6;

/// The same, as far as a CPU runs them in seconds: no request beyond [`LONGEST_EMULATED`], and each case of the matrix
/// keeps one split and a few requests, taken in turn, so that over all cases every one comes up.
pub fn emulated_cases(problem: &DecodeProblem, depth: Depth) -> Vec<DecodeCase> {
    let mut cases = quick(problem).to_vec();
    if depth == Depth::Full {
        cases.extend(matrix(problem).into_iter().enumerate().map(|(turn, case)| {
            let lengths = case.kv_len.iter().cycle().skip(turn * REQUESTS_EMULATED);
            let kv_len = lengths.take(REQUESTS_EMULATED).copied().collect();
            DecodeCase { kv_len, splits: vec![case.splits[turn % case.splits.len()]], ..case }
        }));
        cases.extend(long(problem));
    }
    with_windows(problem, &mut cases);
    cases.iter_mut().flat_map(|case| &mut case.kv_len).for_each(|len| *len = (*len).min(LONGEST_EMULATED));
    with_new_tokens(problem, cases)
}

/// Windows of one token, of less than a tile or a page and of about as much, of several tiles, and of all there is.
const WINDOWS: [u32; 6] = [1, 5, 16, 66, 200, u32::MAX];

/// What a problem with a window asks beside: each length of [`WINDOWS`] over the short requests, in several splits. The
/// other cases take the lengths, and the problem's own, in turn.
fn with_windows(problem: &DecodeProblem, cases: &mut Vec<DecodeCase>) {
    if problem.window.is_none() {
        return;
    }
    let lengths = WINDOWS.into_iter().map(Some).chain([None]).cycle();
    cases.iter_mut().zip(lengths.skip(3)).for_each(|(case, window)| case.window = window);
    let of_window = |window: u32| DecodeCase {
        name: format!("window {window}"),
        kv_heads: 1,
        kv_len: short(problem).into_iter().chain([300]).collect(),
        splits: vec![even(3), chunk(64)],
        window: Some(window),
        ..cases[0].clone()
    };
    let all: Vec<_> = WINDOWS.into_iter().map(of_window).collect();
    cases.extend(all);
}

/// What a fused problem asks beside: new rows that are not finite, and room for `q_len` tokens in each request.
fn with_new_tokens(problem: &DecodeProblem, mut cases: Vec<DecodeCase>) -> Vec<DecodeCase> {
    if problem.append == AppendMode::Fused {
        let base = DecodeCase { content: Content::NonFinite, ..cases[0].clone() };
        let kv_len = short(problem);
        let spoilt = DecodeCase { name: "non-finite".into(), kv_heads: 2, kv_len, splits: vec![even(3)], ..base };
        let hard = DecodeCase { name: "hard tokens".into(), content: Content::HardTokens, ..spoilt.clone() };
        cases.extend([spoilt, hard]);
        // A fused request appends its q_len tokens; fewer would leave no place for the first of them.
        for len in cases.iter_mut().flat_map(|case| &mut case.kv_len).filter(|len| **len > 0) {
            *len = (*len).max(problem.q_len);
        }
    }
    cases
}

fn quick(problem: &DecodeProblem) -> [DecodeCase; 4] {
    let ragged = DecodeCase {
        name: "ragged".into(),
        arrangement: Arrangement::Hnd,
        kv_heads: 2,
        kv_len: ragged(problem),
        content: Content::Random,
        with_lse: true,
        padded: false,
        splits: vec![even(1), even(5), chunk(128)],
        window: None,
    };
    let strided = DecodeCase {
        name: "strided".into(),
        arrangement: Arrangement::Nhd,
        kv_heads: 3,
        kv_len: short(problem),
        with_lse: false,
        padded: true,
        splits: vec![even(3)],
        ..ragged.clone()
    };
    let huge = DecodeCase {
        name: "huge key".into(),
        arrangement: Arrangement::OneBlock,
        kv_heads: 1,
        kv_len: vec![1, 130, 517],
        content: Content::HugeKey,
        splits: vec![even(64)],
        ..ragged.clone()
    };
    let constant = DecodeCase {
        name: "constant values".into(),
        kv_heads: 8,
        kv_len: vec![0, 65, 300],
        content: Content::ConstantValues,
        splits: vec![even(2)],
        ..ragged.clone()
    };
    [ragged, strided, huge, constant]
}

/// Every arrangement with several numbers of heads and every content.
fn matrix(problem: &DecodeProblem) -> Vec<DecodeCase> {
    let mut cases = Vec::new();
    for &arrangement in Arrangement::ALL {
        for (i, kv_heads) in [1, 2, 3, 8].into_iter().enumerate() {
            for content in [Content::Random, Content::HugeKey, Content::ConstantValues] {
                let kv_len = if kv_heads <= 2 { ragged(problem) } else { short(problem) };
                let (name, splits) = (format!("{arrangement}, {kv_heads} heads, {content:?}"), every_split());
                let (with_lse, padded) = (i % 2 == 0, i >= 2);
                let window = None;
                cases.push(DecodeCase {
                    name,
                    arrangement,
                    kv_heads,
                    kv_len,
                    content,
                    with_lse,
                    padded,
                    splits,
                    window,
                });
            }
        }
    }
    cases
}

fn every_split() -> Vec<SplitPolicy> {
    vec![
        even(1),
        even(2),
        even(3),
        even(7),
        even(16),
        even(64),
        chunk(64),
        chunk(512),
        tapered(512, 2),
        tapered(2048, 4),
    ]
}

/// Many requests, and one long one.
fn long(problem: &DecodeProblem) -> Vec<DecodeCase> {
    let [ragged, ..] = quick(problem);
    let every_length = DecodeCase {
        name: "every length".into(),
        kv_heads: 1,
        kv_len: (0..=140).collect(),
        splits: vec![even(1), even(4), chunk(32)],
        ..ragged
    };
    let one_request =
        DecodeCase { name: "one request".into(), kv_len: vec![3001], splits: every_split(), ..every_length.clone() };
    // So many splits that warps which merge them take several turns.
    let many_splits =
        DecodeCase { name: "many splits".into(), kv_len: vec![10_007], splits: vec![even(40)], ..every_length.clone() };
    let no_scores = DecodeCase { name: "no scores".into(), content: Content::NoScores, ..one_request.clone() };
    vec![every_length, one_request, many_splits, no_scores]
}

/// Lengths around pages, tiles and blocks of tiles; one of about 3,000.
fn ragged(problem: &DecodeProblem) -> Vec<u32> {
    let mut lengths = short(problem);
    lengths.extend([255, 256, 257, 511, 513, 700, 3001]);
    lengths
}

/// 0, 1, page ± 1 and the powers of two that tiles have, ± 1.
fn short(problem: &DecodeProblem) -> Vec<u32> {
    let page = problem.page_size;
    let mut lengths = vec![0, 1, page - 1, page, page + 1, 15, 17, 31, 33, 63, 64, 65, 127, 129, 2 * page];
    lengths.dedup();
    lengths
}

/// A divisor whose significand is all ones brings quotients nearest to a border between codes without meeting it.
pub const JUST_BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// The append cases at `depth`.
pub fn append_cases(depth: Depth) -> Vec<AppendCase> {
    let case = |arrangement: Arrangement, kv_heads, tokens, k_scale, padded| AppendCase {
        name: format!("{arrangement}, {kv_heads} heads, {tokens} tokens, scale {k_scale}, padded: {padded}"),
        arrangement,
        kv_heads,
        tokens,
        k_scale,
        padded,
    };
    let mut cases = vec![
        case(Arrangement::Hnd, 2, 150, 1.0, false),
        case(Arrangement::Nhd, 3, 37, 0.013, true),
        case(Arrangement::OneBlock, 8, 17, JUST_BELOW_ONE, false),
    ];
    if depth == Depth::Full {
        for &arrangement in Arrangement::ALL {
            for (kv_heads, tokens) in [(1, 1), (1, 1000), (2, 63), (3, 129), (8, 400)] {
                for (k_scale, padded) in
                    [(1.0, true), (2.5e-3, false), (7.7, true), (JUST_BELOW_ONE, false), (1e-30, false), (1e20, true)]
                {
                    cases.push(case(arrangement, kv_heads, tokens, k_scale, padded));
                }
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_generator::{Preset, problems};
    use nvkv_spec::{Operation, Problem};
    use std::collections::HashSet;

    /// Fewer launches, none of them long, and no length, split or content is left out for it.
    #[test]
    fn the_emulator_runs_a_part_of_each_case_and_every_part_somewhere() {
        for (operation, window) in [(Operation::Decode, None), (Operation::Fused, None), (Operation::Fused, Some(128))]
        {
            let Problem::Decode(problem) = problems(Preset::Quick, &[operation])[0] else { unreachable!() };
            let problem = DecodeProblem { window, ..problem };
            for depth in [Depth::Quick, Depth::Full] {
                let (all, few) = (decode_cases(&problem, depth), emulated_cases(&problem, depth));
                let names = |cases: &[DecodeCase]| cases.iter().map(|case| case.name.clone()).collect::<Vec<_>>();
                assert_eq!(names(&few), names(&all));
                let lengths = |cases: &[DecodeCase]| -> HashSet<u32> {
                    cases.iter().flat_map(|case| &case.kv_len).map(|&len| len.min(LONGEST_EMULATED)).collect()
                };
                assert_eq!(lengths(&few), lengths(&all));
                let splits = |cases: &[DecodeCase]| -> HashSet<SplitPolicy> {
                    cases.iter().flat_map(|case| &case.splits).copied().collect()
                };
                assert_eq!(splits(&few), splits(&all));
                let tokens = few.iter().map(|c| c.splits.len() as u32 * c.kv_heads * c.kv_len.iter().sum::<u32>());
                assert!(tokens.sum::<u32>() < 150_000, "{depth:?}");
            }
        }
    }
}
