//! Who wrote and who read each byte of shared memory last: one note a word, or four where its bytes differ.

use super::stamp::Stamp;

/// Bytes that mostly have the same.
const WORD: usize = 4;

/// The last accesses of a byte.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct Shadow {
    /// Who wrote it last, or is about to (an asynchronous copy).
    pub writer: Stamp,
    /// Who read it since.
    pub reader: Stamp,
}

impl Shadow {
    /// Of a word whose bytes differ; no access has both stamps.
    const SPLIT: Self = Self { writer: Stamp::NONE, reader: Stamp::MBARRIER };

    /// Written just now, and not read since.
    pub fn written(writer: Stamp) -> Self {
        Self { writer, reader: Stamp::NONE }
    }
}

/// The shadows of shared memory.
pub(super) struct Shadows {
    words: Vec<Shadow>,
    /// Of the bytes of split words; empty while there are none.
    bytes: Vec<[Shadow; WORD]>,
}

impl Shadows {
    /// Nobody has accessed so many bytes.
    pub fn new(bytes: usize) -> Self {
        // Faster than `vec!`, which writes one after another.
        let words = std::iter::repeat_n(Shadow::default(), bytes.div_ceil(WORD)).collect();
        Self { words, bytes: Vec::new() }
    }

    /// Replaces what `length` bytes from index `at` on have by `f` of a byte's index and of that. Words are
    /// asked for once, by their first byte; runs of equal ones, too.
    #[inline(always)]
    pub fn update<E>(
        &mut self,
        at: usize,
        length: usize,
        mut f: impl FnMut(usize, Shadow) -> Result<Shadow, E>,
    ) -> Result<(), E> {
        let words = match length {
            4 => uniform::<1>(&mut self.words, at),
            8 => uniform::<2>(&mut self.words, at),
            16 => uniform::<4>(&mut self.words, at),
            _ => None,
        };
        match words {
            Some(words) => {
                let old = words[0];
                let new = f(at, old)?;
                if new != old {
                    words.fill(new);
                }
                Ok(())
            }
            None => self.update_each(at, length, &mut f),
        }
    }

    /// The same where the bytes may differ.
    #[inline(never)]
    fn update_each<E>(
        &mut self,
        at: usize,
        length: usize,
        f: &mut impl FnMut(usize, Shadow) -> Result<Shadow, E>,
    ) -> Result<(), E> {
        let end = at + length;
        for word in at / WORD..end.div_ceil(WORD) {
            let first = word * WORD;
            let old = self.words[word];
            if old != Shadow::SPLIT && at <= first && first + WORD <= end {
                self.words[word] = f(first, old)?;
            } else {
                let range = at.max(first) - first..end.min(first + WORD) - first;
                self.words[word] = self.update_bytes(word, range, f)?;
            }
        }
        Ok(())
    }

    /// The same for some bytes of a word; what the word has then.
    fn update_bytes<E>(
        &mut self,
        word: usize,
        range: std::ops::Range<usize>,
        f: &mut impl FnMut(usize, Shadow) -> Result<Shadow, E>,
    ) -> Result<Shadow, E> {
        if self.bytes.is_empty() {
            self.bytes = vec![[Shadow::default(); WORD]; self.words.len()];
        }
        let bytes = &mut self.bytes[word];
        if self.words[word] != Shadow::SPLIT {
            *bytes = [self.words[word]; WORD];
        }
        for i in range {
            bytes[i] = f(word * WORD + i, bytes[i])?;
        }
        Ok(if bytes.iter().all(|&byte| byte == bytes[0]) { bytes[0] } else { Shadow::SPLIT })
    }
}

/// The `N` words from byte `at` on, where all their bytes have the same.
#[inline(always)]
fn uniform<const N: usize>(words: &mut [Shadow], at: usize) -> Option<&mut [Shadow]> {
    let words = words.get_mut(at / WORD..)?.first_chunk_mut::<N>()?;
    let first = words[0];
    // No early exit: a vector of comparisons.
    let same = words.iter().fold(true, |same, word| same & (*word == first));
    (same && first != Shadow::SPLIT && at.is_multiple_of(WORD)).then_some(words.as_mut_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn words_say_what_a_note_a_byte_would() {
        let mut rng = StdRng::seed_from_u64(5);
        let (mut shadows, mut plain) = (Shadows::new(62), [Shadow::default(); 62]);
        for _ in 0..20_000 {
            let length = 1 << rng.random_range(0..5);
            let at = rng.random_range(0..=(62 - length) / length) * length;
            // Few writers, so that neighbours become equal again; odd ones are what they read.
            let next = |last: Shadow, writer: u64| match writer % 2 {
                0 => Shadow::written(Stamp::new(1, writer)),
                _ => Shadow { reader: Stamp::new(2, writer), ..last },
            };
            let writer = rng.random_range(1..5);
            let updated = shadows.update(at, length, |byte, last| {
                assert!((at..at + length).contains(&byte));
                if last == plain[byte] { Ok(next(last, writer)) } else { Err(byte) }
            });
            assert_eq!(updated, Ok(()), "a byte's note is another");
            plain[at..at + length].iter_mut().for_each(|last| *last = next(*last, writer));
        }
    }
}
