//! The load-time self-test. It multiplies a slice of a real weight of each type on the device and with the scalar
//! decoder. It does the same for each stack of two types that has special kernels. It finds a miscompiled kernel or a
//! faulty transfer before the first request.

use super::GpuBackend;
use crate::backend::{Backend, Linear};
use crate::buffer::{Buffer, Matrix, Segment, TILE_COLS, TILE_ROWS};
use crate::launch::args::Format;
use crate::quant::{self, GgmlType};
use crate::tensor::TensorView;
use crate::{DeviceBuffer, HostBuffer, KernelType, MATMUL_ROWS};
use crate::{Error, Result};

/// Rows of activations, enough to use each variant of the matrix kernels.
const MAX_ROWS: usize = 64;
/// The largest error of a product, relative to the worst-case sum of its terms (`expected`). `gemv` sums exact integers
/// and f32. The matrix units take weights rounded to f16, whose scales and minimums were rounded before.
const GEMV_ERROR: f64 = 1e-5;
const MATMUL_ERROR: f64 = 1.0 / 1024.0;

/// Memory for the products of the self-test. The backend holds it: after an error they may still run, and the backend's
/// drop waits for them.
pub(super) struct TestMemory {
    host: HostBuffer,
    x: DeviceBuffer,
    out: DeviceBuffer,
}

/// The first rows of a tensor, or of several in a stack, in the file and on the device.
pub(crate) struct Sample {
    matrix: Matrix,
    slices: Vec<Slice>,
}

struct Slice {
    name: String,
    ty: GgmlType,
    /// Rows in the file's blocks.
    data: Vec<u8>,
    scale: f32,
}

impl Sample {
    /// Takes each tensor with its type on the device and its memory there.
    pub(crate) fn new(parts: &[(&TensorView<'_>, KernelType, &DeviceBuffer)]) -> Self {
        let mut matrix = Matrix { rows: 0, cols: 0, segments: Vec::new(), staged: None };
        let mut slices = Vec::new();
        for &(weight, ty, tiles) in parts {
            let rows = weight.rows.min(TILE_ROWS);
            let row_bytes = weight.data.len() / weight.rows.max(1);
            matrix.segments.push(Segment {
                ty,
                first_row: matrix.rows,
                rows,
                tiles: tiles.clone(),
                bias: None,
                dense: None,
            });
            matrix.rows += rows;
            matrix.cols = weight.cols;
            slices.push(Slice {
                name: weight.name.to_owned(),
                ty: weight.ggml_type,
                data: weight.data[..rows * row_bytes].to_vec(),
                scale: weight.scale(),
            });
        }
        Self { matrix, slices }
    }

    /// True if these are its tensors' types, in this order.
    pub(crate) fn is_of(&self, types: &[KernelType]) -> bool {
        self.matrix.segments.iter().map(|segment| segment.ty).eq(types.iter().copied())
    }

    fn kernel_type(&self) -> KernelType {
        self.matrix.segments.first().map_or(KernelType::F32, |segment| segment.ty)
    }

    /// Returns the weights as the CPU decodes them.
    fn weights(&self) -> Result<Vec<f32>> {
        let mut weights = vec![0.0; self.matrix.rows * self.matrix.cols];
        let mut rest = &mut weights[..];
        for (slice, segment) in self.slices.iter().zip(&self.matrix.segments) {
            let (here, after) = rest.split_at_mut(segment.rows * self.matrix.cols);
            quant::dequantize(slice.ty, &slice.data, here)?;
            here.iter_mut().for_each(|weight| *weight *= slice.scale);
            rest = after;
        }
        Ok(weights)
    }

    /// Joins the texts of the slices for a message.
    fn all<'a>(&'a self, text: impl Fn(&'a Slice) -> &'a str) -> String {
        self.slices.iter().map(text).collect::<Vec<_>>().join(" and ")
    }
}

/// Returns whole numbers up to 127, at least one in each 16 being 127. They do not change when they are quantised to 8
/// bits or rounded to f16.
fn activations(rows: usize, cols: usize) -> Vec<f32> {
    let value = |i: usize| if i.is_multiple_of(16) { 127.0 } else { ((i * 7919 + i / 251) % 255) as f32 - 127.0 };
    (0..rows).flat_map(|row| (0..cols).map(move |col| value(col + 16 * row * 31))).collect()
}

/// Returns a product and the size of its terms, in f64.
fn expected(weights: &[f32], x: &[f32]) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (weights, x) in weights.chunks(TILE_COLS).zip(x.chunks(TILE_COLS)) {
        let largest = weights.iter().fold(0.0f32, |most, w| most.max(w.abs()));
        for (&w, &x) in weights.iter().zip(x) {
            sums.0 += f64::from(w) * f64::from(x);
            sums.1 += f64::from(largest) * f64::from(x.abs());
        }
    }
    sums
}

impl GpuBackend {
    /// Multiplies a slice of each sample with 1 and up to 64 rows.
    ///
    /// # Errors
    /// `Error::Device` with tensor, type, rows and device, at the first wrong product.
    pub(crate) fn self_test(&mut self, samples: &[Sample]) -> Result<()> {
        let most_cols = samples.iter().map(|sample| sample.matrix.cols).max().unwrap_or(0);
        if !self.options.self_test || most_cols == 0 {
            return Ok(());
        }
        let most_outputs = samples.iter().map(|sample| sample.matrix.rows).max().unwrap_or(0);
        let x_bytes = Format::F32.bytes(MAX_ROWS, most_cols);
        let memory = self.test_memory.insert(TestMemory {
            host: HostBuffer::new(&self.device, x_bytes as usize)?,
            x: DeviceBuffer::new(&self.device, x_bytes)?,
            out: DeviceBuffer::new(&self.device, Format::F32.bytes(MAX_ROWS, most_outputs))?,
        });
        let x = Buffer::new(memory.x.clone());
        let mut out = Buffer::new(memory.out.clone());
        for sample in samples {
            let values = activations(MAX_ROWS, sample.matrix.cols);
            self.upload_activations(&values)?;
            let weights = sample.weights()?;
            for rows in [1].into_iter().chain(MATMUL_ROWS.map(|rows| rows as usize)) {
                let product = Linear { x: &x, matrix: &sample.matrix, rows, out: &mut out, add: false };
                self.compute.linear(product, None, Format::F32)?;
                let got = self.to_host(&out, rows, sample.matrix.rows)?.to_vec();
                self.compare(sample, &weights, &values, rows, &got)?;
            }
        }
        self.compute.launcher().stream().synchronize()?;
        self.test_memory = None;
        Ok(())
    }

