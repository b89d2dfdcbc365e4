//! mbarriers and bulk copies: what waits for what, and what goes wrong where it does not.

mod common;

use common::{fault, indices, line_of, try_run};
use nvkv_emulator::{FaultKind, MbarrierMisuse};

/// `%r5` is the start of `room`, where an mbarrier of `count` arrivals lies; `%p7` is thread 0. Data begin at 64.
fn prologue(count: u32) -> String {
    format!(
        "mov.u32 %r5, room; setp.eq.u32 %p7, %r0, 0; ld.param.u64 %rd2, [in];
         @%p7 mbarrier.init.shared::cta.b64 [%r5], {count};
         @%p7 fence.mbarrier_init.release.cluster; bar.sync 0;\n"
    )
}

/// Waits in a loop for the phase of `parity`.
fn wait(parity: u32) -> String {
    format!(
        "{{ .reg .pred done; WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%r5], {parity};
         @!done bra WAIT; }}\n"
    )
}

/// Thread 0 announces `expected` bytes and copies `bytes` of the inputs to `%r5 + 64`.
fn bulk_load(expected: u32, bytes: u32) -> String {
    format!(
        "@%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], {expected};
         add.u32 %r6, %r5, 64;
         @%p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd2], {bytes}, [%r5];\n"
    )
}

/// Each thread's own word of the data at `%r5 + 64`: the first word of its input.
const READ: &str = "shl.b32 %r7, %r0, 4; add.u32 %r7, %r7, %r6;\nld.shared.u32 %r9, [%r7];\n";

fn threads(count: u32) -> Vec<u32> {
    (0..count).collect()
}

fn expect(body: &str, threads: u32, at: &str, is: impl Fn(&FaultKind) -> bool) {
    let fault = fault(body, threads);
    assert!(is(&fault.kind), "{body}: {fault}");
    assert_eq!(fault.line, line_of(body, at), "{fault}");
}

#[test]
fn a_bulk_copy_brings_its_bytes_to_all_who_wait() {
    for space in ["shared::cluster", "shared::cta"] {
        let body = format!("{}{}{}{READ}", prologue(1), bulk_load(1024, 1024), wait(0));
        let body = body.replace("bulk.shared::cluster", &format!("bulk.{space}"));
        assert_eq!(try_run("sm_90a", &body, &indices(64)).unwrap(), threads(64));
    }
    // Two copies for one phase, and the next phase after it.
    let two = bulk_load(1024, 512)
        + "@%p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5+576], [%rd2+512], 512, [%r5];";
    let body = format!("{}{two}{}{READ} bar.sync 0;{}{}{READ}", prologue(1), wait(0), bulk_load(1024, 1024), wait(1));
    assert_eq!(try_run("sm_100a", &body, &indices(64)).unwrap(), threads(64));
}

#[test]
fn bytes_that_are_not_waited_for() {
    let pending = |kind: &FaultKind| matches!(kind, FaultKind::AsyncPending { .. });
    let loaded = prologue(1) + &bulk_load(1024, 1024);
    expect(&format!("{loaded}{READ}"), 64, "ld.shared", pending);
    // One test is no wait: it may fail.
    let one_test = format!("{loaded}mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;\n{READ}");
    expect(&one_test, 64, "ld.shared", pending);
    // The wrong parity: the phase before has ended.
    expect(&format!("{loaded}{}{READ}", wait(1)), 64, "ld.shared", pending);
    // Warp 1 does not wait, nor does it learn from who did.
    let warp_0_waits = format!("{loaded} setp.ge.u32 %p1, %r0, 32; @%p1 bra READ;\n{} READ:\n{READ}", wait(0));
    expect(&warp_0_waits, 64, "ld.shared", |kind| {
        matches!(kind, FaultKind::AsyncPending { .. } | FaultKind::Race { .. })
    });
}

