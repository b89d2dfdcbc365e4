//! Vectors of a load or store: between the bytes of all lanes and registers, an element at a time.

use super::op::Access;
use super::registers::{Class, Lane, Lanes, Registers, WARP};
use super::vectors::vectorised;

/// The up to 16 bytes that each lane reads or writes, as words; the lowest address comes first.
type Bytes = [[u32; 4]; WARP];

/// A lane's bytes as words.
#[inline(always)]
pub(super) fn words_of(value: u128) -> [u32; 4] {
    std::array::from_fn(|word| (value >> (32 * word)) as u32)
}

/// The inverse of [`words_of`].
#[inline(always)]
pub(super) fn value_of(words: [u32; 4]) -> u128 {
    words.iter().rev().fold(0, |value, &word| value << 32 | u128::from(word))
}

impl Access {
    /// Writes what the given lanes have read, extended to the registers.
    pub fn write_elements(&self, registers: &mut Registers, bytes: &Bytes, lanes: Lanes) {
        vectorised(
            #[inline(always)]
            || {
                for (i, element) in self.elements.iter().enumerate() {
                    let row = self.element(bytes, i);
                    match element.class {
                        Class::Double => u64::write(registers, element.slot, &row, lanes),
                        Class::Word | Class::Predicate => {
                            let mut words = [0; WARP];
                            words.iter_mut().zip(row).for_each(|(word, value)| *word = value as u32);
                            u32::write(registers, element.slot, &words, lanes);
                        }
                    }
                }
            },
        );
    }

    /// Element `i` of all lanes, extended.
    #[inline(always)]
    fn element(&self, bytes: &Bytes, i: usize) -> [u64; WARP] {
        let (word, shift) = self.place(i);
        let above = 64 - 8 * self.width;
        let mut row = [0; WARP];
        for (value, words) in row.iter_mut().zip(bytes) {
            let high = if self.width == 8 { u64::from(words[word + 1]) << 32 } else { 0 };
            let raw = (high | u64::from(words[word] >> shift)) << above;
            *value = if self.signed { (raw as i64 >> above) as u64 } else { raw >> above };
        }
        row
    }

    /// What each lane writes.
    pub fn read_elements(&self, registers: &Registers) -> Bytes {
        vectorised(
            #[inline(always)]
            || {
                let mut bytes = [[0; 4]; WARP];
                for (i, element) in self.elements.iter().enumerate() {
                    let (word, shift) = self.place(i);
                    let put = |words: &mut [u32; 4], value: u64| {
                        words[word] |= (value as u32 & u32::MAX >> (32 - 8 * self.width.min(4))) << shift;
                        if self.width == 8 {
                            words[word + 1] = (value >> 32) as u32;
                        }
                    };
                    match element.class {
                        Class::Double => {
                            let row = u64::read(registers, element.slot);
                            bytes.iter_mut().zip(row).for_each(|(words, value)| put(words, value));
                        }
                        Class::Word | Class::Predicate => {
                            let row = u32::read(registers, element.slot);
                            bytes.iter_mut().zip(row).for_each(|(words, value)| put(words, u64::from(value)));
                        }
                    }
                }
                bytes
            },
        )
    }

    /// Word in which element `i` begins, and its lowest bit there.
    fn place(&self, i: usize) -> (usize, u32) {
        let bit = 8 * self.width * i as u32;
        ((bit / 32) as usize, bit % 32)
    }
}
