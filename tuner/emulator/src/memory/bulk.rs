//! Asynchronous copies that a block waits for by an mbarrier or by bulk groups. They happen as late as they may: data
//! comes when somebody waits for it, and is read when its source may be written again.

use super::clocks::View;
use super::mbarrier::Arrival;
use super::{Cursor, Memory, Shared, Stamp};
use crate::error::{FaultKind, MbarrierMisuse, Space};

/// Addresses and sizes of bulk copies are multiples of this.
const BULK_ALIGNMENT: u64 = 16;

/// Copies that have not happened.
#[derive(Default)]
pub(crate) struct BulkCopies {
    incoming: Vec<Incoming>,
    outgoing: Vec<Outgoing>,
    /// Bulk groups that each thread has closed.
    closed: Vec<(Stamp, u32)>,
}

/// What an mbarrier waits for.
struct Incoming {
    mbarrier: u64,
    kind: IncomingKind,
}

enum IncomingKind {
    /// `cp.async.bulk` from global to shared memory.
    Bulk { to: u64, from: u64, bytes: u32 },
    /// `cp.async.mbarrier.arrive`: the thread's copies so far, and what its warp let others see.
    Arrive { copies: Vec<ThreadCopy>, view: Box<View> },
}

/// A `cp.async` of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadCopy {
    pub to: u64,
    pub from: u64,
    /// Bytes written.
    pub bytes: u32,
    /// Bytes read; the rest is zero.
    pub filled: u32,
    /// When it was issued.
    pub stamp: Stamp,
}

/// `cp.async.bulk` from shared to global memory.
struct Outgoing {
    to: u64,
    from: u64,
    bytes: u32,
    /// The thread, at the time of issue.
    thread: Stamp,
    group: u32,
    /// Its source, once it was read.
    data: Option<Vec<u8>>,
}

impl BulkCopies {
    pub(super) fn use_mbarrier(&self, address: u64) -> bool {
        self.incoming.iter().any(|copy| copy.mbarrier == address)
    }

    fn closed(&mut self, thread: Stamp) -> &mut u32 {
        let at = match self.closed.iter().position(|(other, _)| other.same_thread(thread)) {
            Some(at) => at,
            None => {
                self.closed.push((thread, 0));
                self.closed.len() - 1
            }
        };
        &mut self.closed[at].1
    }
}

fn check_bulk(space: Space, address: u64, bytes: u32) -> Result<(), FaultKind> {
    let aligned = address.is_multiple_of(BULK_ALIGNMENT) && u64::from(bytes).is_multiple_of(BULK_ALIGNMENT);
    if aligned { Ok(()) } else { Err(FaultKind::Misaligned { space, address, bytes }) }
}

impl ThreadCopy {
    /// Reads the source and writes the destination.
    pub fn arrive(&self, shared: &mut Shared, memory: &Memory, hint: &mut Cursor) -> Result<(), FaultKind> {
        let value = self.read(memory, hint)?;
        shared.end_copy(self.to, self.bytes, value, self.stamp)
    }

    /// The source, and zeros.
    pub fn read(&self, memory: &Memory, hint: &mut Cursor) -> Result<u128, FaultKind> {
        match self.filled {
            0 => Ok(0),
            filled if filled == self.bytes => memory.load(self.from, filled, hint),
            filled => (0..u64::from(filled))
                .try_fold(0, |value, i| Ok(value | memory.load(self.from + i, 1, hint)? << (8 * i))),
        }
    }
}

impl Shared {
    /// Starts a bulk copy of global memory `from` to shared memory `to`, counted by `mbarrier`.
    pub fn bulk_load(
        &mut self,
        memory: &Memory,
        [to, from, mbarrier]: [u64; 3],
        bytes: u32,
        now: Stamp,
    ) -> Result<(), FaultKind> {
        check_bulk(Space::Shared, to, bytes)?;
        check_bulk(Space::Global, from, bytes)?;
        self.mbarrier(mbarrier, now)?;
        memory.load_bytes(from, bytes)?;
        self.check_global_read(from, bytes, now)?;
        self.begin_async_write(to, bytes, now)?;
        self.copies.incoming.push(Incoming { mbarrier, kind: IncomingKind::Bulk { to, from, bytes } });
        Ok(())
    }

