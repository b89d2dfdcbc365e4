//! The format of a bundle, `<target>/manifest.json` and a folder a kernel: written by `nvkv-tune`, read here.

mod launch_rule;
mod manifest;
mod read;

pub use launch_rule::LaunchRule;
pub use manifest::{
    DIGEST_NAME, FILE_NAME, FileEntry, Files, Kernel, Manifest, Parameter, SCHEMA, Selection, Trust, digest, numerics,
    parameters,
};
pub use read::{Changed, Unreadable, check_digest, find, parse, read, read_file};
