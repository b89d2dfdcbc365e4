//! The registers of a warp, a row of 32 lanes each, and the types in which instructions see them.
//!
//! Immediates and special registers are registers too, filled when a warp starts: an instruction has one
//! kind of operand, and its inner loop no cases.

/// A set of lanes, lane 0 in the lowest bit.
pub(crate) type Lanes = u32;

/// Lanes of a warp.
pub(crate) const WARP: usize = 32;

/// Index of a register among those of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot(pub u32);

/// Classes that PTX types fall into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Up to 32 bits.
    Word,
    /// 64 bits.
    Double,
    /// One bit.
    Predicate,
}

/// The register file of a warp.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    pub words: Vec<[u32; WARP]>,
    pub doubles: Vec<[u64; WARP]>,
    pub predicates: Vec<Lanes>,
}

/// A type that one lane of a register is read or written as.
pub(crate) trait Lane: Copy + Default {
    /// Where registers of this type lie.
    const CLASS: Class;
    fn read(registers: &Registers, slot: Slot) -> [Self; WARP];
    /// Writes the given lanes; the others keep what they have.
    fn write(registers: &mut Registers, slot: Slot, values: &[Self; WARP], lanes: Lanes);
}

/// Types that lie in the low bits of a word or a double.
macro_rules! lane {
    ($type:ty, $class:ident, $file:ident, |$raw:ident| $from:expr, |$value:ident| $to:expr) => {
        impl Lane for $type {
            const CLASS: Class = Class::$class;

            #[inline(always)]
            fn read(registers: &Registers, slot: Slot) -> [Self; WARP] {
                let mut values = [Self::default(); WARP];
                for (value, &$raw) in values.iter_mut().zip(&registers.$file[slot.0 as usize]) {
                    *value = $from;
                }
                values
            }

            #[inline(always)]
            fn write(registers: &mut Registers, slot: Slot, values: &[Self; WARP], lanes: Lanes) {
                let row = &mut registers.$file[slot.0 as usize];
                if lanes == Lanes::MAX {
                    for lane in 0..WARP {
                        let $value = values[lane];
                        row[lane] = $to;
                    }
                } else {
                    for lane in 0..WARP {
                        let $value = values[lane];
                        row[lane] = if lanes >> lane & 1 == 1 { $to } else { row[lane] };
                    }
                }
            }
        }
    };
}

lane!(u32, Word, words, |raw| raw, |value| value);
lane!(i32, Word, words, |raw| raw as i32, |value| value as u32);
lane!(f32, Word, words, |raw| f32::from_bits(raw), |value| value.to_bits());
lane!(u16, Word, words, |raw| raw as u16, |value| u32::from(value));
lane!(i16, Word, words, |raw| raw as i16, |value| u32::from(value as u16));
lane!(u8, Word, words, |raw| raw as u8, |value| u32::from(value));
lane!(u64, Double, doubles, |raw| raw, |value| value);
lane!(i64, Double, doubles, |raw| raw as i64, |value| value as u64);
lane!(f64, Double, doubles, |raw| f64::from_bits(raw), |value| value.to_bits());

impl Lane for bool {
    const CLASS: Class = Class::Predicate;

    #[inline(always)]
    fn read(registers: &Registers, slot: Slot) -> [Self; WARP] {
        let row = registers.predicates[slot.0 as usize];
        std::array::from_fn(|lane| row >> lane & 1 == 1)
    }

    #[inline(always)]
    fn write(registers: &mut Registers, slot: Slot, values: &[Self; WARP], lanes: Lanes) {
        let row = &mut registers.predicates[slot.0 as usize];
        let bits = (0..WARP).fold(0, |bits, lane| bits | Lanes::from(values[lane]) << lane);
        *row = *row & !lanes | bits & lanes;
    }
}

impl Registers {
    /// A register of a word or a double as an unsigned number, one lane of it.
    pub fn bits(&self, class: Class, slot: Slot, lane: usize) -> u64 {
        let at = slot.0 as usize;
        match class {
            Class::Word => u64::from(self.words[at][lane]),
            Class::Double => self.doubles[at][lane],
            Class::Predicate => u64::from(self.predicates[at] >> lane & 1),
        }
    }

    /// The same, all lanes of it.
    #[inline(always)]
    pub fn row(&self, class: Class, slot: Slot) -> [u64; WARP] {
        let at = slot.0 as usize;
        let mut row = [0; WARP];
        match class {
            Class::Word => row.iter_mut().zip(&self.words[at]).for_each(|(value, &word)| *value = u64::from(word)),
            Class::Double => row = self.doubles[at],
            Class::Predicate => (0..WARP).for_each(|lane| row[lane] = u64::from(self.predicates[at] >> lane & 1)),
        }
        row
    }

    /// Sets a register to `bits` in every lane.
    pub fn fill(&mut self, class: Class, slot: Slot, bits: u64) {
        let at = slot.0 as usize;
        match class {
            Class::Word => self.words[at] = [bits as u32; WARP],
            Class::Double => self.doubles[at] = [bits; WARP],
            Class::Predicate => self.predicates[at] = if bits & 1 == 1 { Lanes::MAX } else { 0 },
        }
    }

    /// Writes one lane of a register; a word takes the low 32 bits.
    pub fn set_bits(&mut self, class: Class, slot: Slot, lane: usize, bits: u64) {
        let at = slot.0 as usize;
        match class {
            Class::Word => self.words[at][lane] = bits as u32,
            Class::Double => self.doubles[at][lane] = bits,
            Class::Predicate => {
                let row = &mut self.predicates[at];
                *row = *row & !(1 << lane) | Lanes::from(bits & 1 == 1) << lane;
            }
        }
    }
}
