//! The one name of a kernel, shared by template, bundle, database row and symbol.

use crate::{Problem, Variant};
use serde::{Deserialize, Serialize};

/// Name of a compiled kernel within its target: problem and compile-time variant, readable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelId(String);

impl KernelId {
    /// The name of `variant` of `problem`.
    pub fn new(problem: &Problem, variant: &Variant) -> Self {
        Self(format!("{}--{}", problem.key(), variant.key()))
    }

    /// The name as text: also the kernel's folder in a bundle.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The `extern "C"` entry point in the cubin.
    pub fn symbol(&self) -> String {
        format!("nvkv_{}", self.0.replace(['-', '+'], "_"))
    }
}

impl std::fmt::Display for KernelId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}
