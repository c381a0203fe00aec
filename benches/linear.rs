//! `linear`, the product of quantised weights and activations, at the shape of a small model's widest layer.
//!
//! One row is decode: the figure is weight bytes per second, to compare with the machine's memory bandwidth. 128 rows
//! are a prompt: the figure is operations per second (criterion's "elements"; a multiply-add counts as two).

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use rocmforge::Result;
use rocmforge::backend::LinearPart;
use rocmforge::backend::cpu::linear::{LinearScratch, PackedMatrix};
use rocmforge::backend::cpu::pool::ThreadPool;
use rocmforge::quant::GgmlType;
use rocmforge::tensor::TensorView;

const ROWS: usize = 4096;
const COLS: usize = 2048;
const PROMPT: usize = 128;
const TYPES: [GgmlType; 9] = [
    GgmlType::F16,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
];

/// Bytes that are no type's NaN or infinity: as halves of f16 scales they stay below 2.
fn weight_bytes(ggml_type: GgmlType) -> Vec<u8> {
    let blocks = ROWS * COLS / ggml_type.block_elements();
    (0..blocks * ggml_type.block_bytes()).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 13) as u8 & 0x3F).collect()
}

fn bench_linear(c: &mut Criterion) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = ThreadPool::new(threads)?;
    let mut scratch = LinearScratch::new(PROMPT, COLS)?;
    let x: Vec<f32> = (0..PROMPT * COLS).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut out = vec![0.0; PROMPT * ROWS];

    let mut group = c.benchmark_group(format!("linear {ROWS}x{COLS}, {threads} threads"));
    for ggml_type in TYPES {
        let data = weight_bytes(ggml_type);
        let weight = TensorView { name: "bench", ggml_type, rows: ROWS, cols: COLS, data: &data };
        let matrix = PackedMatrix::pack(&[LinearPart { weight, bias: None }], &pool)?;
        for num_rows in [1, PROMPT] {
            group.throughput(if num_rows == 1 {
                Throughput::Bytes(matrix.bytes())
            } else {
                Throughput::Elements((2 * ROWS * COLS * num_rows) as u64)
            });
            group.bench_function(BenchmarkId::new(ggml_type.name(), num_rows), |b| {
                b.iter(|| matrix.multiply(black_box(&x), num_rows, &mut out, &mut scratch, &pool));
            });
        }
    }
    group.finish();
    Ok(())
}

fn main() -> Result<()> {
    let mut criterion =
        Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2)).configure_from_args();
    bench_linear(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}
