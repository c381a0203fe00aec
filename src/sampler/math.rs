//! Row-wide arithmetic, written in independent lanes so that the compiler vectorises it for any target. The order of
//! every sum is fixed: the same row gives the same bits on every machine.

const LANES: usize = 16;

/// Largest value of a row (NaNs passed over; `-inf` for an empty row) and whether it holds a NaN.
pub(super) fn row_max(row: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut nan = [0u32; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            max[lane] = if x > max[lane] { x } else { max[lane] };
            nan[lane] |= u32::from(x.is_nan());
        }
    }
    let tail = rest.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    let has_nan = nan.iter().any(|&n| n != 0) || rest.iter().any(|x| x.is_nan());
    (max.iter().fold(tail, |m, &x| if x > m { x } else { m }), has_nan)
}

/// Smallest value of a row without NaNs; infinite for an empty row.
pub(super) fn row_min(row: &[f32]) -> f32 {
    let mut min = [f32::INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            min[lane] = if chunk[lane] < min[lane] { chunk[lane] } else { min[lane] };
        }
    }
    min.iter().chain(rest).fold(f32::INFINITY, |m, &x| if x < m { x } else { m })
}

/// Sum in double precision.
pub(super) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0f64; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += f64::from(chunk[lane]);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x)).sum::<f64>()
}

/// Appends `exp((x - max) / temperature)` for each `x` of the row, none of which exceeds `max`. When `max` is infinite
/// the tokens that have it share all probability.
pub(super) fn exp_weights(row: &[f32], max: f32, temperature: f32, out: &mut Vec<f32>) {
    if max == f32::INFINITY {
        out.extend(row.iter().map(|&x| f32::from(u8::from(x == max))));
        return;
    }
    // Divide once, not once per token. The quotient is kept finite, since the difference may be 0.
    let per_logit = (1.0 / temperature).min(f32::MAX);
    out.extend(row.iter().map(|&x| exp_nonpositive((x - max) * per_logit)));
}

/// `e^x` for `x <= 0`, within 2 units in the last place; what would be subnormal is 0.
///
/// `e^x = 2^n * e^r` with `n = round(x / ln 2)`, `|r| <= ln 2 / 2`: the Taylor series of `e^r` up to the seventh power
/// is off by less than `0.347^8 / 8! < 6e-9` there. Branch-free, so that it vectorises; libm's is neither that nor the
/// same on all machines.
#[inline]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    // Added and taken away again, 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts: the first has few enough bits for `n * LN2_HIGH` to be exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Below this the result is subnormal.
    const SMALLEST: f32 = -87.33;
    let clamped = if x > SMALLEST { x } else { SMALLEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x > SMALLEST { p * f32::from_bits(exponent) } else { 0.0 }
}
