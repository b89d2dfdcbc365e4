//! A kernel an instruction form, its operands, and what a GPU answered: shared by the test that holds the emulator to
//! the answers and by the recorder, which runs the same kernels on a GPU.

mod answers;
mod compare;
mod element;
mod emulate;
mod kernel;
mod layout;
mod operands;
mod product;
mod random;
mod table;

pub use answers::{Answer, Answers};
pub use table::{Form, Tolerance};

/// Threads of a block: a warpgroup.
pub const BLOCK: usize = 128;
/// Bytes of an operand or a result in memory; narrower ones lie in the low bytes.
pub const SLOT: usize = 8;
/// Where kernels are compiled for, and the answers come from.
pub const TARGET: &str = "sm_90a";

/// Words of the parameter: two addresses, and four that `ld.param` reads.
pub const CONSTANTS: [u64; 4] =
    [0x8F81_7263_5445_3627, 0xF1E2_D3C4_B5A6_9788, 0x0123_4567_89AB_CDEF, 0xFFFF_7FFF_8000_0001];

/// Every form of the table.
pub fn forms() -> Vec<Form> {
    table::read(include_str!("../forms.txt"))
}