    fn upload_activations(&mut self, values: &[f32]) -> Result<()> {
        let memory = self.test_memory.as_mut().ok_or_else(|| Error::internal("a self-test without its memory"))?;
        for (bytes, value) in memory.host.as_mut_slice().as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = value.to_ne_bytes();
        }
        // SAFETY: the copy has run before the host buffer is written again, since the products after it are waited for.
        // After an error it is not written again.
        unsafe {
            let stream = self.compute.launcher().stream();
            stream.copy_to_device(memory.x.slice(), &memory.host.as_slice()[..4 * values.len()])
        }
    }

    fn compare(&self, sample: &Sample, weights: &[f32], x: &[f32], rows: usize, got: &[f32]) -> Result<()> {
        let (ty, cols) = (sample.kernel_type(), sample.matrix.cols);
        let is_gemv = self.compute.activation_format(ty.matmul_format(), rows).is_f32();
        let error = if is_gemv { GEMV_ERROR } else { MATMUL_ERROR };
        for (x, got) in x.chunks(cols).zip(got.chunks(sample.matrix.rows)) {
            for (weights, &got) in weights.chunks(cols).zip(got) {
                let (expected, terms) = expected(weights, x);
                let near = match expected.is_finite() {
                    true => (f64::from(got) - expected).abs() <= error * terms,
                    // A weight of the file is not finite, so the product must not be finite either.
                    false => !got.is_finite(),
                };
                if !near {
                    let kernel = if is_gemv { "gemv" } else { "matmul" };
                    return Err(Error::Device {
                        device: self.device.label().to_owned(),
                        problem: format!(
                            "self-test: {kernel} of {} weights ({}, {rows} rows) gives {got}, expected {expected}; \
                             do not serve with this device and driver. self_test=False or ROCMFORGE_SELF_TEST=0 \
                             skips the test",
                            sample.all(|slice| slice.ty.name()),
                            sample.all(|slice| &slice.name),
                        ),
                    });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_survive_quantisation() {
        for cols in [16, 100, 4096] {
            let x = activations(3, cols);
            assert!(x.iter().all(|x| x.abs() <= 127.0 && x.fract() == 0.0));
            assert!(x.chunks(cols).all(|row| row.chunks(16).all(|block| block[0] == 127.0)));
        }
    }
}
