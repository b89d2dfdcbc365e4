//! From what is asked to CUDA source. Pure: no GPU, no SQL, no environment, no clock.
//!
//! `space` spells the axes, `feasible` rejects with a named reason, `footprint` derives what a
//! kernel needs and how it is launched, `render` writes the source, `predict` orders variants
//! where nothing can be timed.

mod feasible;
mod footprint;
mod predict;
mod render;
mod space;

pub use feasible::{Rejection, feasible};
pub use footprint::{Footprint, launch};
pub use predict::{predicted_us, resident_blocks};
pub use render::{RenderError, Source, render};
pub use space::{
    HEAD_DIMS, KV_HEADS, MAX_GROUP, MAX_Q_LEN, PAGE_SIZES, Preset, default_split, default_variant, problems, shapes,
    splits, variants,
};
