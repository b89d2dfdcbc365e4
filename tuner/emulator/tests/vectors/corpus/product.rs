//! Operands of matrix products, chosen so that rules of rounding give different results: terms of like and of very
//! unlike size, sums that cancel, C far above and far below the products, subnormal elements, NaN and infinities.
//!
//! Fragments are those of the PTX ISA ("Matrix fragments for mma.m16n8k16", "… m16n8k32", "… wgmma.m64nNk32"), with
//! `g = lane / 4` and `t = lane % 4`.

use super::BLOCK;
use super::random::Random;
use super::table::Operand;
use std::fmt::Write;

/// A format of elements: a sign, `exponent` bits, `mantissa` bits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Format {
    exponent: u32,
    mantissa: u32,
    /// Largest code of a finite magnitude.
    largest: u32,
}

const F16: Format = Format { exponent: 5, mantissa: 10, largest: 0x7BFF };
const BF16: Format = Format { exponent: 8, mantissa: 7, largest: 0x7F7F };
const E4M3: Format = Format { exponent: 4, mantissa: 3, largest: 0x7E };

/// A matrix product, and how it is issued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    format: Format,
    /// Columns of B.
    columns: usize,
    /// For `wgmma`, B in shared memory; how often it is done on the same accumulators.
    warpgroup: Option<usize>,
}

/// Elements along K, 32 bytes of them.
const ROW_BYTES: usize = 32;
/// Bytes between core matrices of B, which are 128 bytes, along K and along N.
const CORE_STRIDES: [usize; 2] = [128, 256];

/// What the elements of one product are like.
#[derive(Clone, Copy, Debug)]
enum Style {
    Integers,
    /// Exponents within so many of the middle.
    Spread(i32),
    /// Neighbours along K that are each other's opposite, but for a few.
    Cancelling,
    /// Few elements that are not zero, and any C.
    Sparse,
    Any,
    /// Subnormal numbers and the smallest normal ones.
    Small,
    Special,
}

const STYLES: [Style; 8] = [
    Style::Integers,
    Style::Spread(1),
    Style::Spread(4),
    Style::Cancelling,
    Style::Sparse,
    Style::Any,
    Style::Small,
    Style::Special,
];

impl Product {
    /// That of a form whose operands are `product:FORMAT` or `wgmma`.
    pub fn of(name: &str, operands: &str) -> Option<Self> {
        if operands == "wgmma" {
            let columns = name.split(".m64n").nth(1)?.split('k').next()?.parse().ok()?;
            let times = if name.ends_with("/chain") { 2 } else { 1 };
            return Some(Self { format: E4M3, columns, warpgroup: Some(times) });
        }
        let format = match operands.strip_prefix("product:")? {
            "f16" => F16,
            "bf16" => BF16,
            "e4m3" => E4M3,
            other => panic!("unknown format `{other}` of {name}"),
        };
        Some(Self { format, columns: 8, warpgroup: None })
    }

    /// Registers of C and of D.
    pub fn results(&self) -> usize {
        self.columns / 2
    }

    /// Bytes of B that a thread brings to shared memory, and how many of them at once.
    fn staged_bytes(&self) -> (usize, usize) {
        let bytes = self.columns * ROW_BYTES / BLOCK;
        (bytes, if bytes.is_multiple_of(4) { 4 } else { 2 })
    }

    /// Registers of B, or what a thread brings to shared memory.
    fn words_b(&self) -> usize {
        let (bytes, width) = self.staged_bytes();
        if self.warpgroup.is_some() { bytes / width } else { 2 }
    }

    pub fn operands(&self) -> Vec<Operand> {
        let mut all = vec![Operand::Fragment(32); 4 + self.words_b() + self.results()];
        all.extend(self.warpgroup.map(|_| Operand::Predicate));
        all
    }

