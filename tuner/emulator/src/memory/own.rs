//! Global memory as the threads of one block see it: what one writes, another reads behind a barrier.

use super::stamp::Stamp;
use super::{Cursor, Memory, Shared};
use crate::error::{FaultKind, Space};
use std::collections::HashMap;
use std::ops::Range;

/// Bytes that one entry stands for.
const WORD: u64 = 4;

/// Of each word of global memory that the block wrote since all its warps met, who wrote each byte last.
#[derive(Default)]
pub(super) struct OwnWrites(HashMap<u64, [Stamp; WORD as usize]>);

impl Shared {
    /// A thread of the block reads global memory: up to 16 bytes, lowest address in the lowest byte.
    pub fn load_global(
        &self,
        memory: &Memory,
        address: u64,
        bytes: u32,
        hint: &mut Cursor,
        now: Stamp,
    ) -> Result<u128, FaultKind> {
        let value = memory.load(address, bytes, hint)?;
        self.check_global_read(address, bytes, now)?;
        Ok(value)
    }

    /// A thread of the block writes up to 16 bytes to global memory.
    pub fn store_global(
        &mut self,
        memory: &Memory,
        address: u64,
        bytes: u32,
        value: u128,
        hint: &mut Cursor,
        now: Stamp,
    ) -> Result<(), FaultKind> {
        memory.store(address, bytes, value, hint)?;
        for (word, range) in words(address, bytes) {
            self.own_writes.0.entry(word).or_default()[range].fill(now);
        }
        Ok(())
    }

    /// A thread may read these bytes of global memory from `now` on: what others of the block wrote there is ordered before.
    pub fn check_global_read(&self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        if self.own_writes.0.is_empty() {
            return Ok(());
        }
        for (word, range) in words(address, bytes) {
            let Some(writers) = self.own_writes.0.get(&word) else { continue };
            if let Some(byte) = range.into_iter().find(|&byte| self.clocks.races(writers[byte], now)) {
                let (address, other) = (word * WORD + byte as u64, writers[byte].accessor());
                return Err(FaultKind::Race { space: Space::Global, address, writes: false, other, other_wrote: true });
            }
        }
        Ok(())
    }

    /// All warps have met: what they wrote is ordered before what any of them does next.
    pub fn forget_own_writes(&mut self) {
        self.own_writes.0.clear();
    }
}

/// The words that an access touches, and which bytes of each.
fn words(address: u64, bytes: u32) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = address + u64::from(bytes);
    (address / WORD..end.div_ceil(WORD)).map(move |word| {
        let first = word * WORD;
        (word, (address.max(first) - first) as usize..(end.min(first + WORD) - first) as usize)
    })
}
