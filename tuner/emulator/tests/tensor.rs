//! Matrix products: fragments against a plain product of small integers, and the truncation of each target.

mod common;

use common::try_run;
use half::f16;
use nvkv_reference::codec::e4m3_encode;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const TARGETS: [&str; 4] = ["sm_89", "sm_90a", "sm_100a", "sm_120a"];

/// Operands of one product, D = A B + C, of 16 rows and 8 columns.
struct Product {
    a: Vec<Vec<f32>>,
    /// By column.
    b: Vec<Vec<f32>>,
    c: [[f32; 8]; 16],
}

impl Product {
    fn zeros(k: usize) -> Self {
        Self { a: vec![vec![0.0; k]; 16], b: vec![vec![0.0; k]; 8], c: [[0.0; 8]; 16] }
    }

    /// Integers small enough that every product and sum is exact.
    fn integers(k: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(5);
        let mut all = Self::zeros(k);
        all.a.iter_mut().flatten().for_each(|x| *x = f32::from(rng.random_range(-8..=8i8)));
        all.b.iter_mut().flatten().for_each(|x| *x = f32::from(rng.random_range(-8..=8i8)));
        all.c.iter_mut().flatten().for_each(|x| *x = f32::from(rng.random_range(-100..=100i8)));
        all
    }

    fn plain(&self, row: usize, column: usize) -> f32 {
        let products = self.a[row].iter().zip(&self.b[column]).map(|(a, b)| a * b);
        products.sum::<f32>() + self.c[row][column]
    }

    /// A register of `elements` along K, from `k` on.
    fn register(elements: &[f32], k: usize) -> u32 {
        if elements.len() == 16 {
            let half = |i| u32::from(f16::from_f32(elements[k + i]).to_bits());
            half(0) | half(1) << 16
        } else {
            u32::from_le_bytes(std::array::from_fn(|i| e4m3_encode(elements[k + i])))
        }
    }

    /// Runs it as `mma.sync`: each lane gets its registers as immediates would be, through a table in the body.
    fn mma(&self, target: &str) -> Vec<[f32; 8]> {
        let k = self.a[0].len();
        let step = if k == 16 { 2 } else { 4 };
        let form = if k == 16 { "m16n8k16.row.col.f32.f16.f16.f32" } else { "m16n8k32.row.col.f32.e4m3.e4m3.f32" };
        let mut d = vec![[0.0; 8]; 16];
        for i in 0..4 {
            let mut body = String::new();
            for lane in 0..32 {
                let (g, t) = (lane / 4, lane % 4);
                let a = |row: usize, half: usize| Self::register(&self.a[row], step * t + half * k / 2);
                let b = |half: usize| Self::register(&self.b[g], step * t + half * k / 2);
                let words = [a(g, 0), a(g + 8, 0), a(g, 1), a(g + 8, 1), b(0), b(1)];
                let c = [0, 1, 2, 3].map(|i| self.c[g + 8 * (i / 2)][2 * t + i % 2].to_bits());
                body += &format!("setp.eq.u32 %p0, %r0, {lane};\n");
                for (register, word) in words.iter().chain(&c).enumerate() {
                    body += &format!("@%p0 mov.b32 %r{}, {word};\n", 10 + register);
                }
            }
            body += &format!(
                "mma.sync.aligned.{form} {{%f0, %f1, %f2, %f3}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}},
                 {{%r16, %r17, %r18, %r19}}; mov.b32 %r9, %f{i};"
            );
            let out = try_run(target, &body, &common::indices(32)).unwrap_or_else(|error| panic!("{error}"));
            for (lane, &bits) in out.iter().enumerate() {
                d[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2] = f32::from_bits(bits);
            }
        }
        d
    }

