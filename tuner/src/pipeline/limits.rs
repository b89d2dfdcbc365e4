//! Sizes that no launch can have: refused before they are planned, tuned or handed to an engine.

use super::space::Case;
use nvkv_spec::{Problem, Shape};

/// Blocks of a grid in y and in z, and in x.
const GRID_YZ: u128 = nvkv_spec::GRID_YZ as u128;
const GRID_X: u128 = nvkv_spec::GRID_X as u128;
/// Bytes of a call's inputs: 8 TiB, beyond any GPU's memory.
const BYTES: u128 = 1 << 43;
/// Pages of a cache: block tables hold their numbers as `int`.
const PAGES: u128 = (1 << 31) - 1;
/// The narrowest query tile: the most row tiles that share a KV head.
const QUERY_TILE: u128 = 8;
/// Elements of a block scale: the unit that an append deals out.
const BLOCK: u128 = 16;

/// A shape that cannot be launched, or that no memory holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at {shape} is impossible: {what} is {found}, at most {limit} can be had; lower {options}")]
pub struct TooLarge {
    problem: String,
    shape: String,
    what: &'static str,
    found: u128,
    limit: u128,
    options: &'static str,
}

/// Refuses cases that cannot be launched on any GPU.
pub fn check(cases: &[Case]) -> Result<(), TooLarge> {
    let all = cases.iter().flat_map(|(problem, shapes)| shapes.iter().map(move |shape| (problem, shape)));
    all.into_iter().try_for_each(|(problem, shape)| check_one(problem, shape))
}

fn check_one(problem: &Problem, shape: &Shape) -> Result<(), TooLarge> {
    let beyond = |&(_, found, limit, _): &Quantity| found > limit;
    match quantities(problem, shape).into_iter().find(beyond) {
        None => Ok(()),
        Some((what, found, limit, options)) => {
            Err(TooLarge { problem: problem.key(), shape: shape.key(), what, found, limit, options })
        }
    }
}

/// What is limited, how much of it there is, the limit, and the options to lower.
type Quantity = (&'static str, u128, u128, &'static str);

fn quantities(problem: &Problem, shape: &Shape) -> Vec<Quantity> {
    let dim = u128::from(problem.head_dim());
    let row = u128::from(problem.kv_format().token_bytes(problem.head_dim()));
    match (problem, *shape) {
        (Problem::Decode(p), Shape::Decode { batch, context, kv_heads, .. }) => {
            let [batch, context, heads] = [batch, context, kv_heads].map(u128::from);
            let row_tiles = u128::from(p.query_rows()).div_ceil(QUERY_TILE);
            let pages = batch * context.div_ceil(u128::from(p.page_size));
            vec![
                ("the grid's y, the batch,", batch, GRID_YZ, "--batch"),
                ("the grid's x, KV heads times row tiles,", heads * row_tiles, GRID_X, "--kv-heads"),
                ("the number of pages", pages, PAGES, "--batch or --context"),
                ("the cache's size in bytes", batch * context * heads * row, BYTES, "--batch, --context or --kv-heads"),
            ]
        }
        (_, Shape::Append { tokens, kv_heads } | Shape::Decode { batch: tokens, kv_heads, .. }) => {
            let [tokens, heads] = [tokens, kv_heads].map(u128::from);
            let bytes = tokens * heads * (row + 4 * dim);
            vec![
                ("the grid's y, the KV heads,", heads, GRID_YZ, "--kv-heads"),
                ("the grid's x, blocks of 16 elements,", tokens * dim / BLOCK, GRID_X, "--batch (--tokens of a query)"),
                ("the size of old and new rows in bytes", bytes, BYTES, "--batch (--tokens of a query) or --kv-heads"),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvkv_generator::{Preset, problems, shapes};
    use nvkv_spec::{Lengths, Operation};

    #[test]
    fn what_the_presets_ask_is_possible() {
        for problem in problems(Preset::Full, Operation::ALL) {
            check(&[(problem, shapes(&problem, Preset::Full))]).unwrap();
        }
    }

    #[test]
    fn the_option_to_lower_is_named() {
        let decode = |batch, context, kv_heads| Shape::Decode { batch, context, kv_heads, lengths: Lengths::Equal };
        let append = |tokens, kv_heads| Shape::Append { tokens, kv_heads };
        const MOST: u32 = 1 << 26;
        for (operation, shape, option) in [
            (Operation::Decode, decode(65_536, 16, 1), "--batch"),
            (Operation::Decode, decode(1, 1, u32::MAX), "--kv-heads"),
            (Operation::Fused, decode(65_535, MOST, 1), "--context"),
            (Operation::Decode, decode(1000, 1 << 20, 4096), "--kv-heads"),
            (Operation::Append, append(1, MOST), "--kv-heads"),
            (Operation::Append, append(MOST, 4096), "--batch"),
            (Operation::Decode, decode(MOST, MOST, MOST), "--batch"),
        ] {
            let problem = problems(Preset::Quick, &[operation])[0];
            let error = check(&[(problem, vec![shape])]).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(&shape.key()), "{error}");
        }
        let problem = problems(Preset::Quick, &[Operation::Decode])[0];
        check(&[(problem, vec![decode(65_535, 16, 8), decode(1, MOST, 8), decode(1, 16, 65_535)])]).unwrap();
    }
}
