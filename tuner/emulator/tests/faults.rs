//! What a kernel must not do is reported with the line where it does it.

mod common;

use common::{fault, indices, kernel, line_of, try_run};
use nvkv_emulator::{Accessor, EmulationError, FaultKind, Module, Space};

/// `%r4` is the thread's own word of `room`, `%r5` its start.
const ROOM: &str = "mov.u32 %r5, room; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r5;";

/// Checks kind, line and lane of the fault of `ROOM` and `body`, whose wrong instruction begins with `at`.
fn expect(body: &str, threads: u32, at: &str, is: impl Fn(&FaultKind) -> bool) {
    let body = format!("{ROOM}\n{body}\nmov.u32 %r9, 0;");
    let fault = fault(&body, threads);
    assert!(is(&fault.kind), "{body}: {fault}");
    assert_eq!(fault.line, line_of(&body, at), "{fault}");
}

#[test]
fn reads_and_writes_out_of_bounds() {
    let outside =
        |space| move |kind: &FaultKind| matches!(kind, FaultKind::OutOfBounds { space: s, .. } if *s == space);
    expect("ld.global.u32 %r6, [%rd11+32768];", 32, "ld.global.u32 %r6", outside(Space::Global));
    expect("st.global.u32 [0], %r0;", 32, "st.global.u32 [0]", outside(Space::Global));
    expect("st.shared.u32 [%r5+4096], %r0;", 1, "st.shared.u32 [%r5+4096]", outside(Space::Shared));
    expect("ld.param.u32 %r6, [16];", 32, "ld.param.u32", outside(Space::Param));
    // The 9th lane is the first whose 16 bytes cross the end of 128.
    let body = "mul.wide.u32 %rd1, %r0, 16; ld.param.u64 %rd2, [out]; add.s64 %rd2, %rd2, %rd1;
                st.global.v4.u32 [%rd2], {%r0, %r0, %r0, %r0}; mov.u32 %r9, 0;";
    assert_eq!(fault(body, 32).lane, Some(8));
}

#[test]
fn misaligned_accesses() {
    let misaligned = |kind: &FaultKind| matches!(kind, FaultKind::Misaligned { bytes: 8, .. });
    expect("ld.global.v2.u32 {%r6, %r7}, [%rd11+4];", 1, "ld.global.v2", misaligned);
    expect("st.shared.v2.u32 [%r5+4], {%r0, %r0};", 1, "st.shared.v2", misaligned);
}

#[test]
fn parameters_are_aligned_too() {
    expect("\nld.param.u32 %r6, [in+2];", 1, "ld.param.u32", |kind| {
        *kind == FaultKind::Misaligned { space: Space::Param, address: 2, bytes: 4 }
    });
}

/// A GPU's registers begin with whatever was left in them: a sum that nobody set to zero must not come out right.
#[test]
fn registers_that_nobody_wrote_are_no_numbers() {
    let run = |body: &str| try_run("sm_90a", body, &indices(2)).unwrap();
    let sums = run("mov.f32 %f0, 0f3F800000; add.f32 %f1, %f1, %f0; mov.b32 %r9, %f1;");
    assert!(sums.into_iter().all(|bits| f32::from_bits(bits).is_nan()));
    let halves = run("mov.u16 %h0, 0; add.u16 %h1, %h1, %h0; cvt.u32.u16 %r9, %h1;");
    assert!(halves.into_iter().all(|bits| half::f16::from_bits(bits as u16).is_nan()));
    let doubles = run("testp.notanumber.f64 %p0, %rd3; selp.u32 %r9, 1, 0, %p0;");
    assert_eq!(doubles, [1, 1]);
    assert_eq!(run("selp.u32 %r9, 1, 0, %p5;"), [0, 1], "a predicate");
    expect("ld.shared.u32 %r6, [%r7];", 1, "ld.shared.u32 %r6", |kind| matches!(kind, FaultKind::Misaligned { .. }));
}

