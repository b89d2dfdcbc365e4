//! `cvt` in every rounding and saturation, against Rust's conversions, the half crate and searches over all codes.

mod common;

use common::{Input, run, try_run};
use half::{bf16, f16};
use nvkv_reference::codec::{e2m1_decode, e2m1_encode, e4m3_encode};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const NAN: u32 = 0x7FFF_FFFF;

/// Floats around integers and limits, and random bits.
fn floats() -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(31);
    let mut all =
        vec![0.0, -0.0, 0.5, 1.5, -0.5, -2.5, 127.5, -128.5, 255.5, 65535.5, 2147483648.0, -2147483904.0, 4294967296.0];
    all.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e20, -1e20, 9.3e18, 0.99999994]);
    all.extend((all.len()..256).map(|_| rng.random_range(-300.0f32..300.0)));
    all.extend((256..1024).map(|_| f32::from_bits(rng.random())));
    all
}

fn check(body: &str, expected: impl Fn(f32) -> u32) {
    let values = floats();
    let inputs: Vec<Input> = values.iter().map(|x| [x.to_bits(), 0, 0, 0]).collect();
    for (x, got) in values.iter().zip(run(&format!("mov.b32 %f0, %r0; {body}"), &inputs)) {
        assert_eq!(got, expected(*x), "{body} of {x:e}");
    }
}

fn rounded(mode: &str, x: f32) -> f32 {
    match mode {
        "rni" => x.round_ties_even(),
        "rzi" => x.trunc(),
        "rmi" => x.floor(),
        _ => x.ceil(),
    }
}

#[test]
fn floats_become_integers_in_every_rounding_and_clamp() {
    for mode in ["rni", "rzi", "rmi", "rpi"] {
        check(&format!("cvt.{mode}.s32.f32 %r9, %f0;"), |x| rounded(mode, x) as i32 as u32);
        check(&format!("cvt.{mode}.u32.f32 %r9, %f0;"), |x| rounded(mode, x) as u32);
        check(&format!("cvt.{mode}.s8.f32 %r9, %f0;"), |x| rounded(mode, x) as i8 as u32);
        check(&format!("cvt.{mode}.u16.f32 %h0, %f0; cvt.u32.u16 %r9, %h0;"), |x| u32::from(rounded(mode, x) as u16));
        check(&format!("cvt.{mode}.f32.f32 %f9, %f0; mov.b32 %r9, %f9;"), |x| {
            if x.is_nan() { NAN } else { rounded(mode, x).to_bits() }
        });
        let high = |bits: u64| (bits >> 32) as u32 ^ bits as u32;
        check(&format!("cvt.{mode}.s64.f32 %rd0, %f0; mov.b64 {{%r8, %r9}}, %rd0; xor.b32 %r9, %r9, %r8;"), |x| {
            high(if x.is_nan() { 1 << 63 } else { rounded(mode, x) as i64 as u64 })
        });
    }
    // From f64, NaN is the sign bit alone (PTX ISA, `cvt`).
    check("cvt.f64.f32 %rd0, %f0; cvt.rzi.s32.f64 %r9, %rd0;", |x| if x.is_nan() { 1 << 31 } else { x as i32 as u32 });
}

#[test]
fn floats_narrow_in_every_rounding() {
    check("cvt.rn.f16.f32 %h0, %f0; cvt.u32.u16 %r9, %h0;", |x| {
        if x.is_nan() { 0x7FFF } else { f16::from_f32(x).to_bits().into() }
    });
    // Toward zero: the largest magnitude that is not above.
    let toward_zero = |x: f32, nearest: u16, value: &dyn Fn(u16) -> f32| -> u32 {
        let above = value(nearest).abs() > x.abs();
        u32::from(if above { nearest - 1 } else { nearest })
    };
    check("cvt.rz.f16.f32 %h0, %f0; cvt.u32.u16 %r9, %h0;", |x| match x {
        _ if x.is_nan() => 0x7FFF,
        _ if x.is_infinite() => f16::from_f32(x).to_bits().into(),
        _ => toward_zero(x, f16::from_f32(x).to_bits(), &|bits| f16::from_bits(bits).to_f32()),
    });
    check("cvt.rz.bf16x2.f32 %r9, %f0, %f0;", |x| {
        let half = if x.is_nan() { 0x7FFF } else { x.to_bits() >> 16 };
        half << 16 | half
    });
    check("cvt.rn.relu.f16x2.f32 %r9, %f0, 0f3F800000;", |x| {
        let half = if x.is_nan() { 0x7FFF } else { u32::from(f16::from_f32(if x > 0.0 { x } else { 0.0 }).to_bits()) };
        half << 16 | 0x3C00
    });
    check("cvt.rn.bf16.f32 %h0, %f0; cvt.u32.u16 %r9, %h0;", |x| {
        if x.is_nan() { 0x7FFF } else { bf16::from_f32(x).to_bits().into() }
    });
    check("cvt.rna.tf32.f32 %r9, %f0;", |x| {
        if x.is_nan() {
            // The H200 cuts its payload.
            x.to_bits() & !0x1FFF
        } else if x.is_infinite() {
            x.to_bits()
        } else {
            (x.to_bits() + 0x1000) & 0xFFFF_E000
        }
    });
    check("cvt.sat.f32.f32 %f9, %f0; mov.b32 %r9, %f9;", |x| {
        if x.is_nan() { 0 } else { (x.clamp(0.0, 1.0) + 0.0).to_bits() }
    });
    check(
        "cvt.ftz.f32.f16 %f9, %h0; mov.b32 %r9, %f9;"
            .replace("%h0", "%h1")
            .replace("cvt.ftz", "cvt.u16.u32 %h1, %r0; cvt.ftz")
            .as_str(),
        |x| {
            let value = f16::from_bits(x.to_bits() as u16).to_f32();
            if value.is_nan() { NAN } else { value.to_bits() }
        },
    );
}

