//! The codecs against value tables spelled out here and nearest-value searches over them.

use half::{bf16, f16};
use nvkv_reference::codec::{
    e2m1_decode, e2m1_encode, e4m3_decode, e4m3_encode, finite_f32, fp8_element, from_f32, to_f32,
};
use nvkv_spec::Dtype;

const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The 127 finite magnitudes of E4M3 (OCP 8-bit floating point, bias 7, no infinity).
fn e4m3() -> Vec<f64> {
    let value = |code: i32| match (code / 8, f64::from(code % 8)) {
        (0, m) => m / 8.0 * 2f64.powi(-6),
        (e, m) => (1.0 + m / 8.0) * 2f64.powi(e - 7),
    };
    (0..127).map(value).collect()
}

/// Index of the magnitude nearest to |x|, the even one of two equally near; the sign bit above.
fn nearest(x: f64, magnitudes: &[f64], sign_bit: u8) -> u8 {
    let distance = |i: usize| ((magnitudes[i] - x.abs()).abs(), i % 2);
    let best = (1..magnitudes.len()).fold(0, |best, i| if distance(i) < distance(best) { i } else { best });
    best as u8 | if x.is_sign_negative() { sign_bit } else { 0 }
}

/// Every f16 number, and around every number and every midpoint of a format the f32 neighbours.
fn inputs(magnitudes: &[f64]) -> Vec<f32> {
    let halves = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32()).filter(|x| x.is_finite());
    let around = |x: f64| [x as f32, (x as f32).next_up(), (x as f32).next_down()];
    let midpoints = magnitudes.windows(2).flat_map(|pair| around((pair[0] + pair[1]) / 2.0));
    let values = magnitudes.iter().flat_map(|&x| around(x));
    let edges = [f32::MIN_POSITIVE, f32::from_bits(1), 1e9];
    let positive: Vec<f32> = midpoints.chain(values).chain(edges).collect();
    halves.chain(positive.iter().copied()).chain(positive.iter().map(|x| -x)).collect()
}

#[test]
fn decoding_gives_the_tabulated_values() {
    for code in 0..=255u8 {
        let sign = |bit: u8| if code & bit == 0 { 1.0 } else { -1.0 };
        assert_eq!(f64::from(e2m1_decode(code)), sign(8) * E2M1[code as usize & 7], "E2M1 {code:#x}");
        assert_eq!(e2m1_decode(code).is_sign_negative(), code & 8 != 0, "sign of E2M1 {code:#x}");
        match e4m3().get(code as usize & 127) {
            Some(magnitude) => assert_eq!(f64::from(e4m3_decode(code)), sign(128) * magnitude, "E4M3 {code:#x}"),
            None => assert!(e4m3_decode(code).is_nan(), "E4M3 {code:#x}"),
        }
        assert_eq!(e4m3_decode(code).is_sign_negative(), code & 128 != 0, "sign of E4M3 {code:#x}");
    }
}

#[test]
fn encoding_finds_the_nearest_value() {
    for x in inputs(&E2M1) {
        assert_eq!(e2m1_encode(x), nearest(f64::from(x), &E2M1, 8), "E2M1 of {x:e}");
    }
    let e4m3 = e4m3();
    for x in inputs(&e4m3) {
        assert_eq!(e4m3_encode(x), nearest(f64::from(x), &e4m3, 128), "E4M3 of {x:e}");
    }
}

#[test]
fn encoding_saturates_and_settles_nan() {
    assert_eq!([e2m1_encode(f32::INFINITY), e2m1_encode(f32::NEG_INFINITY)], [0x7, 0xf]);
    assert_eq!([e4m3_encode(f32::INFINITY), e4m3_encode(f32::NEG_INFINITY)], [0x7e, 0xfe]);
    assert_eq!([e2m1_encode(f32::MAX), e4m3_encode(f32::MIN)], [0x7, 0xfe]);
    assert_eq!([e2m1_encode(f32::NAN), e2m1_encode(-f32::NAN)], [0, 0]);
    assert_eq!([e4m3_encode(f32::NAN), e4m3_encode(-f32::NAN)], [0x7f, 0x7f]);
}

