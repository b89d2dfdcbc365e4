//! Kernel bundles: what an engine takes away. The format is the runtime's; here they are written and worked out again.

mod check;
mod launch_rule;
mod write;

pub use check::{Problems, check};
pub use launch_rule::launch_rule;
pub use nvkv_runtime::bundle::{FILE_NAME, Kernel, Manifest, Selection, Trust, Unreadable, find, read};
pub use write::{Ingredient, Written, require_place, write};
