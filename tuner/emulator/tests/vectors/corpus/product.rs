//! Matrix products: their kernels, and the operands of their threads.
//!
//! Fragments are those of the PTX ISA ("Matrix fragments for mma.m16n8k16", "… m16n8k32", "… wgmma.m64nNk32"), with
//! `g = lane / 4` and `t = lane % 4`.

use super::BLOCK;
use super::element::{Format, STYLES, Style, accumulator};
use super::layout::Layout;
use super::random::Random;
use super::table::Operand;
use std::fmt::Write;
use std::ops::Range;

/// A matrix product, and how it is issued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// Types of A's and B's elements.
    formats: [Format; 2],
    /// Elements along K.
    k: usize,
    /// Columns of B.
    columns: usize,
    issue: Issue,
}

#[derive(Clone, Copy, Debug)]
enum Issue {
    /// `mma.sync`: all in registers.
    Warp,
    /// `wgmma`, so many times on the same accumulators: A in registers, B K-major in shared memory.
    Group(usize),
    /// `wgmma` with factors of A and B, both in shared memory.
    Shared(Layout, [i32; 2]),
}

/// Layout of B where A is in registers.
const PLAIN: Layout = Layout { width: 1, k_major: true };
/// Where A and B begin in shared memory, where both are there.
const STARTS: [usize; 2] = [0, 8192];

impl Product {
    /// That of a form whose operands are `product`.
    pub fn of(name: &str, operands: &str) -> Option<Self> {
        if operands != "product" {
            return None;
        }
        let (opcode, kind) = name.split_once('/').unwrap_or((name, ""));
        let words: Vec<&str> = opcode.split('.').collect();
        let formats: Vec<Format> = words.iter().filter_map(|word| Format::named(word)).collect();
        let shape = words.iter().find_map(|word| word.strip_prefix('m')?.split_once('n')?.1.split_once('k'));
        let (columns, k) = shape.unwrap_or_else(|| panic!("no shape in `{name}`"));
        let [columns, k] = [columns, k].map(|number| number.parse().unwrap_or_else(|_| panic!("shape of `{name}`")));
        let issue = match kind {
            _ if words[0] == "mma" => Issue::Warp,
            "" => Issue::Group(1),
            "chain" => Issue::Group(2),
            "negated" => Issue::Shared(PLAIN, [-1, 1]),
            layout => Issue::Shared(Layout::named(layout).unwrap_or_else(|| panic!("unknown `{name}`")), [1, -1]),
        };
        Some(Self { formats: [formats[0], formats[1]], k, columns, issue })
    }

    /// Registers of C and of D.
    pub fn results(&self) -> usize {
        self.columns / 2
    }

    fn bits(&self) -> usize {
        self.formats[0].bits() as usize
    }

    /// Registers of A; B of `mma.sync` has half as many.
    fn words_a(&self) -> usize {
        2 * self.k * self.bits() / 128
    }

    /// Words of A and of B, in registers or on their way to shared memory.
    fn words(&self) -> [usize; 2] {
        match self.issue {
            Issue::Warp => [self.words_a(), self.words_a() / 2],
            Issue::Group(_) => [self.words_a(), Staged::new(self.columns * 32).words()],
            Issue::Shared(layout, _) => [64, self.columns].map(|rows| Staged::new(layout.bytes(rows)).words()),
        }
    }

    /// Where the words of A, of B and of C begin among the operands, and where they end.
    fn places(&self) -> [usize; 4] {
        let [a, b] = self.words();
        [0, a, a + b, a + b + self.results()]
    }

    pub fn operands(&self) -> Vec<Operand> {
        let [.., end] = self.places();
        let mut all = vec![Operand::Fragment(32); end];
        if !matches!(self.issue, Issue::Warp) {
            all.push(Operand::Predicate);
        }
        all
    }

    pub fn body(&self, opcode: &str) -> String {
        let [a, b, c, end] = self.places();
        let d = list('d', 0..self.results());
        if matches!(self.issue, Issue::Warp) {
            return format!("    {opcode} {d}, {}, {}, {};\n", list('a', a..b), list('a', b..c), list('a', c..end));
        }
        let mut text = self.stage();
        for i in 0..self.results() {
            let _ = writeln!(text, "    mov.b32 d{i}, a{};", c + i);
        }
        text += "    wgmma.fence.sync.aligned;\n";
        let order = if self.bits() == 16 { ", 0" } else { "" };
        match self.issue {
            Issue::Shared(layout, [a, b]) => {
                let order = if self.bits() == 8 {
                    ""
                } else if layout.k_major {
                    ", 0, 0"
                } else {
                    ", 1, 1"
                };
                let _ = writeln!(text, "    {opcode} {d}, w1, w0, a{end}, {a}, {b}{order};");
            }
            Issue::Group(2) => {
                // The second takes A's rows in another order: of two that are written alike, ptxas 13.0 drops one.
                for rows in ["{a0, a1, a2, a3}", "{a1, a0, a3, a2}"] {
                    let _ = writeln!(text, "    {opcode} {d}, {rows}, w0, a{end}, 1, 1{order};");
                }
            }
            _ => {
                let _ = writeln!(text, "    {opcode} {d}, {}, w0, a{end}, 1, 1{order};", list('a', a..b));
            }
        }
        text += "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n";
        text
    }

