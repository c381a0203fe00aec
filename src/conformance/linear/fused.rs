//! Ops that a device may fuse: the half layers of a decoder over f32 weights, compared with f64.

use crate::Result;
use crate::backend::{
    Activation, Backend, Fusions, Linear, LinearPart, Loader, Norm, NormGatedLinear, NormKind, NormLinear, Ops,
};
use crate::quant::GgmlType;
use crate::reference::{self, HostNorm};
use crate::tensor::TensorView;
use crate::{Random, Tally, bytes_of, fill, matrix, two_buffers, vector, within};

/// `(rows, inputs, outputs)`.
const SHAPES: [(usize, usize, usize); 6] = [(1, 1, 1), (3, 5, 17), (2, 33, 16), (1, 96, 40), (9, 64, 65), (67, 40, 33)];
const EPS: f32 = 1e-5;

/// The half layers of a model family.
struct Style {
    /// `None` means no norm.
    norm: Option<NormKind>,
    activation: Activation,
    /// True if the norm, and gate and up, have biases.
    biases: bool,
}

const STYLES: [Style; 4] = [
    Style { norm: Some(NormKind::Rms), activation: Activation::Silu, biases: false },
    Style { norm: Some(NormKind::Layer), activation: Activation::Gelu, biases: true },
    Style { norm: Some(NormKind::Rms), activation: Activation::ClampedSwiglu, biases: true },
    Style { norm: None, activation: Activation::Gelu, biases: false },
];

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("fused norm, product, activation");
    for (seed, &(rows, inputs, outputs)) in tally.part(&SHAPES) {
        for style in &STYLES {
            tally.begin(&format!("half a layer of {rows} rows, {inputs} inputs, {outputs} outputs"))?;
            half_layer(loader(rows)?, style, [rows, inputs, outputs], seed as u64, tally)?;
        }
    }
    Ok(())
}

fn half_layer<L: Loader>(
    mut loader: L,
    style: &Style,
    [rows, inputs, outputs]: [usize; 3],
    seed: u64,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let mut random = Random(seed);
    let (x, norm_weights) = (random.values(rows * inputs), random.values(inputs));
    let (gate_up, down) = (random.values(2 * outputs * inputs), random.values(inputs * outputs));
    let table = matrix(&mut loader, &x, inputs)?;
    let (norm_bias, gate_up_bias) = (random.values(inputs), random.values(2 * outputs));
    let gate_up_matrix = gate_and_up(&mut loader, &gate_up, style.biases.then_some(&gate_up_bias), inputs)?;
    let down_matrix = matrix(&mut loader, &down, outputs)?;
    let (norm_vector, bias_vector) = (vector(&mut loader, &norm_weights)?, vector(&mut loader, &norm_bias)?);
    let [mut residual, mut normed] = two_buffers(&mut loader, rows, inputs)?;
    let mut products = loader.alloc_buffer(rows, 2 * outputs)?;
    let mut gated = loader.alloc_buffer(rows, outputs)?;
    let mut backend = loader.finish()?;
    let Style { norm, activation, biases } = *style;
    let what = format!("{rows} rows, {inputs} inputs, {outputs} outputs, {norm:?}, {activation:?}");

    let x64: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let bias = biases.then_some(&norm_bias[..]);
    let of_norm = |kind| HostNorm { kind, weight: &norm_weights, bias, eps: EPS }.of(&x64);
    let normed64 = norm.map_or_else(|| x64.clone(), of_norm);
    let mut products64 = multiply(&gate_up, &normed64, inputs);
    if biases {
        let all = products64.chunks_mut(2 * outputs).flat_map(|row| row.iter_mut().zip(&gate_up_bias));
        all.for_each(|(product, &bias)| *product += f64::from(bias));
    }
    let gated64: Vec<f64> = products64
        .chunks(2 * outputs)
        .flat_map(|row| row[..outputs].iter().zip(&row[outputs..]))
        .map(|(&gate, &up)| reference::gated(activation, gate, up))
        .collect();
    let sums64: Vec<f64> = multiply(&down, &gated64, outputs).iter().zip(&x64).map(|(y, x)| y + x).collect();

    fill(&mut backend, &table, rows, &mut residual)?;
    let bias = biases.then_some(&bias_vector);
    let norm = norm.map(|kind| Norm { kind, weight: &norm_vector, bias, eps: EPS });
    within(&mut backend, rows, |step| {
        let (x, matrix, normed, out) = (&residual, &gate_up_matrix, &mut normed, &mut products);
        step.norm_linear(NormLinear { x, norm, matrix, rows, normed, out })
    })?;
    let got = backend.to_host(&products, rows, 2 * outputs)?;
    tally.close(&format!("norm_linear of {what}"), got, &products64, 1e-5, 1e-5);

    within(&mut backend, rows, |step| {
        let (x, gate_up) = (&residual, &gate_up_matrix);
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

/// Uploads gate and up as a stack with their biases.
fn gate_and_up<L: Loader>(
    loader: &mut L,
    weights: &[f32],
    bias: Option<&Vec<f32>>,
    cols: usize,
) -> Result<<L::Backend as Backend>::Matrix> {
    let rows = weights.len() / cols / 2;
    let data: Vec<_> = weights.chunks(rows * cols).map(bytes_of).collect();
    let biases: Vec<_> = bias.iter().flat_map(|bias| bias.chunks(rows)).map(bytes_of).collect();
    let view = |name, rows, cols, data| TensorView { name, ggml_type: GgmlType::F32, rows, cols, data, scales: &[] };
    let parts = data.iter().enumerate().map(|(i, data)| LinearPart {
        weight: view("gate or up", rows, cols, data),
        bias: biases.get(i).map(|bias| view("bias", 1, rows, bias)),
    });
    loader.upload_matrix(&parts.collect::<Vec<_>>(), &mut |_| Ok(()))
}

fn multiply(matrix: &[f32], x: &[f64], cols: usize) -> Vec<f64> {
    let row = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum::<f64>();
    x.chunks(cols).flat_map(|x| matrix.chunks(cols).map(move |w| row(x, w))).collect()
}
