//! Rarer integer instructions, carries, comparisons that combine, and what lanes agree on.

mod common;

use common::{Input, fault, indices, run, try_run};
use nvkv_emulator::FaultKind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn inputs() -> Vec<Input> {
    let mut rng = StdRng::seed_from_u64(51);
    let edges = [0, 1, 31, 32, 0x7FFF_FFFF, 0x8000_0000, u32::MAX, 0x0080_00FF];
    let mut all: Vec<Input> = edges.iter().flat_map(|&a| edges.map(|b| [a, b, a ^ b, b])).collect();
    all.extend((all.len()..1024).map(|_| rng.random::<Input>()));
    all
}

fn check(body: &str, expected: impl Fn(Input) -> u32) {
    let inputs = inputs();
    for (input, got) in inputs.iter().zip(run(body, &inputs)) {
        assert_eq!(got, expected(*input), "{body} of {input:x?}");
    }
}

#[test]
fn carries_make_sums_and_products_of_two_words() {
    let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    check("add.cc.u32 %r8, %r0, %r2; addc.u32 %r9, %r1, %r3;", |[a, b, c, d]| {
        (wide(a, b).wrapping_add(wide(c, d)) >> 32) as u32
    });
    check("sub.cc.u32 %r8, %r0, %r2; subc.u32 %r9, %r1, %r3;", |[a, b, c, d]| {
        (wide(a, b).wrapping_sub(wide(c, d)) >> 32) as u32
    });
    // A carry out of the second word.
    check("add.cc.u32 %r8, %r0, %r2; addc.cc.u32 %r8, %r1, %r3; addc.u32 %r9, 0, 0;", |[a, b, c, d]| {
        u32::from(wide(a, b).checked_add(wide(c, d)).is_none())
    });
    check("mad.lo.cc.u32 %r8, %r0, %r1, %r2; madc.hi.u32 %r9, %r0, %r1, %r3;", |[a, b, c, d]| {
        ((u64::from(a) * u64::from(b)).wrapping_add(wide(c, d)) >> 32) as u32
    });
}

#[test]
fn dot_products_and_sums_of_differences() {
    check("dp4a.s32.u32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| {
        let sum: i32 =
            a.to_le_bytes().iter().zip(b.to_le_bytes()).map(|(&a, b)| i32::from(a as i8) * i32::from(b)).sum();
        c.wrapping_add(sum as u32)
    });
    check("dp2a.hi.s32.s32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| {
        let part = |i: usize| i32::from((a >> (16 * i)) as i16) * i32::from(b.to_le_bytes()[2 + i] as i8);
        c.wrapping_add((part(0) + part(1)) as u32)
    });
    check("sad.s32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| (a as i32).abs_diff(b as i32).wrapping_add(c));
    check("mul24.lo.s32 %r9, %r0, %r1;", |[a, b, ..]| {
        let low = |x: u32| i64::from((x << 8) as i32 >> 8);
        (low(a) * low(b)) as u32
    });
    check("mul24.hi.u32 %r9, %r0, %r1;", |[a, b, ..]| {
        ((u64::from(a % (1 << 24)) * u64::from(b % (1 << 24))) >> 16) as u32
    });
    check("add.sat.s32 %r9, %r0, %r1;", |[a, b, ..]| (a as i32).saturating_add(b as i32) as u32);
}

#[test]
fn searches_and_fields() {
    let top = |x: u32| (0..32).rev().find(|i| x >> i & 1 == 1).unwrap_or(u32::MAX);
    check("bfind.u32 %r9, %r0;", |[a, ..]| top(a));
    check("bfind.s32 %r9, %r0;", |[a, ..]| top(if (a as i32) < 0 { !a } else { a }));
    check("bfind.shiftamt.u32 %r9, %r0;", |[a, ..]| if a == 0 { u32::MAX } else { a.leading_zeros() });
    check("and.b32 %r1, %r1, 31; rem.s32 %r2, %r2, 5; fns.b32 %r9, %r0, %r1, %r2;", |[a, base, n, _]| {
        let (base, n) = (base & 31, n as i32 % 5);
        let set: Vec<u32> = match n {
            0 => vec![base],
            1.. => (base..32).collect(),
            _ => (0..=base).rev().collect(),
        };
        let set: Vec<u32> = set.into_iter().filter(|i| a >> i & 1 == 1).collect();
        set.get(n.unsigned_abs().max(1) as usize - 1).copied().unwrap_or(u32::MAX)
    });
    check("szext.clamp.s32 %r9, %r0, %r1;", |[a, n, ..]| match n.min(32) {
        0 => 0,
        n => (0..32).fold(0, |out, i| out | (a >> i.min(n - 1) & 1) << i),
    });
    check("bmsk.wrap.b32 %r9, %r0, %r1;", |[at, n, ..]| {
        (0..32).filter(|i| *i >= at & 31 && i - (at & 31) < (n & 31)).fold(0, |out, i| out | 1 << i)
    });
    check(
        "mov.b64 %rd0, {%r0, %r1}; and.b32 %r2, %r2, 63; and.b32 %r3, %r3, 63; bfe.u64 %rd1, %rd0, %r2, %r3; mov.b64 {%r9, %r8}, %rd1;",
        |[a, b, at, n]| {
            let (at, n) = (at & 63, n & 63);
            let field = (u64::from(b) << 32 | u64::from(a)) >> at;
            (field & ((1 << n) - 1)) as u32
        },
    );
}

