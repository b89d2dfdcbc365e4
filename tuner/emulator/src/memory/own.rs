//! Global memory as the threads of one block see it: what one writes, another reads behind a barrier.

use super::stamp::Stamp;
use super::{Cursor, Memory, Shared};
use crate::error::{FaultKind, Space};
use std::collections::HashMap;

/// Bytes that one entry stands for.
const WORD: u64 = 4;

/// Of each word of global memory that the block wrote, who wrote each byte last.
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
        for byte in address..address + u64::from(bytes) {
            self.own_writes.0.entry(byte / WORD).or_default()[(byte % WORD) as usize] = now;
        }
        Ok(())
    }

    /// A thread may read these bytes of global memory from `now` on: what others of the block wrote there is ordered before.
    pub fn check_global_read(&self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        if self.own_writes.0.is_empty() {
            return Ok(());
        }
        for address in address..address + u64::from(bytes) {
            if let Some(writers) = self.own_writes.0.get(&(address / WORD))
                && let writer = writers[(address % WORD) as usize]
                && self.clocks.races(writer, now)
            {
                let (space, other) = (Space::Global, writer.accessor());
                return Err(FaultKind::Race { space, address, writes: false, other, other_wrote: true });
            }
        }
        Ok(())
    }
}
