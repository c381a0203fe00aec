//! Products that are added to a residual, followed in the same step by each op that may read it. A device may let that
//! op add the partial sums of a split-K product. Weights and rows are small whole numbers. Sums are thus exact in any
//! order, and also as f16.

use super::reference::HostNorm;
use super::{Random, Tally, fill, matrix, two_buffers, vector, within};
use crate::Result;
use crate::backend::{
    Activation, AddNorm, Backend, Fusions, GatedActivation, Linear, LinearPart, Loader, Norm, NormInPlace, NormKind,
    NormLinear, NormRows, Ops,
};
use crate::quant::GgmlType;
use crate::tensor::TensorView;

/// Rows, columns of the residual, and inputs of the product. Devices split long rows. The last residual is longer than
/// a thread block may hold at once.
const SHAPES: [(usize, usize, usize); 4] = [(20, 352, 1088), (3, 96, 8192), (40, 96, 4096), (17, 4128, 1024)];
const LONG: usize = 4096;
/// Outputs of the product that reads the residual.
const OUTPUTS: usize = 16;
const EPS: f32 = 1e-5;
/// Tolerances. Norms are f32, but a device may store activations as f16.
const F32: f64 = 1e-5;
const F16: f64 = 1e-3;

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("products added to a residual");
    for (seed, &shape) in tally.part(&SHAPES) {
        tally.begin(&what(shape))?;
        readers(loader(shape.0)?, shape, seed as u64, tally)?;
    }
    Ok(())
}

fn what((rows, cols, inputs): (usize, usize, usize)) -> String {
    format!("{rows} rows of {cols}, {inputs} inputs")
}

/// Returns whole numbers from -2 to 2.
fn whole(random: &mut Random, n: usize) -> Vec<f32> {
    random.values(n).into_iter().map(|x| (2.0 * x).round().clamp(-2.0, 2.0)).collect()
}

/// Uploads whole numbers as an f16 matrix, which every device multiplies without rounding.
fn halves<L: Loader>(loader: &mut L, values: &[f32], cols: usize) -> Result<<L::Backend as Backend>::Matrix> {
    let data: Vec<u8> = values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
    let (name, ggml_type, rows) = ("matrix", GgmlType::F16, values.len() / cols);
    let weight = TensorView { name, ggml_type, rows, cols, data: &data, scales: &[] };
    loader.upload_matrix(&[LinearPart { weight, bias: None }], &mut |_| Ok(()))
}

