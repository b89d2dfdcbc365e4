//! Atomics on global and shared memory, local memory, generic addresses, and barriers of some warps.

mod common;

use common::{Input, fault, indices, line_of, run, try_run};
use half::{bf16, f16};
use nvkv_emulator::{FaultKind, Space};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Operands `[old, a, b, 0]` that meet at limits.
fn operands() -> Vec<Input> {
    let mut rng = StdRng::seed_from_u64(41);
    let edges = [0, 1, 5, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];
    let mut all: Vec<Input> = edges.iter().flat_map(|&a| edges.map(|b| [a, b, a, 0])).collect();
    all.extend((all.len()..128).map(|_| rng.random::<Input>()));
    all
}

/// Each thread's own word of `room` begins as `%r0`; the atomic instruction is `atom{space}{operation} %r9, [address]...`.
fn check(operation: &str, operands_text: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let inputs = operands();
    for space in ["shared", "global", "generic"] {
        let (prefix, address) = match space {
            "shared" => (".shared", "[%r4]"),
            "global" => (".global", "[%rd11]"),
            _ => ("", "[%rd3]"),
        };
        let body = format!(
            "mov.u32 %r5, room; mov.u32 %r6, %tid.x; shl.b32 %r6, %r6, 3; add.u32 %r4, %r5, %r6; st.shared.u32 [%r4], %r0;
             cvt.u64.u32 %rd2, %r4; cvta.shared.u64 %rd3, %rd2; mov.u32 %r7, %r0;
             atom{prefix}.{operation} %r7, {address}, {operands_text}; ld{prefix}.u32 %r9, {address};
             setp.ne.u32 %p1, %r7, %r0; @%p1 mov.u32 %r9, 0xDEAD;"
        );
        for (input, got) in inputs.iter().zip(run(&body, &inputs)) {
            assert_eq!(got, expected(input[0], input[1], input[2]), "{space} {operation} of {input:x?}");
        }
    }
}

#[test]
fn words_are_replaced_as_each_operation_says() {
    check("add.u32", "%r1", |old, a, _| old.wrapping_add(a));
    check("relaxed.gpu.add.s32".replace("relaxed.gpu.", "").as_str(), "%r1", |old, a, _| old.wrapping_add(a));
    check("min.s32", "%r1", |old, a, _| (old as i32).min(a as i32) as u32);
    check("max.u32", "%r1", |old, a, _| old.max(a));
    check("inc.u32", "%r1", |old, a, _| if old >= a { 0 } else { old + 1 });
    check("dec.u32", "%r1", |old, a, _| if old == 0 || old > a { a } else { old - 1 });
    check("and.b32", "%r1", |old, a, _| old & a);
    check("xor.b32", "%r1", |old, a, _| old ^ a);
    check("exch.b32", "%r1", |_, a, _| a);
    check("cas.b32", "%r2, %r1", |old, expected, new| if old == new { expected } else { old });
    let halves =
        |f: fn(u32, u32) -> u32| move |old: u32, a: u32, _| f(old & 0xFFFF, a & 0xFFFF) | f(old >> 16, a >> 16) << 16;
    let f16_sum = |a: u32, b: u32| {
        let sum = f16::from_bits(a as u16).to_f64() + f16::from_bits(b as u16).to_f64();
        if sum.is_nan() { 0x7FFF } else { f16::from_f32(sum as f32).to_bits().into() }
    };
    check("add.noftz.f16x2", "%r1", halves(f16_sum));
    let bf16_sum = |a: u32, b: u32| {
        let sum = bf16::from_bits(a as u16).to_f32() + bf16::from_bits(b as u16).to_f32();
        if sum.is_nan() { 0x7FFF } else { bf16::from_f32(sum).to_bits().into() }
    };
    check("add.noftz.bf16x2", "%r1", halves(bf16_sum));
}

#[test]
fn doubles_are_replaced_in_one_step() {
    // 1024 threads in 4 blocks add to one location of 8 bytes.
    let body = "ld.param.u64 %rd0, [in]; cvt.u64.u32 %rd1, %r1; shl.b64 %rd1, %rd1, 30;
                @!%p1 bra ADD; ADD: atom.global.add.u64 %rd2, [%rd0+8], %rd1; mov.u32 %r9, 0;";
    let body = format!("setp.eq.u32 %p1, 0, 0; {body} red.global.max.s64 [%rd0+8], 0; mov.b64 {{%r8, %r9}}, %rd2;");
    let mut inputs: Vec<Input> = (0..4096).map(|i| [i, 16, 0, 0]).collect();
    inputs[0] = [0, 16, 0, 0];
    // Each adds 2^34: the upper words of the old values are all multiples of 4 below 4096 * 4.
    let mut seen = run(&body, &inputs);
    seen.sort();
    assert_eq!(seen, (0..4096).map(|i| 4 * i).collect::<Vec<u32>>());
}

