//! Ops that are fused where the device can: a decoder's half layers, over f32 weights, against f64.

use super::{Random, Tally, fill, matrix, stack, two_buffers, vector, within};
use crate::Result;
use crate::backend::{Activation, Backend, Fusions, Linear, Loader, Norm, NormGatedLinear, NormLinear, Ops};

/// `(rows, inputs, outputs)`.
const SHAPES: [(usize, usize, usize); 6] = [(1, 1, 1), (3, 5, 17), (2, 33, 16), (1, 96, 40), (9, 64, 65), (67, 40, 33)];
pub(super) const EPS: f32 = 1e-5;

pub(crate) fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("fused norm, product, activation");
    for (seed, &(rows, inputs, outputs)) in tally.part(&SHAPES) {
        tally.begin(&format!("half a layer of {rows} rows, {inputs} inputs, {outputs} outputs"))?;
        half_layer(loader(rows)?, rows, inputs, outputs, seed as u64, tally)?;
    }
    Ok(())
}

fn half_layer<L: Loader>(
    mut loader: L,
    rows: usize,
    inputs: usize,
    outputs: usize,
    seed: u64,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let mut random = Random(seed);
    let (x, norm_weights) = (random.values(rows * inputs), random.values(inputs));
    let (gate_up, down) = (random.values(2 * outputs * inputs), random.values(inputs * outputs));
    let table = matrix(&mut loader, &x, inputs)?;
    let (gate, up) = gate_up.split_at(outputs * inputs);
    let gate_up_matrix = stack(&mut loader, &[gate, up], inputs)?;
    let down_matrix = matrix(&mut loader, &down, outputs)?;
    let norm_vector = vector(&mut loader, &norm_weights)?;
    let [mut residual, mut normed] = two_buffers(&mut loader, rows, inputs)?;
    let mut products = loader.alloc_buffer(rows, 2 * outputs)?;
    let mut gated = loader.alloc_buffer(rows, outputs)?;
    let mut backend = loader.finish()?;
    let what = format!("{rows} rows, {inputs} inputs, {outputs} outputs");

    let x64: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let normed64 = rms_norm(&x64, &norm_weights);
    let products64 = multiply(&gate_up, &normed64, inputs);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gated64: Vec<f64> = products64
        .chunks(2 * outputs)
        .flat_map(|row| row[..outputs].iter().zip(&row[outputs..]).map(|(&g, &u)| silu(g) * u))
        .collect();
    let sums64: Vec<f64> = multiply(&down, &gated64, outputs).iter().zip(&x64).map(|(y, x)| y + x).collect();

    fill(&mut backend, &table, rows, &mut residual)?;
    let norm = Norm { weight: &norm_vector, eps: EPS };
    within(&mut backend, rows, |step| {
        let (x, matrix, normed, out) = (&residual, &gate_up_matrix, &mut normed, &mut products);
        step.norm_linear(NormLinear { x, norm, matrix, rows, normed, out })
    })?;
    let got = backend.to_host(&products, rows, 2 * outputs)?;
    tally.close(&format!("norm_linear of {what}"), got, &products64, 1e-5, 1e-5);

    within(&mut backend, rows, |step| {
        let (x, gate_up, activation) = (&residual, &gate_up_matrix, Activation::Silu);
        let (normed, products, out) = (&mut normed, &mut products, &mut gated);
        step.norm_gated_linear(NormGatedLinear { x, norm, gate_up, activation, rows, normed, products, out })
    })?;
    let got = backend.to_host(&gated, rows, outputs)?;
    tally.close(&format!("norm_gated_linear of {what}"), got, &gated64, 1e-5, 1e-5);

    within(&mut backend, rows, |step| {
        step.linear(Linear { x: &gated, matrix: &down_matrix, rows, out: &mut residual, add: true })
    })?;
    let got = backend.to_host(&residual, rows, inputs)?;
    tally.close(&format!("linear, added, of {what}"), got, &sums64, 1e-5, 1e-4);
    Ok(())
}

pub(super) fn rms_norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    x.chunks(weight.len())
        .flat_map(|row| {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            let rms = (mean + f64::from(EPS)).sqrt();
            row.iter().zip(weight).map(move |(x, &w)| x / rms * f64::from(w))
        })
        .collect()
}

fn multiply(matrix: &[f32], x: &[f64], cols: usize) -> Vec<f64> {
    let row = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum::<f64>();
    x.chunks(cols).flat_map(|x| matrix.chunks(cols).map(move |w| row(x, w))).collect()
}
