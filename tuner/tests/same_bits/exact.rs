//! PTX in which every result is defined to the bit: what a GPU approximates, or a compiler may fuse, is written out.

use std::fmt::Write;

/// `ptx` with a rounding for each `add`, `sub` and `mul`, so that `ptxas` fuses none, and with `rcp.approx`
/// rounded, and `ex2.approx` and `lg2.approx` as polynomials of instructions whose rounding PTX defines.
pub fn exact(ptx: &str) -> String {
    let mut text = String::new();
    for line in ptx.lines() {
        if line.trim_start().starts_with("//") {
            text += line;
        } else {
            line.split_inclusive(';').for_each(|statement| text += &exact_statement(statement));
        }
        text += "\n";
    }
    assert!(!text.contains(".approx"), "an approximation is left");
    text
}

fn exact_statement(statement: &str) -> String {
    let Some(Parts { before, guard, opcode, operands }) = parts(statement) else { return statement.to_string() };
    match opcode {
        "add.f32" | "sub.f32" | "mul.f32" | "add.f16x2" | "sub.f16x2" | "mul.f16x2" => {
            let (operation, kind) = opcode.split_once('.').unwrap_or_default();
            format!("{before}{guard}{operation}.rn.{kind}{operands}")
        }
        "rcp.approx.ftz.f32" => format!("{before}{guard}rcp.rn.ftz.f32{operands}"),
        "ex2.approx.f32" | "ex2.approx.ftz.f32" => before.to_string() + &written_out(guard, operands, exp2()),
        "lg2.approx.f32" | "lg2.approx.ftz.f32" => before.to_string() + &written_out(guard, operands, log2()),
        _ => statement.to_string(),
    }
}

/// A statement: what stands before it, `@p ` or nothing, the opcode, ` d, a;`.
struct Parts<'a> {
    before: &'a str,
    guard: &'a str,
    opcode: &'a str,
    operands: &'a str,
}

fn parts(statement: &str) -> Option<Parts<'_>> {
    let start = statement.find(|c: char| c.is_ascii_alphabetic() || c == '@')?;
    let (before, rest) = statement.split_at(start);
    let after_guard = if rest.starts_with('@') { rest.find(char::is_whitespace)? + 1 } else { 0 };
    let (guard, rest) = rest.split_at(after_guard);
    let (opcode, operands) = rest.split_at(rest.find(char::is_whitespace)?);
    Some(Parts { before, guard, opcode, operands })
}

/// `steps` from register `x` to `y`, between moves from and to the operands.
fn written_out(guard: &str, operands: &str, steps: String) -> String {
    let (d, a) = operands.trim().trim_end_matches(';').split_once(',').expect("two operands");
    format!(
        "{{ .reg .f32 x, y, r, s, t; .reg .b32 i, j; .reg .pred q; mov.f32 x, {}; {steps} {guard}mov.f32 {}, y; }}",
        a.trim(),
        d.trim()
    )
}

fn literal(value: f64) -> String {
    format!("0f{:08X}", (value as f32).to_bits())
}

/// 2^x: the nearest integer goes to the exponent, what is left into a Taylor polynomial; 0 below 2^-126.
fn exp2() -> String {
    let mut text = format!(
        "max.f32 r, x, {}; min.f32 r, r, {}; cvt.rni.s32.f32 i, r; cvt.rn.f32.s32 s, i; sub.rn.f32 r, r, s; ",
        literal(-126.0),
        literal(127.0)
    );
    let ln2 = std::f64::consts::LN_2;
    let coefficients: Vec<f64> =
        (0..8).scan(1.0, |c, k| Some(std::mem::replace(c, *c * ln2 / f64::from(k + 1)))).collect();
    let _ = write!(text, "mov.f32 y, {}; ", literal(coefficients[7]));
    for &coefficient in coefficients[..7].iter().rev() {
        let _ = write!(text, "fma.rn.f32 y, y, r, {}; ", literal(coefficient));
    }
    let _ = write!(
        text,
        "shl.b32 i, i, 23; mov.b32 j, y; add.s32 j, j, i; mov.b32 y, j; setp.lt.f32 q, x, {0}; \
         selp.f32 y, {1}, y, q;",
        literal(-126.0),
        literal(0.0)
    );
    text
}

/// log2 x for positive normal x: with m in [sqrt(1/2), sqrt(2)), of s = (m - 1) / (m + 1) the odd series.
fn log2() -> String {
    let mut text = "mov.b32 i, x; sub.s32 j, i, 0x3F3504F3; shr.s32 j, j, 23; cvt.rn.f32.s32 t, j; shl.b32 j, j, 23; \
                    sub.s32 i, i, j; mov.b32 r, i; "
        .to_string();
    let _ = write!(text, "sub.rn.f32 s, r, {0}; add.rn.f32 r, r, {0}; div.rn.f32 s, s, r; ", literal(1.0));
    text += "mul.rn.f32 r, s, s; ";
    let coefficient = |k: i32| literal(2.0 * std::f64::consts::LOG2_E / f64::from(k));
    let _ = write!(text, "mov.f32 y, {}; ", coefficient(9));
    for k in [7, 5, 3, 1] {
        let _ = write!(text, "fma.rn.f32 y, y, r, {}; ", coefficient(k));
    }
    text + "fma.rn.f32 y, y, s, t;"
}
