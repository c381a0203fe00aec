//! Arithmetic on whole rows, written in independent lanes so that the compiler vectorizes it for any target. The order
//! of every sum is fixed, so the same row gives the same bits on every machine.

use crate::selection::exp_nonpositive;

const LANES: usize = 16;

/// Returns the largest value of a row, ignoring NaNs (`-inf` for an empty row), and whether it holds a NaN.
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

/// Returns the smallest value of a row without NaNs; infinite for an empty row.
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

/// Sums in double precision.
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

/// Appends `exp((x - max) / temperature)` for each `x` of the row, none of which exceeds `max`. If `max` is infinite,
/// the tokens with that logit share all probability.
pub(super) fn exp_weights(row: &[f32], max: f32, temperature: f32, out: &mut Vec<f32>) {
    if max == f32::INFINITY {
        out.extend(row.iter().map(|&x| f32::from(u8::from(x == max))));
        return;
    }
    let per_logit = per_logit(temperature);
    out.extend(row.iter().map(|&x| exp_nonpositive((x - max) * per_logit)));
}

/// Returns the inverse of a temperature, so that there is one division and not one per token. It is finite, since the
/// difference of two logits may be 0.
pub(super) fn per_logit(temperature: f32) -> f32 {
    (1.0 / temperature).min(f32::MAX)
}