    /// Runs it as `wgmma` with one warp's rows; B lies in shared memory as two core matrices along K.
    fn wgmma(&self, accumulate: u32) -> Vec<[f32; 8]> {
        let mut d = vec![[0.0; 8]; 16];
        for i in 0..4 {
            let mut body = "mov.u32 %r5, room;\n".to_string();
            for (n, column) in self.b.iter().enumerate() {
                for k in (0..32).step_by(4) {
                    let at = k / 16 * 256 + n * 16 + k % 16;
                    body += &format!("mov.b32 %r6, {}; setp.eq.u32 %p1, %r0, 0;\n", Self::register(column, k));
                    body += &format!("@%p1 st.shared.b32 [%r5+{at}], %r6;\n");
                }
            }
            for lane in 0..32 {
                let (g, t) = (lane / 4, lane % 4);
                let a = |row: usize, half: usize| Self::register(&self.a[row], 4 * t + half * 16);
                body += &format!("setp.eq.u32 %p0, %r0, {lane};\n");
                for (register, word) in [a(g, 0), a(g + 8, 0), a(g, 1), a(g + 8, 1)].iter().enumerate() {
                    body += &format!("@%p0 mov.b32 %r{}, {word};\n", 10 + register);
                }
                for i in 0..4 {
                    let c = self.c[g + 8 * (i / 2)][2 * t + i % 2].to_bits();
                    body += &format!("@%p0 mov.b32 %f{i}, 0f{c:08X};\n");
                }
            }
            // Core matrices 256 bytes apart along K; N has one of them.
            body += &format!(
                "fence.proxy.async; bar.sync 0; mov.u64 %rd0, {}; setp.ne.u32 %p2, {accumulate}, 0; wgmma.fence.sync.aligned;
                 wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {{%f0, %f1, %f2, %f3}},
                 {{%r10, %r11, %r12, %r13}}, %rd0, %p2, 1, 1;
                 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; mov.b32 %r9, %f{i};",
                (1024u64 >> 4) | (256 >> 4) << 16 | (128 >> 4) << 32
            );
            let out = try_run("sm_90a", &body, &common::indices(32)).unwrap_or_else(|error| panic!("{error}"));
            for (lane, &bits) in out.iter().enumerate() {
                d[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2] = f32::from_bits(bits);
            }
        }
        d
    }
}

#[test]
fn small_integers_multiply_exactly_on_every_target() {
    for k in [16, 32] {
        let product = Product::integers(k);
        for target in TARGETS {
            let d = product.mma(target);
            for (row, columns) in d.iter().enumerate() {
                for (column, &got) in columns.iter().enumerate() {
                    assert_eq!(got, product.plain(row, column), "{target}, k {k}: ({row}, {column})");
                }
            }
        }
    }
}

#[test]
fn warpgroup_products_of_small_integers_are_exact() {
    let mut product = Product::integers(32);
    let plain = |product: &Product| -> Vec<[f32; 8]> {
        (0..16).map(|row| std::array::from_fn(|column| product.plain(row, column))).collect()
    };
    assert_eq!(product.wgmma(1), plain(&product));
    let without_c = product.wgmma(0);
    product.c = [[0.0; 8]; 16];
    assert_eq!(without_c, plain(&product));
}

/// A large product and its opposite, at K `at[0]` and `at[1]`, beside `small`, at `at[2]`: what is left of `small`
/// shows to which bit it was cut when it was aligned to the large ones.
fn left_of(small: f32, large: f32, k: usize, at: [usize; 3]) -> Product {
    let mut product = Product::zeros(k);
    product.a[0][at[0]] = large;
    product.a[0][at[1]] = -large;
    product.a[0][at[2]] = small;
    at.iter().zip([large, large, 1.0]).for_each(|(&at, value)| product.b[0][at] = value);
    product
}

#[test]
fn f16_terms_are_cut_to_the_fraction_bits_of_the_target() {
    // 2^30 beside 63: with 25 bits the unit is 2^5, with 24 it is 2^6.
    let product = left_of(63.0, 32768.0, 16, [0, 1, 2]);
    let results = TARGETS.map(|target| product.mma(target)[0][0]);
    assert_eq!(results, [0.0, 32.0, 32.0, 32.0]);
    // Magnitudes are cut, not floored; sm_89 adds the second 8 along K by themselves.
    assert_eq!(left_of(-63.0, 32768.0, 16, [0, 1, 2]).mma("sm_90a")[0][0], -32.0);
    let apart = left_of(63.0, 32768.0, 16, [0, 1, 8]);
    assert_eq!(TARGETS.map(|target| apart.mma(target)[0][0]), [63.0, 32.0, 32.0, 32.0]);
}

#[test]
fn e4m3_terms_are_cut_to_the_fraction_bits_of_the_target() {
    // 2^16 beside 15: with 13 bits the unit is 2^3; with 25 all bits are kept.
    let product = left_of(15.0, 256.0, 32, [0, 1, 4]);
    assert_eq!(TARGETS.map(|target| product.mma(target)[0][0]), [8.0, 15.0, 15.0, 15.0]);
    assert_eq!(product.wgmma(0)[0][0], 8.0);
    // sm_89 adds the second 16 along K by themselves.
    let apart = left_of(15.0, 256.0, 32, [0, 1, 16]);
    assert_eq!(apart.mma("sm_89")[0][0], 15.0);
    assert_eq!(apart.wgmma(0)[0][0], 8.0);
}

