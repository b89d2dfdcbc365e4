//! Properties of the codecs, and the contract of requantisation.

use nvkv_reference::codec::{Block, e2m1_decode, e2m1_encode, e4m3_decode, e4m3_encode, quantise_block};
use proptest::prelude::*;

/// Finite f32 of every magnitude, zeros and subnormals included.
fn any_finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
}

/// A block whose elements span several binades around a magnitude, with zeros of both signs, and a tensor scale.
fn any_block() -> impl Strategy<Value = ([f32; 16], f32)> {
    let element = prop_oneof![8 => -1f32..1.0, 2 => -0.02f32..0.02, 1 => Just(0.0), 1 => Just(-0.0)];
    (prop::array::uniform16(element), -40f32..20.0, -20f32..10.0)
        .prop_map(|(x, magnitude, g)| (x.map(|x| x * magnitude.exp2()), g.exp2()))
}

proptest! {
    #[test]
    fn encoding_is_monotone_odd_and_idempotent(a in any_finite(), b in any_finite()) {
        for (encode, decode, sign) in
            [(e2m1_encode as fn(f32) -> u8, e2m1_decode as fn(u8) -> f32, 8), (e4m3_encode, e4m3_decode, 128)]
        {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(decode(encode(low)) <= decode(encode(high)));
            prop_assert_eq!(encode(-a), encode(a) ^ sign);
            prop_assert_eq!(encode(decode(encode(a))), encode(a));
        }
    }

    /// Each code is the nearest one, and the scale is the nearest one, up to f32 rounding of the quotients.
    #[test]
    fn a_block_holds_the_nearest_codes_under_the_nearest_scale((x, g) in any_block()) {
        let block = quantise_block(&x, g);
        let amax = x.iter().fold(0f64, |amax, x| amax.max(f64::from(x.abs())));
        let wanted = amax / (6.0 * f64::from(g));
        let distance = |scale: u8| (f64::from(e4m3_decode(scale)) - wanted).abs();
        for other in 0..127 {
            prop_assert!(distance(block.scale) <= distance(other) + 1e-6 * wanted, "scale {other:#x} is nearer");
        }
        let unit = f64::from(e4m3_decode(block.scale)) * f64::from(g);
        if unit == 0.0 {
            prop_assert_eq!(block, Block { codes: [0; 16], scale: 0 });
            return Ok(());
        }
        for (x, code) in x.iter().zip(block.codes) {
            let error = |code: u8| (f64::from(e2m1_decode(code)) * unit - f64::from(*x)).abs();
            for other in 0..16 {
                prop_assert!(error(code) <= error(other) + 1e-6 * x.abs() as f64, "{x}: code {other:#x} is nearer");
            }
            prop_assert_eq!(x.is_sign_negative(), code & 8 != 0, "sign of {}", x);
        }
    }

    /// With a normal scale an element is off by half of the widest step (1 of 6), widened by the scale's own
    /// rounding of 1/16 at most.
    #[test]
    fn the_error_of_a_block_is_bounded((x, g) in any_block()) {
        let block = quantise_block(&x, g);
        let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
        let sf = e4m3_decode(block.scale);
        prop_assume!((2f32.powi(-6)..448.0).contains(&sf));
        for (x, code) in x.iter().zip(block.codes) {
            prop_assert!((e2m1_decode(code) * sf * g - x).abs() <= amax / 6.0 * (1.0 + 1.0 / 16.0) * (1.0 + 1e-6));
        }
    }
}

/// A block of zeros but for its first elements.
fn block(first: &[f32]) -> [f32; 16] {
    std::array::from_fn(|i| first.get(i).copied().unwrap_or(0.0))
}

#[test]
fn worked_examples() {
    let q = quantise_block(&block(&[6.0, -3.0, 2.5, 3.5, -0.2, -0.0, 0.25, 0.75, 5.0]), 1.0);
    assert_eq!(q.scale, 0x38, "amax 6 gives the scale 1");
    assert_eq!(q.codes[..9], [7, 8 + 5, 4, 6, 8, 8, 0, 2, 6], "ties to even, zeros keep the sign");
    assert_eq!(q.codes[9..], [0; 7]);
    assert_eq!(q.packed()[..5], [0xd7, 0x64, 0x88, 0x20, 0x06], "the even element is in the low nibble");

    let g = 0.25;
    assert_eq!(
        quantise_block(&block(&[6.0, 1.0]), g),
        Block { scale: 0x48, ..quantise_block(&block(&[6.0, 1.0]), 1.0) }
    );
}

#[test]
fn the_scale_saturates_and_vanishes() {
    let huge = quantise_block(&block(&[65504.0, -65504.0, 448.0, -0.0]), 1.0);
    assert_eq!((huge.scale, &huge.codes[..4]), (0x7e, &[7, 15, 2, 8][..]));
    let overflow = quantise_block(&block(&[3e38, -3e38, 1e-40]), 1e-10);
    assert_eq!((overflow.scale, &overflow.codes[..3]), (0x7e, &[7, 15, 0][..]), "amax / (6 g) is infinite");
    // 6 * 2^-10 is a tie between the scales 0 and 2^-9 and goes to the even one, 0.
    let nothing = Block { codes: [0; 16], scale: 0 };
    assert_eq!(quantise_block(&block(&[-6.0 * 2f32.powi(-10), -1e-3]), 1.0), nothing, "every code is +0");
    assert_eq!(quantise_block(&[-0.0; 16], 1.0), nothing);
    assert_eq!(quantise_block(&block(&[6.0 * 2f32.powi(-10) * 1.001]), 1.0).scale, 1);
    assert_eq!(quantise_block(&block(&[1.0]), 1e38), nothing, "6 g is infinite");
}

/// The contract is in f32: where f32 rounds a quotient onto a tie, the tie decides, whatever the
/// exact quotient is.
#[test]
fn quotients_are_those_of_f32() {
    let g = 0.1f32;
    let mut seen = 0;
    for step in 0..4096 {
        let amax = 1.0 + step as f32 / 4096.0;
        let sf = e4m3_decode(quantise_block(&block(&[amax]), g).scale);
        let tie = 2.5 * (sf * g);
        let exact = f64::from(tie) / (f64::from(sf) * f64::from(g));
        if tie / (sf * g) == 2.5 && exact > 2.5 && tie < amax {
            assert_eq!(quantise_block(&block(&[amax, tie]), g).codes[1], 4, "2.5 goes to 2; the exact {exact} to 3");
            seen += 1;
        }
    }
    assert!(seen > 0, "no such case was met");
}
