use super::logits;
use crate::math::{row_max, sum};
use crate::select::{key, key_id};
use crate::selection::exp_nonpositive;

/// Compares the whole range, in steps that hit every binade, with float64.
#[test]
fn exp_is_within_two_units_in_the_last_place() {
    assert_eq!(exp_nonpositive(0.0), 1.0);
    assert_eq!(exp_nonpositive(-0.0), 1.0);
    assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp_nonpositive(-1e30), 0.0);
    let mut bits = 0x3000_0000u32;
    while bits < 87.3f32.to_bits() {
        let x = -f32::from_bits(bits);
        let (got, expected) = (exp_nonpositive(x), f64::from(x).exp());
        let ulp = f64::from(f32::EPSILON) * 2f64.powi(expected.log2().floor() as i32);
        assert!((f64::from(got) - expected).abs() <= 2.0 * ulp, "exp({x}) = {got}, not {expected}");
        bits += 997;
    }
}

#[test]
fn sums_and_maxima_of_every_length() {
    let row = logits(200, 4);
    for n in 0..200 {
        let part = &row[..n];
        let expected: f64 = part.iter().map(|&x| f64::from(x)).sum();
        assert!((sum(part) - expected).abs() < 1e-9);
        let max = part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(row_max(part), (max, false));
    }
}

#[test]
fn keys_order_tokens_by_logit_then_id() {
    let ordered = [f32::INFINITY, 3.0e38, 1.0, 1e-40, 0.0, -1e-40, -1.0, f32::NEG_INFINITY];
    for pair in ordered.windows(2) {
        assert!(key(pair[0], 9) > key(pair[1], 1), "{pair:?}");
        assert!(key(pair[0], 1) > key(pair[0], 2));
    }
    assert_eq!(key(0.0, 5), key(-0.0, 5));
    assert_eq!(key_id(key(-2.5, 12_345)), 12_345);
}