#[test]
fn counts_of_bytes_and_arrivals() {
    expect(&format!("{}{}\n{}{READ}", prologue(1), bulk_load(528, 512), wait(0)), 32, "mbarrier.try_wait", |kind| {
        *kind == FaultKind::Deadlock
    });
    expect(&format!("{}{} mov.u32 %r9, 0;", prologue(2), wait(0)), 32, "mbarrier.try_wait", |kind| {
        *kind == FaultKind::Deadlock
    });
    let misuse = |misuse: MbarrierMisuse| move |kind: &FaultKind| matches!(kind, FaultKind::Mbarrier { misuse: found, .. } if *found == misuse);
    let arrive = |n: u32| format!("{}\nmbarrier.arrive.shared::cta.b64 _, [%r5];", prologue(n));
    // The 32 arrivals of a warp end phases of 16; of 20, the second wants 8 more.
    assert!(try_run("sm_90a", &format!("{} mov.u32 %r9, 0;", arrive(16)), &indices(32)).is_ok());
    let too_many = "\n@%p7 mbarrier.arrive.shared::cta.b64 %rd3, [%r5], 3;".to_string();
    expect(
        &(prologue(2) + &too_many),
        32,
        "@%p7 mbarrier.arrive",
        misuse(MbarrierMisuse::Arrivals { pending: 2, count: 3 }),
    );
    let last = "\n@%p7 mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd3, [%r5], 2;";
    expect(
        &(prologue(2) + last),
        32,
        "@%p7 mbarrier.arrive",
        misuse(MbarrierMisuse::Arrivals { pending: 2, count: 2 }),
    );
    let overflow = "\n@%p7 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r5], 1048576;";
    expect(&(prologue(2) + overflow), 32, "@%p7 mbarrier.expect", misuse(MbarrierMisuse::Bytes(1_048_576)));
    let not_made = "mov.u32 %r5, room;\nmbarrier.arrive.shared::cta.b64 _, [%r5];";
    expect(not_made, 1, "mbarrier.arrive", misuse(MbarrierMisuse::NotMade));
    let zero = "mov.u32 %r5, room;\nmbarrier.init.shared::cta.b64 [%r5], 0;";
    expect(zero, 1, "mbarrier.init", misuse(MbarrierMisuse::Count(0)));
    let left = format!("{}{} mov.u32 %r9, 0;", prologue(1), bulk_load(512, 512));
    assert!(misuse(MbarrierMisuse::InFlight)(&fault(&left, 32).kind));
    expect(&(prologue(2) + "\nld.shared.u32 %r9, [%r5];"), 32, "ld.shared", |kind| {
        matches!(kind, FaultKind::MbarrierAccess { .. })
    });
}

#[test]
fn an_mbarrier_is_used_after_all_have_seen_it_made() {
    let body = prologue(64).replace("bar.sync 0;", "") + "\nmbarrier.arrive.shared::cta.b64 _, [%r5];";
    expect(&body, 64, "mbarrier.arrive", |kind| matches!(kind, FaultKind::Race { .. }));
}

#[test]
fn states_name_phases_and_count_what_is_missing() {
    let body = format!(
        "{} mbarrier.arrive.shared::cta.b64 %rd3, [%r5]; mbarrier.pending_count.b64 %r9, %rd3;
         WAIT: mbarrier.test_wait.shared::cta.b64 %p1, [%r5], %rd3; @!%p1 bra WAIT;",
        prologue(32)
    );
    // Lanes arrive one after another.
    assert_eq!(try_run("sm_90a", &body, &indices(32)).unwrap(), (1..=32).rev().collect::<Vec<u32>>());
    let drop = format!(
        "{} setp.lt.u32 %p1, %r0, 8; @%p1 mbarrier.arrive_drop.shared::cta.b64 _, [%r5];
         @!%p1 mbarrier.arrive.shared::cta.b64 %rd3, [%r5]; @!%p1 mbarrier.arrive.shared::cta.b64 %rd3, [%r5];
         mbarrier.pending_count.b64 %r9, %rd3;",
        prologue(32)
    );
    // The second phase expects the other 24 only.
    let out = try_run("sm_90a", &drop, &indices(32)).unwrap();
    assert_eq!(out[8..], (1..=24).rev().collect::<Vec<u32>>());
}

