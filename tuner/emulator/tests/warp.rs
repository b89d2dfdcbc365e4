//! What lanes do together, and the ways they go apart.

mod common;

use common::{indices, run};

const ALL: &str = "0xFFFFFFFF";

fn lanes(body: &str) -> Vec<u32> {
    run(body, &indices(32))
}

#[test]
fn a_loop_runs_as_often_as_each_lane_says() {
    let sums = lanes(
        "mov.u32 %r9, 0; mov.u32 %r4, 0;
         LOOP: setp.gt.u32 %p0, %r4, %r0; @%p0 bra DONE;
         add.u32 %r9, %r9, %r4; add.u32 %r4, %r4, 1; bra LOOP;
         DONE: add.u32 %r9, %r9, 1000;",
    );
    assert_eq!(sums, (0..32).map(|lane| lane * (lane + 1) / 2 + 1000).collect::<Vec<u32>>());
}

#[test]
fn nested_branches_meet_before_the_whole_warp_votes() {
    let votes = lanes(&format!(
        "mov.u32 %r9, 0; setp.lt.u32 %p0, %r0, 10; @!%p0 bra ELSE;
         setp.lt.u32 %p1, %r0, 3; @%p1 bra SMALL; add.u32 %r9, %r9, 100; bra MET;
         SMALL: add.u32 %r9, %r9, 200; MET: activemask.b32 %r5; add.u32 %r9, %r9, %r5; bra END;
         ELSE: add.u32 %r9, %r9, 50000;
         END: setp.ne.u32 %p2, %r9, 0; vote.sync.ballot.b32 %r6, %p2, {ALL}; popc.b32 %r6, %r6;
         mul.lo.u32 %r6, %r6, 1000000; add.u32 %r9, %r9, %r6;"
    ));
    let expected = |lane: u32| match lane {
        0..3 => 200 + 0x3FF,
        3..10 => 100 + 0x3FF,
        _ => 50_000,
    };
    assert_eq!(votes, (0..32).map(|lane| expected(lane) + 32_000_000).collect::<Vec<u32>>());
}

#[test]
fn lanes_that_return_early_are_left_behind() {
    let store = "mul.wide.u32 %rd1, %r33, 4; ld.param.u64 %rd2, [out]; add.s64 %rd2, %rd2, %rd1;";
    let out = lanes(&format!(
        "{store} st.global.u32 [%rd2], 7; setp.lt.u32 %p0, %r0, 5; @%p0 ret;
         setp.gt.u32 %p1, %r0, 20; @%p1 bra LATE; activemask.b32 %r9; bra GO; LATE: ret; GO: activemask.b32 %r9;"
    ));
    let middle = (1 << 21) - (1 << 5);
    let expected = |lane: u32| if (5..=20).contains(&lane) { middle } else { 7 };
    assert_eq!(out, (0..32).map(expected).collect::<Vec<u32>>());
}

#[test]
fn a_guarded_instruction_leaves_other_lanes_alone() {
    let out = lanes("mov.u32 %r9, 5; and.b32 %r4, %r0, 1; setp.eq.u32 %p0, %r4, 1; @!%p0 add.u32 %r9, %r0, 100;");
    assert_eq!(out, (0..32).map(|lane| if lane % 2 == 0 { lane + 100 } else { 5 }).collect::<Vec<u32>>());
}

#[test]
fn shuffles_move_values_within_their_segments() {
    let shuffle = |instruction: &str| lanes(&format!("mul.lo.u32 %r4, %r0, 3; {instruction}"));
    let expect = |instruction: &str, source: fn(u32) -> u32| {
        let expected: Vec<u32> = (0..32).map(|lane| 3 * source(lane)).collect();
        assert_eq!(shuffle(instruction), expected, "{instruction}");
    };
    // c is (32 - width) << 8 | clamp, as __shfl_sync makes it.
    expect("shfl.sync.bfly.b32 %r9, %r4, 4, 31, 0xFFFFFFFF;", |lane| lane ^ 4);
    expect("shfl.sync.idx.b32 %r9, %r4, 3, 0x181F, 0xFFFFFFFF;", |lane| lane / 8 * 8 + 3);
    expect("shfl.sync.up.b32 %r9, %r4, 2, 0, 0xFFFFFFFF;", |lane| if lane < 2 { lane } else { lane - 2 });
    expect(
        "shfl.sync.down.b32 %r9, %r4, 5, 0x101F, 0xFFFFFFFF;",
        |lane| {
            if lane % 16 + 5 < 16 { lane + 5 } else { lane }
        },
    );
    let in_range = lanes("shfl.sync.down.b32 %r5|%p0, %r0, 30, 31, 0xFFFFFFFF; selp.u32 %r9, 1, 0, %p0;");
    assert_eq!(in_range, (0..32).map(|lane| u32::from(lane < 2)).collect::<Vec<_>>());
}

