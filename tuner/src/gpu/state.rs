//! What the GPU is doing right now, as far as NVML tells: recorded beside every measurement.

use serde::{Deserialize, Serialize};

/// State of one GPU at one moment. A field is `None` where the driver or the board does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuState {
    /// SM clock, MHz.
    pub sm_clock: Option<u32>,
    /// Memory clock, MHz.
    pub memory_clock: Option<u32>,
    /// Names of the active reasons why clocks are held down; idle is one.
    pub throttle_reasons: Vec<String>,
    /// Temperature of the chip, °C.
    pub temperature: Option<u32>,
    /// Power drawn, W.
    pub power: Option<f64>,
    /// Whether memory is protected by ECC.
    pub ecc: Option<bool>,
    /// Whether the board is divided into MIG instances.
    pub mig: Option<bool>,
    /// Other processes that compute on this GPU.
    pub other_processes: Option<u32>,
}
