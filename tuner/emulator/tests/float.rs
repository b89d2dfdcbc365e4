//! Floating point: rounding, NaN, zeros, conversions over all inputs of the small formats.

mod common;

use common::{Input, run};
use half::{bf16, f16};
use nvkv_reference::codec::{e2m1_decode, e4m3_decode, e4m3_encode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const NAN: u32 = 0x7FFF_FFFF;

/// f32 values that are hard, then random bit patterns.
fn values() -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(2);
    let mut all = vec![0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE];
    all.extend([f32::from_bits(1), f32::from_bits(0x8000_0001), f32::from_bits(0x7F80_0001), 1.0 + f32::EPSILON]);
    all.extend((all.len()..32).map(|_| f32::from_bits(rng.random())));
    all
}

/// Every pair of them, with a third value.
fn pairs() -> Vec<Input> {
    let mut rng = StdRng::seed_from_u64(3);
    let values = values();
    let mut all = Vec::new();
    for a in &values {
        all.extend(values.iter().map(|b| [a.to_bits(), b.to_bits(), rng.random(), 0]));
    }
    all
}

/// `%f0` to `%f2` from the input's bits, `%f9` to the output's.
fn check(instruction: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    let body = format!("mov.b32 %f0, %r0; mov.b32 %f1, %r1; mov.b32 %f2, %r2; {instruction} mov.b32 %r9, %f9;");
    let inputs = pairs();
    for (input, got) in inputs.iter().zip(run(&body, &inputs)) {
        let [a, b, c, _] = input.map(f32::from_bits);
        let expected = expected(a, b, c);
        let expected = if expected.is_nan() { NAN } else { expected.to_bits() };
        assert_eq!(got, expected, "{instruction} of {a:e}, {b:e}, {c:e}");
    }
}

#[test]
fn arithmetic_rounds_once_and_makes_the_canonical_nan() {
    check("add.f32 %f9, %f0, %f1;", |a, b, _| a + b);
    check("sub.rn.f32 %f9, %f0, %f1;", |a, b, _| a - b);
    check("mul.rn.f32 %f9, %f0, %f1;", |a, b, _| a * b);
    check("div.rn.f32 %f9, %f0, %f1;", |a, b, _| a / b);
    check("rcp.rn.f32 %f9, %f0;", |a, _, _| 1.0 / a);
    check("fma.rn.f32 %f9, %f0, %f1, %f2;", f32::mul_add);
}

#[test]
fn a_fused_multiply_add_keeps_what_a_product_would_round_away() {
    // (1 + e)^2 - (1 + 2 e) = e^2
    let a = 1.0 + f32::EPSILON;
    let input = [a.to_bits(), a.to_bits(), (-(1.0 + 2.0 * f32::EPSILON)).to_bits(), 0];
    let body = "mov.b32 %f0, %r0; mov.b32 %f1, %r1; mov.b32 %f2, %r2; fma.rn.f32 %f9, %f0, %f1, %f2; mov.b32 %r9, %f9;";
    assert_eq!(run(body, &[input]), [(f32::EPSILON * f32::EPSILON).to_bits()]);
}

#[test]
fn minimum_and_maximum_prefer_numbers_and_order_zeros() {
    let special = |a: f32, b: f32, larger: bool| match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::NAN,
        (true, false) => b,
        (false, true) => a,
        _ if a == 0.0 && b == 0.0 => {
            if a.is_sign_negative() == larger {
                b
            } else {
                a
            }
        }
        _ => {
            if (a > b) == larger {
                a
            } else {
                b
            }
        }
    };
    check("min.f32 %f9, %f0, %f1;", |a, b, _| special(a, b, false));
    check("max.f32 %f9, %f0, %f1;", |a, b, _| special(a, b, true));
}

#[test]
fn comparisons_with_nan_are_false_unless_unordered() {
    let as_number = |instruction: &str| format!("{instruction} selp.f32 %f9, 0f3F800000, 0f00000000, %p0;");
    let one = |condition: bool| f32::from(u8::from(condition));
    check(&as_number("setp.lt.f32 %p0, %f0, %f1;"), |a, b, _| one(a < b));
    check(&as_number("setp.ne.f32 %p0, %f0, %f1;"), |a, b, _| one(a != b && !a.is_nan() && !b.is_nan()));
    check(&as_number("setp.leu.f32 %p0, %f0, %f1;"), |a, b, _| one(a <= b || a.is_nan() || b.is_nan()));
    check(&as_number("setp.neu.f32 %p0, %f0, %f1;"), |a, b, _| one(a != b));
}

#[test]
fn approximations_are_within_their_bounds_and_flush_where_they_say_so() {
    let run1 = |instruction: &str, x: f32| {
        let body = format!("mov.b32 %f0, %r0; {instruction} mov.b32 %r9, %f9;");
        f32::from_bits(run(&body, &[[x.to_bits(), 0, 0, 0]])[0])
    };
    for i in 0..500 {
        let x = f32::from(i as i16 - 250) * 0.37;
        let got = f64::from(run1("ex2.approx.ftz.f32 %f9, %f0;", x));
        assert!((got / f64::from(x).exp2() - 1.0).abs() < 2f64.powi(-22), "2^{x} is {got}");
    }
    assert_eq!(run1("ex2.approx.ftz.f32 %f9, %f0;", -127.0).to_bits(), 0, "a subnormal result");
    assert_eq!(run1("ex2.approx.ftz.f32 %f9, %f0;", f32::NEG_INFINITY), 0.0);
    assert_eq!(run1("ex2.approx.f32 %f9, %f0;", -127.0), 2f32.powi(-127));
    assert_eq!(run1("lg2.approx.f32 %f9, %f0;", 0.125), -3.0);
    assert_eq!(run1("lg2.approx.f32 %f9, %f0;", 0.0), f32::NEG_INFINITY);
}