    /// What goes to shared memory, and the descriptors: of B in `w0`, of A in `w1`.
    fn stage(&self) -> String {
        let [_, b, ..] = self.places();
        let mut text = "    mov.u32 r0, room;\n".to_string();
        let mut descriptors = String::new();
        let mut bring = |register: &str, layout: Layout, rows: usize, start: usize, first: usize| {
            text += &Staged::new(layout.bytes(rows)).stores(start, first);
            let bits = layout.descriptor(start);
            let _ = write!(
                descriptors,
                "    cvt.u64.u32 {register}, r0;\n    shr.u64 {register}, {register}, 4;\n    \
                 or.b64 {register}, {register}, {bits};\n"
            );
        };
        match self.issue {
            Issue::Shared(layout, _) => {
                bring("w1", layout, 64, STARTS[0], 0);
                bring("w0", layout, self.columns, STARTS[1], b);
            }
            _ => bring("w0", PLAIN, self.columns, 0, b),
        }
        text + "    fence.proxy.async.shared::cta;\n    bar.sync 0;\n" + &descriptors
    }

    /// Operands of every thread: of a warp, or of a block, come from one product.
    pub fn operands_of(&self, threads: usize, random: &mut Random) -> Vec<u64> {
        let group = if matches!(self.issue, Issue::Warp) { 32 } else { BLOCK };
        let style = |i: usize| STYLES[i % STYLES.len()];
        (0..threads / group).flat_map(|i| Matrices::new(self, group / 2, style(i), random).fragments(self, i)).collect()
    }
}

/// `{a0, a1, …}`
fn list(letter: char, range: Range<usize>) -> String {
    let all: Vec<_> = range.map(|i| format!("{letter}{i}")).collect();
    format!("{{{}}}", all.join(", "))
}

/// Bytes that the threads of a block bring to shared memory together.
#[derive(Clone, Copy)]
struct Staged {
    /// Bytes of a thread.
    bytes: usize,
    /// Bytes it stores at once.
    width: usize,
}

impl Staged {
    fn new(all: usize) -> Self {
        let bytes = all / BLOCK;
        Self { bytes, width: if bytes.is_multiple_of(4) { 4 } else { 2 } }
    }

    fn words(self) -> usize {
        self.bytes / self.width
    }

    /// To `start` in `room`, whose address is in `r0`, of the operands from `first` on.
    fn stores(self, start: usize, first: usize) -> String {
        let mut text = format!("    mov.u32 r1, %tid.x;\n    mad.lo.u32 r1, r1, {}, r0;\n", self.bytes);
        for i in 0..self.words() {
            let (bits, at) = (8 * self.width, start + self.width * i);
            let _ = writeln!(text, "    st.shared.u{bits} [r1+{at}], a{};", first + i);
        }
        text
    }

    /// The part of `image` that `thread` brings.
    fn of(self, image: &[u8], thread: usize) -> Vec<u64> {
        let own = &image[thread * self.bytes..][..self.bytes];
        own.chunks(self.width).map(|word| word.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))).collect()
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
        let vectors = |format: Format, count: usize, negate: bool, random: &mut Random| -> Vec<Vec<u32>> {
            (0..count).map(|_| format.vector(product.k, style, negate, random)).collect()
        };
        let [a, b] = product.formats;
        let (smallest, columns) = (a.smallest(), product.columns);
        let (a, b) = (vectors(a, rows, true, random), vectors(b, columns, false, random));
        let c = (0..rows).map(|_| (0..columns).map(|_| accumulator(style, smallest, random)).collect()).collect();
        Self { a, b, c }
    }

    /// Operands of the threads, in order; `index` is that of the product.
    fn fragments(&self, product: &Product, index: usize) -> Vec<u64> {
        let mut values = Vec::new();
        let image = |layout: Layout, rows: &[Vec<u32>]| layout.image(rows, product.bits() / 8);
        let (image_a, image_b) = match product.issue {
            Issue::Warp => (Vec::new(), Vec::new()),
            Issue::Group(_) => (Vec::new(), image(PLAIN, &self.b)),
            Issue::Shared(layout, _) => (image(layout, &self.a), image(layout, &self.b)),
        };
        for thread in 0..2 * self.a.len() {
            let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
            if image_a.is_empty() {
                let word = |i: usize| product.word(&self.a[16 * warp + g + 8 * (i % 2)], i / 2, t);
                values.extend((0..product.words_a()).map(word));
            } else {
                values.extend(Staged::new(image_a.len()).of(&image_a, thread));
            }
            if image_b.is_empty() {
                values.extend((0..product.words_a() / 2).map(|half| product.word(&self.b[g], half, t)));
            } else {
                values.extend(Staged::new(image_b.len()).of(&image_b, thread));
            }
            let c = |i: usize| self.c[16 * warp + g + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * t + i % 2];
            values.extend((0..product.results()).map(|i| u64::from(c(i))));
            if !matches!(product.issue, Issue::Warp) {
                // Without C in every fourth.
                values.push(u64::from(index % 4 != 3));
            }
        }
        values
    }
}

impl Product {
    /// A register of lane `t` of a row: elements of its 16 bytes number `half`.
    fn word(&self, codes: &[u32], half: usize, t: usize) -> u64 {
        let count = 32 / self.bits();
        let codes = &codes[4 * count * half + t * count..][..count];
        codes.iter().rev().fold(0, |word, &code| word << self.bits() | u64::from(code))
    }
}
