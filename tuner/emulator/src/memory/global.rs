//! Device memory: allocations with guard gaps between them, a bit a byte for what was written.
//!
//! Blocks run on several host threads, so words are atomic; relaxed accesses cost as much as plain ones.

use super::check_alignment;
use crate::EmulationError;
use crate::error::{FaultKind, Space};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

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
}

#[derive(Debug)]
struct Allocation {
    base: u64,
    bytes: u64,
    words: Vec<AtomicU32>,
    /// Of each word, a bit a byte: written.
    written: Vec<AtomicU8>,
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
        if offset + bytes as u64 <= allocation.bytes { Ok((allocation, offset)) } else { Err(outside) }
    }

    /// The allocation that holds an access; `hint` is where the last one was found.
    fn find(&self, address: u64, bytes: u32, hint: &mut usize) -> Result<(&Allocation, u64), FaultKind> {
        check_alignment(Space::Global, address, bytes)?;
        let holds = |a: &Allocation| address >= a.base && address - a.base + u64::from(bytes) <= a.bytes;
        if !self.allocations.get(*hint).is_some_and(holds) {
            *hint = self.allocations.partition_point(|a| a.base <= address).saturating_sub(1);
        }
        match self.allocations.get(*hint) {
            Some(allocation) if holds(allocation) => Ok((allocation, address - allocation.base)),
            _ => Err(FaultKind::OutOfBounds { space: Space::Global, address, bytes }),
        }
    }

    /// Up to 16 bytes, lowest address in the lowest byte.
    pub(crate) fn load(&self, address: u64, bytes: u32, hint: &mut usize) -> Result<u128, FaultKind> {
        let (allocation, offset) = self.find(address, bytes, hint)?;
        let uninitialised = |byte: u64| FaultKind::Uninitialised { space: Space::Global, address: address + byte };
        let word = (offset / 4) as usize;
        if bytes < 4 {
            let shift = offset % 4;
            let needed = ((1u8 << bytes) - 1) << shift;
            let missing = needed & !allocation.written[word].load(Ordering::Relaxed);
            if missing != 0 {
                return Err(uninitialised(u64::from(missing.trailing_zeros()) - shift));
            }
            let bits = allocation.words[word].load(Ordering::Relaxed) >> (8 * shift);
            return Ok(u128::from(bits & ((1 << (8 * bytes)) - 1)));
        }
        let mut value = 0;
        for i in 0..(bytes / 4) as usize {
            let missing = 15 & !allocation.written[word + i].load(Ordering::Relaxed);
            if missing != 0 {
                return Err(uninitialised(4 * i as u64 + u64::from(missing.trailing_zeros())));
            }
            value |= u128::from(allocation.words[word + i].load(Ordering::Relaxed)) << (32 * i);
        }
        Ok(value)
    }

    /// Writes up to 16 bytes.
    pub(crate) fn store(&self, address: u64, bytes: u32, value: u128, hint: &mut usize) -> Result<(), FaultKind> {
        let (allocation, offset) = self.find(address, bytes, hint)?;
        if bytes < 4 {
            (0..u64::from(bytes)).for_each(|i| allocation.store_byte(offset + i, (value >> (8 * i)) as u8));
            return Ok(());
        }
        let word = (offset / 4) as usize;
        for i in 0..(bytes / 4) as usize {
            allocation.words[word + i].store((value >> (32 * i)) as u32, Ordering::Relaxed);
            allocation.written[word + i].store(15, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Replaces a word by `f` of it in one step; the old word.
    pub(crate) fn update(&self, address: u64, f: impl Fn(u32) -> u32, hint: &mut usize) -> Result<u32, FaultKind> {
        self.load(address, 4, hint)?;
        let (allocation, offset) = self.find(address, 4, hint)?;
        let word = &allocation.words[(offset / 4) as usize];
        let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(f(old)));
        Ok(old.unwrap_or_else(|unchanged| unchanged))
    }
}

impl Allocation {
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
        let mut hint = 0;
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
        let mut hint = 0;
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
        let mut hint = 0;
        memory.store(at, 4, 0, &mut hint).unwrap();
        memory.store(at + 4, 2, 0, &mut hint).unwrap();
        let missing = FaultKind::Uninitialised { space: Space::Global, address: at + 6 };
        assert_eq!(memory.load(at, 8, &mut hint), Err(missing.clone()));
        assert_eq!(memory.load(at + 6, 1, &mut hint), Err(missing));
        assert_eq!(memory.load(at + 4, 2, &mut hint), Ok(0));
    }
}