#[test]
fn every_f16_widens_and_every_f32_narrows_to_nearest_even() {
    let inputs: Vec<Input> = (0..0x1_0000).map(|bits| [bits, 0, 0, 0]).collect();
    let body = "cvt.u16.u32 %h0, %r0; cvt.f32.f16 %f9, %h0; mov.b32 %r9, %f9;";
    for (bits, got) in (0..=u16::MAX).zip(run(body, &inputs)) {
        let value = f16::from_bits(bits).to_f32();
        assert_eq!(got, if value.is_nan() { NAN } else { value.to_bits() }, "{bits:#x}");
    }
    let body = "mov.b32 %f0, %r0; mov.b32 %f1, %r1; cvt.rn.f16x2.f32 %r9, %f0, %f1;";
    let inputs = pairs();
    let half = |bits: u32| {
        let value = f32::from_bits(bits);
        if value.is_nan() { 0x7FFF } else { f16::from_f32(value).to_bits() }
    };
    for (input, got) in inputs.iter().zip(run(body, &inputs)) {
        assert_eq!(got, u32::from(half(input[0])) << 16 | u32::from(half(input[1])), "{input:x?}");
    }
    let body = "mov.b32 %f0, %r0; mov.b32 %f1, %r1; cvt.rn.bf16x2.f32 %r9, %f0, %f1;";
    let half = |bits: u32| {
        let value = f32::from_bits(bits);
        if value.is_nan() { 0x7FFF } else { bf16::from_f32(value).to_bits() }
    };
    for (input, got) in inputs.iter().zip(run(body, &inputs)) {
        assert_eq!(got, u32::from(half(input[0])) << 16 | u32::from(half(input[1])), "{input:x?}");
    }
}

#[test]
fn every_e4m3_and_e2m1_code_has_the_value_of_the_codec() {
    let half = |value: f32| if value.is_nan() { 0x7FFF } else { u32::from(f16::from_f32(value).to_bits()) };
    let inputs: Vec<Input> = (0..256).map(|code| [code << 8 | (code ^ 0x55), 0, 0, 0]).collect();
    let body = "cvt.u16.u32 %h0, %r0; cvt.rn.f16x2.e4m3x2 %r9, %h0;";
    for (input, got) in inputs.iter().zip(run(body, &inputs)) {
        let [low, high, ..] = input[0].to_le_bytes();
        let expected = half(e4m3_decode(high)) << 16 | half(e4m3_decode(low));
        assert_eq!(got, expected, "{input:x?}");
    }
    let inputs: Vec<Input> = (0..256).map(|codes| [codes << 8, 0, 0, 0]).collect();
    let body = "{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, %r0; cvt.rn.f16x2.e2m1x2 %r9, b; }";
    for (codes, got) in (0..=u8::MAX).zip(run(body, &inputs)) {
        assert_eq!(got, half(e2m1_decode(codes >> 4)) << 16 | half(e2m1_decode(codes & 15)), "{codes:#x}");
    }
}

#[test]
fn e4m3_rounds_to_nearest_even_and_saturates_like_the_codec() {
    // Every f16 as an f32: all ties of E4M3 among them.
    let inputs: Vec<Input> = (0..=u16::MAX).map(|bits| [f16::from_bits(bits).to_f32().to_bits(), 0x42, 0, 0]).collect();
    let body =
        "mov.b32 %f0, %r0; mov.b32 %f1, 0f3F800000; cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1; cvt.u32.u16 %r9, %h0;";
    for (input, got) in inputs.iter().zip(run(body, &inputs)) {
        let value = f32::from_bits(input[0]);
        let code = if value.is_nan() { 0x7F } else { e4m3_encode(value) };
        assert_eq!(got, u32::from(code) << 8 | 0x38, "{value:e}");
    }
}

#[test]
fn packed_f16_products_round_each_half() {
    let mut rng = StdRng::seed_from_u64(4);
    let inputs: Vec<Input> = (0..4096).map(|_| rng.random()).collect();
    for (input, got) in inputs.iter().zip(run("mul.rn.f16x2 %r9, %r0, %r1;", &inputs)) {
        let half = |shift: u32| {
            let [a, b] = [input[0], input[1]].map(|bits| f16::from_bits((bits >> shift) as u16).to_f64());
            let product = a * b;
            u32::from(if product.is_nan() { 0x7FFF } else { f16::from_f64(product).to_bits() })
        };
        assert_eq!(got, half(16) << 16 | half(0), "{input:x?}");
    }
}

/// PTX ISA, `div`: where 2^126 < |b| < 2^128 `div.approx.f32` gives NaN for an infinite a, else 0.
#[test]
fn fast_division_by_what_has_no_fast_reciprocal() {
    let quotient = |form: &str, a: f32, b: f32| {
        let body = format!("mov.b32 %f0, %r0; mov.b32 %f1, %r1; {form} %f2, %f0, %f1; mov.b32 %r9, %f2;");
        f32::from_bits(run(&body, &[[a.to_bits(), b.to_bits(), 0, 0]])[0])
    };
    let (at, beyond) = (126f32.exp2(), 127f32.exp2());
    for form in ["div.approx.f32", "div.approx.ftz.f32"] {
        assert_eq!(quotient(form, beyond, beyond), 0.0, "{form}");
        assert!(quotient(form, f32::INFINITY, -beyond).is_nan(), "{form}");
        assert_eq!(quotient(form, at, at), 1.0, "{form}");
        assert_eq!(quotient(form, 6.0, 3.0), 2.0, "{form}");
    }
    assert_eq!(quotient("div.full.f32", beyond, beyond), 1.0);
}
