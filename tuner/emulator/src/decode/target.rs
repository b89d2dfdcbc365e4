//! What the tensor cores of a target compute.

/// Families of targets whose tensor cores round alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// sm_80 to sm_89.
    Ada,
    /// sm_90.
    Hopper,
    /// sm_100 to sm_110: as Hopper where `mma.sync` is concerned.
    Blackwell,
    /// sm_120 and sm_121.
    BlackwellRtx,
}

impl Target {
    /// The family of a name such as `sm_90a`; none where it is older or unknown.
    pub fn named(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("sm_")?.trim_end_matches(['a', 'f']);
        match digits.parse::<u32>().ok()? {
            80..=89 => Some(Self::Ada),
            90 => Some(Self::Hopper),
            100..=119 => Some(Self::Blackwell),
            120..=129 => Some(Self::BlackwellRtx),
            _ => None,
        }
    }
}
