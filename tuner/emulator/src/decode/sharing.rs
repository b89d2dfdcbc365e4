//! Which registers may lie in the same row of the register file.
//!
//! NVRTC names a register a value, thousands of them; a few hundred are alive at once. Where their rows are shared,
//! a warp's registers stay in the CPU's caches. Liveness is that of one thread (Aho, Lam, Sethi, Ullman, "Compilers",
//! 9.2.5): instructions write the rows of active lanes alone, so lanes that went another way keep what they have.
//! Rows are then given out by linear scan (Poletto and Sarkar, 1999), over the order of the text.

use super::names::Register;
use crate::exec::{Class, Slot};
use crate::flow::{Flow, successors};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::ops::Range;

/// What an instruction does with the registers that it names.
#[derive(Clone, Debug, Default)]
pub(super) struct Mentions {
    /// Read, or written in part only.
    pub reads: Vec<Register>,
    /// Written in every active lane, whatever was there.
    pub writes: Vec<Register>,
    /// Whether it holds on to its registers when the next instruction comes.
    pub keeps: bool,
}

/// Where registers are placed.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    numbers: Numbers,
    /// By number.
    slots: Vec<Slot>,
    /// Rows of each class.
    pub sizes: HashMap<Class, u32>,
}

/// First and last instruction at which a register is alive or named.
type Span = (usize, usize);

/// Of a register that no instruction names.
const NOWHERE: Span = (usize::MAX, 0);

impl Placement {
    /// Places `sizes` registers of each class, that `mentions` says how `code` uses. The `lasting` ones share with
    /// nobody; what else no instruction names has no place: NVRTC declares twice the registers that it uses.
    pub fn new(code: &[Flow], mentions: &[Mentions], sizes: &HashMap<Class, u32>, lasting: &[Register]) -> Self {
        let numbers = Numbers::new(sizes);
        let mut spans = spans(code, mentions, &numbers);
        lasting.iter().for_each(|&register| spans[numbers.of(register)] = (0, code.len()));
        let mut placement = Self { slots: vec![Slot(0); numbers.count], numbers, sizes: HashMap::new() };
        for (&class, &size) in sizes {
            let first = placement.numbers.first[&class];
            let mut all: Vec<_> = (first..first + size as usize).filter(|&number| spans[number] != NOWHERE).collect();
            all.sort_by_key(|&number| (spans[number].0, number));
            let rows = placement.scan(&all, &spans);
            placement.sizes.insert(class, rows);
        }
        placement
    }

    /// Gives each register, in the order in which they begin, the lowest row that is free; returns how many.
    fn scan(&mut self, all: &[usize], spans: &[Span]) -> u32 {
        let (mut free, mut taken, mut rows) = (BinaryHeap::new(), BinaryHeap::new(), 0);
        for &number in all {
            let (first, last) = spans[number];
            while let Some(&Reverse((end, slot))) = taken.peek()
                && end < first
            {
                taken.pop();
                free.push(Reverse(slot));
            }
            let slot = free.pop().map_or(rows, |Reverse(slot)| slot);
            rows = rows.max(slot + 1);
            taken.push(Reverse((last, slot)));
            self.slots[number] = Slot(slot);
        }
        rows
    }

    /// The register in its place.
    pub fn of(&self, register: Register) -> Register {
        Register { slot: self.slots[self.numbers.of(register)], ..register }
    }
}

fn spans(code: &[Flow], mentions: &[Mentions], numbers: &Numbers) -> Vec<Span> {
    let mut spans = vec![NOWHERE; numbers.count];
    let mut extend = |number: usize, at: usize| {
        let (first, last) = &mut spans[number];
        (*first, *last) = ((*first).min(at), (*last).max(at));
    };
    for (at, Mentions { reads, writes, keeps }) in mentions.iter().enumerate() {
        for number in reads.iter().chain(writes).map(|&register| numbers.of(register)) {
            extend(number, if *keeps { 0 } else { at });
            extend(number, if *keeps { code.len() } else { at });
        }
    }
    for Block { range, alive, alive_after, .. } in alive(code, mentions, numbers) {
        alive.iter().for_each(|number| extend(number, range.start));
        alive_after.iter().for_each(|number| extend(number, range.end - 1));
    }
    spans
}

/// Instructions that run one after another, and registers by what they do with them.
struct Block {
    range: Range<usize>,
    /// Read before they are written.
    reads: Set,
    writes: Set,
    /// Read here or later, from the beginning on.
    alive: Set,
    /// Read later.
    alive_after: Set,
}

/// The blocks of `code` with what is alive around them.
fn alive(code: &[Flow], mentions: &[Mentions], numbers: &Numbers) -> Vec<Block> {
    let mut blocks = blocks(code, mentions, numbers);
    let starts: HashMap<usize, usize> = blocks.iter().enumerate().map(|(i, block)| (block.range.start, i)).collect();
    let mut changed = true;
    while changed {
        changed = false;
        for i in (0..blocks.len()).rev() {
            let mut after = Set::new(numbers.count);
            for next in successors(code, blocks[i].range.end - 1).filter_map(|next| starts.get(&next)) {
                after.join(&blocks[*next].alive);
            }
            let block = &mut blocks[i];
            let mut alive = after.clone();
            alive.remove(&block.writes);
            alive.join(&block.reads);
            changed |= alive != block.alive;
            (block.alive, block.alive_after) = (alive, after);
        }
    }
    blocks
}

