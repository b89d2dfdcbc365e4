//! Warps at work: registers, operations on them, blocks of warps.

mod asynchronous;
mod barrier;
mod block;
mod elements;
mod generic;
mod machine;
mod op;
mod registers;
mod special;
mod tensor;
mod vectors;
mod warp;
mod wgmma;

pub(crate) use barrier::{Barrier, Reduction};
pub(crate) use block::{Grid, run_block};
pub(crate) use generic::{LOCAL_BASE, load as generic_load, load_constant, store as generic_store};
pub(crate) use machine::{Blame, Machine, blame, lanes_of};
pub(crate) use op::{Access, Address, Op, Participants, Program, Step, Wgmma, WgmmaA, WgmmaType};
pub(crate) use registers::{Class, Lane, Lanes, Registers, Slot, WARP};
pub(crate) use special::Special;
pub(crate) use tensor::{ColumnsB, MAX_K, Rounding, RowsA, Tile, multiply};
pub(crate) use vectors::vectorised;
pub(crate) use warp::{Environment, Stop};