#[test]
fn reads_of_what_was_never_written() {
    let is = |space| move |kind: &FaultKind| matches!(kind, FaultKind::Uninitialised { space: s, .. } if *s == space);
    expect("ld.shared.u32 %r6, [%r4];", 32, "ld.shared", is(Space::Shared));
    expect("ld.param.u64 %rd1, [out]; \nld.global.u32 %r6, [%rd1];", 32, "ld.global.u32 %r6", is(Space::Global));
    expect("st.shared.u8 [%r4], %r0; \nld.shared.u32 %r6, [%r4];", 32, "ld.shared", |kind| {
        *kind == FaultKind::Uninitialised { space: Space::Shared, address: 1025 }
    });
}

#[test]
fn races_between_warps() {
    let race = |writes: bool, other_wrote: bool| move |kind: &FaultKind| matches!(kind, FaultKind::Race { writes: w, other_wrote: o, .. } if (*w, *o) == (writes, other_wrote));
    // Warp 0 runs first: it reads what warp 1 then writes.
    let reads_then_writes = "st.shared.u32 [%r4], %r0; bar.sync 0; setp.lt.u32 %p0, %r0, 32; xor.b32 %r6, %r4, 128;
                             @%p0 ld.shared.u32 %r7, [%r6];\n@!%p0 st.shared.u32 [%r4], %r7;";
    expect(reads_then_writes, 64, "@!%p0 st.shared", race(true, false));
    expect("\nst.shared.u32 [%r5], %r0;", 64, "st.shared.u32 [%r5]", race(true, true));
    // Warp 1 reads what warp 0 wrote; with a barrier all is well.
    let first_writes = "setp.lt.u32 %p0, %r0, 32; @%p0 st.shared.u32 [%r4], %r0; and.b32 %r6, %r0, 31;
                        shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r5;";
    expect(&format!("{first_writes} \nld.shared.u32 %r7, [%r6];"), 64, "ld.shared.u32 %r7", race(false, true));
    let with_barrier = format!("{ROOM} {first_writes} bar.sync 0; ld.shared.u32 %r9, [%r6];");
    assert!(try_run("sm_90a", &with_barrier, &indices(64)).is_ok());
}

#[test]
fn races_within_a_warp() {
    let body =
        |sync: &str| format!("st.shared.u32 [%r4], %r0; {sync} xor.b32 %r6, %r4, 4; \nld.shared.u32 %r9, [%r6];");
    expect(&body(""), 32, "ld.shared", |kind| {
        matches!(kind, FaultKind::Race { other: Accessor { warp: Some(0), lane: Some(1) }, .. })
    });
    assert!(try_run("sm_90a", &format!("{ROOM} {}", body("bar.warp.sync -1;")), &indices(32)).is_ok());
}

#[test]
fn races_on_global_memory_within_a_block() {
    // Each thread writes its word of `cells`; %rd3 is that of the thread whose number differs by `other`.
    let write = |other: u32| {
        format!(
            "mov.u64 %rd1, cells; mul.wide.u32 %rd2, %r0, 4; add.s64 %rd4, %rd1, %rd2; xor.b32 %r6, %r0, {other};
             mul.wide.u32 %rd2, %r6, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd4], %r0;"
        )
    };
    let reads = ["ld.global.u32 %r9, [%rd3];", "cp.async.ca.shared.global [%r4], [%rd3], 4;", "ld.u32 %r9, [%rd3];"];
    let cases = [(1, 32, "", "bar.warp.sync -1;", (0, 1)), (32, 64, "bar.warp.sync -1;", "bar.sync 0;", (0, 0))];
    for read in reads {
        for (other, threads, too_little, enough, (warp, lane)) in cases {
            expect(&format!("{} {too_little}\n{read}", write(other)), threads, read, |kind| {
                let other = Accessor { warp: Some(warp), lane: Some(lane) };
                matches!(kind, FaultKind::Race { space: Space::Global, writes: false, other: o, .. } if *o == other)
            });
            let ordered = format!("{ROOM} {} {enough} {read} mov.u32 %r9, 0;", write(other));
            assert!(try_run("sm_90a", &ordered, &indices(threads)).is_ok(), "{ordered}");
        }
        let own = format!("{ROOM} {} {read} mov.u32 %r9, 0;", write(0));
        assert!(try_run("sm_90a", &own, &indices(32)).is_ok(), "{own}");
    }
}