#[test]
fn f64_narrows_once() {
    // 1 + 2^-24 + 2^-60 lies above the tie that f32 would round to even.
    let bits = (1.0 + 2f64.powi(-24) + 2f64.powi(-50)).to_bits();
    let input = [bits as u32, (bits >> 32) as u32, 0, 0];
    let f32_of = |mode: &str| {
        run(&format!("mov.b64 %rd0, {{%r0, %r1}}; cvt.{mode}.f32.f64 %f9, %rd0; mov.b32 %r9, %f9;"), &[input])[0]
    };
    assert_eq!(["rn", "rz", "rm", "rp"].map(f32_of), [0x3F80_0001, 0x3F80_0000, 0x3F80_0000, 0x3F80_0001]);
    // The same just above a tie of f16, which f32 would lose.
    let bits = (1.0 + 2f64.powi(-11) + 2f64.powi(-40)).to_bits();
    let input = [bits as u32, (bits >> 32) as u32, 0, 0];
    let body = "mov.b64 %rd0, {%r0, %r1}; cvt.rn.f16.f64 %h0, %rd0; cvt.u32.u16 %r9, %h0;";
    assert_eq!(run(body, &[input]), [0x3C01]);
}

#[test]
fn integers_become_floats_in_every_rounding() {
    let mut rng = StdRng::seed_from_u64(32);
    let mut inputs: Vec<Input> = (0..1020).map(|_| rng.random()).collect();
    inputs.extend([[0; 4], [u32::MAX; 4], [0x8000_0000; 4], [0x0100_0001, 0, 0, 0]]);
    let check = |body: &str, expected: &dyn Fn(Input) -> u32| {
        for (input, got) in inputs.iter().zip(run(body, &inputs)) {
            assert_eq!(got, expected(*input), "{body} of {input:x?}");
        }
    };
    check("cvt.rn.f32.s32 %f9, %r0; mov.b32 %r9, %f9;", &|[a, ..]| (a as i32 as f32).to_bits());
    check("cvt.rz.f32.u32 %f9, %r0; mov.b32 %r9, %f9;", &|[a, ..]| {
        // Cut to 24 bits.
        let extra = 8u32.saturating_sub(a.leading_zeros());
        ((a >> extra << extra) as f32).to_bits()
    });
    check("mov.b64 %rd0, {%r0, %r1}; cvt.rn.f32.u64 %f9, %rd0; mov.b32 %r9, %f9;", &|[a, b, ..]| {
        ((u64::from(b) << 32 | u64::from(a)) as f32).to_bits()
    });
    check(
        "mov.b64 %rd0, {%r0, %r1}; cvt.rn.f64.s64 %rd1, %rd0; mov.b64 {%r8, %r9}, %rd1; xor.b32 %r9, %r8, %r9;",
        &|[a, b, ..]| {
            let bits = ((u64::from(b) << 32 | u64::from(a)) as i64 as f64).to_bits();
            (bits >> 32) as u32 ^ bits as u32
        },
    );
    check("cvt.u16.u32 %h0, %r0; cvt.rn.f16.u16 %h1, %h0; cvt.u32.u16 %r9, %h1;", &|[a, ..]| {
        f16::from_f64(f64::from(a as u16)).to_bits().into()
    });
    check("cvt.sat.s8.s32 %r9, %r0;", &|[a, ..]| (a as i32).clamp(-128, 127) as u32);
    check("cvt.sat.u8.s32 %r9, %r0;", &|[a, ..]| (a as i32).clamp(0, 255) as u32);
    check("cvt.sat.s32.u32 %r9, %r0;", &|[a, ..]| a.min(i32::MAX as u32));
    check("cvt.sat.u16.u32 %h0, %r0; cvt.u32.u16 %r9, %h0;", &|[a, ..]| a.min(65535));
}

/// The code of least distance, the even one of two; `decode` of all codes below `codes`, the sign bit above them.
fn nearest(x: f32, codes: u8, decode: impl Fn(u8) -> f32) -> u8 {
    let magnitude = f64::from(x.abs());
    let distance = |code: u8| (f64::from(decode(code)) - magnitude).abs();
    (0..codes).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap_or(0)
}