#[test]
fn fp8_elements_are_products_rounded_to_e4m3() {
    let e4m3 = e4m3();
    for (code, scale) in (0..16u8).flat_map(|code| (0..=255u8).map(move |scale| (code, scale))) {
        let element = fp8_element(code, scale);
        let Some(magnitude) = e4m3.get(scale as usize & 127) else {
            assert!(element.is_nan(), "code {code:#x} scale {scale:#x}");
            continue;
        };
        let negative = (code & 8 != 0) != (scale & 128 != 0);
        let rounded = e4m3[nearest(E2M1[code as usize & 7] * magnitude, &e4m3, 0) as usize];
        assert_eq!(f64::from(element.abs()), rounded, "code {code:#x} scale {scale:#x}");
        assert_eq!(element.is_sign_negative(), negative, "sign of code {code:#x} scale {scale:#x}");
    }
}

/// What rounding an element to E4M3 costs. The 4.8 % hold where the product is a normal E4M3
/// number; of the pairs with sf >= 2^-6 only four (code 0.5, sf below 2^-5) give a subnormal.
#[test]
fn e4m3_products_are_mostly_exact() {
    let scales: Vec<u8> = (0..127).filter(|&s| (2f32.powi(-6)..=72.0).contains(&e4m3_decode(s))).collect();
    let pairs: Vec<(u8, u8)> = scales.iter().flat_map(|&s| (1..8u8).map(move |code| (code, s))).collect();
    let error = |&(code, s): &(u8, u8)| {
        let exact = E2M1[code as usize] * f64::from(e4m3_decode(s));
        (exact, (f64::from(fp8_element(code, s)) / exact - 1.0).abs())
    };
    let errors: Vec<(f64, f64)> = pairs.iter().map(error).collect();
    let exact = errors.iter().filter(|(_, e)| *e == 0.0).count() as f64 / errors.len() as f64;
    assert!((exact - 0.727).abs() < 5e-4, "{exact} of the pairs are exact");
    let largest = |normal: bool| {
        let side = errors.iter().filter(|(x, _)| (*x >= 2f64.powi(-6)) == normal);
        side.map(|(_, e)| *e).fold(0.0, f64::max)
    };
    assert!((largest(true) - 1.0 / 21.0).abs() < 1e-12, "{} on normal products", largest(true));
    assert!((largest(false) - 1.0 / 9.0).abs() < 1e-12, "{} on subnormal products", largest(false));
    assert_eq!(errors.iter().filter(|(x, e)| *x < 2f64.powi(-6) && *e > 0.0).count(), 4);
}

#[test]
fn exact_elements_fit_f16_once_scaled() {
    for (code, scale) in (0..8u8).flat_map(|code| (0..127u8).map(move |scale| (code, scale))) {
        let x = e2m1_decode(code) * e4m3_decode(scale) * 2f32.powi(-14);
        assert_eq!(f16::from_f32(x).to_f32(), x, "code {code:#x} scale {scale:#x}");
    }
}

#[test]
fn sixteen_bit_types_round_trip_and_settle_non_finite_inputs() {
    for bits in 0..=u16::MAX {
        for (dtype, largest) in [(Dtype::F16, 65504.0), (Dtype::Bf16, 3.389_531_4e38)] {
            let x = to_f32(dtype, bits);
            let (finite, replaced) = finite_f32(dtype, bits);
            assert_eq!(replaced, !x.is_finite(), "{dtype} {bits:#x}");
            if x.is_nan() {
                assert_eq!(finite.to_bits(), 0, "{dtype} {bits:#x}");
                continue;
            }
            assert_eq!(from_f32(dtype, x), bits, "{dtype} {bits:#x}");
            assert_eq!(finite, if x.is_infinite() { largest * x.signum() } else { x }, "{dtype} {bits:#x}");
        }
    }
    assert_eq!(to_f32(Dtype::Bf16, 0x3f81), 1.0 + 1.0 / 128.0);
    assert_eq!(to_f32(Dtype::F16, 0x3c01), 1.0 + 1.0 / 1024.0);
    // Ties to even, in both directions.
    assert_eq!([from_f32(Dtype::Bf16, 1.0 + 1.0 / 256.0), from_f32(Dtype::Bf16, 1.0 + 3.0 / 256.0)], [0x3f80, 0x3f82]);
    assert_eq!([from_f32(Dtype::F16, 1.0 + 1.0 / 2048.0), from_f32(Dtype::F16, 1.0 + 3.0 / 2048.0)], [0x3c00, 0x3c02]);
    assert_eq!(from_f32(Dtype::Bf16, 1e-41), bf16::from_f64(1e-41).to_bits());
}
