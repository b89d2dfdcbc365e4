//! f32, f64, f16 and bf16 in every rounding: against exact arithmetic in wider types.

mod common;

use common::{Input, run};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Floats of either sign with 2^-8 to 2^8, so that sums and products of few are exact in f64.
fn floats() -> Vec<Input> {
    let mut rng = StdRng::seed_from_u64(21);
    let mut float = || {
        (rng.random_range(1.0f32..2.0) * 2f32.powi(rng.random_range(-8..8))).to_bits() | rng.random_range(0..2u32) << 31
    };
    (0..1024).map(|_| [float(), float(), float(), 0]).collect()
}

/// Whether `got` is `exact` rounded that way to f32.
fn is_rounded(mode: &str, got: f32, exact: f64) -> bool {
    let (low, high) = (got.next_down(), got.next_up());
    let got = f64::from(got);
    match mode {
        "rm" => got <= exact && exact < f64::from(high),
        "rp" => got >= exact && exact > f64::from(low),
        "rz" if exact > 0.0 => got <= exact && exact < f64::from(high),
        "rz" => got >= exact && exact > f64::from(low),
        _ => got == f64::from(exact as f32),
    }
}

fn check(operation: &str, exact: impl Fn(f64, f64, f64) -> f64) {
    let inputs = floats();
    for mode in ["rn", "rz", "rm", "rp"] {
        let instruction = operation.replace("MODE", mode);
        let body = format!("mov.b32 %f0, %r0; mov.b32 %f1, %r1; mov.b32 %f2, %r2; {instruction} mov.b32 %r9, %f9;");
        for (input, got) in inputs.iter().zip(run(&body, &inputs)) {
            let [a, b, c, _] = input.map(|bits| f64::from(f32::from_bits(bits)));
            let (got, exact) = (f32::from_bits(got), exact(a, b, c));
            assert!(is_rounded(mode, got, exact), "{instruction} of {a:e}, {b:e}, {c:e}: {got:e}, exactly {exact:e}");
        }
    }
}

#[test]
fn f32_results_are_rounded_as_the_instruction_says() {
    check("add.MODE.f32 %f9, %f0, %f1;", |a, b, _| a + b);
    check("sub.MODE.f32 %f9, %f0, %f1;", |a, b, _| a - b);
    check("mul.MODE.f32 %f9, %f0, %f1;", |a, b, _| a * b);
    // With 12 bits of each factor the product has 24, and the sum is exact.
    let cut =
        "mov.b32 %r3, 0xFFFFF000; and.b32 %r0, %r0, %r3; and.b32 %r1, %r1, %r3; mov.b32 %f0, %r0; mov.b32 %f1, %r1;";
    let short = |x: f64| f64::from(f32::from_bits((x as f32).to_bits() & 0xFFFF_F000));
    check(&format!("{cut} fma.MODE.f32 %f9, %f0, %f1, %f2;"), |a, b, c| short(a) * short(b) + c);
}

#[test]
fn quotients_and_roots_bracket_their_operands() {
    let inputs = floats();
    for mode in ["rz", "rm", "rp"] {
        let body = |instruction: &str| {
            format!("mov.b32 %f0, %r0; mov.b32 %f1, %r1; {} mov.b32 %r9, %f9;", instruction.replace("MODE", mode))
        };
        for (input, got) in inputs.iter().zip(run(&body("div.MODE.f32 %f9, %f0, %f1;"), &inputs)) {
            let [a, b, ..] = input.map(f32::from_bits);
            // A product of two f32 is exact in f64; the sign of b turns the order.
            let times = |x: f32| f64::from(x) * f64::from(b) * f64::from(b.signum());
            let (a, got) = (f64::from(a) * f64::from(b.signum()), f32::from_bits(got));
            let down = mode == "rm" || mode == "rz" && a > 0.0;
            let fits = if down {
                times(got) <= a && a < times(got.next_up())
            } else {
                times(got) >= a && a > times(got.next_down())
            };
            assert!(fits, "{mode} {input:x?}: {got:e}");
        }
        let root = body("abs.f32 %f0, %f0; sqrt.MODE.f32 %f9, %f0;");
        for (input, got) in inputs.iter().zip(run(&root, &inputs)) {
            let (a, got) = (f64::from(f32::from_bits(input[0]).abs()), f32::from_bits(got));
            let square = |x: f32| f64::from(x) * f64::from(x);
            let fits = if mode == "rp" {
                square(got) >= a && square(got.next_down()) < a
            } else {
                square(got) <= a && a < square(got.next_up())
            };
            assert!(fits, "{mode} of {a:e}: {got:e}");
        }
    }
}