#[test]
fn asynchronous_data_that_is_not_waited_for() {
    let pending = |kind: &FaultKind| matches!(kind, FaultKind::AsyncPending { .. });
    let copy = "cp.async.ca.shared.global [%r4], [%rd11], 4;";
    expect(&format!("{copy} cp.async.commit_group; \nld.shared.u32 %r6, [%r4];"), 32, "ld.shared", pending);
    expect(&format!("{copy} \nst.shared.u32 [%r4], %r0;"), 32, "st.shared", pending);
    // Not committed: waiting does not help.
    expect(&format!("{copy} cp.async.wait_group 0; \nld.shared.u32 %r6, [%r4];"), 32, "ld.shared", pending);
    expect(
        &format!("{copy} cp.async.commit_group; cp.async.wait_group 1; \nld.shared.u32 %r6, [%r4];"),
        32,
        "ld.shared",
        pending,
    );
    // Another lane's data needs a barrier after the wait.
    let other = "cp.async.commit_group; cp.async.wait_group 0; xor.b32 %r6, %r4, 4; \nld.shared.u32 %r7, [%r6];";
    expect(&format!("{copy} {other}"), 32, "ld.shared", |kind| matches!(kind, FaultKind::Race { .. }));
}

#[test]
fn divergent_and_mixed_barriers() {
    expect("setp.lt.u32 %p0, %r0, 5; \n@%p0 bar.sync 0;", 32, "bar.sync", |kind| {
        *kind == FaultKind::DivergentBarrier { active: 31, live: u32::MAX }
    });
    expect("shr.u32 %r6, %r0, 5; \nbar.sync %r6;", 64, "bar.sync", |kind| {
        *kind == FaultKind::MixedBarriers { barrier: 0, other: 1, other_barrier: 1 }
    });
    // PTX ISA, `bar`: 16 barriers a block; a warp comes to one as a whole.
    expect("\nbar.sync 16;", 64, "bar.sync", |kind| *kind == FaultKind::BarrierNumber(16));
    expect("and.b32 %r6, %r0, 1; \nbar.sync %r6;", 64, "bar.sync", |kind| *kind == FaultKind::BarrierLanes);
    expect("and.b32 %r6, %r0, 32; add.u32 %r6, %r6, %r0; \nbar.sync 1, %r6;", 64, "bar.sync", |kind| {
        *kind == FaultKind::BarrierLanes
    });
    expect("setp.lt.u32 %p0, %r0, 5; \n@%p0 vote.sync.any.pred %p1, %p0, -1;", 32, "vote", |kind| {
        *kind == FaultKind::MissingLanes { needed: u32::MAX, active: 31 }
    });
    // Lane 31 alone has another mask than those that are there.
    let last = "setp.eq.u32 %p0, %r0, 31; selp.b32 %r6, 0x7FFFFFFF, -1, %p0;";
    expect(&format!("{last}\nvote.sync.any.pred %p1, %p0, %r6;"), 32, "vote", |kind| {
        *kind == FaultKind::MissingLanes { needed: u32::MAX >> 1, active: u32::MAX }
    });
}

