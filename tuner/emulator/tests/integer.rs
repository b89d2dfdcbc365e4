//! Integer instructions, against plain Rust or bit-by-bit definitions.

mod common;

use common::{Input, run};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const EDGES: [u32; 10] = [0, 1, 2, 31, 32, 33, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x0001_0203];

/// Every triple of edges, then random words; as many as fill blocks of 1024.
fn triples() -> Vec<Input> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut all = Vec::new();
    for a in EDGES {
        for b in EDGES {
            all.extend(EDGES.map(|c| [a, b, c, rng.random()]));
        }
    }
    all.extend((all.len()..4096).map(|_| rng.random::<Input>()));
    all
}

fn check(body: &str, expected: impl Fn(Input) -> u32) {
    let inputs = triples();
    for (input, got) in inputs.iter().zip(run(body, &inputs)) {
        assert_eq!(got, expected(*input), "{body} of {input:x?}");
    }
}

#[test]
fn multiplications() {
    check("mul.hi.u32 %r9, %r0, %r1;", |[a, b, ..]| ((u64::from(a) * u64::from(b)) >> 32) as u32);
    check("mul.hi.s32 %r9, %r0, %r1;", |[a, b, ..]| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32);
    check("mad.lo.s32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| a.wrapping_mul(b).wrapping_add(c));
    check("mul.wide.s32 %rd0, %r0, %r1; mov.b64 {%r8, %r9}, %rd0;", |[a, b, ..]| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
    });
    check("cvt.u16.u32 %h0, %r0; cvt.u16.u32 %h1, %r1; mul.wide.u16 %r9, %h0, %h1;", |[a, b, ..]| {
        (a & 0xFFFF) * (b & 0xFFFF)
    });
}

#[test]
fn shifts_clamp_their_amounts() {
    check("shl.b32 %r9, %r0, %r1;", |[a, n, ..]| if n < 32 { a << n } else { 0 });
    check("shr.u32 %r9, %r0, %r1;", |[a, n, ..]| if n < 32 { a >> n } else { 0 });
    check("shr.s32 %r9, %r0, %r1;", |[a, n, ..]| (i64::from(a as i32) >> n.min(63)) as u32);
    check("shf.l.wrap.b32 %r9, %r0, %r1, %r2;", |[low, high, n, _]| {
        ((u64::from(high) << 32 | u64::from(low)) << (n & 31) >> 32) as u32
    });
    check("shf.r.clamp.b32 %r9, %r0, %r1, %r2;", |[low, high, n, _]| {
        ((u64::from(high) << 32 | u64::from(low)) >> n.min(32)) as u32
    });
    check("cvt.u16.u32 %h0, %r0; shr.u16 %h1, %h0, 5; cvt.u32.u16 %r9, %h1;", |[a, ..]| (a & 0xFFFF) >> 5);
}

/// Bit `i` of `a`; zero past the end.
fn bit(a: u32, i: u32) -> u32 {
    if i < 32 { a >> i & 1 } else { 0 }
}

#[test]
fn bit_fields() {
    check("bfe.u32 %r9, %r0, %r1, %r2;", |[a, at, length, _]| {
        let (at, length) = (at & 255, length & 255);
        (0..length.min(32)).fold(0, |out, i| out | bit(a, at + i) << i)
    });
    check("bfe.s32 %r9, %r0, %r1, %r2;", |[a, at, length, _]| {
        let (at, length) = (at & 255, length & 255);
        let sign = if length == 0 { 0 } else { bit(a, (at + length - 1).min(31)) };
        (0..32).fold(0, |out, i| out | (if i < length && at + i < 32 { bit(a, at + i) } else { sign }) << i)
    });
    check("bfi.b32 %r9, %r0, %r3, %r1, %r2;", |[a, at, length, b]| {
        let (at, length) = (at & 255, length & 255);
        (0..32).fold(0, |out, i| out | (if i >= at && i - at < length { bit(a, i - at) } else { bit(b, i) }) << i)
    });
}

#[test]
fn byte_permutes_pick_bytes_or_signs() {
    check("prmt.b32 %r9, %r0, %r1, %r2;", |[a, b, selector, _]| {
        let bytes: Vec<u8> = [a.to_le_bytes(), b.to_le_bytes()].concat();
        u32::from_le_bytes(std::array::from_fn(|i| {
            let nibble = selector >> (4 * i) & 15;
            let byte = bytes[nibble as usize % 8];
            if nibble < 8 {
                byte
            } else if byte >= 128 {
                255
            } else {
                0
            }
        }))
    });
}

#[test]
fn three_way_logic_by_its_table() {
    for table in [0x00, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x01, 0xFF, 0x2A] {
        check(&format!("lop3.b32 %r9, %r0, %r1, %r2, {table};"), |[a, b, c, _]| {
            (0..32).fold(0, |out, i| out | (table >> (bit(a, i) * 4 + bit(b, i) * 2 + bit(c, i)) & 1) << i)
        });
    }
}

#[test]
fn divisions() {
    check("max.u32 %r1, %r1, 1; div.u32 %r9, %r0, %r1;", |[a, b, ..]| a / b.max(1));
    check("max.s32 %r1, %r1, 1; rem.s32 %r9, %r0, %r1;", |[a, b, ..]| (a as i32 % (b as i32).max(1)) as u32);
    check(
        "or.b32 %r1, %r1, 1; cvt.u64.u32 %rd0, %r0; shl.b64 %rd0, %rd0, 20; cvt.u64.u32 %rd1, %r1;
           div.u64 %rd2, %rd0, %rd1; cvt.u32.u64 %r9, %rd2;",
        |[a, b, ..]| ((u64::from(a) << 20) / u64::from(b | 1)) as u32,
    );
}

#[test]
fn conversions_extend_by_the_source_and_read_low_bits_of_wide_registers() {
    check("cvt.s32.s8 %r9, %r0;", |[a, ..]| a as i8 as u32);
    check("cvt.u32.s16 %r9, %r0;", |[a, ..]| a as i16 as u32);
    check("mov.b64 %rd0, {%r0, %r1}; cvt.s64.s32 %rd1, %rd0; mov.b64 {%r8, %r9}, %rd1;", |[a, ..]| {
        (i64::from(a as i32) >> 32) as u32
    });
}

#[test]
fn comparisons_and_selections() {
    check(
        "setp.lt.s32 %p0, %r0, %r1; selp.b32 %r9, %r2, %r3, %p0;",
        |[a, b, c, d]| {
            if (a as i32) < b as i32 { c } else { d }
        },
    );
    check(
        "setp.ge.u32 %p0, %r0, %r1; setp.eq.s32 %p1, %r2, 1; and.pred %p2, %p0, %p1; not.pred %p3, %p2;
           selp.u32 %r9, 1, 0, %p3;",
        |[a, b, c, _]| u32::from(!(a >= b && c == 1)),
    );
}
