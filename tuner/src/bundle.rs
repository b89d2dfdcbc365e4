//! Kernel bundles: what an engine takes away. `OUT/<target>/manifest.json` and a folder a kernel.

mod check;
mod launch_rule;
mod manifest;
mod read;
mod write;

pub use check::{Problems, check};
pub use launch_rule::LaunchRule;
pub use manifest::{FILE_NAME, FileEntry, Files, Kernel, Manifest, Parameter, SCHEMA, Selection, Trust};
pub use read::{Unreadable, find, read};
pub use write::{Ingredient, Written, require_place, write};
