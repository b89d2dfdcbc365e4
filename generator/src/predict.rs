//! A simple model of one call's time (bytes, instructions, occupancy), where nothing can be timed.

use nvkv_spec::{CompileFacts, Problem, Shape, SplitPolicy, Target, Variant};

/// Predicted time of one call, µs. An ordering aid; never a measurement.
pub fn predicted_us(
    _problem: &Problem,
    _variant: &Variant,
    _split: SplitPolicy,
    _shape: &Shape,
    _target: Target,
    _facts: &CompileFacts,
) -> f64 {
    todo!()
}
