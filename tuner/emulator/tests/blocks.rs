//! What blocks of one launch may do to the same global memory.

mod common;

use common::{indices, try_run};
use nvkv_emulator::{EmulationError, FaultKind, Memory, Module, launch};

/// Blocks of 1024 threads each.
const BLOCKS: u32 = 4;

fn outcome(body: &str) -> Result<Vec<u32>, FaultKind> {
    match try_run("sm_90a", body, &indices(1024 * BLOCKS)) {
        Ok(out) => Ok(out),
        Err(EmulationError::Fault(fault)) => Err(fault.kind),
        Err(error) => panic!("{error}"),
    }
}

fn is_race(outcome: &Result<Vec<u32>, FaultKind>) -> bool {
    matches!(outcome, Err(FaultKind::BlockRace { .. }))
}

/// `%p1` is thread 0 of its block, `%r4` the block; `%rd0` is the start of `cells`, where each block has a word at
/// `%rd1`, the first 64 bytes in.
const SETUP: &str = "mov.u32 %r4, %ctaid.x; mov.u32 %r5, %tid.x; setp.eq.u32 %p1, %r5, 0; mov.u32 %r9, 0;
    mov.u64 %rd0, cells; mul.wide.u32 %rd1, %r4, 4; add.u64 %rd1, %rd0, %rd1; add.u64 %rd1, %rd1, 64; bar.sync 0;\n";

#[test]
fn words_that_two_blocks_write_or_one_reads() {
    let race = |instruction: &str| is_race(&outcome(&format!("{SETUP} add.u32 %r6, %r4, 70; {instruction}")));
    assert!(race("@%p1 st.global.u32 [%rd0+8], %r6;"), "different values");
    let another = "setp.eq.u32 %p2, %r4, 0; st.global.u32 [%rd1], %r6; @%p2 ld.global.u32 %r6, [%rd0+68];";
    assert!(race(another), "another's word, in either order");
    assert!(race("and.b64 %rd2, %rd1, -8; st.global.u64 [%rd2], %rd1;"), "words that overlap");
    assert!(!race("@%p1 st.global.u32 [%rd1], %r6; @%p1 ld.global.u32 %r9, [%rd1];"), "its own word");
    assert!(!race("@%p1 st.global.u32 [%rd0+8], 5;"), "the same value");
    assert!(
        !race("mul.wide.u32 %rd2, %r4, 1; add.u64 %rd2, %rd2, %rd0; st.global.u8 [%rd2+8], %r6;"),
        "bytes of one word"
    );
    assert!(!race("atom.global.add.u32 %r7, [%rd0+8], %r6;"), "atomics");
}

#[test]
fn a_counter_that_one_block_sets_while_all_count() {
    // No block waits for block 0: some count before it sets the counter.
    let sets = "setp.eq.u32 %p2, %r4, 0; and.pred %p2, %p2, %p1; @%p2 st.global.u32 [%rd0+8], 1000;";
    let count = "atom.global.add.u32 %r7, [%rd0+8], 1;";
    let body = format!("{SETUP} {sets} {count}");
    // On one host thread block 0 comes first.
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert!(is_race(&one_thread.install(|| outcome(&body))));
    // The last one sets it back for the next launch.
    let back = format!(
        "{SETUP} @!%p1 bra END; {count} setp.eq.u32 %p2, %r7, {}; @%p2 st.global.u32 [%rd0+8], 0; END:",
        BLOCKS - 1
    );
    assert!(outcome(&back).is_ok());
}

/// PTX ISA, `ld.global.nc`: what it reads is read-only for the whole kernel.
#[test]
fn constants_that_the_kernel_writes() {
    let written = outcome(&format!("{SETUP} @%p1 st.global.u32 [%rd1], %r4; @%p1 ld.global.nc.u32 %r9, [%rd1];"));
    assert!(matches!(written, Err(FaultKind::ConstantWritten { .. })), "{written:?}");
    assert!(outcome("ld.global.nc.v4.u32 {%r9, %r10, %r11, %r12}, [%rd11];").is_ok());
}

/// Each block stores its number plus 1, then takes a ticket; the last sums up.
fn tickets(fence: &str, ticket: &str) -> String {
    format!(
        "{SETUP} @!%p1 bra END; add.u32 %r6, %r4, 1; st.global.u32 [%rd1], %r6; {fence}
         atom.{ticket}global.add.u32 %r7, [%rd0+4], 1; setp.ne.u32 %p2, %r7, {}; @%p2 bra END;
         ld.global.u32 %r10, [%rd0+64]; ld.global.u32 %r11, [%rd0+68]; ld.global.u32 %r12, [%rd0+72];
         ld.global.u32 %r13, [%rd0+76]; add.u32 %r9, %r10, %r11; add.u32 %r9, %r9, %r12; add.u32 %r9, %r9, %r13;
         END:",
        BLOCKS - 1
    )
}

#[test]
fn a_fence_and_an_atomic_hand_over_what_a_block_wrote() {
    for (fence, ticket) in [("membar.gl;", ""), ("fence.acq_rel.gpu;", ""), ("", "acq_rel.gpu.")] {
        let sums = outcome(&tickets(fence, ticket)).unwrap();
        assert_eq!(sums.iter().sum::<u32>(), BLOCKS * (BLOCKS + 1) / 2, "{fence}{ticket}");
    }
    assert!(is_race(&outcome(&tickets("", ""))), "no fence");
    assert!(is_race(&outcome(&tickets("membar.cta;", ""))), "a fence of the block");
    assert!(is_race(&outcome(&tickets("", "acq_rel.cta."))), "an atomic of the block");
    assert!(is_race(&outcome(&tickets("membar.gl; st.global.u32 [%rd1], 50;", ""))), "a store after the fence");
}

#[test]
fn a_launch_is_ordered_after_the_one_before() {
    // A word that another block writes in each launch.
    let body =
        "ld.param.u64 %rd1, [in]; setp.eq.u32 %p1, %r30, %r4; @%p1 st.global.u32 [%rd1+32768], %r30; mov.u32 %r9, 0;";
    let mut memory = Memory::new();
    let (from, to) = (memory.alloc_with(&[0; 65536]), memory.alloc(4 * 64));
    let params: Vec<u8> = [from, to].iter().flat_map(|address| address.to_le_bytes()).collect();
    for block in 0..2 {
        let module = Module::parse(&common::kernel("sm_90a", &format!("mov.u32 %r4, {block}; {body}"))).unwrap();
        launch(&module, "k", [2, 1, 1], [32, 1, 1], 0, &params, &mut memory, "sm_90a").unwrap();
        assert_eq!(memory.read(from + 32768, 1).unwrap(), [block]);
    }
}
