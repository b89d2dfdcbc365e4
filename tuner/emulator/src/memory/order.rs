//! Which blocks' accesses to global memory are ordered: those before a fence and an atomic operation, for a block that
//! then takes part in that atomic's location.
//!
//! Fences and atomics count for their whole block, and an atomic sees what others released whether or not a fence
//! follows it; of several readers, or writers of the same value, none is told apart. Races may go unseen; what is
//! reported is one.

use crate::error::FaultKind;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Who touched a word of global memory last: launch (bits 48 up), block from 1 (24 to 47), and the block's epoch.
type Mark = u64;

const BLOCK_AT: u32 = 24;
const LAUNCH_AT: u32 = 48;
const FIELD: u64 = (1 << 24) - 1;
/// Several blocks, whose accesses are not told apart.
const SEVERAL: u64 = FIELD;

fn block_of(mark: Mark) -> u64 {
    mark >> BLOCK_AT & FIELD
}

/// Of each word, the last writer and the last reader.
#[derive(Debug)]
pub(super) struct Marks {
    writers: Vec<AtomicU64>,
    readers: Vec<AtomicU64>,
}

impl Marks {
    pub fn new(words: usize) -> Self {
        let none = || (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { writers: none(), readers: none() }
    }

    /// A block reads a word.
    #[inline(always)]
    pub fn read(&self, word: usize, address: u64, view: &BlockView) -> Result<(), FaultKind> {
        let writer = self.writers[word].load(Ordering::Relaxed);
        if view.races(writer) {
            return Err(view.race(address, false, writer, true));
        }
        let (reader, mine) = (self.readers[word].load(Ordering::Relaxed), view.mark.get());
        if reader != mine {
            let joined = if view.races(reader) || view.is_several(reader) { view.several() } else { mine };
            self.readers[word].store(joined, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A block's atomic operation on a word: nobody may write to it otherwise at the same time.
    pub fn update(&self, word: usize, address: u64, view: &BlockView) -> Result<(), FaultKind> {
        let writer = self.writers[word].load(Ordering::Relaxed);
        if view.races(writer) { Err(view.race(address, true, writer, true)) } else { Ok(()) }
    }

    /// Whether a word was written to in this launch.
    pub fn is_new(&self, word: usize, view: &BlockView) -> bool {
        view.of_this_launch(self.writers[word].load(Ordering::Relaxed))
    }

    /// A block writes to a word. Where it `changes` nothing, or only a part of it, others may have done the same.
    pub fn write(&self, word: usize, address: u64, changes: bool, view: &BlockView) -> Result<(), FaultKind> {
        let mut mine = view.mark.get();
        let writer = self.writers[word].load(Ordering::Relaxed);
        for (other, wrote) in [(writer, true), (self.readers[word].load(Ordering::Relaxed), false)] {
            if view.races(other) {
                if changes {
                    return Err(view.race(address, true, other, wrote));
                }
                mine = view.several();
            }
        }
        if view.is_several(writer) {
            mine = view.several();
        }
        self.writers[word].store(mine, Ordering::Relaxed);
        Ok(())
    }
}

/// What blocks let others see by each atomic's location: block to epoch.
#[derive(Debug, Default)]
pub(super) struct Releases(Mutex<HashMap<u64, HashMap<u64, u64>>>);

impl Releases {
    /// A launch begins: all that came before is ordered.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A block's atomic operation, which is `replace`. Both are one step: who sees what it wrote has seen what it releases.
    pub fn meet<T>(&self, address: u64, view: &BlockView, replace: impl FnOnce() -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = replace();
        let mut seen = view.seen.borrow_mut();
        if let Some(released) = all.get(&address) {
            for (&block, &epoch) in released {
                let known = seen.entry(block).or_default();
                *known = epoch.max(*known);
            }
        }
        if view.fenced.get() > 0 {
            let released = all.entry(address).or_default();
            released.extend(seen.iter());
            released.insert(block_of(view.mark.get()), view.fenced.get());
        }
        old
    }
}

/// A block, and what it has seen of others.
#[derive(Debug)]
pub(crate) struct BlockView {
    mark: Cell<Mark>,
    /// Epoch from which on accesses are not covered by a fence; 0 without one.
    fenced: Cell<u64>,
    /// Of each other block, the epoch before which its accesses are ordered.
    seen: RefCell<HashMap<u64, u64>>,
    grid: [u32; 3],
}

impl BlockView {
    /// Block `block` of `grid` in launch `launch`; none where there are too many blocks to tell apart.
    pub fn new(launch: u64, grid: [u32; 3], block: [u32; 3]) -> Option<Rc<Self>> {
        let [x, y, z] = grid.map(u64::from);
        let index = u64::from(block[0]) + x * (u64::from(block[1]) + y * u64::from(block[2]));
        let mark = launch << LAUNCH_AT | (index + 1) << BLOCK_AT;
        let (mark, fenced, seen) = (Cell::new(mark), Cell::new(0), RefCell::default());
        (x * y * z < SEVERAL - 1).then(|| Rc::new(Self { mark, fenced, seen, grid }))
    }

    /// A fence of the device: what came before can be released.
    pub fn fence(&self) {
        let mark = self.mark.get();
        if mark & FIELD < FIELD {
            self.mark.set(mark + 1);
        }
        self.fenced.set(self.mark.get() & FIELD);
    }

    fn several(&self) -> Mark {
        self.mark.get() | SEVERAL << BLOCK_AT
    }

    fn of_this_launch(&self, mark: Mark) -> bool {
        mark >> LAUNCH_AT == self.mark.get() >> LAUNCH_AT
    }

    fn is_several(&self, mark: Mark) -> bool {
        block_of(mark) == SEVERAL && self.of_this_launch(mark)
    }

    /// Whether nothing orders that access of another block and this one's.
    #[inline(always)]
    fn races(&self, other: Mark) -> bool {
        (other ^ self.mark.get()) >> BLOCK_AT != 0 && self.of_this_launch(other) && self.is_unseen(other)
    }

    #[cold]
    fn is_unseen(&self, other: Mark) -> bool {
        let block = block_of(other);
        block != SEVERAL && self.seen.borrow().get(&block).is_none_or(|&epoch| other & FIELD >= epoch)
    }

    #[cold]
    fn race(&self, address: u64, writes: bool, other: Mark, other_wrote: bool) -> FaultKind {
        let index = block_of(other).wrapping_sub(1);
        let [x, y, _] = self.grid.map(u64::from);
        let block = [index % x, index / x % y, index / x / y].map(|i| i as u32);
        FaultKind::BlockRace { address, writes, other: block, other_wrote }
    }
}

/// Where a warp's global accesses come from, and the allocation that the last one found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    pub allocation: usize,
    /// None where nothing is checked.
    pub view: Option<Rc<BlockView>>,
}

impl Cursor {
    pub fn new(view: Option<Rc<BlockView>>) -> Self {
        Self { allocation: 0, view }
    }

    /// A fence of the device.
    pub fn fence(&self) {
        if let Some(view) = &self.view {
            view.fence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_sees_a_ticket_taken_sees_what_was_released() {
        let (releases, word) = (Releases::default(), AtomicU64::new(0));
        let take = |view: &BlockView, pause: Duration| {
            releases.meet(8, view, || {
                let ticket = word.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(pause);
                ticket
            })
        };
        let view = |block| BlockView::new(1, [2, 1, 1], [block, 0, 0]).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                while word.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                let view = view(1);
                assert_eq!(take(&view, Duration::ZERO), 1);
                !view.seen.borrow().is_empty()
            });
            let first = view(0);
            first.fence();
            assert_eq!(take(&first, Duration::from_millis(20)), 0);
            assert!(second.join().unwrap(), "the second saw the ticket, not the release");
        });
    }
}