/// Two warps pass `rounds` buffers to one another: full (count 32) and empty (count 32) mbarriers.
#[test]
fn a_producer_and_a_consumer_take_turns() {
    let pipeline = |wait_for_empty: bool, wait_for_full: bool| {
        let wait = |name: &str, at: u32, parity: &str| {
            format!(
                "{name}: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r5+{at}], {parity}, 100; @!%p1 bra {name};"
            )
        };
        format!(
            "mov.u32 %r5, room; setp.eq.u32 %p7, %r0, 0; @%p7 mbarrier.init.shared.b64 [%r5], 32;
             @%p7 mbarrier.init.shared.b64 [%r5+8], 32; bar.sync 0;
             and.b32 %r6, %r0, 31; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r5; mov.u32 %r4, 0; mov.u32 %r9, 0;
             setp.lt.u32 %p2, %r0, 32;
             LOOP: and.b32 %r7, %r4, 1; xor.b32 %r8, %r7, 1; @!%p2 bra CONSUME;
             {}
             mad.lo.u32 %r10, %r4, 100, %r0;
             st.shared.u32 [%r6+64], %r10;
             mbarrier.arrive.shared.b64 _, [%r5]; bra NEXT;
             CONSUME: {}
             xor.b32 %r11, %r6, 4;
             ld.shared.u32 %r10, [%r11+64]; add.u32 %r9, %r9, %r10;
             mbarrier.arrive.shared.b64 _, [%r5+8];
             NEXT: add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 5; @%p3 bra LOOP;",
            if wait_for_empty { wait("EMPTY", 8, "%r8") } else { String::new() },
            if wait_for_full { wait("FULL", 0, "%r7") } else { String::new() },
        )
    };
    let out = try_run("sm_90a", &pipeline(true, true), &indices(64)).unwrap();
    assert_eq!(out[32..], (0..32).map(|lane| 1000 + 5 * (lane ^ 1)).collect::<Vec<u32>>());
    // The producer runs ahead until no phase is left that the consumer could tell from the one that it waits for.
    assert_eq!(fault(&pipeline(false, true), 64).kind, FaultKind::Deadlock);
    expect(&pipeline(true, false), 64, "ld.shared", |kind| {
        matches!(kind, FaultKind::Race { .. } | FaultKind::Uninitialised { .. })
    });
}

#[test]
fn lanes_that_wait_let_the_others_of_their_warp_arrive() {
    for (first, second) in [("WAITS", "ARRIVES"), ("ARRIVES", "WAITS")] {
        let body = format!(
            "{} setp.lt.u32 %p1, %r0, 16; @%p1 bra {first}; bra {second};
             WAITS: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra WAITS; mov.u32 %r9, 1; bra END;
             ARRIVES: mbarrier.arrive.shared.b64 _, [%r5]; mov.u32 %r9, 2;
             END:",
            prologue(16)
        );
        let expected = |lane: u32| if (lane < 16) == (first == "WAITS") { 1 } else { 2 };
        assert_eq!(try_run("sm_90a", &body, &indices(32)).unwrap(), (0..32).map(expected).collect::<Vec<u32>>());
    }
}

#[test]
fn thread_copies_arrive_at_an_mbarrier() {
    for (noinc, count) in [("", 1), (".noinc", 33)] {
        let copies = format!(
            "{} shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r5; cp.async.ca.shared.global [%r6+64], [%rd11], 4;
             cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%r5];
             @%p7 mbarrier.arrive.shared.b64 _, [%r5];",
            prologue(count)
        );
        let read = "xor.b32 %r6, %r6, 4;\nld.shared.u32 %r9, [%r6+64];";
        let out = try_run("sm_90a", &format!("{copies}{}{read}", wait(0)), &indices(32)).unwrap();
        assert_eq!(out, (0..32).map(|lane| lane ^ 1).collect::<Vec<u32>>());
        expect(&format!("{copies}{read}"), 32, "ld.shared", |kind| matches!(kind, FaultKind::AsyncPending { .. }));
    }
}

/// Stores own words, then thread 0 copies 512 bytes of them to the inputs, whose first word the threads read back.
fn bulk_store(fence: &str, wait: &str) -> String {
    format!(
        "mov.u32 %r5, room; setp.eq.u32 %p7, %r0, 0; ld.param.u64 %rd2, [in]; shl.b32 %r6, %r0, 4; add.u32 %r6, %r6, %r5;
         add.u32 %r7, %r0, 7; st.shared.v4.u32 [%r6], {{%r7, %r7, %r7, %r7}}; {fence} bar.sync 0;
         @!%p7 bra WAITED;
         \ncp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r5], 512; cp.async.bulk.commit_group; {wait}
         WAITED: bar.sync 0;\n"
    )
}

