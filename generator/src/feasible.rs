//! Which variants make sense on which target: a named reason for each that does not.

use nvkv_spec::{Problem, Target, Variant};

/// Why a variant is not generated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// placeholder
    #[error("placeholder")]
    Placeholder,
}

impl Rejection {
    /// The reason's name, for counts by reason.
    pub fn name(&self) -> &'static str {
        todo!()
    }
}

/// Whether `variant` of `problem` can run on `target` and is worth compiling.
pub fn feasible(_problem: &Problem, _variant: &Variant, _target: Target) -> Result<(), Rejection> {
    todo!()
}