fn one(instruction: &str, a: f32, b: f32) -> f32 {
    let body = format!("mov.b32 %f0, %r0; mov.b32 %f1, %r1; {instruction} mov.b32 %r9, %f9;");
    f32::from_bits(run(&body, &[[a.to_bits(), b.to_bits(), 0, 0]])[0])
}

#[test]
fn limits_flushes_and_saturation() {
    let tiny = f32::MIN_POSITIVE / 2.0;
    assert_eq!(one("add.rz.f32 %f9, %f0, %f1;", f32::MAX, f32::MAX), f32::MAX);
    assert_eq!(one("add.rm.f32 %f9, %f0, %f1;", -f32::MAX, -f32::MAX), f32::NEG_INFINITY);
    assert_eq!(one("add.rp.f32 %f9, %f0, %f1;", -f32::MAX, -f32::MAX), -f32::MAX);
    assert!(one("add.rm.f32 %f9, %f0, %f1;", 1.0, -1.0).is_sign_negative());
    assert!(one("add.rn.f32 %f9, %f0, %f1;", 1.0, -1.0).is_sign_positive());
    assert_eq!(one("add.rp.f32 %f9, %f0, %f1;", 1.0, f32::from_bits(1)), 1.0f32.next_up());
    assert_eq!(one("mul.rn.ftz.f32 %f9, %f0, %f1;", tiny, 4.0), 0.0);
    assert_eq!(one("mul.rn.ftz.f32 %f9, %f0, %f1;", f32::MIN_POSITIVE, 0.5), 0.0);
    assert_eq!(one("mul.rn.f32 %f9, %f0, %f1;", tiny, 4.0), 4.0 * tiny);
    assert_eq!(one("add.sat.f32 %f9, %f0, %f1;", 3.0, 4.0), 1.0);
    assert_eq!(one("add.sat.f32 %f9, %f0, %f1;", f32::NAN, 4.0).to_bits(), 0);
    assert_eq!(one("sub.sat.f32 %f9, %f0, %f1;", 3.0, 4.0).to_bits(), 0);
    assert_eq!(one("max.NaN.f32 %f9, %f0, %f1;", f32::NAN, 4.0).to_bits(), 0x7FFF_FFFF);
    assert_eq!(one("min.xorsign.abs.f32 %f9, %f0, %f1;", -2.0, 3.0), -2.0);
    assert_eq!(one("max.xorsign.abs.f32 %f9, %f0, %f1;", -2.0, -3.0), 3.0);
    assert_eq!(one("copysign.f32 %f9, %f0, %f1;", -2.0, 3.0), -3.0);
    assert_eq!(one("testp.subnormal.f32 %p1, %f0; selp.f32 %f9, %f1, %f0, %p1;", tiny, 7.0), 7.0);
}

