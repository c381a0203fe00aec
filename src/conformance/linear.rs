//! Matrix products and embedding rows of every tensor type, compared with f64 over the scalar decoders.
//!
//! The tolerance is six standard deviations of the rounding error of a backend, with uniform and independent roundings.
//! A backend may round activations (int8 in blocks of up to 32, or 16-bit floats), and a 16-bit scale per 32 weights. A
//! wrong scale, column or sign of a single block is far outside.

pub mod fused;
pub mod gated;

use super::reference::HostNorm;
use super::{Random, Tally, bytes_of, fill, matrix, rows_batch, two_buffers, vector, within};
use crate::backend::{Backend, Embed, Fusions, Linear, LinearPart, Loader, Norm, NormKind, NormLinear, Ops};
use crate::quant::{GgmlType, can_dequantize, dequantize};
use crate::tensor::TensorView;
use crate::{Error, Result};

const EPS: f32 = 1e-5;

/// `(rows, out_rows, cols)`; `cols` is rounded up to whole blocks of the type. There are single rows (matrix-vector
/// products), and numbers of rows around the tile sizes of matrix units.
const SHAPES: [(usize, usize, usize); 9] = [
    (1, 33, 576),
    (1, 17, 4864),
    (2, 1, 32),
    (3, 17, 96),
    (8, 100, 256),
    (9, 33, 512),
    (20, 35, 1088), // long enough to be split along the columns
    (33, 17, 320),
    (65, 20, 64),
];

/// `(rows, out_rows, cols)` with enough rows that a GPU multiplies f32 weights in larger blocks.
const MANY: [(usize, usize, usize); 2] = [(577, 35, 320), (513, 17, 33)];

/// Rows longer than a kernel may hold at once.
const LONG: [(GgmlType, usize); 3] = [(GgmlType::F32, 8320), (GgmlType::F16, 8500), (GgmlType::Q8_0, 16_416)];

