//! `linear`, the product of quantised weights and activations, at the shapes of a model of 135M and one of 1B.
//!
//! One row is decode: the figure is weight bytes per second, to compare with the machine's memory bandwidth (enough
//! copies of the matrix take turns that weights come from memory). 16 rows are a batch, 512 a prompt: the figure is
//! operations per second (criterion's "elements"; a multiply-add counts as two).
//!
//! `cargo bench --bench linear -- 'Q4_1.*1536x576'` picks some.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use rocmforge::Result;
use rocmforge::backend::LinearPart;
use rocmforge::cpu::Isa;
use rocmforge::cpu::linear::{LinearScratch, PackedMatrix, Store, WeightMemory};
use rocmforge::cpu::pool::ThreadPool;
use rocmforge::quant::GgmlType;
use rocmforge::tensor::TensorView;

const TYPES: [GgmlType; 22] = [
    GgmlType::Q4_1,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
    GgmlType::F16,
    GgmlType::F32,
    GgmlType::IQ1_S,
    GgmlType::IQ2_XXS,
    GgmlType::IQ3_S,
    GgmlType::TQ1_0,
    GgmlType::NVFP4,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
];
/// (outputs, inputs) of SmolLM2-135M, then of a llama of 1B.
const SHAPES: [(usize, usize); 4] = [(1536, 576), (576, 1536), (2048, 2048), (2048, 8192)];
/// Bytes of weights that are streamed: too many to stay in a cache.
const STREAMED: usize = 128 << 20;

/// Bytes that are no type's NaN, infinity or subnormal scale: as halves of f16 they stay below 4.
fn weight_bytes(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| ((i.wrapping_mul(0x9E37_79B9) >> 13) as u8 & 0x3F) | 0x10).collect()
}

fn bench_linear(c: &mut Criterion, threads: usize, rows: usize, cols: usize) -> Result<()> {
    let pool = ThreadPool::new(threads)?;
    let mut group = c.benchmark_group(format!("linear {rows}x{cols}, {threads} threads"));
    for ggml_type in TYPES {
        // K-quants need multiples of 256.
        let Some(row_bytes) = ggml_type.row_bytes(cols) else { continue };
        let data = weight_bytes(rows * row_bytes);
        let weight = TensorView { name: "bench", ggml_type, rows, cols, data: &data, scales: &[] };
        let mut weights = WeightMemory::default();
        let matrices = (0..STREAMED.div_ceil(data.len()))
            .map(|_| {
                PackedMatrix::pack(
                    Isa::detect(),
                    &[LinearPart { weight, bias: None }],
                    &mut weights,
                    &pool,
                    &mut |_| Ok(()),
                )
            })
            .collect::<Result<Vec<_>>>()?;
        for num_rows in [1, 16, 512] {
            let mut scratch = LinearScratch::new(num_rows, cols)?;
            let x: Vec<f32> = (0..num_rows * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
            let mut out = vec![0.0; num_rows * rows];
            group.throughput(if num_rows == 1 {
                Throughput::Bytes(matrices[0].bytes())
            } else {
                Throughput::Elements((2 * rows * cols * num_rows) as u64)
            });
            let mut turns = matrices.iter().cycle();
            group.bench_function(BenchmarkId::new(ggml_type.name(), num_rows), |b| {
                b.iter(|| {
                    if let Some(matrix) = turns.next() {
                        matrix.multiply(black_box(&x), num_rows, &mut out, Store::Assign, &mut scratch, &pool);
                    }
                });
            });
        }
    }
    group.finish();
    Ok(())
}

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for threads in [1, 2] {
        for (rows, cols) in SHAPES {
            bench_linear(&mut criterion, threads, rows, cols)?;
        }
    }
    criterion.final_summary();
    Ok(())
}