#[test]
fn fixed_permutes() {
    let bytes = |[a, b, ..]: Input| [a.to_le_bytes(), b.to_le_bytes()].concat();
    check("prmt.b32.f4e %r9, %r0, %r1, %r2;", |input| {
        let n = input[2] as usize & 3;
        u32::from_le_bytes(std::array::from_fn(|i| bytes(input)[n + i]))
    });
    check("prmt.b32.b4e %r9, %r0, %r1, %r2;", |input| {
        let n = input[2] as usize & 3;
        u32::from_le_bytes(std::array::from_fn(|i| bytes(input)[(8 + n - i) % 8]))
    });
    check("prmt.b32.ecl %r9, %r0, %r1, %r2;", |input| {
        u32::from_le_bytes(std::array::from_fn(|i| bytes(input)[i.max(input[2] as usize & 3)]))
    });
    check("prmt.b32.ecr %r9, %r0, %r1, %r2;", |input| {
        u32::from_le_bytes(std::array::from_fn(|i| bytes(input)[i.min(input[2] as usize & 3)]))
    });
    check("prmt.b32.rc16 %r9, %r0, %r1, %r2;", |[a, _, n, _]| {
        let half = a >> (16 * (n & 1)) & 0xFFFF;
        half << 16 | half
    });
}

#[test]
fn comparisons_join_predicates() {
    check(
        "setp.eq.u32 %p1, %r2, %r3; setp.lt.and.s32 %p2|%p3, %r0, %r1, !%p1; selp.u32 %r9, 1, 0, %p2; @%p3 add.u32 %r9, %r9, 2;",
        |[a, b, c, d]| {
            let less = (a as i32) < b as i32;
            u32::from(less && c != d) + 2 * u32::from(!less && c != d)
        },
    );
    check("set.gt.u32.s32 %r9, %r0, %r1;", |[a, b, ..]| if a as i32 > b as i32 { u32::MAX } else { 0 });
    check("set.lt.f32.u32 %f9, %r0, %r1; mov.b32 %r9, %f9;", |[a, b, ..]| if a < b { 1f32.to_bits() } else { 0 });
    check("slct.u32.s32 %r9, %r0, %r1, %r2;", |[a, b, c, _]| if c as i32 >= 0 { a } else { b });
    check(
        "mov.b32 %f0, %r0; mov.b32 %f1, %r1; setp.geu.ftz.f32 %p1, %f0, %f1; selp.u32 %r9, 1, 0, %p1;",
        |[a, b, ..]| {
            let [a, b] = [a, b].map(f32::from_bits).map(|x| if x.is_subnormal() { 0.0 } else { x });
            u32::from(a >= b || a.is_nan() || b.is_nan())
        },
    );
}

#[test]
fn lanes_match_elect_and_reduce() {
    let lanes = |body: &str| run(body, &indices(32));
    let same: Vec<u32> =
        (0..32).map(|lane: u32| (0..32).filter(|i| i % 5 == lane % 5).fold(0, |m, i| m | 1 << i)).collect();
    assert_eq!(lanes("rem.u32 %r4, %r0, 5; match.any.sync.b32 %r9, %r4, -1;"), same);
    let all = "mov.u32 %r4, 3; match.all.sync.b32 %r9|%p1, %r4, -1; @!%p1 mov.u32 %r9, 0;";
    assert_eq!(lanes(all), [u32::MAX; 32]);
    assert_eq!(lanes("match.all.sync.b32 %r9|%p1, %r0, -1; @%p1 mov.u32 %r9, 7;"), [0; 32]);
    let leader = lanes("elect.sync %r4|%p1, -1; mov.u32 %r9, 0; @%p1 mov.u32 %r9, 1;");
    assert_eq!(leader.iter().sum::<u32>(), 1);
    assert_eq!(lanes("setp.lt.u32 %p1, %r0, 4; vote.sync.ballot.b32 %r9, !%p1, -1;"), [!15; 32]);
    for (operation, expected) in [("min.u32", 0), ("max.s32", 31), ("and.b32", 0), ("or.b32", 31), ("xor.b32", 0)] {
        assert_eq!(lanes(&format!("redux.sync.{operation} %r9, %r0, -1;")), [expected; 32], "{operation}");
    }
    let body =
        "cvt.rn.f32.u32 %f0, %r0; sub.f32 %f0, %f0, 0f41200000; redux.sync.max.abs.f32 %f9, %f0, -1; mov.b32 %r9, %f9;";
    assert_eq!(try_run("sm_100a", body, &indices(32)).unwrap(), [21f32.to_bits(); 32]);
    assert!(try_run("sm_90a", body, &indices(32)).is_err());
    let missing = fault("setp.lt.u32 %p1, %r0, 8; @%p1 match.any.sync.b32 %r9, %r0, -1;", 32);
    assert_eq!(missing.kind, FaultKind::MissingLanes { needed: u32::MAX, active: 255 });
}

#[test]
fn hints_change_nothing() {
    assert_eq!(run("mov.u32 %r9, WARP_SZ;", &indices(1)), [32]);
    let body = "nanosleep.u32 10; griddepcontrol.wait; setmaxnreg.dec.sync.aligned.u32 40; prefetch.global.L2 [%rd11];
                griddepcontrol.launch_dependents; mov.u32 %r9, %r0;";
    assert_eq!(try_run("sm_90a", body, &indices(32)).unwrap(), (0..32).collect::<Vec<u32>>());
    assert!(try_run("sm_90a", "setmaxnreg.inc.sync.aligned.u32 41; mov.u32 %r9, 0;", &indices(32)).is_err());
}
