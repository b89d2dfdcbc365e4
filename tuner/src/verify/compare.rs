//! How near a kernel's result must be to the reference.

use super::Failure;
use half::{bf16, f16};
use nvkv_spec::Dtype;

/// Largest relative L2 error of an output: the result's own rounding, and f16 weights.
pub fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => 1e-3,
        Dtype::Bf16 => 4e-3,
    }
}

/// Largest error of a log-sum-exp, absolute up to 1 and relative beyond: scores of some hundreds are
/// sums whose own rounding is relative.
const LSE_TOLERANCE: f64 = 1e-3;

/// Value of an output element.
pub fn value(dtype: Dtype, bits: u16) -> f64 {
    match dtype {
        Dtype::F16 => f16::from_bits(bits).to_f64(),
        Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
    }
}

/// Index of the first NaN, if there is one.
pub fn has_nan(dtype: Dtype, values: &[u16]) -> Option<usize> {
    values.iter().position(|&bits| value(dtype, bits).is_nan())
}

/// Relative L2 error of each request's output, the largest of them: taken a request at a time,
/// because short requests have the larger outputs and would hide a wrong long one.
/// `got` and `expected` are `[batch * q_len, Hq, D]`, `per_request` elements a request.
pub fn outputs(dtype: Dtype, got: &[u16], expected: &[f64], per_request: usize) -> Result<f64, Failure> {
    let mut largest = 0.0f64;
    for (request, (got, expected)) in got.chunks(per_request).zip(expected.chunks(per_request)).enumerate() {
        let got: Vec<f64> = got.iter().map(|&bits| value(dtype, bits)).collect();
        if let Some(at) = got.iter().position(|x| x.is_nan()) {
            let detail = format!("request {request}: NaN at element {at}");
            return Err(Failure::Wrong { error: f64::NAN, detail });
        }
        let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
        let difference = norm(&mut got.iter().zip(expected).map(|(a, b)| a - b));
        let size = norm(&mut expected.iter().copied());
        let error = if difference == 0.0 { 0.0 } else { difference / size };
        // An infinite error, where zeros were expected, is above it too.
        if error > tolerance(dtype) {
            let (at, _) = got
                .iter()
                .zip(expected)
                .map(|(a, b)| (a - b).abs())
                .enumerate()
                .fold((0, 0.0), |worst, (i, d)| if d > worst.1 { (i, d) } else { worst });
            let detail = format!("request {request}: element {at} is {}, not {}", got[at], expected[at]);
            return Err(Failure::Wrong { error, detail });
        }
        largest = largest.max(error);
    }
    Ok(largest)
}

/// Compares log-sum-exps `[batch * q_len, Hq]`; -inf must be -inf.
pub fn log_sums(got: &[f32], expected: &[f64]) -> Result<(), Failure> {
    for (row, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let got = f64::from(got);
        let difference = (got - expected).abs();
        // The second clause alone would take anything for near an infinity.
        let near = got == expected || expected.is_finite() && difference <= LSE_TOLERANCE * expected.abs().max(1.0);
        if !near {
            let detail = format!("log-sum-exp of row {row} is {got}, not {expected}");
            return Err(Failure::Wrong { error: difference, detail });
        }
    }
    Ok(())
}

/// Compares bytes that are defined exactly.
pub fn bytes(name: &str, got: &[u8], expected: &[u8]) -> Result<(), Failure> {
    if got == expected {
        return Ok(()); // at once, also where nothing is optimised
    }
    let mut wrong = got.iter().zip(expected).enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i);
    let Some(first) = wrong.next() else { return Ok(()) };
    let detail = format!(
        "{} of {} bytes of {name} differ, first at {first}: {:#04x}, not {:#04x}",
        wrong.count() + 1,
        got.len(),
        got[first],
        expected[first]
    );
    Err(Failure::Wrong { error: f64::NAN, detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f16s(values: &[f32]) -> Vec<u16> {
        values.iter().map(|&x| f16::from_f32(x).to_bits()).collect()
    }

    #[test]
    fn a_small_wrong_request_is_not_hidden_by_large_ones() {
        let expected = [100.0, 100.0, 0.01, 0.01];
        let right = f16s(&[100.0, 100.0, 0.01, 0.01]);
        assert!(outputs(Dtype::F16, &right, &expected, 2).unwrap() < 1e-3);
        let wrong = f16s(&[100.0, 100.0, 0.01, 0.011]);
        let error = outputs(Dtype::F16, &wrong, &expected, 2).unwrap_err();
        assert!(matches!(&error, Failure::Wrong { detail, .. } if detail.contains("request 1: element 1")), "{error}");
    }

    #[test]
    fn nan_and_anything_but_zero_for_an_empty_request_are_wrong() {
        assert!(outputs(Dtype::F16, &[0xffff, 0], &[0.0, 0.0], 2).is_err());
        assert!(outputs(Dtype::Bf16, &[1, 0], &[0.0, 0.0], 2).is_err());
        assert_eq!(outputs(Dtype::Bf16, &[0x8000, 0], &[0.0, 0.0], 2).unwrap(), 0.0);
    }

    #[test]
    fn log_sums_must_be_near_and_minus_infinity_exact() {
        let minus = f64::NEG_INFINITY;
        assert!(log_sums(&[1.0005, f32::NEG_INFINITY, 200.1], &[1.0, minus, 200.0]).is_ok());
        for (got, expected) in [(1.002, 1.0), (f32::NAN, 1.0), (0.0, minus), (-1e30, minus), (f32::NEG_INFINITY, 0.0)] {
            assert!(log_sums(&[got], &[expected]).is_err(), "{got} for {expected}");
        }
    }

    #[test]
    fn bytes_count_and_locate_differences() {
        assert!(bytes("cache", &[1, 2, 3], &[1, 2, 3]).is_ok());
        let error = bytes("cache", &[1, 0, 0], &[1, 2, 3]).unwrap_err().to_string();
        assert!(error.contains("2 of 3") && error.contains("first at 1"), "{error}");
    }
}
