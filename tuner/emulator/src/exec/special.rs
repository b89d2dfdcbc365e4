//! Registers whose values are known when a warp starts.

/// A special register. Axes are 0 for x, 1 for y, 2 for z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    ThreadIndex(usize),
    Threads(usize),
    BlockIndex(usize),
    Blocks(usize),
    LaneIndex,
    WarpIndex,
    MaskEqual,
    MaskBelow,
    MaskUpTo,
    MaskAbove,
    MaskFrom,
}

/// Where a warp is in its launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: [u32; 3],
    pub block: [u32; 3],
    pub warp: u32,
}

impl Special {
    /// The special register of that PTX name.
    pub fn named(name: &str) -> Option<Self> {
        let axis = |rest: &str| ["x", "y", "z"].iter().position(|&axis| axis == rest);
        if let Some((register, rest)) = name.split_once('.') {
            let axis = axis(rest)?;
            return match register {
                "%tid" => Some(Self::ThreadIndex(axis)),
                "%ntid" => Some(Self::Threads(axis)),
                "%ctaid" => Some(Self::BlockIndex(axis)),
                "%nctaid" => Some(Self::Blocks(axis)),
                _ => None,
            };
        }
        match name {
            "%laneid" => Some(Self::LaneIndex),
            "%warpid" => Some(Self::WarpIndex),
            "%lanemask_eq" => Some(Self::MaskEqual),
            "%lanemask_lt" => Some(Self::MaskBelow),
            "%lanemask_le" => Some(Self::MaskUpTo),
            "%lanemask_gt" => Some(Self::MaskAbove),
            "%lanemask_ge" => Some(Self::MaskFrom),
            _ => None,
        }
    }

    /// Its value in a lane.
    pub fn value(self, place: &Place, lane: u32) -> u32 {
        let [x, y, _] = place.threads;
        let thread = place.warp * 32 + lane;
        match self {
            Self::ThreadIndex(0) => thread % x,
            Self::ThreadIndex(1) => thread / x % y,
            Self::ThreadIndex(_) => thread / x / y,
            Self::Threads(axis) => place.threads[axis],
            Self::BlockIndex(axis) => place.block[axis],
            Self::Blocks(axis) => place.grid[axis],
            Self::LaneIndex => lane,
            Self::WarpIndex => place.warp,
            Self::MaskEqual => 1 << lane,
            Self::MaskBelow => (1 << lane) - 1,
            Self::MaskUpTo => u32::MAX >> (31 - lane),
            Self::MaskAbove => !(u32::MAX >> (31 - lane)),
            Self::MaskFrom => !((1 << lane) - 1),
        }
    }
}
