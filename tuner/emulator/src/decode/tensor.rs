//! Matrix products: fragments to matrices, and the rounding of each target.
//!
//! Fragments are those of the PTX ISA ("Matrix fragments for mma.m16n8k16", "… m16n8k32", "… wgmma.m64nNk32"), with
//! `g = lane / 4` and `t = lane % 4`. The fraction bits are MMA-Sim's; the FP8 `mma.sync` of sm_90 and sm_100 follows
//! the machine code that `ptxas` 13.0 makes of it: F16 products of the bytes with k % 4 < 2, then of the others,
//! from zero, and an f32 addition of C.

use super::context::{Context, Decoded};
use super::float::f16_value;
use super::minifloat::E4M3;
use super::names::Register;
use super::target::Target;
use crate::error::FaultKind;
use crate::exec::{
    ColumnsB, Lane, Lanes, MAX_K, Op, Participants, Registers, Rounding, RowsA, Tile, WARP, Wgmma, multiply, vectorised,
};
use std::sync::LazyLock;

/// F16 `mma.sync`.
fn f16_rounding(target: Target) -> Rounding {
    let (fraction, step) = if target == Target::Ada { (24, 8) } else { (25, 16) };
    Rounding { smallest: -14, fraction, mantissa: 23, step, c_last: false }
}

/// E4M3 `mma.sync`. Where bytes become f16, their subnormal numbers become normal.
fn e4m3_rounding(target: Target) -> Rounding {
    match target {
        Target::Ada => Rounding { smallest: -6, fraction: 13, mantissa: 13, step: 16, c_last: false },
        Target::Hopper | Target::Blackwell => {
            Rounding { smallest: -14, fraction: 25, mantissa: 23, step: 16, c_last: true }
        }
        Target::BlackwellRtx => Rounding { smallest: -6, fraction: 25, mantissa: 23, step: 32, c_last: false },
    }
}

/// E4M3 `wgmma`.
const WGMMA_ROUNDING: Rounding = Rounding { smallest: -6, fraction: 13, mantissa: 13, step: 32, c_last: false };

/// Values of the E4M3 bytes.
static E4M3_VALUES: LazyLock<[f64; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| f64::from(E4M3.decode(byte as u8))));

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form.clone();
    match form.as_slice() {
        ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "f16", "f16", "f32"] => {
            let elements =
                Elements { k: 16, width: 16, unpack: false, value: |bits| f64::from(f16_value(bits as u16)) };
            mma(context, elements, f16_rounding(context.target))
        }
        ["mma", "sync", "aligned", "m16n8k32", "row", "col", "f32", "e4m3", "e4m3", "f32"] => {
            let unpack = matches!(context.target, Target::Hopper | Target::Blackwell);
            let values = &*E4M3_VALUES;
            let elements = Elements { k: 32, width: 8, unpack, value: |bits| values[bits as usize & 0xFF] };
            mma(context, elements, e4m3_rounding(context.target))
        }
        ["wgmma", "mma_async", "sync", "aligned", shape, "f32", "e4m3", "e4m3"] => wgmma(context, shape),
        ["wgmma", "fence", "sync", "aligned"] => Ok(Some(Op::WgmmaFence)),
        ["wgmma", "commit_group", "sync", "aligned"] => Ok(Some(Op::WgmmaCommit)),
        ["wgmma", "wait_group", "sync", "aligned"] => Ok(Some(Op::WgmmaWait(context.immediate(0)?))),
        _ => Ok(None),
    }
}

/// How registers hold the elements of A and B.
#[derive(Clone, Copy)]
struct Elements<F> {
    k: usize,
    /// Bits of an element.
    width: u32,
    /// Whether elements with k % 4 < 2 come first.
    unpack: bool,
    /// From the bits of an element, with other bits above them.
    value: F,
}

impl<F: Fn(u32) -> f64> Elements<F> {
    /// Calls `put(g, k, value)` for every element in a register of all lanes: `half` 0 holds the first half of K.
    #[inline(always)]
    fn spread(&self, register: &[u32; WARP], half: usize, mut put: impl FnMut(usize, usize, f64)) {
        let count = (32 / self.width) as usize;
        for i in 0..count {
            let values = register.map(|register| (self.value)(register >> (self.width * i as u32)));
            for (lane, value) in values.into_iter().enumerate() {
                let k = half * self.k / 2 + lane % 4 * count + i;
                let at = if self.unpack { k % 4 / 2 * (self.k / 2) + k / 4 * 2 + k % 2 } else { k };
                put(lane / 4, at, value);
            }
        }
    }

    fn rows_a(&self, registers: &Registers, a: &[Register]) -> RowsA {
        let mut rows = [[0.0; MAX_K]; 16];
        vectorised(
            #[inline(always)]
            || {
                for (i, register) in a.iter().enumerate() {
                    let register = &registers.words[register.slot.0 as usize];
                    self.spread(register, i / 2, |g, k, value| rows[g + 8 * (i % 2)][k] = value);
                }
            },
        );
        rows
    }

