//! Tests of the linear kernels against float64, ggml's own dot products, and each other.

mod golden;
mod identity;
mod values;

use rocmforge_backend::LinearPart;
use rocmforge_cpu::Isa;
use rocmforge_cpu::linear::{LinearScratch, PackedMatrix, Store, WeightMemory};
use rocmforge_cpu::pool::ThreadPool;
use rocmforge_gguf::quant::{GgmlType, can_dequantize, dequantize};
use rocmforge_gguf::tensor::TensorView;
use rocmforge_testdata::npz;

/// Returns every type that a model may contain.
fn types() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|&t| can_dequantize(t))
}

/// Returns row lengths for tests of `ggml_type`: whole blocks, and odd lengths if blocks allow them.
fn col_counts(ggml_type: GgmlType) -> &'static [usize] {
    match ggml_type.block_elements() {
        1 => &[1, 31, 96, 333],
        32 => &[32, 96, 256, 576, 1120],
        64 => &[64, 192, 512, 1088],
        128 => &[128, 384, 512, 1152],
        _ => &[256, 512, 1280],
    }
}

/// xorshift, which is enough for irregular data.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// Returns a number in -1..1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub(super) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| 3.0 * self.unit()).collect()
    }
}

/// Returns GGUF rows of `ggml_type` from blocks that ggml quantized (Gaussian data of various sizes).
fn matrix(ggml_type: GgmlType, rows: usize, cols: usize) -> Vec<u8> {
    let bytes = ggml_type.row_bytes(cols).unwrap() * rows;
    if ggml_type == GgmlType::F32 {
        return Random(7).values(rows * cols).iter().flat_map(|v| v.to_le_bytes()).collect();
    }
    let golden = npz(&format!("quant/{}", ggml_type.name()));
    let gaussian = golden.shape("raw")[1] * 28;
    golden.u8("raw")[..gaussian].iter().copied().cycle().take(bytes).collect()
}

fn view<'a>(ggml_type: GgmlType, rows: usize, cols: usize, data: &'a [u8]) -> TensorView<'a> {
    TensorView { name: "test.weight", ggml_type, rows, cols, data, scales: &[] }
}

fn part(weight: TensorView<'_>) -> LinearPart<'_> {
    LinearPart { weight, bias: None }
}

/// Packs and multiplies with the kernels of `isa`.
fn multiply(isa: Isa, parts: &[LinearPart<'_>], x: &[f32], num_rows: usize) -> Vec<f32> {
    let pool = ThreadPool::new(2).unwrap();
    let packed = PackedMatrix::pack(isa, parts, &mut WeightMemory::default(), &pool, &mut |_| Ok(())).unwrap();
    let mut scratch = LinearScratch::new(num_rows, packed.cols()).unwrap();
    let mut out = vec![f32::NAN; num_rows * packed.rows()];
    packed.multiply(x, num_rows, &mut out, Store::Assign, &mut scratch, &pool);
    out
}

fn decoded(ggml_type: GgmlType, data: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    dequantize(ggml_type, data, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