#[test]
fn votes_and_reductions() {
    let out = lanes(
        "setp.lt.u32 %p0, %r0, 4; vote.sync.any.pred %p1, %p0, -1; vote.sync.all.pred %p2, %p0, -1;
                     selp.u32 %r4, 1, 0, %p1; selp.u32 %r5, 2, 0, %p2; or.b32 %r9, %r4, %r5;",
    );
    assert_eq!(out, [1; 32]);
    assert_eq!(lanes("redux.sync.add.u32 %r9, %r0, -1;"), [496; 32]);
    assert_eq!(lanes("sub.u32 %r4, 3, %r0; redux.sync.min.s32 %r9, %r4, -1;"), [-28i32 as u32; 32]);
}

#[test]
fn a_transposed_matrix_has_rows_for_columns() {
    // Element (row, column) is 16 * row + column.
    let body = "shr.u32 %r4, %r0, 2; shl.b32 %r4, %r4, 4; and.b32 %r5, %r0, 3; shl.b32 %r5, %r5, 1;
                add.u32 %r4, %r4, %r5; add.u32 %r5, %r4, 1; shl.b32 %r5, %r5, 16; or.b32 %r4, %r4, %r5;
                movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r4;";
    let expected = |lane: u32| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        (16 * column + row) | (16 * (column + 1) + row) << 16
    };
    assert_eq!(lanes(body), (0..32).map(expected).collect::<Vec<u32>>());
}

#[test]
fn warps_exchange_values_over_barriers() {
    let body = "shl.b32 %r4, %r0, 2; mov.u32 %r5, room; add.u32 %r4, %r4, %r5; st.shared.u32 [%r4], %r0;
                bar.sync 0; xor.b32 %r6, %r0, 96; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r5;
                ld.shared.u32 %r9, [%r6];";
    assert_eq!(run(body, &indices(128)), (0..128).map(|thread| thread ^ 96).collect::<Vec<u32>>());
}

#[test]
fn barriers_do_not_wait_for_lanes_that_returned() {
    let body = "setp.ge.u32 %p0, %r0, 40; @%p0 ret; bar.sync 0; mov.u32 %r9, 1;";
    let out = run(body, &indices(96));
    assert_eq!(out, (0..96).map(|thread| u32::from(thread < 40)).collect::<Vec<u32>>());
}

#[test]
fn atomics_of_all_blocks_add_up() {
    // The last input's first word counts; every thread takes a ticket from it.
    let body = "ld.param.u64 %rd0, [in]; atom.global.add.u32 %r9, [%rd0+4], 1;";
    let mut tickets = run(body, &indices(4096));
    tickets.sort();
    assert_eq!(tickets, (0..4096).collect::<Vec<u32>>());
}

#[test]
fn asynchronous_copies_arrive_when_they_are_waited_for() {
    let body = "mov.u32 %r5, room; shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r5;
                cp.async.cg.shared.global [%r4], [%rd11], 16; cp.async.commit_group;
                cp.async.ca.shared.global [%r4+1024], [%rd11], 4; cp.async.commit_group;
                cp.async.wait_group 1; ld.shared.u32 %r9, [%r4]; cp.async.wait_group 0;
                ld.shared.u32 %r6, [%r4+1024]; shl.b32 %r6, %r6, 8; add.u32 %r9, %r9, %r6;";
    assert_eq!(lanes(body), (0..32).map(|lane| lane * 257).collect::<Vec<u32>>());
}

/// All non-exited threads of the mask take part (PTX ISA, `shfl.sync`, `vote.sync`, `redux.sync`).
#[test]
fn a_mask_may_name_lanes_that_have_exited() {
    for (instruction, expected) in [
        ("shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1;", [1, 0, 3, 2]),
        ("vote.sync.ballot.b32 %r9, 1, -1;", [15; 4]),
        ("vote.sync.all.pred %p1, 1, -1; selp.u32 %r9, 1, 0, %p1;", [1; 4]),
        ("redux.sync.add.u32 %r9, %r0, -1;", [6; 4]),
        ("match.any.sync.b32 %r9, 3, -1;", [15; 4]),
        ("bar.warp.sync -1; mov.u32 %r9, %r0;", [0, 1, 2, 3]),
    ] {
        let out = lanes(&format!("setp.ge.u32 %p0, %r0, 4; @%p0 ret; {instruction}"));
        assert_eq!(out[..4], expected, "{instruction}");
    }
}