#[test]
fn approximations_stay_within_nvidia_s_bounds() {
    for i in 1..400 {
        let x = i as f32 * 0.0077;
        let close = |instruction: &str, exact: f64, absolute: f64| {
            let got = f64::from(one(instruction, x, 0.0));
            assert!((got - exact).abs() <= absolute, "{instruction} of {x}: {got}, not {exact}");
        };
        let wide = f64::from(x);
        // PTX ISA: an absolute 2^-20.5 and 2^-20.9 within 0 to 2 pi; a relative 2^-11 for tanh.
        close("sin.approx.f32 %f9, %f0;", wide.sin(), 2f64.powf(-20.5));
        close("cos.approx.ftz.f32 %f9, %f0;", wide.cos(), 2f64.powf(-20.9));
        close("tanh.approx.f32 %f9, %f0;", wide.tanh(), wide.tanh() * 2f64.powi(-11));
        close("sqrt.approx.f32 %f9, %f0;", wide.sqrt(), wide.sqrt() * 2f64.powi(-23));
        close("rsqrt.approx.f32 %f9, %f0;", 1.0 / wide.sqrt(), 2f64.powf(-22.9) / wide.sqrt());
        close("rcp.approx.f32 %f9, %f0;", 1.0 / wide, 2f64.powi(-23) / wide);
        close("div.full.f32 %f9, %f0, 0f40400000;", wide / 3.0, wide / 3.0 * 2f64.powi(-22));
    }
}

