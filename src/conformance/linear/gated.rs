//! Gate and up of a feed-forward with their activation, for weight types of real files, compared with f64.

use super::Weights;
use crate::Result;
use crate::backend::{Activation, Backend, Fusions, LinearPart, Loader, Norm, NormGatedLinear, NormKind};
use crate::quant::GgmlType;
use crate::reference::{self, HostNorm};
use crate::tensor::TensorView;
use crate::{Random, Tally, bytes_of, fill, matrix, two_buffers, vector, within};

/// `[rows, inputs, outputs]`. Rows are around the tile sizes of matrix units, and outputs end within a tile and a
/// block.
const SHAPES: [[usize; 3]; 5] = [[2, 256, 273], [8, 512, 35], [11, 256, 17], [24, 256, 17], [40, 256, 17]];
const TYPES: [GgmlType; 4] = [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::BF16];
const ACTIVATIONS: [Activation; 4] =
    [Activation::Silu, Activation::Gelu, Activation::ClampedSwiglu, Activation::ClampedSilu { limit: 0.5 }];
const EPS: f32 = 1e-5;
/// Tolerance of a product, relative to the length of its terms. It is at least six standard deviations of independent
/// int8 roundings of activations in blocks of up to 32. A misplaced product, or a block with another block's scale, is
/// wrong by about the whole length.
const OF_LENGTH: f64 = 0.05;
/// Half a rounding step of bf16, relative. Outputs may be 16-bit numbers.
const BF16: f64 = 1.0 / 256.0;

pub fn check<L: Loader>(
    loader: impl Fn(usize) -> Result<L>,
    wanted: impl Fn(GgmlType) -> bool,
    tally: &mut Tally<'_>,
) -> Result<()> {
    tally.group("gate, up and activation");
    for ggml_type in TYPES.into_iter().filter(|&ggml_type| wanted(ggml_type)) {
        for (i, &shape) in tally.part(&SHAPES) {
            check_shape(loader(shape[0])?, ggml_type, shape, i as u64, tally)?;
        }
    }
    Ok(())
}

/// Checks one shape. Odd seeds have a bias and no norm.
pub fn check_shape<L: Loader>(
    mut loader: L,
    ggml_type: GgmlType,
    [rows, inputs, outputs]: [usize; 3],
    seed: u64,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let activation = ACTIVATIONS[seed as usize % ACTIVATIONS.len()];
    let plain = seed % 2 == 1;
    let what = format!("{} of 2 x {outputs} x {inputs}, {rows} rows, {activation:?}", ggml_type.name());
    tally.begin(&what)?;
    let mut random = Random(seed);
    let (x, norm_weights) = (random.values(rows * inputs), random.values(inputs));
    let [gate, up] = [2 * seed, 2 * seed + 1].map(|seed| Weights::random(ggml_type, outputs, inputs, seed));
    let (gate, up) = (gate?, up?);
    let biases = [random.values(outputs), random.values(outputs)];
    let bytes = biases.each_ref().map(|bias| bytes_of(bias));
    let bias = |data| TensorView { name: "bias", ggml_type: GgmlType::F32, rows: 1, cols: outputs, data, scales: &[] };
    let parts = [(&gate, &bytes[0]), (&up, &bytes[1])]
        .map(|(weights, data)| LinearPart { weight: weights.view(), bias: plain.then(|| bias(data)) });
    let gate_up = loader.upload_matrix(&parts, &mut |_| Ok(()))?;
    let table = matrix(&mut loader, &x, inputs)?;
    let norm_vector = vector(&mut loader, &norm_weights)?;
    let [mut residual, mut normed] = two_buffers(&mut loader, rows, inputs)?;
    let mut products = loader.alloc_buffer(rows, 2 * outputs)?;
    let mut gated = loader.alloc_buffer(rows, outputs)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &table, rows, &mut residual)?;
    within(&mut backend, rows, |step| {
        let (x, gate_up, norm) = (&residual, &gate_up, (!plain).then(|| Norm::rms(&norm_vector, EPS)));
        let (normed, products, out) = (&mut normed, &mut products, &mut gated);
        step.norm_gated_linear(NormGatedLinear { x, norm, gate_up, activation, rows, normed, products, out })
    })?;

    let x64: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let norm = HostNorm { kind: NormKind::Rms, weight: &norm_weights, bias: None, eps: EPS };
    let normed64 = if plain { x64 } else { norm.of(&x64) };
    let product = |weights: &Weights, row: &[f64], i: usize, bias: &[f32]| {
        let weights = &weights.values[i * inputs..(i + 1) * inputs];
        let terms = || row.iter().zip(weights).map(|(x, &w)| x * f64::from(w));
        let sum = terms().sum::<f64>() + if plain { f64::from(bias[i]) } else { 0.0 };
        (sum, OF_LENGTH * terms().map(|x| x * x).sum::<f64>().sqrt())
    };
    let of_row = |row: &[f64]| {
        let output = |i| {
            let ((gate, most), (up, most_of_up)) =
                (product(&gate, row, i, &biases[0]), product(&up, row, i, &biases[1]));
            let of = |gate, up| reference::gated(activation, gate, up);
            let exact = of(gate, up);
            let about = [-1.0, 1.0].map(|g| [-1.0, 1.0].map(|u| of(gate + g * most, up + u * most_of_up)));
            let most = about.iter().flatten().map(|x| (x - exact).abs()).fold(0.0, f64::max);
            (exact, most + BF16 * exact.abs() + f64::from(EPS))
        };
        (0..outputs).map(output).collect::<Vec<_>>()
    };
    let expected: Vec<(f64, f64)> = normed64.chunks(inputs).flat_map(of_row).collect();
    tally.compare(&what, backend.to_host(&gated, rows, outputs)?, expected.into_iter());
    Ok(())
}
