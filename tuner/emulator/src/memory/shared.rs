//! Shared memory of a block, with the last writer and reader of each byte.

use super::check_alignment;
use super::stamp::Stamp;
use crate::error::{FaultKind, Space};

/// Address of the first byte. What lies below belongs to the system on newer GPUs, and a null pointer shows.
pub(crate) const SHARED_BASE: u32 = 1024;

pub(crate) struct Shared {
    bytes: Vec<u8>,
    shadow: Vec<Shadow>,
}

/// Neighbouring bytes mostly have the same; checks go by runs of equal ones.
#[derive(Clone, Copy, Default, PartialEq)]
struct Shadow {
    /// Who wrote it last, or is about to (an asynchronous copy).
    writer: Stamp,
    /// Who read it since.
    reader: Stamp,
}

impl Shared {
    pub fn new(bytes: u32) -> Self {
        Self { bytes: vec![0; bytes as usize], shadow: vec![Shadow::default(); bytes as usize] }
    }

    /// Index of the first byte of an access.
    fn place(&self, address: u64, bytes: u32) -> Result<usize, FaultKind> {
        check_alignment(Space::Shared, address, bytes)?;
        match address.checked_sub(u64::from(SHARED_BASE)) {
            Some(at) if at + u64::from(bytes) <= self.bytes.len() as u64 => Ok(at as usize),
            _ => Err(FaultKind::OutOfBounds { space: Space::Shared, address, bytes }),
        }
    }

    /// Up to 16 bytes, lowest address in the lowest byte.
    pub fn load(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<u128, FaultKind> {
        let at = self.place(address, bytes)?;
        let length = bytes as usize;
        let mut first = address;
        for run in self.shadow[at..at + length].chunk_by_mut(|a, b| a == b) {
            let Shadow { writer, reader } = run[0];
            if writer.is_pending() || writer == Stamp::NONE || writer.races_with(now) {
                return Err(unreadable(writer, first));
            }
            run.fill(Shadow { writer, reader: reader.joined(now) });
            first += run.len() as u64;
        }
        let mut value = [0; 16];
        value[..length].copy_from_slice(&self.bytes[at..at + length]);
        Ok(u128::from_le_bytes(value))
    }

    /// Writes up to 16 bytes.
    pub fn store(&mut self, address: u64, bytes: u32, value: u128, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.claim(at, bytes, address, now, now)?;
        self.bytes[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    /// Marks bytes that an asynchronous copy will write.
    pub fn begin_copy(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.claim(at, bytes, address, now, now.pending())
    }

    /// Writes what [`Self::begin_copy`] announced.
    pub fn end_copy(&mut self, address: u64, bytes: u32, value: u128, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.shadow[at..at + bytes as usize].fill(Shadow { writer: now, reader: Stamp::NONE });
        self.bytes[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    /// Makes `writer` the last writer of bytes that may be written `now`.
    fn claim(&mut self, at: usize, bytes: u32, address: u64, now: Stamp, writer: Stamp) -> Result<(), FaultKind> {
        let claimed = &mut self.shadow[at..at + bytes as usize];
        let mut address = address;
        for run in claimed.chunk_by(|a, b| a == b) {
            let last = run[0];
            if last.writer.is_pending() {
                return Err(FaultKind::AsyncPending { address, other: last.writer.accessor() });
            }
            for (other, other_wrote) in [(last.writer, true), (last.reader, false)] {
                if other.races_with(now) {
                    return Err(FaultKind::Race { address, writes: true, other: other.accessor(), other_wrote });
                }
            }
            address += run.len() as u64;
        }
        claimed.fill(Shadow { writer, reader: Stamp::NONE });
        Ok(())
    }
}

/// Why a byte with that last writer may not be read.
#[cold]
fn unreadable(writer: Stamp, address: u64) -> FaultKind {
    if writer.is_pending() {
        FaultKind::AsyncPending { address, other: writer.accessor() }
    } else if writer == Stamp::NONE {
        FaultKind::Uninitialised { space: Space::Shared, address }
    } else {
        FaultKind::Race { address, writes: false, other: writer.accessor(), other_wrote: true }
    }
}
