//! Shared memory of a block, with the last writer and reader of each byte.

use super::bulk::BulkCopies;
use super::check_alignment;
use super::clocks::Clocks;
use super::mbarrier::Mbarrier;
use super::stamp::Stamp;
use crate::error::{FaultKind, Space};
use std::collections::BTreeMap;

/// Address of the first byte. What lies below belongs to the system on newer GPUs, and a null pointer shows.
pub(crate) const SHARED_BASE: u32 = 1024;
/// Bytes that [`Shared::begin_async_read`] counts readers of together.
const LINE: u64 = 16;

pub(crate) struct Shared {
    bytes: Vec<u8>,
    shadow: Vec<Shadow>,
    /// Who has seen what of whom.
    pub clocks: Clocks,
    /// By address.
    pub(super) mbarriers: BTreeMap<u64, Mbarrier>,
    /// How many there ever were.
    pub(super) made_mbarriers: usize,
    pub(super) copies: BulkCopies,
    /// Of each line, how many asynchronous operations may still read it; and of all.
    async_readers: Vec<u16>,
    all_async_readers: u64,
    /// Counts what another warp may wait for.
    pub(super) changes: u64,
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
    /// Shared memory of so many bytes, for a block of so many warps.
    pub fn new(bytes: u32, warps: usize) -> Self {
        Self {
            bytes: vec![0; bytes as usize],
            // Faster than `vec!`, which writes one after another.
            shadow: std::iter::repeat_n(Shadow::default(), bytes as usize).collect(),
            clocks: Clocks::new(warps),
            mbarriers: BTreeMap::new(),
            made_mbarriers: 0,
            copies: BulkCopies::default(),
            async_readers: vec![0; u64::from(bytes).div_ceil(LINE) as usize],
            all_async_readers: 0,
            changes: 0,
        }
    }

    /// How often something happened that another warp may wait for.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Index of the first byte of an access.
    fn place(&self, address: u64, bytes: u32) -> Result<usize, FaultKind> {
        check_alignment(Space::Shared, address, bytes)?;
        self.range(address, bytes)
    }

    /// The same, whatever the alignment.
    fn range(&self, address: u64, bytes: u32) -> Result<usize, FaultKind> {
        match address.checked_sub(u64::from(SHARED_BASE)) {
            Some(at) if at.saturating_add(u64::from(bytes)) <= self.bytes.len() as u64 => Ok(at as usize),
            _ => Err(FaultKind::OutOfBounds { space: Space::Shared, address, bytes }),
        }
    }

