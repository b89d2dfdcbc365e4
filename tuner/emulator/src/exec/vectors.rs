//! Loops over lanes, compiled for the vector instructions that this CPU has.

use multiversion::multiversion;

/// Calls `f`, compiled once for x86-64-v3 (AVX2 and FMA) and once for any CPU. Results are the same: Rust contracts
/// no multiplication with an addition. `f` must be small enough to be inlined, as closures around lanewise loops are.
#[multiversion(targets("x86_64+avx+avx2+bmi1+bmi2+f16c+fma+lzcnt+movbe+popcnt"))]
pub(crate) fn vectorised<F: FnOnce() -> R, R>(f: F) -> R {
    f()
}
