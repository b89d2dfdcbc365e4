//! Memory that knows what may be touched: allocations of the device, and the shared memory of a block.

mod global;
mod shared;
mod stamp;

pub use global::Memory;
pub(crate) use shared::{SHARED_BASE, Shared};
pub(crate) use stamp::Stamp;

use crate::error::{FaultKind, Space};

/// Checks that an access is aligned to its own size.
fn check_alignment(space: Space, address: u64, bytes: u32) -> Result<(), FaultKind> {
    if address.is_multiple_of(u64::from(bytes)) { Ok(()) } else { Err(FaultKind::Misaligned { space, address, bytes }) }
}