#[test]
fn unpacked_e4m3_adds_c_last_and_rounds_it() {
    // C = 2^24 + 2 beside a product of 1: native sums cut to 24 bits; an f32 addition rounds to even.
    let mut product = Product::zeros(32);
    (product.a[0][0], product.b[0][0], product.c[0][0]) = (3.0, 1.0, 16_777_216.0);
    assert_eq!(product.mma("sm_120a")[0][0], 16_777_218.0, "2^24 + 3, cut");
    assert_eq!(product.mma("sm_90a")[0][0], 16_777_220.0, "2^24 + 3, rounded to even");
}

#[test]
fn infinities_and_nan_pass_through() {
    let mut product = Product::integers(16);
    product.a[3][5] = f32::INFINITY;
    product.b[2][5] = 1.0;
    product.b[4][5] = 0.0;
    let d = product.mma("sm_90a");
    assert_eq!(d[3][2], f32::INFINITY);
    assert_eq!(d[3][4].to_bits(), 0x7FFF_FFFF, "infinity times zero");
    assert_eq!(d[4][2], product.plain(4, 2));
}

/// `m16n8k8` and `m16n8k16` of one type, with every lane's registers made from its place: A is `row + k`, B is
/// `k - column`, small integers.
#[test]
fn bf16_and_shorter_products_have_the_fragments_of_the_isa() {
    let encode = |kind: &str, value: i32| {
        let value = value as f32;
        if kind == "f16" { f16::from_f32(value).to_bits() } else { half::bf16::from_f32(value).to_bits() }
    };
    for (kind, k) in [("f16", 8), ("bf16", 8), ("bf16", 16)] {
        let pair = |f: &dyn Fn(usize) -> i32, k: usize| {
            u32::from(encode(kind, f(k))) | u32::from(encode(kind, f(k + 1))) << 16
        };
        for i in 0..4usize {
            let mut body = "mov.b32 %f0, 0; mov.b32 %f1, 0; mov.b32 %f2, 0; mov.b32 %f3, 0;\n".to_string();
            for lane in 0..32 {
                let (g, t) = (lane / 4, lane % 4);
                let a = |row: usize, k: usize| pair(&|k| (row + k) as i32, k);
                let b = |k: usize| pair(&|k| k as i32 - g as i32, k);
                let words =
                    [a(g, 2 * t), a(g + 8, 2 * t), a(g, 2 * t + 8), a(g + 8, 2 * t + 8), b(2 * t), b(2 * t + 8)];
                body += &format!("setp.eq.u32 %p0, %r0, {lane};\n");
                for (register, word) in words.iter().enumerate() {
                    body += &format!("@%p0 mov.b32 %r{}, {word};\n", 10 + register);
                }
            }
            let (a, b) = if k == 8 { ("%r10, %r11", "%r14") } else { ("%r10, %r11, %r12, %r13", "%r14, %r15") };
            body += &format!(
                "mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{%f0, %f1, %f2, %f3}}, {{{a}}}, {{{b}}},
                 {{%f0, %f1, %f2, %f3}}; mov.b32 %r9, %f{i};"
            );
            for target in TARGETS {
                let out = try_run(target, &body, &common::indices(32)).unwrap_or_else(|error| panic!("{error}"));
                for (lane, bits) in out.into_iter().enumerate() {
                    let (row, column) = ((lane / 4 + 8 * (i / 2)) as i32, (lane % 4 * 2 + i % 2) as i32);
                    let plain: i32 = (0..k).map(|k| (row + k) * (k - column)).sum();
                    assert_eq!(f32::from_bits(bits), plain as f32, "{target} {kind} k{k} ({row}, {column})");
                }
            }
        }
    }
}

#[test]
fn bf16_products_span_all_exponents() {
    // 2^-100 beside a zero times 2^100.
    let body = "mov.u32 %r10, 0; mov.u32 %r14, 0; setp.eq.u32 %p0, %r0, 0; mov.b32 %f0, 0;
                @%p0 mov.b32 %r10, 0x00000D80; @%p0 mov.b32 %r14, 0x71803F80; mov.u32 %r11, 0;
                mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11}, {%r14},
                {%f0, %f0, %f0, %f0}; mov.b32 %r9, %f0;";
    let out = try_run("sm_90a", body, &common::indices(32)).unwrap();
    assert_eq!(f32::from_bits(out[0]), 2f32.powi(-100));
}