/// Stacks of two types: types, outputs of each, inputs, and the numbers of activation rows.
type Stack = ([GgmlType; 2], [usize; 2], usize, &'static [usize]);
const STACKS: [Stack; 4] = [
    // Common files stack V (Q6_K) with Q and K (Q4_K), for which a backend may have special kernels. The numbers of
    // rows are around the tile sizes of matrix units.
    ([GgmlType::Q4_K, GgmlType::Q6_K], [37, 21], 768, &[1, 5, 8, 13, 16, 17]),
    ([GgmlType::Q5_K, GgmlType::Q6_K], [35, 67], 256, &[1, 2, 9]),
    // Long enough to be split along the columns.
    ([GgmlType::Q4_K, GgmlType::Q6_K], [33, 17], 8192, &[1, 3, 11]),
    ([GgmlType::Q6_K, GgmlType::Q4_0], [17, 33], 512, &[1, 8]),
];

/// Elements that may share one scale, both of weights and of quantized activations.
const GROUP: usize = 32;
/// Half a rounding step of f16 and of bf16, relative; and of f32 sums, with room for their length.
const F16: f64 = 1.0 / 2048.0;
const BF16: f64 = 1.0 / 256.0;
const SUMS: f64 = 1.0 / (1u64 << 20) as f64;

pub fn check<L: Loader>(
    loader: impl Fn(usize) -> Result<L>,
    wanted: impl Fn(GgmlType) -> bool,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let types = GgmlType::ALL.iter().copied().filter(|&t| can_dequantize(t) && wanted(t));
    for ggml_type in types {
        check_type(&loader, ggml_type, tally)?;
    }
    tally.group("products of long rows");
    for (ggml_type, cols) in LONG.into_iter().filter(|(ggml_type, _)| wanted(*ggml_type)) {
        for rows in [2, 1] {
            product(loader(rows)?, &Weights::random(ggml_type, 33, cols, 1)?, rows, false, tally)?;
        }
    }
    tally.group("products of stacks of two types");
    for (types, out_rows, cols, rows) in STACKS.into_iter().filter(|stack| stack.0.into_iter().all(&wanted)) {
        let weights =
            [Weights::random(types[0], out_rows[0], cols, 0)?, Weights::random(types[1], out_rows[1], cols, 1)?];
        for (_, &rows) in tally.part(rows) {
            stacked(loader(rows)?, &weights, rows, tally)?;
        }
    }
    Ok(())
}

/// Checks the cases of one type.
pub fn check_type<L: Loader>(
    loader: impl Fn(usize) -> Result<L>,
    ggml_type: GgmlType,
    tally: &mut Tally<'_>,
) -> Result<()> {
    tally.group(&format!("products of {}", ggml_type.name()));
    let seed = ggml_type as u64;
    for (i, &(rows, out_rows, cols)) in tally.part(&SHAPES) {
        let cols = cols.next_multiple_of(ggml_type.block_elements());
        product(loader(rows)?, &Weights::random(ggml_type, out_rows, cols, seed)?, rows, i % 2 == 1, tally)?;
    }
    for &(rows, out_rows, cols) in MANY.iter().filter(|_| ggml_type == GgmlType::F32) {
        let weights = Weights::random(GgmlType::F32, out_rows, cols, 2)?;
        product(loader(rows)?, &weights, rows, out_rows == 35, tally)?;
    }
    embedding(loader(3)?, &Weights::random(ggml_type, 33, 768, seed)?, tally)
}

#[derive(Clone)]
pub(super) struct Weights {
    ggml_type: GgmlType,
    rows: usize,
    cols: usize,
    data: Vec<u8>,
    /// Factors in the file's bytes, of NVFP4 alone.
    scales: Vec<u8>,
    pub(super) values: Vec<f32>,
}

impl Weights {
    /// Returns blocks of random bytes with scales of a sane size, since a random f16 may be infinite.
    pub(super) fn random(ggml_type: GgmlType, rows: usize, cols: usize, seed: u64) -> Result<Self> {
        let mut random = Random(seed);
        let bytes = ggml_type.block_bytes();
        let no_blocks = || Error::internal(format!("{cols} columns are no blocks of {}", ggml_type.name()));
        let num_bytes = ggml_type.row_bytes(rows * cols).ok_or_else(no_blocks)?;
        let mut data: Vec<u8> = (0..num_bytes).map(|_| random.next() as u8).collect();
        for block in data.chunks_mut(bytes) {
            let mut scale = || half::f16::from_f32(0.01 * random.value()).to_le_bytes();
            match ggml_type {
                GgmlType::F32 => block.copy_from_slice(&random.value().to_le_bytes()),
                GgmlType::F16 => block.copy_from_slice(&half::f16::from_f32(random.value()).to_le_bytes()),
                GgmlType::BF16 => block.copy_from_slice(&half::bf16::from_f32(random.value()).to_le_bytes()),
                GgmlType::MXFP4 => block[0] = 118 + block[0] % 8,
                // Scales of 2^-5 to almost 2^-1, and some that are subnormal.
                GgmlType::NVFP4 => block[..4].iter_mut().for_each(|s| *s = if *s < 16 { *s % 8 } else { 16 + *s % 32 }),
                GgmlType::IQ1_M => {
                    // the scale consists of the upper nibbles of four words
                    let scale = u16::from_le_bytes(scale());
                    for k in 0..4 {
                        block[49 + 2 * k] = (block[49 + 2 * k] & 15) | (((scale >> (4 * k)) & 15) as u8) << 4;
                    }
                }
                _ => scale_offsets(ggml_type).iter().for_each(|&at| block[at..at + 2].copy_from_slice(&scale())),
            }
        }
        let mut values = vec![0.0; rows * cols];
        dequantize(ggml_type, &data, &mut values)?;
        Ok(Self { ggml_type, rows, cols, data, scales: Vec::new(), values }.scaled(1))
    }

    /// The weights with `num` factors instead of one, each for an equal number of rows, if their type has factors.
    pub(super) fn scaled(mut self, num: usize) -> Self {
        if self.ggml_type == GgmlType::NVFP4 {
            let before = self.scales.first_chunk().map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
            let factors: Vec<f32> = (0..num).map(|i| 0.75 * 0.5f32.powi(i as i32 % 3)).collect();
            self.scales = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            let of_one = self.values.len() / num;
            for (values, factor) in self.values.chunks_exact_mut(of_one).zip(factors) {
                values.iter_mut().for_each(|value| *value *= factor / before);
            }
        }
        self
    }

    pub(super) fn view(&self) -> TensorView<'_> {
        TensorView {
            name: "weights",
            ggml_type: self.ggml_type,
            rows: self.rows,
            cols: self.cols,
            data: &self.data,
            scales: &self.scales,
        }
    }
}

/// Returns the byte offsets of the f16 scales (and minimums) in a block.
fn scale_offsets(ggml_type: GgmlType) -> &'static [usize] {
    match ggml_type {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q2_K => &[80, 82],
        GgmlType::Q3_K => &[108],
        GgmlType::Q6_K => &[208],
        GgmlType::TQ1_0 => &[52],
        GgmlType::TQ2_0 => &[64],
        _ => &[0],
    }
}