/// f64 from two words each: `%rd0`, `%rd1`; the result's upper and lower words in two runs.
fn double(instruction: &str, inputs: &[[f64; 2]]) -> Vec<f64> {
    let words: Vec<Input> = inputs
        .iter()
        .map(|[a, b]| {
            let (a, b) = (a.to_bits(), b.to_bits());
            [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
        })
        .collect();
    let body = |half: &str| {
        format!(
            "{{ .reg .f64 a, b, c, d; mov.b64 a, {{%r0, %r1}}; mov.b64 b, {{%r2, %r3}}; {instruction} mov.b64 {half}, d; }}"
        )
    };
    let (low, high) = (run(&body("{%r9, %r8}"), &words), run(&body("{%r8, %r9}"), &words));
    low.into_iter().zip(high).map(|(low, high)| f64::from_bits(u64::from(high) << 32 | u64::from(low))).collect()
}

#[test]
fn f64_results_are_ieee_s_in_every_rounding() {
    let mut rng = StdRng::seed_from_u64(22);
    let mut pairs: Vec<[f64; 2]> = (0..1018).map(|_| [(); 2].map(|()| rng.random_range(-1e3..1e3))).collect();
    pairs.extend([[0.1, 0.2], [1e308, 1e308], [f64::NAN, 1.0], [5e-324, 0.5], [f64::INFINITY, -1.0], [3.0, -3.0]]);
    let same = |instruction: &str, f: fn(f64, f64) -> f64| {
        for ([a, b], got) in pairs.iter().zip(double(instruction, &pairs)) {
            let exact = f(*a, *b);
            // The operand's own NaN, or that of an invalid operation.
            let nan = if a.is_nan() { a.to_bits() } else { 0xFFF8 << 48 };
            let exact = if exact.is_nan() { nan } else { exact.to_bits() };
            assert_eq!(got.to_bits(), exact, "{instruction} of {a:e}, {b:e}");
        }
    };
    same("add.rn.f64 d, a, b;", |a, b| a + b);
    same("sub.f64 d, a, b;", |a, b| a - b);
    same("mul.rn.f64 d, a, b;", |a, b| a * b);
    same("div.rn.f64 d, a, b;", |a, b| a / b);
    same("fma.rn.f64 d, a, b, a;", |a, b| a.mul_add(b, a));
    same("abs.f64 a, a; sqrt.rn.f64 d, a;", |a, _| a.abs().sqrt());
    same("min.f64 d, a, b;", f64::min);
    same("neg.f64 a, a; add.f64 d, a, b;", |a, b| b - a);
    // Directed: the product of 26-bit integers needs 52 bits, of larger ones it is cut where i128 says.
    let integers: Vec<[f64; 2]> = (0..512).map(|_| [(); 2].map(|()| (rng.random::<i64>() >> 10) as f64)).collect();
    for (mode, up) in [("rm", false), ("rp", true)] {
        for ([a, b], got) in integers.iter().zip(double(&format!("mul.{mode}.f64 d, a, b;"), &integers)) {
            let exact = *a as i128 * *b as i128;
            let (below, above) = if up { (got.next_down(), got) } else { (got, got.next_up()) };
            let fits = if up {
                (below as i128) < exact && exact <= above as i128
            } else {
                below as i128 <= exact && exact < above as i128
            };
            assert!(fits, "mul.{mode} of {a}, {b}: {got}");
        }
    }
}

#[test]
fn halves_are_rounded_once() {
    let mut rng = StdRng::seed_from_u64(23);
    let inputs: Vec<Input> = (0..4096).map(|_| rng.random()).collect();
    let f16_of = |bits: u32, shift: u32| f16::from_bits((bits >> shift) as u16).to_f64();
    let check = |instruction: &str, expected: &dyn Fn(&Input, u32) -> u32| {
        for (input, got) in inputs.iter().zip(run(instruction, &inputs)) {
            assert_eq!(got, expected(input, 0) | expected(input, 16) << 16, "{instruction} of {input:x?}");
        }
    };
    check("fma.rn.f16x2 %r9, %r0, %r1, %r2;", &|input, shift| {
        let [a, b, c, _] = input.map(|bits| f16_of(bits, shift));
        let (product, near) = (a * b, a * b + c);
        let [large, small] = if product.abs() > c.abs() { [product, c] } else { [c, product] };
        // What the f64 sum lacks tells on which side of a tie the exact one lies.
        let missing = small - (near - large);
        f16_bits(if missing > 0.0 {
            near.next_up()
        } else if missing < 0.0 {
            near.next_down()
        } else {
            near
        })
    });
    let bf16_of = |bits: u32, shift: u32| bf16::from_bits((bits >> shift) as u16).to_f64();
    let bf16_bits = |x: f64| if x.is_nan() { 0x7FFF } else { u32::from(bf16::from_f64(x).to_bits()) };
    check("mul.rn.bf16x2 %r9, %r0, %r1;", &|input, shift| {
        bf16_bits(bf16_of(input[0], shift) * bf16_of(input[1], shift))
    });
    check("add.rn.f16x2 %r9, %r0, %r1;", &|input, shift| f16_bits(f16_of(input[0], shift) + f16_of(input[1], shift)));
    check("neg.bf16x2 %r9, %r0;", &|input, shift| {
        let bits = input[0] >> shift & 0xFFFF;
        if bits & 0x7FFF > 0x7F80 { 0x7FFF } else { bits ^ 0x8000 }
    });
    check("max.NaN.f16x2 %r9, %r0, %r1;", &|input, shift| {
        let [a, b] = [f16_of(input[0], shift), f16_of(input[1], shift)];
        if a.is_nan() || b.is_nan() { 0x7FFF } else { f16_bits(a.max(b)) }
    });
    check("add.sat.f16x2 %r9, %r0, %r1;", &|input, shift| {
        let sum = f16_of(input[0], shift) + f16_of(input[1], shift);
        if sum.is_nan() { 0 } else { f16_bits(sum.clamp(0.0, 1.0) + 0.0) }
    });
    check("fma.rn.relu.bf16x2 %r9, %r0, %r1, 0;", &|input, shift| {
        let product = bf16_of(input[0], shift) * bf16_of(input[1], shift);
        if product < 0.0 { 0 } else { bf16_bits(product) & 0x7FFF }
    });
}

/// The nearest f16, the even one of two; by way of f32 some would be rounded twice.
fn f16_bits(x: f64) -> u32 {
    if x.is_nan() {
        return 0x7FFF;
    }
    let about = f16::from_f64(x).to_bits();
    // Infinity lies where the next number would.
    let value = |bits: u16| if bits & 0x7FFF == 0x7C00 { 65536.0 } else { f16::from_bits(bits & 0x7FFF).to_f64() };
    let distance = |bits: &u16| (value(*bits) - x.abs().min(65536.0)).abs();
    let candidates = [about, if about & 0x7FFF == 0 { about } else { about - 1 }, about + 1];
    let near = candidates.into_iter().filter(|bits| bits & 0x7FFF <= 0x7C00);
    near.min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap_or(about).into()
}
