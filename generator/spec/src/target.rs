//! GPU targets: what `--arch` names, and the facts about each chip that decide feasibility.

use serde::{Deserialize, Serialize};

/// A compile target. The suffix `a` matters: without it the E2M1 conversion is emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// Ada (L4, L40S, RTX 40).
    Sm89,
    /// Hopper (H100, H200).
    Sm90a,
    /// Blackwell (B200).
    Sm100a,
    /// Blackwell Ultra (B300).
    Sm103a,
    /// Blackwell (Jetson Thor).
    Sm110a,
    /// Blackwell (RTX PRO 6000, RTX 50).
    Sm120a,
    /// Blackwell (DGX Spark).
    Sm121a,
}

/// What decides which variants a target can run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetFacts {
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// `mma.sync … e4m3` is one instruction, not unpacked to f16.
    pub native_fp8_mma: bool,
    /// `wgmma` exists.
    pub wgmma: bool,
    /// `cvt.rn.f16x2.e2m1x2` is one instruction, not ~20, and `cvt.rn.satfinite.e2m1x2.f32` exists.
    pub e2m1_convert: bool,
    /// Shared memory of one SM, bytes.
    pub shared_per_sm: u32,
    /// Shared memory that one block may use, bytes (opt-in).
    pub shared_per_block: u32,
    /// Resident warps of one SM.
    pub warps_per_sm: u32,
    /// A device of this target, for predictions only.
    pub device: &'static str,
    /// Its SMs, for predictions only.
    pub sms: u32,
    /// Its memory bandwidth by the vendor's datasheet, GB/s, for predictions only.
    pub bandwidth: u32,
}

/// 32-bit registers of one SM, on every target.
pub const REGISTERS_PER_SM: u32 = 65_536;
/// Shared memory that the system takes from each resident block, bytes, on every target.
pub const SHARED_RESERVED_PER_BLOCK: u32 = 1024;

const KIB: u32 = 1024;

impl Target {
    /// Every target, in order of compute capability.
    pub const ALL: &'static [Self] =
        &[Self::Sm89, Self::Sm90a, Self::Sm100a, Self::Sm103a, Self::Sm110a, Self::Sm120a, Self::Sm121a];

    /// The name NVRTC takes, such as `sm_100a`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm89 => "sm_89",
            Self::Sm90a => "sm_90a",
            Self::Sm100a => "sm_100a",
            Self::Sm103a => "sm_103a",
            Self::Sm110a => "sm_110a",
            Self::Sm120a => "sm_120a",
            Self::Sm121a => "sm_121a",
        }
    }

    /// The target of a GPU of this compute capability, if there is one.
    pub fn of_capability(major: u32, minor: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.facts().capability == (major, minor))
    }

    /// Facts about the chip. Sources: CUDA C++ Programming Guide 13.0, table "Technical
    /// Specifications per Compute Capability"; instructions checked with ptxas 13.0.
    pub fn facts(self) -> TargetFacts {
        let hopper = TargetFacts {
            capability: (9, 0),
            native_fp8_mma: false,
            wgmma: true,
            e2m1_convert: false,
            shared_per_sm: 228 * KIB,
            shared_per_block: 227 * KIB,
            warps_per_sm: 64,
            device: "H200",
            sms: 132,
            bandwidth: 4800,
        };
        let data_centre = TargetFacts {
            capability: (10, 0),
            wgmma: false,
            e2m1_convert: true,
            device: "B200",
            sms: 148,
            bandwidth: 8000,
            ..hopper
        };
        let consumer = TargetFacts {
            capability: (12, 0),
            native_fp8_mma: true,
            shared_per_sm: 100 * KIB,
            shared_per_block: 99 * KIB,
            warps_per_sm: 48,
            device: "RTX PRO 6000",
            sms: 188,
            bandwidth: 1792,
            ..data_centre
        };
        match self {
            Self::Sm89 => TargetFacts {
                capability: (8, 9),
                e2m1_convert: false,
                device: "L40S",
                sms: 142,
                bandwidth: 864,
                ..consumer
            },
            Self::Sm90a => hopper,
            Self::Sm100a => data_centre,
            Self::Sm103a => TargetFacts { capability: (10, 3), device: "B300", ..data_centre },
            Self::Sm110a => TargetFacts {
                capability: (11, 0),
                warps_per_sm: 48,
                device: "Jetson Thor",
                sms: 20,
                bandwidth: 273,
                ..data_centre
            },
            Self::Sm120a => consumer,
            Self::Sm121a => {
                TargetFacts { capability: (12, 1), device: "DGX Spark", sms: 48, bandwidth: 273, ..consumer }
            }
        }
    }
}

/// An architecture that nvkv does not generate for.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "unknown architecture `{0}`; known: sm_89, sm_90, sm_100, sm_103, sm_110, sm_120, sm_121 (the suffix `a` may be left out)"
)]
pub struct UnknownTarget(pub String);

impl std::str::FromStr for Target {
    type Err = UnknownTarget;

    /// Takes the target with or without its suffix: `sm_100` is `sm_100a`.
    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        Self::ALL
            .iter()
            .copied()
            .find(|t| t.name() == text || t.name().trim_end_matches('a') == text)
            .ok_or_else(|| UnknownTarget(text.to_string()))
    }
}

impl TryFrom<String> for Target {
    type Error = UnknownTarget;

    fn try_from(text: String) -> Result<Self, UnknownTarget> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.name().to_string()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_with_and_without_the_suffix() {
        for &target in Target::ALL {
            assert_eq!(target.name().parse::<Target>().unwrap(), target);
            assert_eq!(target.name().trim_end_matches('a').parse::<Target>().unwrap(), target);
            let (major, minor) = target.facts().capability;
            assert_eq!(Target::of_capability(major, minor), Some(target));
        }
        let error = "sm_75".parse::<Target>().unwrap_err().to_string();
        assert!(error.contains("sm_75") && error.contains("sm_121"), "{error}");
    }
}
