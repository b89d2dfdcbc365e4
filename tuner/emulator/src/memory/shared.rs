//! Shared memory of a block, with the last writer and reader of each byte.

use super::bulk::BulkCopies;
use super::check_alignment;
use super::clocks::Clocks;
use super::mbarrier::Mbarrier;
use super::own::OwnWrites;
use super::shadow::{Shadow, Shadows};
use super::stamp::Stamp;
use crate::error::{FaultKind, Space};
use std::collections::BTreeMap;

/// Address of the first byte. What lies below belongs to the system on newer GPUs, and a null pointer shows.
pub(crate) const SHARED_BASE: u32 = 1024;
/// Bytes that [`Shared::begin_async_read`] counts readers of together.
const LINE: u64 = 16;

pub(crate) struct Shared {
    bytes: Vec<u8>,
    shadow: Shadows,
    /// Who has seen what of whom.
    pub clocks: Clocks,
    /// By address.
    pub(super) mbarriers: BTreeMap<u64, Mbarrier>,
    /// How many there ever were.
    pub(super) made_mbarriers: usize,
    pub(super) copies: BulkCopies,
    pub(super) own_writes: OwnWrites,
    /// Of each line, how many asynchronous operations may still read it; and of all.
    async_readers: Vec<u16>,
    all_async_readers: u64,
    /// Counts what another warp may wait for.
    pub(super) changes: u64,
}

impl Shared {
    /// Shared memory of so many bytes, for a block of so many warps.
    pub fn new(bytes: u32, warps: usize) -> Self {
        Self {
            bytes: vec![0; bytes as usize],
            shadow: Shadows::new(bytes as usize),
            clocks: Clocks::new(warps),
            mbarriers: BTreeMap::new(),
            made_mbarriers: 0,
            copies: BulkCopies::default(),
            own_writes: OwnWrites::default(),
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
    #[inline(always)]
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
        let Self { shadow, clocks, .. } = self;
        shadow.update(at, N, |byte, Shadow { writer, reader }| {
            if writer.is_unreadable() || clocks.races(writer, now) {
                return Err(unreadable(writer, address_of(byte)));
            }
            Ok(Shadow { writer, reader: clocks.joined(reader, now) })
        })?;
        let mut value = [0; 16];
        value[..N].copy_from_slice(&self.bytes[at..at + N]);
        Ok(u128::from_le_bytes(value))
    }

    /// Writes up to 16 bytes.
    pub fn store(&mut self, address: u64, bytes: u32, value: u128, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.claim(at, bytes, now, now)?;
        self.bytes[at..at + bytes as usize].copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Ok(())
    }

    /// Replaces 2, 4 or 8 bytes by `f` of them in one step; the old bytes. Atomic operations do not race with one
    /// another.
    pub fn update(&mut self, address: u64, bytes: u32, now: Stamp, f: impl Fn(u64) -> u64) -> Result<u64, FaultKind> {
        let at = self.place(address, bytes)?;
        let range = at..at + bytes as usize;
        self.shadow.update(at, bytes as usize, |byte, shadow| match shadow.writer {
            Stamp::NONE => Err(unreadable(Stamp::NONE, address_of(byte))),
            writer if writer.is_atomic() => Ok(Shadow { writer: now, ..shadow }),
            _ => Ok(shadow),
        })?;
        self.claim(at, bytes, now, now.atomic())?;
        let mut old = [0; 8];
        old[..bytes as usize].copy_from_slice(&self.bytes[range.clone()]);
        let old = u64::from_le_bytes(old);
        self.bytes[range].copy_from_slice(&f(old).to_le_bytes()[..bytes as usize]);
        Ok(old)
    }

    /// Marks bytes that an asynchronous copy of the generic proxy will write.
    pub fn begin_copy(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.claim(at, bytes, now, now.pending())
    }

    /// Writes what [`Self::begin_copy`] announced.
    pub fn end_copy(&mut self, address: u64, bytes: u32, value: u128, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, bytes)?;
        self.write_unchecked(at, &value.to_le_bytes()[..bytes as usize], now)
    }

