//! Matrix products: fragments to matrices, and the rounding of each target.
//!
//! Fragments are those of the PTX ISA ("Matrix fragments for mma.m16n8k16", "… m16n8k32", "… wgmma.m64nNk32"), with
//! `g = lane / 4` and `t = lane % 4`. The fraction bits are MMA-Sim's; the FP8 `mma.sync` of sm_90 and sm_100 follows
//! the machine code that `ptxas` 13.0 makes of it: F16 products of the bytes with k % 4 < 2, then of the others,
//! from zero, and an f32 addition of C.

use super::context::{Context, Decoded};
use super::float::{bf16_value, f16_value};
use super::minifloat::{E4M3, E5M2};
use super::names::Register;
use super::target::Target;
use crate::exec::{
    ColumnsB, Lane, Lanes, MAX_K, Op, Participants, Registers, Rounding, RowsA, Tile, WARP, multiply, vectorised,
};
use std::sync::LazyLock;

/// F16 and bf16 `mma.sync`.
fn f16_rounding(target: Target) -> Rounding {
    let (fraction, step) = if target == Target::Ada { (24, 8) } else { (25, 16) };
    Rounding { smallest: -14, fraction, mantissa: 23, step, c_last: false }
}

/// The same for `wmma`, whose products are 16 elements long.
pub(super) fn half_rounding(target: Target, bf16: bool) -> Rounding {
    let rounding = f16_rounding(target);
    if bf16 { Rounding { smallest: -126, ..rounding } } else { rounding }
}

/// E4M3 and E5M2 `mma.sync`. Where bytes become f16, their subnormal numbers become normal.
fn e4m3_rounding(target: Target) -> Rounding {
    match target {
        Target::Ada => Rounding { smallest: -6, fraction: 13, mantissa: 13, step: 16, c_last: false },
        Target::Hopper | Target::Blackwell => {
            Rounding { smallest: -14, fraction: 25, mantissa: 23, step: 16, c_last: true }
        }
        Target::BlackwellRtx => Rounding { smallest: -6, fraction: 25, mantissa: 23, step: 32, c_last: false },
    }
}

/// Values of the E4M3 bytes.
pub(super) static E4M3_VALUES: LazyLock<[f64; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| f64::from(E4M3.decode(byte as u8))));

/// Values of the E5M2 bytes.
pub(super) static E5M2_VALUES: LazyLock<[f64; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| f64::from(E5M2.decode(byte as u8))));

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["mma", "sync", "aligned", shape @ ("m16n8k8" | "m16n8k16"), "row", "col", "f32", a, b, "f32"] if a == b => {
            let (k, width, unpack) = (if *shape == "m16n8k8" { 8 } else { 16 }, 16, false);
            let rounding = f16_rounding(context.target);
            let rounding = Rounding { step: rounding.step.min(k), ..rounding };
            match *a {
                "f16" => mma(
                    context,
                    Elements { k, width, unpack, value: |bits| f64::from(f16_value(bits as u16)) },
                    rounding,
                ),
                "bf16" => {
                    let elements = Elements { k, width, unpack, value: |bits| f64::from(bf16_value(bits as u16)) };
                    mma(context, elements, Rounding { smallest: -126, ..rounding })
                }
                _ => Ok(None),
            }
        }
        ["mma", "sync", "aligned", "m16n8k32", "row", "col", "f32", a, b, "f32"] if a == b => {
            let (values, smallest) = match *a {
                "e4m3" => (&*E4M3_VALUES, -6),
                "e5m2" => (&*E5M2_VALUES, -14),
                _ => return Ok(None),
            };
            let unpack = matches!(context.target, Target::Hopper | Target::Blackwell);
            let elements = Elements { k: 32, width: 8, unpack, value: |bits| values[bits as usize & 0xFF] };
            let rounding = e4m3_rounding(context.target);
            mma(context, elements, Rounding { smallest: rounding.smallest.min(smallest), ..rounding })
        }
        _ => Ok(None),
    }
}

/// How registers hold the elements of A and B.
#[derive(Clone, Copy)]
pub(super) struct Elements<F> {
    k: usize,
    /// Bits of an element.
    width: u32,
    /// Whether elements with k % 4 < 2 come first.
    unpack: bool,
    /// From the bits of an element, with other bits above them.
    value: F,
}

impl<F: Fn(u32) -> f64> Elements<F> {
    /// 32 bytes of K, one element after another.
    pub fn in_order(width: u32, value: F) -> Self {
        Self { k: 256 / width as usize, width, unpack: false, value }
    }

    /// Calls `put(g, k, value)` for every element in a register of all lanes: `half` 0 holds the first half of K.
    #[inline(always)]
    fn spread(&self, register: &[u32; WARP], half: usize, mut put: impl FnMut(usize, usize, f64)) {
        let count = (32 / self.width) as usize;
        for i in 0..count {
            let mut values = [0.0; WARP];
            for (value, register) in values.iter_mut().zip(register) {
                *value = (self.value)(register >> (self.width * i as u32));
            }
            for t in 0..4 {
                let k = half * self.k / 2 + t * count + i;
                let at = if self.unpack { k % 4 / 2 * (self.k / 2) + k / 4 * 2 + k % 2 } else { k };
                for g in 0..8 {
                    put(g, at, values[4 * g + t]);
                }
            }
        }
    }

    /// The rows of A in the registers of a warp.
    pub fn rows_a(&self, registers: &Registers, a: &[Register]) -> RowsA {
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

pub(super) fn read_tile(registers: &Registers, c: &[Register]) -> Tile {
    let mut tile = [[0.0; 8]; 16];
    for (i, register) in c.iter().enumerate() {
        let values = f32::read(registers, register.slot);
        for (row, values) in tile[i / 2 * 8..][..8].iter_mut().zip(values.as_chunks::<4>().0) {
            values.iter().enumerate().for_each(|(t, &value)| row[2 * t + i % 2] = value);
        }
    }
    tile
}

pub(super) fn write_tile(registers: &mut Registers, d: &[Register], tile: &Tile) {
    for (i, register) in d.iter().enumerate() {
        let mut values = [0.0; WARP];
        for (row, values) in tile[i / 2 * 8..][..8].iter().zip(values.as_chunks_mut::<4>().0) {
            values.iter_mut().enumerate().for_each(|(t, value)| *value = row[2 * t + i % 2]);
        }
        f32::write(registers, register.slot, &values, Lanes::MAX);
    }
}

fn mma<F>(context: &mut Context, elements: Elements<F>, rounding: Rounding) -> Decoded
where
    F: Fn(u32) -> f64 + Send + Sync + 'static,
{
    context.expect(4)?;
    // A register holds 32 bits of a row, a quarter of 16 bytes along K.
    let halves = elements.k * elements.width as usize / 128;
    let d = context.overwritten(|context| context.words(0, 4))?;
    let a = context.words(1, 2 * halves)?;
    let (b, c) = (context.words(2, halves)?, context.words(3, 4)?);
    let work = move |registers: &mut Registers, _| {
        let (a, b) = (elements.rows_a(registers, &a), elements.columns_b(registers, &b));
        let result = multiply(&a, &b, &read_tile(registers, &c), elements.k, rounding);
        write_tile(registers, &d, &result);
        Ok(())
    };
    Ok(Some(Op::Collective { participants: Participants::All, work: Box::new(work) }))
}
