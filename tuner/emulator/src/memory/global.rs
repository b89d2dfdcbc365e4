//! Device memory: allocations with guard gaps between them, a bit a byte for what was written.
//!
//! Blocks run on several host threads, so words are atomic; relaxed accesses cost as much as plain ones.

use super::check_alignment;
use super::order::{Cursor, Marks, Releases};
use crate::EmulationError;
use crate::error::{FaultKind, Space};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// First address handed out.
const FIRST: u64 = 0x7F00_0000_0000;
/// Alignment of an allocation, as that of the CUDA driver.
const ALIGNMENT: u64 = 256;
/// Bytes between two allocations that belong to neither.
const GAP: u64 = 1 << 20;

/// Device memory. Nothing is ever freed before the whole.
#[derive(Debug, Default)]
pub struct Memory {
    allocations: Vec<Allocation>,
    /// Held while 8 bytes are replaced.
    doubles: Mutex<()>,
    /// How many launches there were.
    launches: u64,
    releases: Releases,
}

#[derive(Debug)]
struct Allocation {
    base: u64,
    bytes: u64,
    words: Vec<AtomicU32>,
    /// Of each word, a bit a byte: written.
    written: Vec<AtomicU8>,
    marks: Marks,
}

impl Memory {
    /// Memory with no allocations.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new allocation of `bytes` bytes that nobody has written, aligned to 256; its device address.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let end = self.allocations.last().map_or(FIRST, |last| last.base + last.bytes + GAP);
        let base = end.next_multiple_of(ALIGNMENT);
        let words = bytes.div_ceil(4);
        self.allocations.push(Allocation {
            base,
            bytes: bytes as u64,
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
            written: (0..words).map(|_| AtomicU8::new(0)).collect(),
            marks: Marks::new(words),
        });
        base
    }

    /// A new allocation that holds `data`.
    pub fn alloc_with(&mut self, data: &[u8]) -> u64 {
        let base = self.alloc(data.len());
        if let Some(allocation) = self.allocations.last() {
            data.iter().enumerate().for_each(|(i, &byte)| allocation.store_byte(i as u64, byte));
        }
        base
    }

    /// Copies `data` to device address `address`.
    ///
    /// # Errors
    /// Where the bytes are not inside one allocation.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), EmulationError> {
        let (allocation, offset) = self.host_range(address, data.len())?;
        data.iter().enumerate().for_each(|(i, &byte)| allocation.store_byte(offset + i as u64, byte));
        Ok(())
    }

    /// `bytes` bytes from device address `address`; what nobody wrote is zero.
    ///
    /// # Errors
    /// Where the bytes are not inside one allocation.
    pub fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>, EmulationError> {
        let (allocation, offset) = self.host_range(address, bytes)?;
        Ok((0..bytes as u64).map(|i| allocation.byte(offset + i)).collect())
    }

    fn host_range(&self, address: u64, bytes: usize) -> Result<(&Allocation, u64), EmulationError> {
        let outside = EmulationError::HostAccess { address, bytes };
        let index = self.allocations.partition_point(|a| a.base <= address).checked_sub(1).ok_or(outside.clone())?;
        let allocation = &self.allocations[index];
        let offset = address - allocation.base;
        if offset.saturating_add(bytes as u64) <= allocation.bytes { Ok((allocation, offset)) } else { Err(outside) }
    }

    /// A launch begins, ordered after all that came before; its number.
    pub(crate) fn begin_launch(&mut self) -> u64 {
        self.launches = (self.launches + 1) % (1 << 16);
        self.releases.clear();
        self.launches
    }

    /// The allocation that holds an access, which is looked for first where the last one was found.
    fn find(&self, address: u64, bytes: u32, hint: &mut Cursor) -> Result<(&Allocation, u64), FaultKind> {
        check_alignment(Space::Global, address, bytes)?;
        let holds = |a: &Allocation| address >= a.base && address - a.base + u64::from(bytes) <= a.bytes;
        if !self.allocations.get(hint.allocation).is_some_and(holds) {
            hint.allocation = self.allocations.partition_point(|a| a.base <= address).saturating_sub(1);
        }
        match self.allocations.get(hint.allocation) {
            Some(allocation) if holds(allocation) => Ok((allocation, address - allocation.base)),
            _ => Err(FaultKind::OutOfBounds { space: Space::Global, address, bytes }),
        }
    }

    /// Up to 16 bytes, lowest address in the lowest byte.
    pub(crate) fn load(&self, address: u64, bytes: u32, hint: &mut Cursor) -> Result<u128, FaultKind> {
        let (allocation, offset) = self.find(address, bytes, hint)?;
        let word = (offset / 4) as usize;
        if bytes < 4 {
            let shift = offset % 4;
            let needed = ((1u8 << bytes) - 1) << shift;
            let missing = needed & !allocation.written[word].load(Ordering::Relaxed);
            if missing != 0 {
                return Err(uninitialised(address + u64::from(missing.trailing_zeros()) - shift));
            }
            if let Some(view) = &hint.view {
                allocation.marks.read(word, address, view)?;
            }
            let bits = allocation.words[word].load(Ordering::Relaxed) >> (8 * shift);
            return Ok(u128::from(bits & ((1 << (8 * bytes)) - 1)));
        }
        match bytes {
            4 => allocation.load_words::<1>(word, address, hint),
            8 => allocation.load_words::<2>(word, address, hint),
            _ => allocation.load_words::<4>(word, address, hint),
        }
    }

    /// The same for bytes that must not change during the launch, as they may come from a cache that sees no stores.
    pub(crate) fn load_constant(&self, address: u64, bytes: u32, hint: &mut Cursor) -> Result<u128, FaultKind> {
        let (allocation, offset) = self.find(address, bytes, hint)?;
        if let Some(view) = &hint.view
            && words_of(offset, bytes).any(|word| allocation.marks.is_new(word, view))
        {
            return Err(FaultKind::ConstantWritten { address });
        }
        self.load(address, bytes, hint)
    }

    /// Writes up to 16 bytes.
    pub(crate) fn store(&self, address: u64, bytes: u32, value: u128, hint: &mut Cursor) -> Result<(), FaultKind> {
        let (allocation, offset) = self.find(address, bytes, hint)?;
        if bytes < 4 {
            if let Some(view) = &hint.view {
                // Others may write to the word's other bytes.
                allocation.marks.write((offset / 4) as usize, address, false, view)?;
            }
            (0..u64::from(bytes)).for_each(|i| allocation.store_byte(offset + i, (value >> (8 * i)) as u8));
            return Ok(());
        }
        let word = (offset / 4) as usize;
        for i in 0..(bytes / 4) as usize {
            let new = (value >> (32 * i)) as u32;
            if let Some(view) = &hint.view {
                let changes = allocation.words[word + i].load(Ordering::Relaxed) != new;
                allocation.marks.write(word + i, address + 4 * i as u64, changes, view)?;
            }
            allocation.words[word + i].store(new, Ordering::Relaxed);
            allocation.written[word + i].store(15, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bytes of a bulk copy, a multiple of 16 of them.
    pub(crate) fn load_bytes(&self, address: u64, bytes: u32) -> Result<Vec<u8>, FaultKind> {
        self.check(address, bytes)?;
        let mut data = Vec::with_capacity(bytes as usize);
        for at in (0..u64::from(bytes)).step_by(16) {
            data.extend(self.load(address + at, 16, &mut Cursor::default())?.to_le_bytes());
        }
        Ok(data)
    }

    /// Writes what [`Self::load_bytes`] read, or its like.
    pub(crate) fn store_bytes(&self, address: u64, data: &[u8]) -> Result<(), FaultKind> {
        let chunks = data.as_chunks::<16>().0;
        chunks.iter().zip(0..).try_for_each(|(&chunk, i)| {
            self.store(address + 16 * i, 16, u128::from_le_bytes(chunk), &mut Cursor::default())
        })
    }

    /// Whether one allocation holds all these bytes.
    pub(crate) fn check(&self, address: u64, bytes: u32) -> Result<(), FaultKind> {
        let outside = FaultKind::OutOfBounds { space: Space::Global, address, bytes };
        self.host_range(address, bytes as usize).map(|_| ()).map_err(|_| outside)
    }

    /// Replaces 2, 4 or 8 bytes by `f` of them in one step; the old bytes. Atomic operations do not race with one
    /// another, nor with what comes after: they are what orders. What another block stored before must be ordered.
    pub(crate) fn update(
        &self,
        address: u64,
        bytes: u32,
        f: impl Fn(u64) -> u64,
        hint: &mut Cursor,
    ) -> Result<u64, FaultKind> {
        let mut unchecked = Cursor { allocation: hint.allocation, view: None };
        let replace = || self.replace(address, bytes, f, &mut unchecked);
        let old = match &hint.view {
            Some(view) => self.releases.meet(address, view, replace),
            None => replace(),
        }?;
        hint.allocation = unchecked.allocation;
        if let Some(view) = &hint.view {
            let (allocation, offset) = self.find(address, bytes, &mut unchecked)?;
            words_of(offset, bytes).try_for_each(|word| allocation.marks.update(word, address, view))?;
        }
        Ok(old)
    }

    fn replace(&self, address: u64, bytes: u32, f: impl Fn(u64) -> u64, hint: &mut Cursor) -> Result<u64, FaultKind> {
        if bytes == 8 {
            // Two words: one thread at a time.
            let _guard = self.doubles.lock().unwrap_or_else(PoisonError::into_inner);
            let old = self.load(address, 8, hint)? as u64;
            self.store(address, 8, u128::from(f(old)), hint)?;
            return Ok(old);
        }
        self.load(address, bytes, hint)?;
        let (allocation, offset) = self.find(address, bytes, hint)?;
        let (shift, mask) = (8 * (offset % 4), u64::from(u32::MAX) >> (32 - 8 * bytes));
        let part = |word: u32| u64::from(word) >> shift & mask;
        let replaced = |word: u32| u64::from(word) & !(mask << shift) | (f(part(word)) & mask) << shift;
        let word = &allocation.words[(offset / 4) as usize];
        let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(replaced(old) as u32));
        Ok(part(old.unwrap_or_else(|unchanged| unchanged)))
    }
}

/// The words that `bytes` bytes at `offset` of an allocation lie in.
fn words_of(offset: u64, bytes: u32) -> std::ops::Range<usize> {
    (offset / 4) as usize..(offset + u64::from(bytes)).div_ceil(4) as usize
}

fn uninitialised(address: u64) -> FaultKind {
    FaultKind::Uninitialised { space: Space::Global, address }
}

impl Allocation {
    /// `N` words from index `word` on, of which the first has that address.
    #[inline(always)]
    fn load_words<const N: usize>(&self, word: usize, address: u64, cursor: &Cursor) -> Result<u128, FaultKind> {
        let outside = || FaultKind::OutOfBounds { space: Space::Global, address, bytes: 4 * N as u32 };
        let words: &[AtomicU32; N] = self.words[word..].first_chunk().ok_or_else(outside)?;
        let written: &[AtomicU8; N] = self.written[word..].first_chunk().ok_or_else(outside)?;
        let mut value = 0;
        for i in 0..N {
            let missing = 15 & !written[i].load(Ordering::Relaxed);
            if missing != 0 {
                return Err(uninitialised(address + 4 * i as u64 + u64::from(missing.trailing_zeros())));
            }
            if let Some(view) = &cursor.view {
                self.marks.read(word + i, address + 4 * i as u64, view)?;
            }
            value |= u128::from(words[i].load(Ordering::Relaxed)) << (32 * i);
        }
        Ok(value)
    }

    fn byte(&self, offset: u64) -> u8 {
        let word = self.words[(offset / 4) as usize].load(Ordering::Relaxed);
        word.to_le_bytes()[(offset % 4) as usize]
    }

    /// Other threads may write the word's other bytes at the same time.
    fn store_byte(&self, offset: u64, value: u8) {
        let (word, shift) = ((offset / 4) as usize, 8 * (offset % 4) as u32);
        let set = |old: u32| Some(old & !(0xFF << shift) | u32::from(value) << shift);
        let _old = self.words[word].fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
        self.written[word].fetch_or(1 << (offset % 4), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_words_are_the_same_memory() {
        let mut memory = Memory::new();
        let at = memory.alloc_with(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let mut hint = Cursor::default();
        assert_eq!(memory.load(at, 8, &mut hint), Ok(0x0807_0605_0403_0201));
        assert_eq!(memory.load(at + 6, 2, &mut hint), Ok(0x0807));
        memory.store(at + 3, 1, 0xAA, &mut hint).unwrap();
        memory.store(at + 4, 4, 0x1122_3344, &mut hint).unwrap();
        assert_eq!(memory.read(at, 8).unwrap(), [1, 2, 3, 0xAA, 0x44, 0x33, 0x22, 0x11]);
    }

    #[test]
    fn the_end_of_an_allocation_is_the_end() {
        let mut memory = Memory::new();
        let (first, second) = (memory.alloc(10), memory.alloc_with(&[0; 4]));
        let mut hint = Cursor::default();
        assert!(memory.store(first + 8, 2, 0, &mut hint).is_ok());
        for (address, bytes) in [(first + 8, 4), (first + 10, 1), (second + 4, 4), (second - 4, 4), (0, 4)] {
            let fault = FaultKind::OutOfBounds { space: Space::Global, address, bytes };
            assert_eq!(memory.store(address, bytes, 0, &mut hint), Err(fault));
        }
        assert!(memory.read(first, 11).is_err() && memory.write(second + 1, &[0; 4]).is_err());
    }

    #[test]
    fn reads_of_what_nobody_wrote_name_the_byte() {
        let mut memory = Memory::new();
        let at = memory.alloc(16);
        let mut hint = Cursor::default();
        memory.store(at, 4, 0, &mut hint).unwrap();
        memory.store(at + 4, 2, 0, &mut hint).unwrap();
        let missing = FaultKind::Uninitialised { space: Space::Global, address: at + 6 };
        assert_eq!(memory.load(at, 8, &mut hint), Err(missing.clone()));
        assert_eq!(memory.load(at + 6, 1, &mut hint), Err(missing));
        assert_eq!(memory.load(at + 4, 2, &mut hint), Ok(0));
    }
}
