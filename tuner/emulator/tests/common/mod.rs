//! A kernel around a few lines of PTX: each thread gets four words and gives one.
#![allow(dead_code, reason = "each test file uses its own part")]

use nvkv_emulator::{EmulationError, Fault, Memory, Module, launch};

/// Words that a thread reads into `%r0` to `%r3`.
pub type Input = [u32; 4];

/// The kernel whose threads run `body`, which leaves its result in `%r9`. There is shared memory `room`, and global
/// memory `cells`.
pub fn kernel(target: &str, body: &str) -> String {
    format!(
        "
.version 9.0
.target {target}
.address_size 64
.global .align 16 .b8 cells[256];
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .pred %p<8>;
    .reg .b16 %h<8>;
    .reg .b32 %r<40>;
    .reg .f32 %f<16>;
    .reg .b64 %rd<20>;
    .shared .align 16 .b8 room[4096];
    mov.u32 %r30, %ctaid.x;
    mov.u32 %r31, %ntid.x;
    mov.u32 %r32, %tid.x;
    mad.lo.s32 %r33, %r30, %r31, %r32;
    mul.wide.u32 %rd10, %r33, 16;
    ld.param.u64 %rd11, [in];
    add.s64 %rd11, %rd11, %rd10;
    ld.global.v4.u32 {{%r0, %r1, %r2, %r3}}, [%rd11];
{body}
    mul.wide.u32 %rd12, %r33, 4;
    ld.param.u64 %rd13, [out];
    add.s64 %rd13, %rd13, %rd12;
    st.global.u32 [%rd13], %r9;
    ret;
}}
"
    )
}

/// Runs `body` in one block of a thread an input, or in several where there are more than 1024.
pub fn try_run(target: &str, body: &str, inputs: &[Input]) -> Result<Vec<u32>, EmulationError> {
    let threads = inputs.len().min(1024);
    assert_eq!(inputs.len() % threads, 0, "blocks must be full");
    let mut memory = Memory::new();
    let bytes: Vec<u8> = inputs.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let (from, to) = (memory.alloc_with(&bytes), memory.alloc(4 * inputs.len()));
    let params: Vec<u8> = [from, to].iter().flat_map(|address| address.to_le_bytes()).collect();
    let module = Module::parse(&kernel(target, body))?;
    let grid = [(inputs.len() / threads) as u32, 1, 1];
    launch(&module, "k", grid, [threads as u32, 1, 1], 0, &params, &mut memory, target)?;
    let out = memory.read(to, 4 * inputs.len())?;
    Ok(out.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect())
}

/// The same, where nothing may go wrong.
pub fn run(body: &str, inputs: &[Input]) -> Vec<u32> {
    try_run("sm_120a", body, inputs).unwrap_or_else(|error| panic!("{body}: {error}"))
}

/// The fault that `body` makes with `threads` threads.
pub fn fault(body: &str, threads: u32) -> Fault {
    match try_run("sm_90a", body, &indices(threads)) {
        Err(EmulationError::Fault(fault)) => *fault,
        other => panic!("{body}: no fault but {other:?}"),
    }
}

/// Inputs `[thread, 0, 0, 0]`.
pub fn indices(threads: u32) -> Vec<Input> {
    (0..threads).map(|i| [i, 0, 0, 0]).collect()
}

/// Line of the first `needle` in the kernel around `body`.
pub fn line_of(body: &str, needle: &str) -> u32 {
    let text = kernel("sm_90a", body);
    (1..).zip(text.lines()).find(|(_, line)| line.contains(needle)).map_or(0, |(line, _)| line)
}