fn multiply(weights: &[f32], x: &[f32], cols: usize) -> Vec<f32> {
    let row = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>();
    x.chunks(cols).flat_map(|x| weights.chunks(cols).map(move |w| row(x, w))).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

fn readers<L: Loader>(
    mut loader: L,
    shape @ (rows, cols, inputs): (usize, usize, usize),
    seed: u64,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let what = what(shape);
    let mut random = Random(seed);
    let mut x = whole(&mut random, rows * inputs);
    // Keeps sums below 2048, up to which f16 holds every whole number.
    x.iter_mut().enumerate().filter(|(i, _)| i % 16 != 0).for_each(|(_, x)| *x = 0.0);
    let (down, before, next) =
        (whole(&mut random, cols * inputs), whole(&mut random, rows * cols), whole(&mut random, OUTPUTS * cols));
    let (norm_weights, norm_bias) = (random.values(cols), random.values(cols));
    let (x_table, before_table) = (matrix(&mut loader, &x, inputs)?, matrix(&mut loader, &before, cols)?);
    let (down_matrix, next_matrix) = (halves(&mut loader, &down, inputs)?, halves(&mut loader, &next, cols)?);
    let (weight, bias) = (vector(&mut loader, &norm_weights)?, vector(&mut loader, &norm_bias)?);
    let mut input = loader.alloc_buffer(rows, inputs)?;
    let [mut residual, mut normed] = two_buffers(&mut loader, rows, cols)?;
    let mut gated = loader.alloc_buffer(rows, cols / 2)?;
    let mut out = loader.alloc_buffer(rows, OUTPUTS)?;
    let mut backend = loader.finish()?;
    fill(&mut backend, &x_table, rows, &mut input)?;

    let products = multiply(&down, &x, inputs);
    let sums: Vec<f32> = before.iter().zip(&products).map(|(x, y)| x + y).collect();
    let (sums64, products64) = (wide(&sums), wide(&products));
    let of = |kind, bias| HostNorm { kind, weight: &norm_weights, bias, eps: EPS }.of(&sums64);
    let rms64 = of(NormKind::Rms, None);
    let rms = Norm::rms(&weight, EPS);
    let (x, down) = (&input, &down_matrix);

    // No op reads the residual in the step.
    fill(&mut backend, &before_table, rows, &mut residual)?;
    within(&mut backend, rows, |step| step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true }))?;
    tally.close(&format!("sums, {what}"), backend.to_host(&residual, rows, cols)?, &sums64, 0.0, 0.0);

    // Another product is added to the residual.
    fill(&mut backend, &before_table, rows, &mut residual)?;
    within(&mut backend, rows, |step| {
        step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true })?;
        step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true })
    })?;
    let twice: Vec<f64> = sums64.iter().zip(&products64).map(|(x, y)| x + y).collect();
    tally.close(&format!("sums of two, {what}"), backend.to_host(&residual, rows, cols)?, &twice, 0.0, 0.0);

    // A norm of either kind reads the residual, which is complete afterwards.
    for (kind, bias, bias64) in [(NormKind::Rms, None, None), (NormKind::Layer, Some(&bias), Some(&norm_bias[..]))] {
        fill(&mut backend, &before_table, rows, &mut residual)?;
        within(&mut backend, rows, |step| {
            step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true })?;
            let norm = Norm { kind, weight: &weight, bias, eps: EPS };
            step.norm_rows(NormRows { x: &residual, norm, rows, out: &mut normed })
        })?;
        let got = backend.to_host(&normed, rows, cols)?;
        tally.close(&format!("{kind:?} of sums, {what}"), got, &of(kind, bias64), F32, F32);
        let got = backend.to_host(&residual, rows, cols)?;
        tally.close(&format!("sums behind {kind:?}, {what}"), got, &sums64, 0.0, 0.0);
    }

    // The longest rows are only for norms, since simulated devices are slow.
    if cols > LONG {
        return Ok(());
    }

    // A norm in place.
    fill(&mut backend, &before_table, rows, &mut residual)?;
    within(&mut backend, rows, |step| {
        step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true })?;
        step.norm_in_place(NormInPlace { x: &mut residual, norm: rms, rows })
    })?;
    tally.close(&format!("sums normed in place, {what}"), backend.to_host(&residual, rows, cols)?, &rms64, F32, F32);

    // A norm of other rows is added to the residual.
    fill(&mut backend, &before_table, rows, &mut residual)?;
    fill(&mut backend, &before_table, rows, &mut normed)?;
    within(&mut backend, rows, |step| {
        step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true })?;
        step.add_norm(AddNorm { x: &normed, norm: rms, rows, out: &mut residual, factor: 1.0 })
    })?;
    let added = HostNorm { kind: NormKind::Rms, weight: &norm_weights, bias: None, eps: EPS }.of(&wide(&before));
    let added: Vec<f64> = sums64.iter().zip(&added).map(|(x, y)| x + y).collect();
    tally.close(&format!("a norm added to sums, {what}"), backend.to_host(&residual, rows, cols)?, &added, F32, F32);

    // A product reads the residual directly, or through `norm_linear`, which may convert it to another format.
    let of_sums = wide(&multiply(&next, &sums, cols));
    for norm in [false, true] {
        fill(&mut backend, &before_table, rows, &mut residual)?;
        within(&mut backend, rows, |step| {
            step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true })?;
            let (x, matrix, out) = (&residual, &next_matrix, &mut out);
            match norm {
                false => step.linear(Linear { x, matrix, rows, out, add: false }),
                true => step.norm_linear(NormLinear { x, norm: None, matrix, rows, normed: &mut normed, out }),
            }
        })?;
        let got = backend.to_host(&out, rows, OUTPUTS)?;
        tally.close(&format!("a product of sums, {what}"), got, &of_sums, 0.0, 0.0);
    }

    // An activation reads the residual as gate and up.
    fill(&mut backend, &before_table, rows, &mut residual)?;
    within(&mut backend, rows, |step| {
        step.linear(Linear { x, matrix: down, rows, out: &mut residual, add: true })?;
        let (activation, cols, out) = (Activation::SquaredRelu, cols / 2, &mut gated);
        step.gated_activation(GatedActivation { gate_up: &residual, activation, rows, cols, out })
    })?;
    let half = cols / 2;
    let expected = sums64.chunks(cols).flat_map(|row| row[..half].iter().zip(&row[half..]));
    let expected: Vec<f64> =
        expected.map(|(&gate, &up)| (gate.max(0.0).powi(2) * up).clamp(-65504.0, 65504.0)).collect();
    let got = backend.to_host(&gated, rows, half)?;
    let got: Vec<f32> = got.iter().map(|x| x.clamp(-65504.0, 65504.0)).collect();
    tally.close(&format!("an activation of sums, {what}"), &got, &expected, F16, F16);
    Ok(())
}
