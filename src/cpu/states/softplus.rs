//! The softplus of a scalar with the same bits on every machine. The logarithms of C libraries differ in the last bit.

/// Returns `ln(1 + e^x)` with a relative error below 5e-7.
///
/// It is `max(x, 0) + ln(1 + y)` with `y = e^-|x|`, at most 1. `ln(1 + y) = 2 artanh(t)` with `t = y / (2 + y)`, at
/// most 1/3. The series of artanh drops terms from `2 t^17 / 17` on, which is below 1e-9.
pub(crate) fn softplus(x: f32) -> f32 {
    const SERIES: [f32; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    let y = (-x.abs()).exp();
    let t = y / (2.0 + y);
    let series = SERIES.iter().fold(0.0, |sum, term| sum * (t * t) + term);
    x.max(0.0) + 2.0 * t * series
}

#[cfg(test)]
mod tests {
    use super::softplus;

    #[test]
    fn it_is_accurate() {
        for i in -80_000..=80_000 {
            let x = i as f32 * 1e-3;
            let (got, expected) = (f64::from(softplus(x)), f64::from(x).exp().ln_1p());
            assert!((got / expected - 1.0).abs() < 5e-7, "softplus({x}) = {got}, not {expected}");
        }
        assert_eq!((softplus(1e30), softplus(f32::NEG_INFINITY)), (1e30, 0.0));
        assert!(softplus(f32::NAN).is_nan());
    }
}