fn product<L: Loader>(loader: L, weights: &Weights, rows: usize, with_bias: bool, tally: &mut Tally<'_>) -> Result<()> {
    let what = format!("{} of {} x {}, {rows} rows", weights.ggml_type.name(), weights.rows, weights.cols);
    tally.begin(&what)?;
    let mut rig = ProductRig::new(loader, weights, rows, with_bias)?;
    let got = rig.run()?;
    tally.compare(&what, &got, rig.expected(weights));
    Ok(())
}

/// A matrix on a backend, and the rows to multiply it with.
pub(super) struct ProductRig<L: Loader> {
    backend: L::Backend,
    matrix: <L::Backend as Backend>::Matrix,
    input: super::BufferOf<L>,
    out: super::BufferOf<L>,
    rows: usize,
    x: Vec<f32>,
    /// Bias of each output; zeros if the stack has none.
    bias: Vec<f32>,
}

impl<L: Loader> ProductRig<L> {
    pub(super) fn new(mut loader: L, weights: &Weights, rows: usize, with_bias: bool) -> Result<Self> {
        let cols = weights.cols;
        let mut random = Random(cols as u64);
        let mut x = random.values(rows * cols);
        x[..cols / 4].fill(0.0); // whole blocks of zeros
        let bias = if with_bias { random.values(weights.rows) } else { vec![0.0; weights.rows] };
        let bias_data = bytes_of(&bias);
        let bias_view = TensorView {
            name: "bias",
            ggml_type: GgmlType::F32,
            rows: 1,
            cols: weights.rows,
            data: &bias_data,
            scales: &[],
        };
        let part = LinearPart { weight: weights.view(), bias: with_bias.then_some(bias_view) };
        let uploaded = loader.upload_matrix(&[part], &mut |_| Ok(()))?;
        let table = matrix(&mut loader, &x, cols)?;
        let mut input = loader.alloc_buffer(rows, cols)?;
        let out = loader.alloc_buffer(rows, weights.rows)?;
        let mut backend = loader.finish()?;
        fill(&mut backend, &table, rows, &mut input)?;
        Ok(Self { backend, matrix: uploaded, input, out, rows, x, bias })
    }

    pub(super) fn run(&mut self) -> Result<Vec<f32>> {
        let Self { backend, matrix, input: x, out, rows, .. } = self;
        let rows = *rows;
        within(backend, rows, |step| step.linear(Linear { x, matrix, rows, out, add: false }))?;
        Ok(self.backend.to_host(&self.out, self.rows, self.bias.len())?.to_vec())
    }

    /// Returns the expected products, each with its tolerance.
    pub(super) fn expected(&self, weights: &Weights) -> impl ExactSizeIterator<Item = (f64, f64)> {
        let mut expected = Vec::with_capacity(self.rows * weights.rows);
        for x in self.x.chunks(weights.cols) {
            expected.extend(weights.values.chunks(weights.cols).zip(&self.bias).map(|(w, &bias)| {
                let (sum, tolerance) = reference(weights.ggml_type, w, x);
                (sum + f64::from(bias), tolerance)
            }));
        }
        expected.into_iter()
    }
}

