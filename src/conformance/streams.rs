//! Several hidden streams per token, and sparse gates.

use super::{BufferOf, Random, Tally, fill, matrix, two_buffers, vector, within};
use crate::Result;
use crate::backend::{Backend, LevelRows, Loader, Ops, STREAMS, Sparsify, Streams};

/// `(rows, cols)`. Rows of 5001 take several passes of a thread block.
const SHAPES: [(usize, usize); 7] = [(1, 1), (3, 7), (5, 17), (1, 1000), (67, 80), (2, 5001), (130, 1030)];

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("hidden streams, sparse gates");
    for (seed, &(rows, cols)) in tally.part(&SHAPES) {
        tally.begin(&format!("hidden streams and sparse gates of {rows} rows of {cols}"))?;
        sparse(loader(rows)?, rows, cols, seed as u64, tally)?;
        levels(loader(rows)?, rows, cols, seed as u64, tally)?;
        for is_prediction in [true, false] {
            changed(loader(rows)?, rows, cols, is_prediction, seed as u64, tally)?;
        }
    }
    Ok(())
}

/// Checks gates that are clipped. The products of `up` behind them stay as they are.
fn sparse<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    // The mean of a row differs from 0.
    let x: Vec<f32> = Random(seed).values(rows * 2 * cols).iter().map(|x| 4.0 * x + 1.5).collect();
    let table = matrix(&mut loader, &x, 2 * cols)?;
    let mut out = loader.alloc_buffer(rows, 2 * cols)?;
    let mut backend = loader.finish()?;
    for deviations in [1.645f32, 0.0, -0.5] {
        fill(&mut backend, &table, rows, &mut out)?;
        within(&mut backend, rows, |step| step.sparsify(Sparsify { x: &mut out, rows, cols, deviations }))?;
        let of_row = |row: &[f32]| -> Vec<f64> {
            let (gates, up) = row.split_at(cols);
            let mean = gates.iter().map(|&x| f64::from(x)).sum::<f64>() / cols as f64;
            let variance = gates.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / cols as f64;
            let cutoff = mean + f64::from(deviations) * variance.sqrt();
            let clipped = gates.iter().map(|&x| (f64::from(x) - cutoff).max(0.0));
            clipped.chain(up.iter().map(|&x| f64::from(x))).collect()
        };
        let expected: Vec<f64> = x.chunks(2 * cols).flat_map(of_row).collect();
        let what = format!("gates above {deviations} deviations in {rows} rows of {cols}");
        tally.close(&what, backend.to_host(&out, rows, 2 * cols)?, &expected, 1e-6, 4e-6);
    }
    Ok(())
}

/// Checks rows that get the level of other rows, also where the least mean square counts.
fn levels<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let (values, like_values) = (random.values(rows * cols), random.values(rows * cols));
    let (table, like_table) = (matrix(&mut loader, &values, cols)?, matrix(&mut loader, &like_values, cols)?);
    let [mut x, mut like] = two_buffers(&mut loader, rows, cols)?;
    let mut out = loader.alloc_buffer(rows, cols)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &table, rows, &mut x)?;
    fill(&mut backend, &like_table, rows, &mut like)?;
    for least in [1e-5f32, 1.5] {
        within(&mut backend, rows, |step| {
            step.level_rows(LevelRows { x: &x, like: &like, rows, cols, least, out: &mut out })
        })?;
        let square = |row: &[f32]| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
        let of_row = |(x, like): (&[f32], &[f32])| -> Vec<f64> {
            let factor = (square(like) / square(x).max(f64::from(least))).sqrt();
            x.iter().map(|&x| f64::from(x) * factor).collect()
        };
        let expected: Vec<f64> = values.chunks(cols).zip(like_values.chunks(cols)).flat_map(of_row).collect();
        let what = format!("{rows} rows of {cols} with the level of others, least {least}");
        tally.close(&what, backend.to_host(&out, rows, cols)?, &expected, 2e-6, 1e-30);
    }
    Ok(())
}

/// Checks streams that are predicted or corrected.
fn changed<L: Loader>(
    mut loader: L,
    rows: usize,
    cols: usize,
    is_prediction: bool,
    seed: u64,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let mut random = Random(seed);
    let (scale, coefficients) = (0.75f32, if is_prediction { STREAMS } else { 1 });
    let routed: Vec<f32> = random.values(rows * STREAMS).iter().map(|x| 4.0 * x).collect();
    let weight = random.values(coefficients * STREAMS * STREAMS);
    // The streams, with the active one first, and its prediction.
    let values: Vec<Vec<f32>> = (0..=STREAMS).map(|_| random.values(rows * cols)).collect();
    let routed_table = matrix(&mut loader, &routed, STREAMS)?;
    let weight_vector = vector(&mut loader, &weight)?;
    let tables = values.iter().map(|values| matrix(&mut loader, values, cols)).collect::<Result<Vec<_>>>()?;
    let mut routed_buffer = loader.alloc_buffer(rows, STREAMS)?;
    let [mut active, mut predicted] = two_buffers(&mut loader, rows, cols)?;
    let [first, second] = two_buffers(&mut loader, rows, cols)?;
    let mut others: [BufferOf<L>; STREAMS - 1] = [first, second, loader.alloc_buffer(rows, cols)?];
    let mut backend = loader.finish()?;
    fill(&mut backend, &routed_table, rows, &mut routed_buffer)?;
    let buffers = std::iter::once(&mut active).chain(&mut others).chain([&mut predicted]);
    buffers.zip(&tables).try_for_each(|(buffer, table)| fill(&mut backend, table, rows, buffer))?;
    within(&mut backend, rows, |step| {
        let args = Streams {
            routed: &routed_buffer,
            weight: &weight_vector,
            scale,
            rows,
            cols,
            active: &mut active,
            predicted: &mut predicted,
            others: &mut others,
        };
        if is_prediction { step.predict_streams(args) } else { step.correct_streams(args) }
    })?;
    let wide = |stream: usize, at: usize| f64::from(values[stream][at]);
    let coefficient = |row: usize, index: usize| -> f64 {
        let tangents = routed[row * STREAMS..][..STREAMS].iter().map(|&x| (f64::from(scale) * f64::from(x)).tanh());
        weight[index * STREAMS..][..STREAMS].iter().zip(tangents).map(|(&weight, x)| f64::from(weight) * x).sum()
    };
    let expected = |stream: usize, at: usize| -> f64 {
        let row = at / cols;
        if is_prediction {
            let changes = (0..STREAMS).map(|other| coefficient(row, stream * STREAMS + other) * wide(other, at));
            return wide(stream, at) + changes.sum::<f64>();
        }
        let before = wide(if stream == 0 { STREAMS } else { stream }, at);
        before + (1.0 + coefficient(row, stream)) * (wide(0, at) - wide(STREAMS, at))
    };
    let kind = if is_prediction { "predicted" } else { "corrected" };
    for (stream, buffer) in std::iter::once(&active).chain(&others).enumerate() {
        let expected: Vec<f64> = (0..rows * cols).map(|at| expected(stream, at)).collect();
        let what = format!("stream {stream} of {rows} rows of {cols}, {kind}");
        tally.close(&what, backend.to_host(buffer, rows, cols)?, &expected, 1e-6, 2e-5);
    }
    let active = backend.to_host(&active, rows, cols)?.to_vec();
    let kept = if is_prediction { &active } else { &values[STREAMS] };
    tally.same(
        &format!("the prediction of {rows} rows of {cols}, {kind}"),
        backend.to_host(&predicted, rows, cols)?,
        kept,
    );
    Ok(())
}