    /// Marks bytes that the asynchronous proxy will write: what ordinary stores wrote there needs a proxy fence.
    pub(super) fn begin_async_write(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        let at = self.range(address, bytes)?;
        let mut unfenced = None;
        self.shadow.update(at, bytes as usize, |byte, shadow| {
            if self.clocks.is_unfenced(shadow.writer, now) {
                unfenced.get_or_insert((byte, shadow.writer));
            }
            Ok(shadow)
        })?;
        self.claim(at, bytes, now, now.pending())?;
        unfenced.map_or(Ok(()), |(byte, writer)| Err(proxy_fence(byte, writer)))
    }

    /// Writes what [`Self::begin_async_write`] announced.
    pub(super) fn end_async_write(&mut self, address: u64, data: &[u8], writer: Stamp) -> Result<(), FaultKind> {
        let at = self.range(address, data.len() as u32)?;
        self.write_unchecked(at, data, writer)
    }

    fn write_unchecked(&mut self, at: usize, data: &[u8], writer: Stamp) -> Result<(), FaultKind> {
        self.bytes[at..at + data.len()].copy_from_slice(data);
        self.shadow.update(at, data.len(), |_, _| Ok(Shadow::written(writer)))
    }

    /// The asynchronous proxy may read these lines of 16 bytes from `now` on, until [`Self::end_async_read`]: they must be there,
    /// ordered before, and fenced.
    pub fn begin_async_read(&mut self, address: u64, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        let at = self.range(address, bytes)?;
        self.check_async_read(at, bytes, now)?;
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
        let Self { shadow, clocks, .. } = self;
        shadow.update(at, LINE as usize, |_, Shadow { writer, reader }| {
            Ok::<_, FaultKind>(Shadow { writer, reader: clocks.joined(reader, now) })
        })?;
        let mut data = [0; LINE as usize];
        data.copy_from_slice(&self.bytes[at..at + LINE as usize]);
        Ok(data)
    }

    fn check_async_read(&mut self, at: usize, bytes: u32, now: Stamp) -> Result<(), FaultKind> {
        self.shadow.update(at, bytes as usize, |byte, shadow| {
            let writer = shadow.writer;
            if writer.is_unreadable() || self.clocks.races(writer, now) {
                return Err(unreadable(writer, address_of(byte)));
            }
            if self.clocks.is_unfenced(writer, now) {
                return Err(proxy_fence(byte, writer));
            }
            Ok(shadow)
        })
    }

    /// Makes an mbarrier of 8 bytes.
    pub(super) fn claim_mbarrier(&mut self, address: u64, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, 8)?;
        self.claim(at, 8, now, Stamp::MBARRIER)
    }

    /// The bytes of an mbarrier are ordinary memory again, with nothing in it.
    pub(super) fn drop_mbarrier(&mut self, address: u64, now: Stamp) -> Result<(), FaultKind> {
        let at = self.place(address, 8)?;
        self.shadow.update(at, 8, |_, _| Ok(Shadow { writer: Stamp::NONE, reader: now }))
    }

    /// Makes `writer` the last writer of bytes that may be written `now`.
    fn claim(&mut self, at: usize, bytes: u32, now: Stamp, writer: Stamp) -> Result<(), FaultKind> {
        if self.all_async_readers > 0
            && let Some(line) = lines(at, bytes).find(|&line| self.async_readers[line] > 0)
        {
            return Err(FaultKind::AsyncReading { address: address_of(at.max(line * LINE as usize)) });
        }
        self.shadow.update(at, bytes as usize, |byte, last| {
            if last.writer.is_pending() || last.writer.is_mbarrier() {
                return Err(unreadable(last.writer, address_of(byte)));
            }
            for (other, other_wrote) in [(last.writer, true), (last.reader, false)] {
                if self.clocks.races(other, now) {
                    let (address, other) = (address_of(byte), other.accessor());
                    return Err(FaultKind::Race { space: Space::Shared, address, writes: true, other, other_wrote });
                }
            }
            Ok(Shadow::written(writer))
        })
    }
}

/// Address of the byte with that index.
fn address_of(byte: usize) -> u64 {
    u64::from(SHARED_BASE) + byte as u64
}

/// The asynchronous proxy may not see what an ordinary store wrote.
#[cold]
fn proxy_fence(byte: usize, writer: Stamp) -> FaultKind {
    FaultKind::ProxyFence { address: address_of(byte), other: writer.accessor() }
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
        FaultKind::Race { space: Space::Shared, address, writes: false, other: writer.accessor(), other_wrote: true }
    }
}
