//! Warps at work: registers, operations on them, blocks of warps.

mod asynchronous;
mod block;
mod op;
mod registers;
mod special;
mod tensor;
mod vectors;
mod warp;

pub(crate) use block::{Grid, run_block};
pub(crate) use op::{Access, Address, AsyncCopy, Atomic, AtomicFunction, Op, Participants, Program, Step, Wgmma};
pub(crate) use registers::{Class, Lane, Lanes, Registers, Slot, WARP};
pub(crate) use special::Special;
pub(crate) use tensor::{ColumnsB, MAX_K, Rounding, RowsA, Tile, multiply};
pub(crate) use vectors::vectorised;
pub(crate) use warp::Environment;