/// Checks the three products of a stack with bias: plain, added to other rows, and of normed rows.
fn stacked<L: Loader>(mut loader: L, weights: &[Weights; 2], rows: usize, tally: &mut Tally<'_>) -> Result<()> {
    let (cols, outputs) = (weights[0].cols, weights[0].rows + weights[1].rows);
    let [first, second] = weights.each_ref().map(|part| format!("{} of {}", part.ggml_type.name(), part.rows));
    let what = format!("{first} over {second} x {cols}, {rows} rows");
    tally.begin(&what)?;
    let mut random = Random(rows as u64);
    let (mut x, bias) = (random.values(rows * cols), random.values(outputs));
    x[..cols / 4].fill(0.0); // whole blocks of zeros
    let (norm, residual) = (random.values(cols), random.values(rows * outputs));
    let (first_bias, second_bias) = bias.split_at(weights[0].rows);
    let bias_data = [first_bias, second_bias].map(bytes_of);
    let parts = [0, 1].map(|i| {
        let (cols, data) = (weights[i].rows, &bias_data[i][..]);
        let bias = TensorView { name: "bias", ggml_type: GgmlType::F32, rows: 1, cols, data, scales: &[] };
        LinearPart { weight: weights[i].view(), bias: Some(bias) }
    });
    let uploaded = loader.upload_matrix(&parts, &mut |_| Ok(()))?;
    let norm_vector = vector(&mut loader, &norm)?;
    let x_table = matrix(&mut loader, &x, cols)?;
    let residual_table = matrix(&mut loader, &residual, outputs)?;
    let [mut input, mut normed] = two_buffers(&mut loader, rows, cols)?;
    let mut out = loader.alloc_buffer(rows, outputs)?;
    let mut backend = loader.finish()?;

    let expected = |x: &[f32], residual: Option<&[f32]>| {
        let mut expected = Vec::with_capacity(rows * outputs);
        for x in x.chunks(cols) {
            let all = weights.iter().flat_map(|part| part.values.chunks(cols).map(|w| (part.ggml_type, w)));
            for ((ggml_type, w), &bias) in all.zip(&bias) {
                let (sum, tolerance) = reference(ggml_type, w, x);
                let before = residual.map_or(0.0, |residual| f64::from(residual[expected.len()]));
                expected.push((sum + f64::from(bias) + before, tolerance));
            }
        }
        expected.into_iter()
    };
    fill(&mut backend, &x_table, rows, &mut input)?;
    let (x_buffer, matrix) = (&input, &uploaded);
    within(&mut backend, rows, |step| step.linear(Linear { x: x_buffer, matrix, rows, out: &mut out, add: false }))?;
    tally.compare(&format!("linear, {what}"), backend.to_host(&out, rows, outputs)?, expected(&x, None));

    fill(&mut backend, &residual_table, rows, &mut out)?;
    within(&mut backend, rows, |step| step.linear(Linear { x: x_buffer, matrix, rows, out: &mut out, add: true }))?;
    let sums = expected(&x, Some(&residual));
    tally.compare(&format!("linear, added, {what}"), backend.to_host(&out, rows, outputs)?, sums);

    within(&mut backend, rows, |step| {
        let norm = Some(Norm::rms(&norm_vector, EPS));
        let (normed, out) = (&mut normed, &mut out);
        step.norm_linear(NormLinear { x: x_buffer, norm, matrix, rows, normed, out })
    })?;
    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let x: Vec<f32> = HostNorm { kind: NormKind::Rms, weight: &norm, bias: None, eps: EPS }
        .of(&x)
        .into_iter()
        .map(|x| x as f32)
        .collect();
    tally.compare(&format!("norm_linear, {what}"), backend.to_host(&out, rows, outputs)?, expected(&x, None));
    Ok(())
}

/// Returns `w · x` and the error that a backend may have.
fn reference(ggml_type: GgmlType, w: &[f32], x: &[f32]) -> (f64, f64) {
    let (mut sum, mut magnitude, mut variance) = (0.0, 0.0, 0.0);
    for (w, x) in w.chunks(GROUP).zip(x.chunks(GROUP)) {
        let largest = |values: &[f32]| values.iter().fold(0.0, |m: f64, &v| m.max(f64::from(v).abs()));
        let (largest_w, largest_x) = (largest(w), largest(x));
        let mut sum_x = 0.0;
        for (&w, &x) in w.iter().zip(x) {
            let (w, x) = (f64::from(w), f64::from(x));
            sum += w * x;
            magnitude += (w * x).abs();
            sum_x += x.abs();
            let rounding_x = match ggml_type {
                GgmlType::F32 => 0.0,
                GgmlType::F16 => F16 * x,
                GgmlType::BF16 => BF16 * x,
                _ => largest_x / 254.0, // int8
            };
            variance += (w * rounding_x).powi(2) / 3.0;
        }
        let exact = matches!(ggml_type, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
        if !exact {
            variance += (F16 * largest_w * sum_x).powi(2) / 3.0;
        }
    }
    (sum, 6.0 * variance.sqrt() + SUMS * (magnitude + 1.0))
}

/// Embedding rows must be exact.
fn embedding<L: Loader>(mut loader: L, weights: &Weights, tally: &mut Tally<'_>) -> Result<()> {
    let what = format!("embedding of {}", weights.ggml_type.name());
    tally.begin(&what)?;
    let cols = weights.cols;
    let ids = [0, weights.rows as u32 - 1, weights.rows as u32 / 2];
    let part = LinearPart { weight: weights.view(), bias: None };
    let table = loader.upload_matrix(&[part], &mut |_| Ok(()))?;
    let mut out = loader.alloc_buffer(ids.len(), cols)?;
    let mut backend = loader.finish()?;
    let batch = rows_batch(ids.to_vec());
    backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.embed(Embed { table: &table, scale: 1.0, out: &mut out })
    })?;
    let got = backend.to_host(&out, ids.len(), cols)?;
    let values = ids.iter().flat_map(|&id| &weights.values[id as usize * cols..][..cols]);
    let expected: Vec<_> = values.map(|&value| f64::from(value)).collect();
    tally.close(&what, got, &expected, 0.0, 0.0);
    Ok(())
}