#[test]
fn warpgroup_products_that_are_not_fenced_or_not_waited_for() {
    let mma = "{ .reg .pred p; setp.ne.b32 p, %r0, %r0;
               wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f0, %f1, %f2, %f3}, {%r0, %r0, %r0, %r0}, %rd0, p, 1, 1; }";
    let descriptor = "mov.u64 %rd0, 0x800080040;";
    expect(&format!("{descriptor} {mma}"), 128, "wgmma.mma", |kind| *kind == FaultKind::WgmmaFence);
    let zeros = "mov.u32 %r5, room; shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r5; st.shared.u32 [%r4], 0;
                 fence.proxy.async; bar.sync 0;";
    let started = format!("{zeros} {descriptor} wgmma.fence.sync.aligned; {mma} wgmma.commit_group.sync.aligned;");
    expect(&format!("{started} \nadd.f32 %f4, %f0, %f1;"), 128, "add.f32 %f4", |kind| *kind == FaultKind::WgmmaPending);
    expect(&format!("{descriptor} wgmma.fence.sync.aligned; {mma}"), 128, "wgmma.mma", |kind| {
        matches!(kind, FaultKind::Uninitialised { space: Space::Shared, address: 1024 })
    });
}

#[test]
fn an_unknown_instruction_is_named_and_never_skipped() {
    let error = try_run("sm_90a", "\ncvt.foo %r9, %r0;", &indices(32)).unwrap_err();
    let line = line_of("\ncvt.foo %r9, %r0;", "cvt.foo");
    assert_eq!(error, EmulationError::UnknownInstruction { line, opcode: "cvt.foo".to_string() });
    // Known words in an unknown order, too, and where no lane would ever execute it.
    // `discard` is no hint: it leaves the bytes undefined.
    for body in [
        "bra END; add.wide.u32 %r9, %r0, %r1; END:",
        "bra END; ld.shared.v3.u32 %r9, [%r0]; END:",
        "bra END; prefetch.shared.L1 [%r0]; END:",
        "bra END; discard.global.L2 [%rd11], 128; END:",
    ] {
        assert!(
            matches!(try_run("sm_90a", body, &indices(1)), Err(EmulationError::UnknownInstruction { .. })),
            "{body}"
        );
    }
}

#[test]
fn operands_that_do_not_fit_are_named() {
    for (body, problem) in [
        ("add.u32 %r9, %r0;", "2 operands, not 3"),
        ("add.u32 %r9, %r0, %rd0;", "`%rd0` is a Double register"),
        ("add.u32 %r9, %r0, %nothing;", "`%nothing` is not declared"),
        ("{ .reg .b32 inner; mov.u32 inner, 1; } mov.u32 %r9, inner;", "`inner` is not declared"),
        ("bra NOWHERE;", "label `NOWHERE` is not declared"),
    ] {
        let error = try_run("sm_90a", body, &indices(1)).unwrap_err().to_string();
        assert!(error.contains(problem), "{body}: {error}");
    }
}

#[test]
fn source_lines_are_reported_where_the_ptx_has_them() {
    let text = kernel("sm_90a", ".loc 1 42 7\n st.shared.u32 [0], %r0; mov.u32 %r9, 0;");
    let module = Module::parse(&format!("{text}.file 1 \"decode.cu\"\n")).unwrap();
    let mut memory = nvkv_emulator::Memory::new();
    let (from, to) = (memory.alloc_with(&[0; 16]), memory.alloc(4));
    let params: Vec<u8> = [from, to].iter().flat_map(|address| address.to_le_bytes()).collect();
    let error = nvkv_emulator::launch(&module, "k", [1; 3], [1; 3], 0, &params, &mut memory, "sm_90a").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("decode.cu:42") && text.contains("block (0, 0, 0), warp 0, lane 0"), "{text}");
}