    fn columns_b(&self, registers: &Registers, b: &[Register]) -> ColumnsB {
        let mut columns = [[0.0; MAX_K]; 8];
        vectorised(
            #[inline(always)]
            || {
                for (half, register) in b.iter().enumerate() {
                    let register = &registers.words[register.slot.0 as usize];
                    self.spread(register, half, |g, k, value| columns[g][k] = value);
                }
            },
        );
        columns
    }
}

fn read_tile(registers: &Registers, c: &[Register]) -> Tile {
    let mut tile = [[0.0; 8]; 16];
    for (i, register) in c.iter().enumerate() {
        let values = f32::read(registers, register.slot);
        for (lane, &value) in values.iter().enumerate() {
            tile[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2] = value;
        }
    }
    tile
}

fn write_tile(registers: &mut Registers, d: &[Register], tile: &Tile) {
    for (i, register) in d.iter().enumerate() {
        let values = std::array::from_fn(|lane| tile[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2]);
        f32::write(registers, register.slot, &values, Lanes::MAX);
    }
}

fn mma<F>(context: &mut Context, elements: Elements<F>, rounding: Rounding) -> Decoded
where
    F: Fn(u32) -> f64 + Send + Sync + 'static,
{
    context.expect(4)?;
    let (d, a) = (context.words(0, 4)?, context.words(1, 4)?);
    let (b, c) = (context.words(2, 2)?, context.words(3, 4)?);
    let work = move |registers: &mut Registers, _| {
        let (a, b) = (elements.rows_a(registers, &a), elements.columns_b(registers, &b));
        let result = multiply(&a, &b, &read_tile(registers, &c), elements.k, rounding);
        write_tile(registers, &d, &result);
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::All, work: Box::new(work) }))
}

fn wgmma(context: &mut Context, shape: &str) -> Decoded {
    let columns = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix("k32"));
    let Some(columns) = columns.and_then(|n| n.parse::<usize>().ok()).filter(|n| n % 8 == 0) else { return Ok(None) };
    if context.target != Target::Hopper {
        return context.error("only sm_90a has it");
    }
    context.expect(6)?;
    let (d, a) = (context.words(0, columns / 2)?, context.words(1, 4)?);
    let (b, accumulate) = (context.source::<u64>(2)?, context.source::<bool>(3)?);
    if (context.immediate(4)?, context.immediate(5)?) != (1, 1) {
        return context.error("negated operands are not supported");
    }
    Ok(Some(Op::Wgmma(Wgmma { d, a, b, accumulate })))
}

/// A shared-memory operand of `wgmma`, K-major and not swizzled: core matrices of 8 rows of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    start: u32,
    /// Bytes between core matrices along K.
    along_k: u32,
    /// Bytes between core matrices along N.
    along_n: u32,
}

impl Descriptor {
    /// Reads a descriptor by the PTX ISA's "Matrix descriptor format"; none where it asks for a swizzle.
    pub fn new(bits: u64) -> Option<Self> {
        let field = |at: u32| ((bits >> at & 0x3FFF) << 4) as u32;
        (bits >> 49 == 0).then(|| Self { start: field(0), along_k: field(16), along_n: field(32) })
    }

    /// Address of 16 elements along K: those from `16 * half`, of column `n`.
    fn chunk(&self, n: u32, half: u32) -> u64 {
        u64::from(self.start + n / 8 * self.along_n + half * self.along_k + n % 8 * 16)
    }
}

/// Carries out one warp's part of a `wgmma`: its 16 rows. `read` gives 16 bytes of shared memory.
pub(crate) fn run_wgmma(
    registers: &mut Registers,
    op: &Wgmma,
    descriptor: Descriptor,
    accumulate: bool,
    mut read: impl FnMut(u64) -> Result<u128, FaultKind>,
) -> Result<(), FaultKind> {
    let values = &*E4M3_VALUES;
    let elements = Elements { k: 32, width: 8, unpack: false, value: |bits| values[bits as usize & 0xFF] };
    let a = elements.rows_a(registers, &op.a);
    for (block, d) in op.d.chunks(4).enumerate() {
        let mut b = [[0.0; MAX_K]; 8];
        for (n, column) in b.iter_mut().enumerate() {
            for half in 0..2 {
                let bytes = read(descriptor.chunk((8 * block + n) as u32, half))?.to_le_bytes();
                for (i, &byte) in bytes.iter().enumerate() {
                    column[16 * half as usize + i] = values[usize::from(byte)];
                }
            }
        }
        let c = if accumulate { read_tile(registers, d) } else { [[0.0; 8]; 16] };
        write_tile(registers, d, &multiply(&a, &b, &c, 32, WGMMA_ROUNDING));
    }
    Ok(())
}