/// E5M2 is the upper byte of an f16.
fn e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

#[test]
fn e5m2_is_the_upper_byte_of_an_f16() {
    let inputs: Vec<Input> = (0..256).map(|code| [code << 8 | (255 - code), 0, 0, 0]).collect();
    let half = |code: u8| if e5m2(code).is_nan() { 0x7FFF } else { u32::from(code) << 8 };
    for (input, got) in inputs.iter().zip(run("cvt.u16.u32 %h0, %r0; cvt.rn.f16x2.e5m2x2 %r9, %h0;", &inputs)) {
        let [low, high, ..] = input[0].to_le_bytes();
        assert_eq!(got, half(high) << 16 | half(low), "{input:x?}");
    }
    let values: Vec<u16> = (0..=u16::MAX).collect();
    let inputs: Vec<Input> =
        values.iter().map(|&bits| [f16::from_bits(bits).to_f32().to_bits(), bits.into(), 0, 0]).collect();
    let expected = |bits: u16| {
        let x = f16::from_bits(bits).to_f32();
        let sign = u8::from(x.is_sign_negative()) << 7;
        if x.is_nan() { 0x7F } else { sign | nearest(x.clamp(-57344.0, 57344.0), 0x7C, e5m2) }
    };
    let body = "mov.b32 %f0, %r0; cvt.rn.satfinite.e5m2x2.f32 %h0, %f0, 0f3F800000; cvt.u32.u16 %r9, %h0;";
    for (&bits, got) in values.iter().zip(run(body, &inputs)) {
        assert_eq!(got, u32::from(expected(bits)) << 8 | 0x3C, "{bits:#x}");
    }
    let body = "cvt.rn.satfinite.e5m2x2.f16x2 %h0, %r1; cvt.u32.u16 %r9, %h0;";
    for (&bits, got) in values.iter().zip(run(body, &inputs)) {
        assert_eq!(got, u32::from(expected(bits)), "{bits:#x}");
    }
}

#[test]
fn e2m1_of_every_f16_and_around_every_border_is_the_codec_s() {
    let mut values: Vec<f32> = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect();
    let borders = [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.5];
    let around = borders
        .iter()
        .flat_map(|border| (-2..=2).map(|ulps| f32::from_bits(border.to_bits().wrapping_add_signed(ulps))));
    let around: Vec<f32> = around.flat_map(|x| [x, -x]).collect();
    // Blocks of 1,024 threads must be full.
    values.extend(around.iter().cycle().take(1024));
    let inputs: Vec<Input> = values.iter().map(|x| [x.to_bits(), 0, 0, 0]).collect();
    for (relu, form) in [(false, "satfinite"), (true, "satfinite.relu")] {
        let body = format!(
            "mov.b32 %f0, %r0; {{ .reg .b8 a; cvt.rn.{form}.e2m1x2.f32 a, %f0, 0f40000000; cvt.u32.u8 %r9, a; }}"
        );
        for (&x, got) in values.iter().zip(run(&body, &inputs)) {
            let code = match x {
                _ if x.is_nan() => 7,
                _ if relu && x.is_sign_negative() => 0,
                _ => e2m1_encode(x),
            };
            assert_eq!(got, u32::from(code) << 4 | u32::from(e2m1_encode(2.0)), "{form} of {x:e}");
        }
    }
    let inputs: Vec<Input> = (0..256).map(|codes| [codes, 0, 0, 0]).collect();
    let body = "{ .reg .b8 a; cvt.u8.u32 a, %r0; cvt.rn.relu.f16x2.e2m1x2 %r9, a; }";
    for (codes, got) in (0..=u8::MAX).zip(run(body, &inputs)) {
        let half = |code: u8| u32::from(f16::from_f32(e2m1_decode(code).max(0.0)).to_bits()) & 0x7FFF;
        assert_eq!(got, half(codes >> 4) << 16 | half(codes & 15), "{codes:#x}");
    }
}

#[test]
fn e4m3_with_relu_has_no_negative_codes() {
    let values: Vec<f32> = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).collect();
    let inputs: Vec<Input> = values.iter().map(|x| [x.to_bits(), 0, 0, 0]).collect();
    let body = "mov.b32 %f0, %r0; cvt.rn.satfinite.relu.e4m3x2.f32 %h0, %f0, %f0; cvt.u32.u16 %r9, %h0;";
    for (&x, got) in values.iter().zip(run(body, &inputs)) {
        let code = if x.is_nan() { 0x7F } else { u32::from(e4m3_encode(x.max(0.0))) & 0x7F };
        assert_eq!(got, code << 8 | code, "{x:e}");
    }
}

#[test]
fn conversions_without_the_rounding_that_they_need_are_errors() {
    for body in
        ["cvt.rs.f16x2.f32 %r9, %f0, %f1, %r0;", "cvt.s32.f32 %r9, %f0;", "cvt.f32.s32 %f9, %r0; mov.u32 %r9, 0;"]
    {
        assert!(try_run("sm_100a", body, &[[0; 4]]).is_err(), "{body}");
    }
}
