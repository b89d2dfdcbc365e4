//! Random cache bytes as a function of their place: made on the device, known on the host.

use nvkv_spec::ElementFormat;

/// Which bits of a random word stay, and what is added: bytes without NaN and of moderate size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Bits that stay random.
    pub keep: u32,
    /// Added afterwards; no byte carries into the next.
    pub add: u32,
}

const fn every_byte(keep: u8, add: u8) -> Pattern {
    Pattern { keep: u32::from_le_bytes([keep; 4]), add: u32::from_le_bytes([add; 4]) }
}

impl Pattern {
    /// For data: any E2M1 code; E4M3 of either sign with exponents -3 to 0.
    pub fn data(format: ElementFormat) -> Self {
        match format {
            ElementFormat::Nvfp4 => every_byte(0xff, 0),
            ElementFormat::Fp8E4m3 => every_byte(0x9f, 0x20),
        }
    }

    /// For block scales: 2^-3 to 1.875.
    pub fn scales() -> Self {
        every_byte(0x1f, 0x20)
    }

    /// Byte `index` of the sequence.
    pub fn byte(&self, index: u64) -> u8 {
        let word = (random_word(index / 4) & self.keep) + self.add;
        word.to_le_bytes()[(index % 4) as usize]
    }
}

/// The 32-bit mixer of templates/probe.cu.
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

fn random_word(index: u64) -> u32 {
    mix(index as u32 ^ mix(((index >> 32) as u32).wrapping_add(0x9e37_79b9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_in_their_ranges_and_cover_them() {
        let cases = [
            (Pattern::data(ElementFormat::Nvfp4), 256),
            (Pattern::data(ElementFormat::Fp8E4m3), 64),
            (Pattern::scales(), 32),
        ];
        for (pattern, values) in cases {
            let mut seen = std::collections::BTreeSet::new();
            // Above 2^32 words too: the high half must count.
            (0..20_000).chain((1 << 40)..(1 << 40) + 20_000).for_each(|i| _ = seen.insert(pattern.byte(i)));
            assert_eq!(seen.len(), values);
            if values < 256 {
                assert!(seen.iter().all(|b| (0x20..0x40).contains(&(b & 0x7f))));
            }
        }
        let words = |from: u64| (from..from + 100).map(random_word).collect::<Vec<_>>();
        assert_ne!(words(0), words(1 << 32));
    }
}