    /// Starts a bulk copy of shared memory `from` to global memory `to`, in the thread's open bulk group.
    pub fn bulk_store(
        &mut self,
        memory: &Memory,
        [to, from]: [u64; 2],
        bytes: u32,
        now: Stamp,
    ) -> Result<(), FaultKind> {
        check_bulk(Space::Global, to, bytes)?;
        check_bulk(Space::Shared, from, bytes)?;
        memory.check(to, bytes)?;
        self.begin_async_read(from, bytes, now)?;
        let group = *self.copies.closed(now);
        self.copies.outgoing.push(Outgoing { to, from, bytes, thread: now, group, data: None });
        Ok(())
    }

    /// `cp.async.bulk.commit_group`
    pub fn close_bulk_group(&mut self, thread: Stamp) {
        *self.copies.closed(thread) += 1;
    }

    /// `cp.async.bulk.wait_group`: at most `left` of the thread's groups are in flight; with `read_only`, have not
    /// been read.
    pub fn wait_bulk_groups(
        &mut self,
        memory: &Memory,
        left: u32,
        read_only: bool,
        now: Stamp,
    ) -> Result<(), FaultKind> {
        let closed = *self.copies.closed(now);
        let mut outgoing = std::mem::take(&mut self.copies.outgoing);
        for copy in &mut outgoing {
            if copy.thread.same_thread(now) && copy.group + left < closed && copy.data.is_none() {
                let mut data = Vec::with_capacity(copy.bytes as usize);
                for at in (copy.from..copy.from + u64::from(copy.bytes)).step_by(16) {
                    data.extend(self.end_async_read(at, now)?);
                }
                copy.data = Some(data);
            }
        }
        let due = |copy: &mut Outgoing| !read_only && copy.thread.same_thread(now) && copy.group + left < closed;
        for copy in outgoing.extract_if(.., due) {
            memory.store_bytes(copy.to, copy.data.as_deref().unwrap_or_default())?;
        }
        self.copies.outgoing = outgoing;
        Ok(())
    }

    /// `cp.async.mbarrier.arrive`: `mbarrier` gets an arrival of the thread when its `copies` have come. With
    /// `counted`, the phase waits for one arrival more.
    pub fn arrive_after(
        &mut self,
        mbarrier: u64,
        copies: Vec<ThreadCopy>,
        counted: bool,
        now: Stamp,
    ) -> Result<(), FaultKind> {
        self.mbarrier(mbarrier, now)?;
        if counted {
            self.add_pending(mbarrier, now)?;
        }
        let view = Box::new(self.clocks.release(now.agent()));
        self.copies.incoming.push(Incoming { mbarrier, kind: IncomingKind::Arrive { copies, view } });
        Ok(())
    }

    /// Carries out what `mbarrier` waits for.
    pub fn deliver(&mut self, memory: &Memory, mbarrier: u64) -> Result<(), FaultKind> {
        let due: Vec<_> = self.copies.incoming.extract_if(.., |copy| copy.mbarrier == mbarrier).collect();
        for copy in due {
            match copy.kind {
                IncomingKind::Bulk { to, from, bytes } => {
                    let data = memory.load_bytes(from, bytes)?;
                    let stamp = self.complete_bytes(mbarrier, bytes)?;
                    self.end_async_write(to, &data, stamp)?;
                }
                IncomingKind::Arrive { copies, view } => {
                    copies.iter().try_for_each(|copy| copy.arrive(self, memory, &mut Cursor::default()))?;
                    let arrival = Arrival { expect_bytes: 0, count: 1, drop: false, no_complete: false };
                    self.arrive_with(mbarrier, arrival, &view)?;
                }
            }
        }
        Ok(())
    }

    /// What a block must not leave behind when it ends.
    pub fn end(&mut self, memory: &Memory) -> Result<(), FaultKind> {
        if let Some(copy) = self.copies.incoming.first() {
            return Err(FaultKind::Mbarrier { address: copy.mbarrier, misuse: MbarrierMisuse::InFlight });
        }
        if let Some(copy) = self.copies.outgoing.iter().find(|copy| copy.data.is_none()) {
            return Err(FaultKind::AsyncReading { address: copy.from });
        }
        for copy in std::mem::take(&mut self.copies.outgoing) {
            memory.store_bytes(copy.to, copy.data.as_deref().unwrap_or_default())?;
        }
        Ok(())
    }
}