    pub fn body(&self, opcode: &str) -> String {
        let list = |letter: char, range: std::ops::Range<usize>| {
            let all: Vec<_> = range.map(|i| format!("{letter}{i}")).collect();
            format!("{{{}}}", all.join(", "))
        };
        let (b, c) = (4 + self.words_b(), 4 + self.words_b() + self.results());
        let (d, a) = (list('d', 0..self.results()), list('a', 0..4));
        let Some(times) = self.warpgroup else {
            return format!("    {opcode} {d}, {a}, {}, {};\n", list('a', 4..b), list('a', b..c));
        };
        let mut text = self.stage_b();
        for i in 0..self.results() {
            let _ = writeln!(text, "    mov.b32 d{i}, a{};", b + i);
        }
        text += "    wgmma.fence.sync.aligned;\n";
        text += &format!("    {opcode} {d}, {a}, w0, a{c}, 1, 1;\n").repeat(times);
        text += "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n";
        text
    }

    /// B from registers to shared memory, and its descriptor in `w0` ("Matrix descriptor format": no swizzle).
    fn stage_b(&self) -> String {
        let (bytes, width) = self.staged_bytes();
        let mut text = format!("    mov.u32 r0, room;\n    mov.u32 r1, %tid.x;\n    mad.lo.u32 r1, r1, {bytes}, r0;\n");
        for i in 0..self.words_b() {
            let _ = writeln!(text, "    st.shared.u{} [r1+{}], a{};", 8 * width, width * i, 4 + i);
        }
        let [along_k, along_n] = CORE_STRIDES.map(|bytes| bytes as u64 / 16);
        let _ = write!(
            text,
            "    fence.proxy.async.shared::cta;
    bar.sync 0;
    cvt.u64.u32 w0, r0;
    shr.u64 w0, w0, 4;
    or.b64 w0, w0, {};
",
            along_k << 16 | along_n << 32
        );
        text
    }

    /// Operands of every thread: of a warp, or of a block, come from one product.
    pub fn operands_of(&self, threads: usize, random: &mut Random) -> Vec<u64> {
        let group = if self.warpgroup.is_some() { BLOCK } else { 32 };
        let products = threads / group;
        let style = |i: usize| STYLES[i % STYLES.len()];
        (0..products).flat_map(|i| Matrices::new(self, group / 2, style(i), random).fragments(self, i)).collect()
    }
}

/// Codes of A by row and of B by column, bits of C by row.
struct Matrices {
    a: Vec<Vec<u32>>,
    b: Vec<Vec<u32>>,
    c: Vec<Vec<u32>>,
}

impl Matrices {
    /// `rows` is 16 a warp.
    fn new(product: &Product, rows: usize, style: Style, random: &mut Random) -> Self {
        let format = product.format;
        let k = ROW_BYTES * 8 / format.bits() as usize;
        let mut vectors = |count: usize, negate: bool| -> Vec<Vec<u32>> {
            (0..count).map(|_| format.vector(k, style, negate, random)).collect()
        };
        let (a, b) = (vectors(rows, true), vectors(product.columns, false));
        let c = (0..rows)
            .map(|_| (0..product.columns).map(|_| accumulator(style, 1 - format.bias(), random)).collect())
            .collect();
        Self { a, b, c }
    }

    /// Operands of the threads, in order; `index` is that of the product.
    fn fragments(&self, product: &Product, index: usize) -> Vec<u64> {
        let mut values = Vec::new();
        for thread in 0..2 * self.a.len() {
            let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
            let count = 32 / product.format.bits() as usize;
            let word = |codes: &[u32], half: usize| {
                let codes = &codes[half * codes.len() / 2 + t * count..][..count];
                codes.iter().rev().fold(0, |word, &code| word << product.format.bits() | u64::from(code))
            };
            values.extend((0..4).map(|i| word(&self.a[16 * warp + g + 8 * (i % 2)], i / 2)));
            match product.warpgroup {
                None => values.extend((0..2).map(|half| word(&self.b[g], half))),
                Some(_) => values.extend(self.staged_words(product, thread)),
            }
            let c = |i: usize| self.c[16 * warp + g + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * t + i % 2];
            values.extend((0..product.results()).map(|i| u64::from(c(i))));
            // Without C in every fourth.
            values.extend(product.warpgroup.map(|_| u64::from(index % 4 != 3)));
        }
        values
    }