fn blocks(code: &[Flow], mentions: &[Mentions], numbers: &Numbers) -> Vec<Block> {
    let mut starts = BTreeSet::from([0]);
    for (at, flow) in code.iter().enumerate().filter(|(_, flow)| **flow != Flow::Next) {
        starts.insert(at + 1);
        if let Flow::Jump(target) | Flow::Fork(target) = flow {
            starts.insert(*target);
        }
    }
    let ends = starts.iter().skip(1).copied().chain([code.len()]);
    let ranges = starts.iter().zip(ends).map(|(&start, end)| start..end).filter(|range| !range.is_empty());
    let empty = || Set::new(numbers.count);
    let block = |range: Range<usize>| {
        let (mut reads, mut writes) = (empty(), empty());
        for mention in &mentions[range.clone()] {
            let read = mention.reads.iter().map(|&register| numbers.of(register));
            read.filter(|&number| !writes.has(number)).for_each(|number| reads.add(number));
            mention.writes.iter().for_each(|&register| writes.add(numbers.of(register)));
        }
        Block { range, reads, writes, alive: empty(), alive_after: empty() }
    };
    ranges.map(block).collect()
}

/// A set of registers, by number.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn add(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn has(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, other)| *mine |= other);
    }

    fn remove(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, other)| *mine &= !other);
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        let bits =
            |(i, &word): (usize, &u64)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * i + bit);
        self.0.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(bits)
    }
}

/// Numbers registers of all classes in one row.
#[derive(Clone, Debug)]
struct Numbers {
    first: HashMap<Class, usize>,
    count: usize,
}

impl Numbers {
    fn new(sizes: &HashMap<Class, u32>) -> Self {
        let mut count = 0;
        let mut first = HashMap::new();
        for (&class, &size) in sizes {
            first.insert(class, count);
            count += size as usize;
        }
        Self { first, count }
    }

    fn of(&self, register: Register) -> usize {
        self.first[&register.class] + register.slot.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(slot: u32) -> Register {
        Register { class: Class::Word, slot: Slot(slot) }
    }

    /// Instructions as pairs of the words that they write and read.
    fn place(code: &[Flow], words: &[(&[u32], &[u32])]) -> Placement {
        let all = |slots: &[u32]| slots.iter().map(|&slot| word(slot)).collect();
        let mentions: Vec<_> = words
            .iter()
            .map(|(writes, reads)| Mentions { reads: all(reads), writes: all(writes), keeps: false })
            .collect();
        Placement::new(code, &mentions, &HashMap::from([(Class::Word, 6)]), &[word(4)])
    }

    #[test]
    fn a_value_that_is_read_no_more_gives_its_row_to_the_next() {
        let code = [Flow::Next; 4];
        let placed = place(&code, &[(&[0], &[]), (&[1], &[0]), (&[2], &[1]), (&[3], &[2])]);
        assert_ne!(placed.of(word(0)), placed.of(word(1)), "named by the same instruction");
        assert_eq!(placed.of(word(0)), placed.of(word(2)));
        assert_eq!(placed.of(word(1)), placed.of(word(3)));
        assert_eq!(placed.sizes[&Class::Word], 3, "two, and the lasting one");
    }

    #[test]
    fn what_a_loop_reads_again_stays_for_the_whole_loop() {
        // 0: w0 = ; 1: w1 = w0; 2: w2 = w1; 3: back to 1, or on; 4: w3 = w2
        let code = [Flow::Next, Flow::Next, Flow::Next, Flow::Fork(1), Flow::Next];
        let placed = place(&code, &[(&[0], &[]), (&[1], &[0]), (&[2], &[1]), (&[], &[]), (&[3], &[2])]);
        for other in 1..3 {
            assert_ne!(placed.of(word(0)), placed.of(word(other)));
        }
        assert_eq!(placed.of(word(0)), placed.of(word(3)), "after the loop");
    }

    #[test]
    fn what_may_be_read_before_it_is_written_shares_with_nobody_before() {
        // w1 is written on one way only, and read after both.
        let code = [Flow::Next, Flow::Fork(3), Flow::Next, Flow::Next];
        let placed = place(&code, &[(&[0], &[]), (&[], &[0]), (&[1], &[]), (&[2], &[1])]);
        assert_ne!(placed.of(word(0)), placed.of(word(1)));
        // w4 lasts, though no instruction names it; w3 and w5 have no row.
        assert!((0..3).all(|other| placed.of(word(4)) != placed.of(word(other))));
        assert_eq!(placed.sizes[&Class::Word], 3);
    }
}
