//! Problem and variant to one self-contained CUDA source.

use nvkv_spec::{KernelId, Problem, Target, Variant};

/// A rendered kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The kernel's name.
    pub id: KernelId,
    /// CUDA C++ with no includes left.
    pub text: String,
    /// BLAKE3 of `text`, hex.
    pub hash: String,
}

/// A template could not be rendered: a defect of the templates, not of the user's input.
#[derive(Debug, thiserror::Error)]
#[error("template of {id}: {source}")]
pub struct RenderError {
    /// The kernel.
    pub id: KernelId,
    /// What Tera says.
    #[source]
    pub source: tera::Error,
}

/// Renders `variant` of `problem` for `target`.
pub fn render(_problem: &Problem, _variant: &Variant, _target: Target) -> Result<Source, RenderError> {
    todo!()
}
