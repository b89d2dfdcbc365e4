//! The CPU truth that every kernel is held to: codecs, append to the bit, attention in float64.
//!
//! Depends on the vocabulary alone; knows no GPU. Clarity comes first, then enough speed to run in
//! every test: [`decode`] spreads requests and heads over all cores, and [`decode_head`] serves
//! spot checks of shapes too large to compute in full.

mod append;
mod attention;
mod cache;
pub mod codec;

pub use append::append;
pub use attention::{DecodeInputs, DecodeOutput, DecodeRows, decode, decode_head};
pub use cache::HostCache;