    /// Up to 16 bytes, lowest address in the lowest byte.
    pub fn load(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<u128, FaultKind> {
        match bytes {
            1 => self.load_bytes::<1>(address, now),
            2 => self.load_bytes::<2>(address, now),
            4 => self.load_bytes::<4>(address, now),
            8 => self.load_bytes::<8>(address, now),
            _ => self.load_bytes::<16>(address, now),
        }
    }

    fn load_bytes<const N: usize>(&mut self, address: u64, now: Stamp) -> Result<u128, FaultKind> {
        let at = self.place(address, N as u32)?;
        if let Some(Shadow { writer, reader }) = uniform::<N>(&self.shadow[at..])
            && !writer.is_unreadable()
            && !self.clocks.races(writer, now)
        {
            if reader != now {
                let reader = self.clocks.joined(reader, now);
                self.shadow[at..at + N].fill(Shadow { writer, reader });
            }
        } else {
            self.check_read(at, N, address, now)?;
        }
        let mut value = [0; 16];
        value[..N].copy_from_slice(&self.bytes[at..at + N]);
        Ok(u128::from_le_bytes(value))
    }

    /// Notes a read of bytes that may have different writers and readers.
    fn check_read(&mut self, at: usize, length: usize, address: u64, now: Stamp) -> Result<(), FaultKind> {
        let mut first = address;
        for run in self.shadow[at..at + length].chunk_by_mut(|a, b| a == b) {
            let Shadow { writer, reader } = run[0];
            if writer.is_unreadable() || self.clocks.races(writer, now) {
                return Err(unreadable(writer, first));
            }
            if reader != now {
                run.fill(Shadow { writer, reader: self.clocks.joined(reader, now) });
            }
            first += run.len() as u64;
        }
        Ok(())
    }

    /// Writes up to 16 bytes.
    pub fn store(&mut self, address: u64, bytes: u32, value: u128, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.claim(at, bytes, address, now, now)?;
        self.bytes[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    /// Replaces 2, 4 or 8 bytes by `f` of them in one step; the old bytes. Atomic operations do not race with one
    /// another.
    pub fn update(&mut self, address: u64, bytes: u32, now: Stamp, f: impl Fn(u64) -> u64) -> Result<u64, FaultKind> {
        let at = self.place(address, bytes)?;
        let range = at..at + bytes as usize;
        for (byte, shadow) in (address..).zip(&mut self.shadow[range.clone()]) {
            if shadow.writer.is_atomic() {
                shadow.writer = now;
            } else if shadow.writer == Stamp::NONE {
                return Err(unreadable(shadow.writer, byte));
            }
        }
        self.claim(at, bytes, address, now, now.atomic())?;
        let mut old = [0; 8];
        old[..bytes as usize].copy_from_slice(&self.bytes[range.clone()]);
        let old = u64::from_le_bytes(old);
        self.bytes[range].copy_from_slice(&f(old).to_le_bytes()[..bytes as usize]);
        Ok(old)
    }

    /// Marks bytes that an asynchronous copy of the generic proxy will write.
    pub fn begin_copy(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.claim(at, bytes, address, now, now.pending())
    }

    /// Writes what [`Self::begin_copy`] announced.
    pub fn end_copy(&mut self, address: u64, bytes: u32, value: u128, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.write_unchecked(at, &value.to_le_bytes()[..bytes as usize], now);
        Ok(())
    }

    /// Marks bytes that the asynchronous proxy will write: what ordinary stores wrote there needs a proxy fence.
    pub(super) fn begin_async_write(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        let at = self.range(address, bytes)?;
        let unfenced = |shadow: &Shadow| self.clocks.is_unfenced(shadow.writer, now);
        let unfenced = self.shadow[at..at + bytes as usize].iter().position(unfenced).map(|i| (i, self.shadow[at + i]));
        self.claim(at, bytes, address, now, now.pending())?;
        unfenced.map_or(Ok(()), |(i, shadow)| {
            Err(FaultKind::ProxyFence { address: address + i as u64, other: shadow.writer.accessor() })
        })
    }

    /// Writes what [`Self::begin_async_write`] announced.
    pub(super) fn end_async_write(&mut self, address: u64, data: &[u8], writer: Stamp) -> Result<(), FaultKind> {
        let at = self.range(address, data.len() as u32)?;
        self.write_unchecked(at, data, writer);
        Ok(())
    }

    fn write_unchecked(&mut self, at: usize, data: &[u8], writer: Stamp) {
        self.shadow[at..at + data.len()].fill(Shadow { writer, reader: Stamp::NONE });
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    /// The asynchronous proxy may read these lines of 16 bytes from `now` on, until [`Self::end_async_read`]: they must be there,
    /// ordered before, and fenced.
    pub fn begin_async_read(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        let at = self.range(address, bytes)?;
        self.check_async_read(at, bytes, address, now)?;
        for line in lines(at, bytes) {
            self.async_readers[line] += 1;
            self.all_async_readers += 1;
        }
        Ok(())
    }

    /// 16 bytes have been read by then; they are counted as read `now`.
    pub fn end_async_read(&mut self, address: u64, now: Stamp) -> Result<[u8; LINE as usize], FaultKind> {
        let at = self.range(address, LINE as u32)?;
        self.async_readers[at / LINE as usize] -= 1;
        self.all_async_readers -= 1;
        let bytes = at..at + LINE as usize;
        // Mostly all bytes have one reader.
        let first = self.shadow[at].reader;
        let joined = self.clocks.joined(first, now);
        for Shadow { reader, .. } in &mut self.shadow[bytes.clone()] {
            *reader = if *reader == first { joined } else { self.clocks.joined(*reader, now) };
        }
        let mut data = [0; LINE as usize];
        data.copy_from_slice(&self.bytes[bytes]);
        Ok(data)
    }

    fn check_async_read(&self, at: usize, bytes: u32, address: u64, now: Stamp) -> Result<(), FaultKind> {
        let mut address = address;
        for run in self.shadow[at..at + bytes as usize].chunk_by(|a, b| a.writer == b.writer) {
            let writer = run[0].writer;
            if writer.is_unreadable() || self.clocks.races(writer, now) {
                return Err(unreadable(writer, address));
            }
            if self.clocks.is_unfenced(writer, now) {
                return Err(FaultKind::ProxyFence { address, other: writer.accessor() });
            }
            address += run.len() as u64;
        }
        Ok(())
    }

    /// Makes an mbarrier of 8 bytes.
    pub(super) fn claim_mbarrier(&mut self, address: u64, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, 8)?;
        self.claim(at, 8, address, now, Stamp::MBARRIER)
    }

    /// The bytes of an mbarrier are ordinary memory again, with nothing in it.
    pub(super) fn drop_mbarrier(&mut self, address: u64, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, 8)?;
        self.shadow[at..at + 8].fill(Shadow { writer: Stamp::NONE, reader: now });
        Ok(())
    }

    /// Makes `writer` the last writer of bytes that may be written `now`.
    fn claim(&mut self, at: usize, bytes: u32, address: u64, now: Stamp, writer: Stamp) -> Result<(), FaultKind> {
        if self.all_async_readers > 0
            && let Some(line) = lines(at, bytes).find(|&line| self.async_readers[line] > 0)
        {
            let address = address.max(u64::from(SHARED_BASE) + line as u64 * LINE);
            return Err(FaultKind::AsyncReading { address });
        }
        let claimed = &mut self.shadow[at..at + bytes as usize];
        let common = match bytes {
            4 => uniform::<4>(claimed),
            16 => uniform::<16>(claimed),
            _ => None,
        };
        if let Some(last) = common
            && !(last.writer.is_pending() || last.writer.is_mbarrier())
            && !(self.clocks.races(last.writer, now) || self.clocks.races(last.reader, now))
        {
            claimed.fill(Shadow { writer, reader: Stamp::NONE });
            return Ok(());
        }
        let mut address = address;
        for run in claimed.chunk_by(|a, b| a == b) {
            let last = run[0];
            if last.writer.is_pending() || last.writer.is_mbarrier() {
                return Err(unreadable(last.writer, address));
            }
            for (other, other_wrote) in [(last.writer, true), (last.reader, false)] {
                if self.clocks.races(other, now) {
                    return Err(FaultKind::Race { address, writes: true, other: other.accessor(), other_wrote });
                }
            }
            address += run.len() as u64;
        }
        claimed.fill(Shadow { writer, reader: Stamp::NONE });
        Ok(())
    }
}

/// What the first `N` bytes have in common, if they do.
#[inline(always)]
fn uniform<const N: usize>(shadow: &[Shadow]) -> Option<Shadow> {
    let shadow: &[Shadow; N] = shadow.first_chunk()?;
    let first = shadow[0];
    // No early exit: a vector of comparisons.
    shadow.iter().fold(true, |same, shadow| same & (*shadow == first)).then_some(first)
}

/// The lines that `bytes` bytes from index `at` lie in.
fn lines(at: usize, bytes: u32) -> impl Iterator<Item = usize> {
    let line = LINE as usize;
    at / line..(at + bytes as usize).div_ceil(line)
}

/// Why a byte with that last writer may not be read.
#[cold]
fn unreadable(writer: Stamp, address: u64) -> FaultKind {
    if writer.is_mbarrier() {
        FaultKind::MbarrierAccess { address }
    } else if writer.is_pending() {
        FaultKind::AsyncPending { address, other: writer.accessor() }
    } else if writer == Stamp::NONE {
        FaultKind::Uninitialised { space: Space::Shared, address }
    } else {
        FaultKind::Race { address, writes: false, other: writer.accessor(), other_wrote: true }
    }
}