#[test]
fn bulk_stores_read_their_source_until_they_are_waited_for() {
    let (fence, wait) = ("fence.proxy.async.shared::cta;", "cp.async.bulk.wait_group 0;");
    let load = "ld.global.u32 %r9, [%rd11];";
    let out = try_run("sm_90a", &(bulk_store(fence, wait) + load), &indices(32)).unwrap();
    assert_eq!(out, (7..39).collect::<Vec<u32>>());
    let overwrite = "st.shared.u32 [%r6], %r0; mov.u32 %r9, 0;";
    let read_waited = bulk_store(fence, "cp.async.bulk.wait_group.read 0;") + overwrite;
    assert!(try_run("sm_90a", &read_waited, &indices(32)).is_ok());
    let reading = |kind: &FaultKind| matches!(kind, FaultKind::AsyncReading { .. });
    expect(&(bulk_store(fence, "") + overwrite), 32, "st.shared.u32", reading);
    expect(&(bulk_store(fence, "cp.async.bulk.wait_group.read 1;") + overwrite), 32, "st.shared.u32", reading);
    assert!(reading(&fault(&(bulk_store(fence, "") + "mov.u32 %r9, 0;"), 32).kind), "left when the block ends");
    expect(&(bulk_store("", wait) + load), 32, "cp.async.bulk.global", |kind| {
        matches!(kind, FaultKind::ProxyFence { .. })
    });
    // One thread's fence after the barrier serves as well.
    let late_fence = bulk_store("", wait).replace("cp.async.bulk.global", "fence.proxy.async;\ncp.async.bulk.global");
    assert!(try_run("sm_90a", &(late_fence + load), &indices(32)).is_ok());
}

#[test]
fn bulk_copies_are_aligned_and_within_bounds() {
    let copy = |to: &str, from: &str, bytes: u32| {
        let copy = bulk_load(bytes, bytes).replace("[%r6]", to).replace("[%rd2]", from);
        format!("{}{}", prologue(1), copy.replace("@%p7 cp", "\n@%p7 cp"))
    };
    let misaligned = |kind: &FaultKind| matches!(kind, FaultKind::Misaligned { .. });
    expect(&copy("[%r6+8]", "[%rd2]", 64), 32, "@%p7 cp.async.bulk", misaligned);
    expect(&copy("[%r6]", "[%rd2+4]", 64), 32, "@%p7 cp.async.bulk", misaligned);
    expect(&copy("[%r6]", "[%rd2]", 40), 32, "@%p7 cp.async.bulk", misaligned);
    let outside = |kind: &FaultKind| matches!(kind, FaultKind::OutOfBounds { .. });
    expect(&copy("[%r6]", "[%rd2]", 528), 32, "@%p7 cp.async.bulk", outside);
    expect(&copy("[%r6+4000]", "[%rd2]", 512), 32, "@%p7 cp.async.bulk", outside);
}

#[test]
fn small_copies_fill_with_zeros_what_their_source_lacks() {
    let body = "mov.u32 %r5, room; shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r5; setp.gt.u32 %p1, %r0, 15;
                mov.u32 %r6, 4; cp.async.cg.shared.global [%r4], [%rd11], 16, %r6;
                cp.async.ca.shared.global [%r4+1024], [%rd11], 4, %p1; cp.async.wait_all;
                ld.shared.v4.u32 {%r9, %r10, %r11, %r12}, [%r4]; add.u32 %r9, %r9, %r11; add.u32 %r9, %r9, %r12;
                ld.shared.u32 %r13, [%r4+1024]; shl.b32 %r13, %r13, 8; add.u32 %r9, %r9, %r13;";
    let inputs: Vec<[u32; 4]> = (0..32).map(|lane| [lane, 1 << 20, 1 << 21, 1 << 22]).collect();
    let expected = |lane: u32| if lane > 15 { lane } else { lane * 257 };
    assert_eq!(try_run("sm_90a", body, &inputs).unwrap(), (0..32).map(expected).collect::<Vec<u32>>());
}