    /// What `thread` brings to shared memory: consecutive bytes of B in core matrices of 8 columns of 16 bytes.
    fn staged_words(&self, product: &Product, thread: usize) -> Vec<u64> {
        let (bytes, width) = product.staged_bytes();
        let [along_k, along_n] = CORE_STRIDES;
        let byte = |at: usize| {
            let (n, k) = (at / along_n * 8 + at % along_k / 16, at % along_n / along_k * 16 + at % 16);
            u64::from(self.b[n][k])
        };
        let word = |i: usize| (0..width).rev().fold(0, |word, j| word << 8 | byte(thread * bytes + width * i + j));
        (0..product.words_b()).map(word).collect()
    }
}

impl Format {
    fn bits(self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    /// A code from its fields; what is too large is the largest.
    fn code(self, negative: bool, exponent: i32, mantissa: u32) -> u32 {
        let exponent = exponent.clamp(0, (1 << self.exponent) - 1) as u32;
        let magnitude = exponent << self.mantissa | mantissa & ((1 << self.mantissa) - 1);
        u32::from(negative) << (self.bits() - 1) | magnitude.min(self.largest)
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Elements along K. Where they cancel, only A's are each other's opposite.
    fn vector(self, k: usize, style: Style, negate: bool, random: &mut Random) -> Vec<u32> {
        let mut codes: Vec<u32> = (0..k).map(|_| self.element(style, random)).collect();
        if matches!(style, Style::Cancelling) {
            let sign = u32::from(negate) << (self.bits() - 1);
            codes.chunks_mut(2).skip(2).for_each(|pair| pair[1] = pair[0] ^ sign);
        }
        codes
    }

    fn element(self, style: Style, random: &mut Random) -> u32 {
        let bits = random.bits() as u32;
        let (negative, mantissa) = (bits >> 31 == 1, bits);
        match style {
            Style::Integers => {
                let value = random.below(8) as u32;
                let exponent = value.checked_ilog2().map_or(0, |log| log as i32 + self.bias());
                let shift = self.mantissa - value.checked_ilog2().unwrap_or(0);
                self.code(negative, exponent, if value == 0 { 0 } else { value << shift })
            }
            Style::Spread(spread) => self.code(negative, self.bias() + random.between(-spread, spread), mantissa),
            Style::Cancelling => self.code(negative, self.bias() + random.between(-6, 6), mantissa),
            Style::Small => self.code(negative, random.between(0, 2), mantissa),
            Style::Sparse if random.below(16) != 0 => 0,
            Style::Sparse | Style::Any => self.code(negative, random.below(1 << self.exponent) as i32, mantissa),
            // NaN and, where there are any, infinities.
            Style::Special if random.one_in(40) => {
                self.largest + 1 + (bits & 1) * random.below(2) as u32 | u32::from(negative) << (self.bits() - 1)
            }
            Style::Special => self.code(negative, self.bias() + random.between(-3, 3), mantissa),
        }
    }
}

/// An element of C; `smallest` is the exponent of the smallest normal element of A and B.
fn accumulator(style: Style, smallest: i32, random: &mut Random) -> u32 {
    let bits = random.bits() as u32;
    let around = |exponent: i32| bits & 0x807F_FFFF | ((127 + exponent) as u32) << 23;
    let (far, near) = (around(random.between(-30, 30)), around(random.between(-8, 8)));
    let small = around((2 * smallest + random.between(-4, 6)).max(-126));
    match style {
        Style::Integers => (random.between(-100, 100) as f32).to_bits(),
        Style::Spread(_) | Style::Cancelling if random.one_in(6) => bits & 0x8000_0000,
        Style::Spread(_) | Style::Cancelling | Style::Any => random.pick(&[far, near]),
        Style::Small => random.pick(&[0, small]),
        Style::Sparse => random.pick(&[bits, near, bits & 0x807F_FFFF, 0x8000_0000]),
        Style::Special => random.pick(&[bits, near, 0x7F80_0000, 0xFF80_0000, 0x7FC1_2345, 0x7F7F_FFFF]),
    }
}
