//! Memory that knows what may be touched: allocations of the device, and the shared memory of a block.

mod bulk;
mod clocks;
mod global;
mod mbarrier;
mod order;
mod own;
mod shadow;
mod shared;
mod stamp;

pub(crate) use bulk::ThreadCopy;
pub(crate) use clocks::{Clocks, View};
pub use global::Memory;
pub(crate) use mbarrier::{Arrival, Phase, pending_count};
pub(crate) use order::{BlockView, Cursor};
pub(crate) use shared::{SHARED_BASE, Shared};
pub(crate) use stamp::Stamp;

use crate::error::{FaultKind, Space};

/// Generic addresses of shared memory: this and the shared address. Global addresses are generic as they are.
pub(crate) const SHARED_WINDOW: u64 = 0x7E00_0000_0000;
/// Generic addresses of local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x7D00_0000_0000;
/// Bytes of either window.
const WINDOW: u64 = 1 << 32;

/// The space of a generic address, and the address there.
pub(crate) fn resolve(generic: u64) -> (Space, u64) {
    match generic {
        SHARED_WINDOW.. if generic - SHARED_WINDOW < WINDOW => (Space::Shared, generic - SHARED_WINDOW),
        LOCAL_WINDOW.. if generic - LOCAL_WINDOW < WINDOW => (Space::Local, generic - LOCAL_WINDOW),
        _ => (Space::Global, generic),
    }
}

/// Checks that an access is aligned to its own size, a power of two: a mask, where a division would show.
pub(crate) fn check_alignment(space: Space, address: u64, bytes: u32) -> Result<(), FaultKind> {
    debug_assert!(bytes.is_power_of_two(), "an access of {bytes} bytes");
    if address & u64::from(bytes - 1) == 0 { Ok(()) } else { Err(FaultKind::Misaligned { space, address, bytes }) }
}