#[test]
fn shared_atomics_of_all_warps_add_up_and_race_only_with_others() {
    let count = |sync: &str| {
        format!(
            "mov.u32 %r5, room; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r5], 0; bar.sync 0;
             red.shared.add.u32 [%r5], %r0; {sync}\nld.shared.u32 %r9, [%r5];"
        )
    };
    assert_eq!(try_run("sm_90a", &count("bar.sync 0;"), &indices(256)).unwrap(), [256 * 255 / 2; 256]);
    let found = fault(&count(""), 256);
    assert!(matches!(found.kind, FaultKind::Race { .. }), "{found}");
    let unwritten = fault("mov.u32 %r5, room; \natom.shared.add.u32 %r9, [%r5], 1;", 32);
    assert!(matches!(unwritten.kind, FaultKind::Uninitialised { space: Space::Shared, .. }), "{unwritten}");
}

/// Declares 32 bytes of local memory.
const LOCAL: &str = ".local .align 16 .b8 depot[32]; mov.u64 %rd1, depot; cvta.local.u64 %rd2, %rd1;";

#[test]
fn local_memory_is_each_thread_s_own() {
    let body = format!(
        "{LOCAL} st.local.u32 [%rd1+4], %r0; add.u32 %r4, %r0, 1; st.u32 [%rd2+8], %r4;
         ld.u32 %r5, [%rd2+4]; ld.local.u32 %r6, [%rd1+8]; mad.lo.u32 %r9, %r5, 1000, %r6;
         isspacep.local %p1, %rd2; isspacep.shared %p2, %rd2; @!%p1 mov.u32 %r9, 0; @%p2 mov.u32 %r9, 0;"
    );
    assert_eq!(run(&body, &indices(64)), (0..64).map(|i| i * 1001 + 1).collect::<Vec<u32>>());
    let unwritten = format!("{LOCAL} st.local.u8 [%rd1], %r0;\nld.local.u32 %r9, [%rd1];");
    let found = fault(&unwritten, 1);
    assert!(matches!(found.kind, FaultKind::Uninitialised { space: Space::Local, .. }), "{found}");
    assert_eq!(found.line, line_of(&unwritten, "ld.local"));
    let outside = fault(&format!("{LOCAL} st.local.u32 [%rd1+32], %r0; mov.u32 %r9, 0;"), 1);
    assert!(matches!(outside.kind, FaultKind::OutOfBounds { space: Space::Local, .. }), "{outside}");
}

#[test]
fn generic_addresses_find_their_space() {
    let body = "mov.u32 %r5, room; cvt.u64.u32 %rd1, %r5; cvta.shared.u64 %rd2, %rd1; mul.wide.u32 %rd3, %r0, 4;
                add.u64 %rd2, %rd2, %rd3; st.u32 [%rd2], %r0; cvta.to.shared.u64 %rd4, %rd2; cvt.u32.u64 %r6, %rd4;
                ld.shared.u32 %r7, [%r6]; ld.u32 %r8, [%rd11]; add.u32 %r9, %r7, %r8;";
    assert_eq!(run(body, &indices(32)), (0..32).map(|i| 2 * i).collect::<Vec<u32>>());
}

#[test]
fn barriers_reduce_and_count() {
    assert_eq!(run("setp.lt.u32 %p1, %r0, 40; bar.red.popc.u32 %r9, 0, %p1;", &indices(96)), [40; 96]);
    let both = "setp.lt.u32 %p1, %r0, 40; bar.red.and.pred %p2, 1, !%p1; bar.red.or.pred %p3, 1, 96, %p1;
                selp.u32 %r9, 2, 0, %p2; @%p3 add.u32 %r9, %r9, 1;";
    assert_eq!(run(both, &indices(96)), [1; 96]);
}

#[test]
fn named_barriers_order_those_who_come() {
    // Warps 0 and 1 hand over to warps 2 and 3: the first arrive and go on, the second wait.
    let body = |number: u32, threads: u32| {
        format!(
            "mov.u32 %r5, room; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r5; setp.lt.u32 %p1, %r0, 64; mov.u32 %r9, 7;
             @!%p1 bra SECOND; st.shared.u32 [%r4], %r0; bar.arrive 1, 128; bra END;
             SECOND: bar.sync {number}, {threads}; sub.u32 %r4, %r4, 256;\nld.shared.u32 %r9, [%r4]; END:"
        )
    };
    let out = try_run("sm_90a", &body(1, 128), &indices(128)).unwrap();
    assert_eq!(out[64..], (0..64).collect::<Vec<u32>>());
    let other = fault(&body(2, 64), 128);
    assert!(matches!(other.kind, FaultKind::Race { .. }), "{other}");
    assert_eq!(fault(&body(2, 128), 128).kind, FaultKind::Deadlock);
    let mixed = fault(&body(1, 64), 128);
    assert_eq!(mixed.kind, FaultKind::BarrierThreads { barrier: 1, threads: 64, others: 128 });
    let odd = fault("bar.sync 1, 40; mov.u32 %r9, 0;", 64);
    assert_eq!(odd.kind, FaultKind::BarrierSize { barrier: 1, threads: 40 });
}