#[test]
fn launches_that_do_not_fit() {
    let module = Module::parse(&kernel("sm_90a", "mov.u32 %r9, 0;")).unwrap();
    let mut memory = nvkv_emulator::Memory::new();
    let mut launch = |symbol, threads, params: &[u8], target| {
        nvkv_emulator::launch(&module, symbol, [1; 3], [threads, 1, 1], 0, params, &mut memory, target)
            .unwrap_err()
            .to_string()
    };
    assert!(launch("other", 32, &[0; 16], "sm_90a").contains("no kernel `other` in the module; it has k"));
    assert!(launch("k", 32, &[0; 8], "sm_90a").contains("8 bytes of parameters, not 16"));
    assert!(launch("k", 2048, &[0; 16], "sm_90a").contains("a block has 1 to [1024, 1024, 64]"));
    assert!(launch("k", 32, &[0; 16], "sm_70").contains("`sm_70` is not emulated"));
}

/// CUDA C++ Programming Guide, "Compute Capabilities".
#[test]
fn launches_beyond_what_a_gpu_has() {
    let module = Module::parse(".entry k() { .shared .b8 own[1024]; ret; }").unwrap();
    let launch = |grid, block, shared| {
        let memory = &mut nvkv_emulator::Memory::new();
        nvkv_emulator::launch(&module, "k", grid, block, shared, &[], memory, "sm_89")
            .map_err(|error| error.to_string())
    };
    let fails = |grid, block, shared, why: &str| {
        let error = launch(grid, block, shared).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    fails([0, 1, 1], [1; 3], 0, "a grid has 1 to [2147483647, 65535, 65535]");
    fails([1, 65_536, 1], [1; 3], 0, "a grid has 1 to");
    fails([u32::MAX; 3], [1; 3], 0, "a grid has 1 to");
    fails([1; 3], [1, 1, 65], 0, "a block has 1 to [1024, 1024, 64]");
    fails([1; 3], [u32::MAX; 3], 0, "a block has 1 to");
    fails([1; 3], [32, 33, 1], 0, "1056 threads");
    fails([1; 3], [1; 3], 98 * 1024 + 1, "101377 bytes of shared memory; a block of sm_89 has 101376");
    fails([1; 3], [1; 3], u32::MAX, "bytes of shared memory");
    assert!(launch([2, 3, 1], [1, 1, 64], 98 * 1024).is_ok());
}

#[test]
fn modules_that_are_no_ptx() {
    let nested = |mark: &str| format!("mov.u32 %r9, {}1;", mark.repeat(200_000));
    for (body, problem) in [
        (nested("{"), "operands within operands"),
        (nested("!"), "operands within operands"),
        (".reg .b32 %q<4000000000>;".to_string(), "registers"),
        (".shared .b64 x[4294967295];".to_string(), "expected a size below 4 GiB"),
        ("A: mov.u32 %r9, 1; A: bra A;".to_string(), "`A:`: the label is declared twice"),
        (".reg .b64 %r<40>;".to_string(), "`%r` is declared twice"),
        (".reg .b64 %r9;".to_string(), "`%r9` is declared twice"),
        ("{ .shared .b32 x; { .shared .b32 x; } }".to_string(), "the variable `x` is declared twice"),
        ("^".repeat(10_000_000), "begins with no token"),
    ] {
        let error = try_run("sm_90a", &body, &indices(1)).unwrap_err().to_string();
        assert!(error.contains(problem) && error.len() < 1000, "{error:.1000}");
    }
}

/// Every block fails; the first one is named, and those that had not begun are not run.
#[test]
fn a_fault_ends_the_launch() {
    let module = Module::parse(".entry k() { .reg .b32 a; ld.global.u32 a, [0]; ret; }").unwrap();
    let memory = &mut nvkv_emulator::Memory::new();
    let grid = [i32::MAX as u32 / 64, 1, 1];
    match nvkv_emulator::launch(&module, "k", grid, [1; 3], 0, &[], memory, "sm_90a").unwrap_err() {
        EmulationError::Fault(fault) => assert_eq!(fault.block, [0, 0, 0]),
        error => panic!("{error}"),
    }
}
