//! The number formats of a cache: E2M1, E4M3, blocks of sixteen, and the 16-bit types around them.

mod block;
mod dtype;
mod minifloat;

pub use block::{Block, fp8_element, quantise_block};
pub(crate) use block::{E4M3_VALUES, element_values};
pub use dtype::{finite_f32, from_f32, to_f32};
pub use minifloat::{e2m1_decode, e2m1_encode, e4m3_decode, e4m3_encode};
