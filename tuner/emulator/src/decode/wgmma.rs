//! `wgmma`: which operands there are, and what a warp of the group computes.

use super::context::{Context, Decoded};
use super::descriptor::Matrix;
use super::float::{bf16_value, f16_value};
use super::names::Register;
use super::target::Target;
use super::tensor::{E4M3_VALUES, E5M2_VALUES, Elements, read_tile, write_tile};
use crate::exec::{ColumnsB, MAX_K, Op, Registers, Rounding, RowsA, Wgmma, WgmmaA, WgmmaType, multiply};

pub(super) fn decode(context: &mut Context) -> Decoded {
    let form = context.form;
    match form {
        ["wgmma", "mma_async", "sync", "aligned", shape, "f32", a, b] => {
            let (Some(a), Some(b)) = (element_type(a), element_type(b)) else { return Ok(None) };
            let mixed = a != b && (a.bytes() != 1 || b.bytes() != 1);
            let k = 32 / a.bytes();
            let columns = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix(&format!("k{k}")));
            match columns.and_then(|n| n.parse::<usize>().ok()) {
                Some(n) if n % 8 == 0 && (8..=256).contains(&n) && !mixed => multiply_async(context, n, [a, b]),
                _ => Ok(None),
            }
        }
        ["wgmma", "fence", "sync", "aligned"] => Ok(Some(Op::WgmmaFence)),
        ["wgmma", "commit_group", "sync", "aligned"] => Ok(Some(Op::WgmmaCommit)),
        ["wgmma", "wait_group", "sync", "aligned"] => Ok(Some(Op::WgmmaWait(context.immediate(0)?))),
        _ => Ok(None),
    }
}

fn element_type(name: &str) -> Option<WgmmaType> {
    Some(match name {
        "e4m3" => WgmmaType::E4M3,
        "e5m2" => WgmmaType::E5M2,
        "f16" => WgmmaType::F16,
        "bf16" => WgmmaType::Bf16,
        _ => return None,
    })
}

/// `d, a, b, accumulate, ±1, ±1{, transposed a}{, transposed b}`: types of 16 bits say how matrices in shared memory
/// lie.
fn multiply_async(context: &mut Context, columns: usize, types: [WgmmaType; 2]) -> Decoded {
    if context.target != Target::Hopper {
        return context.error("only sm_90a has it");
    }
    let d = context.words(0, columns / 2)?;
    let in_registers = matches!(context.operand(1)?, crate::read::Operand::Vector(_));
    let a =
        if in_registers { WgmmaA::Registers(context.words(1, 4)?) } else { WgmmaA::Shared(context.source::<u64>(1)?) };
    let (b, accumulate) = (context.source::<u64>(2)?, context.source::<bool>(3)?);
    let transposes = if types[0].bytes() == 1 { 0 } else { 2 - usize::from(in_registers) };
    context.expect(6 + transposes)?;
    let mut negated = [false; 2];
    for (i, negated) in negated.iter_mut().enumerate() {
        *negated = match context.operand(4 + i)? {
            crate::read::Operand::Integer(1) => false,
            crate::read::Operand::Integer(-1) => true,
            other => return context.error(format!("factors are 1 or -1, not {other:?}")),
        };
    }
    let transposed_b = transposes > 0 && context.immediate(5 + transposes)? == 1;
    let transposed_a = transposes == 2 && context.immediate(6)? == 1;
    let k_major = [!transposed_a, !transposed_b];
    Ok(Some(Op::Wgmma(Box::new(Wgmma { d, a, b, accumulate, types, k_major, negated }))))
}

impl WgmmaType {
    /// Bytes of an element.
    pub fn bytes(self) -> u32 {
        match self {
            Self::E4M3 | Self::E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Value of the element in the low bits.
    fn value(self, bits: u32) -> f64 {
        match self {
            Self::E4M3 => E4M3_VALUES[bits as usize & 0xFF],
            Self::E5M2 => E5M2_VALUES[bits as usize & 0xFF],
            Self::F16 => f64::from(f16_value(bits as u16)),
            Self::Bf16 => f64::from(bf16_value(bits as u16)),
        }
    }

    /// The element `i` of some bytes.
    fn element(self, bytes: &[u8], i: usize) -> f64 {
        match self.bytes() {
            1 => self.value(u32::from(bytes[i])),
            _ => self.value(u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]))),
        }
    }

    /// Exponent of its smallest normal number.
    fn smallest(self) -> i32 {
        match self {
            Self::E4M3 => -6,
            Self::E5M2 | Self::F16 => -14,
            Self::Bf16 => -126,
        }
    }

    /// How products of the type are added up.
    fn rounding(self) -> Rounding {
        let smallest = self.smallest();
        match self.bytes() {
            1 => Rounding { smallest, fraction: 13, mantissa: 13, step: 32, c_last: false },
            _ => Rounding { smallest, fraction: 25, mantissa: 23, step: 16, c_last: false },
        }
    }
}

/// A warp's 16 rows of A from registers.
pub(crate) fn rows_of_registers(registers: &Registers, a: &[Register], kind: WgmmaType) -> RowsA {
    let (e4m3, e5m2) = (&*E4M3_VALUES, &*E5M2_VALUES);
    match kind {
        WgmmaType::E4M3 => Elements::in_order(8, |bits| e4m3[bits as usize & 0xFF]).rows_a(registers, a),
        WgmmaType::E5M2 => Elements::in_order(8, |bits| e5m2[bits as usize & 0xFF]).rows_a(registers, a),
        WgmmaType::F16 => Elements::in_order(16, |bits| f64::from(f16_value(bits as u16))).rows_a(registers, a),
        WgmmaType::Bf16 => Elements::in_order(16, |bits| f64::from(bf16_value(bits as u16))).rows_a(registers, a),
    }
}

/// Fills rows of a matrix from shared memory; `read` gives the 16 bytes of an address.
pub(crate) fn fill_rows<E>(
    rows: &mut [[f64; MAX_K]],
    matrix: Matrix,
    first: u32,
    kind: WgmmaType,
    mut read: impl FnMut(u64) -> Result<[u8; 16], E>,
) -> Result<(), E> {
    let (count, k_major) = ((16 / kind.bytes()) as usize, matrix.is_k_major());
    for chunk in matrix.chunks(first, rows.len() as u32, kind.bytes()) {
        let bytes = read(chunk.address)?;
        for i in 0..count {
            let (row, k) = if k_major { (chunk.row, chunk.k + i) } else { (chunk.row + i, chunk.k) };
            rows[row][k] = kind.element(&bytes, i);
        }
    }
    Ok(())
}

/// Adds the product with 8 columns of B to the accumulators of these columns, or replaces them.
pub(crate) fn multiply_columns(
    registers: &mut Registers,
    op: &Wgmma,
    block: usize,
    a: &RowsA,
    b: &mut ColumnsB,
    accumulate: bool,
) {
    if op.negated[0] != op.negated[1] {
        b.iter_mut().flatten().for_each(|value| *value = -*value);
    }
    let d = &op.d[4 * block..4 * block + 4];
    let c = if accumulate { read_tile(registers, d) } else { [[0.0; 8]; 16] };
    let kind = op.types[0];
    let mut rounding = kind.rounding();
    rounding.smallest = rounding.smallest.min(op.types[1].smallest());
    write_tile(registers, d, &multiply(a, b, &c, 32 / kind.bytes() as usize, rounding));
}
