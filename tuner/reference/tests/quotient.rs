//! The quotient by which kernels find codes (`templates/stages/requant.cuh`, `Divisor`), against an IEEE division.

/// Where E2M1 codes meet: a quotient on the other side of one, or on one where IEEE's is not, is another code.
const BORDERS: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

/// `x / d` by the reciprocal and what it lacks of `1 / d`.
fn quotient(x: f32, d: f32) -> f32 {
    let reciprocal = 1.0 / d;
    let error = (-reciprocal).mul_add(d, 1.0);
    let rest = (error * reciprocal).mul_add(error, error * reciprocal);
    x.mul_add(reciprocal, x * rest)
}

/// All significands of f16 (which has those of bf16), with all divisors that bring them within six units of a border. Further
/// away a quotient that is one unit off is on the right side, and powers of two change nothing.
#[test]
fn near_every_border_it_is_the_ieee_quotient() {
    for border in BORDERS {
        for x in 1024..2048u16 {
            let x = f32::from(x);
            let middle = (x / border).to_bits();
            for d in (middle - 6..=middle + 6).map(f32::from_bits) {
                assert_eq!(quotient(x, d), x / d, "{x} / {d:?}");
            }
        }
    }
}
