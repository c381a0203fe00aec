//! The linear kernels: one row (bytes of weights per second), 16 and 512 rows (multiply-adds per second), for the
//! shapes of SmolLM2-135M and of a llama of 1B, on one thread and on two.
//!
//! `cargo bench --bench linear -- 'Q4_1/1536x576'` picks some. One-row cases go round enough copies of the matrix that
//! weights come from memory, as in decoding.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rocmforge::backend::LinearPart;
use rocmforge::backend::cpu::linear::{LinearScratch, PackedMatrix};
use rocmforge::backend::cpu::pool::ThreadPool;
use rocmforge::quant::GgmlType;
use rocmforge::tensor::TensorView;

const TYPES: &[GgmlType] = &[
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
    GgmlType::BF16,
    GgmlType::F32,
    GgmlType::IQ3_S,
];

/// (outputs, inputs): SmolLM2's projections and feed-forward, then those of a 1B llama.
const SHAPES: &[(usize, usize)] = &[(960, 576), (1536, 576), (576, 1536), (3072, 2048), (2048, 8192)];

/// Bytes that do not stay in a cache.
const STREAM: usize = 128 << 20;

fn bench(c: &mut Criterion) {
    for &ggml_type in TYPES {
        for &(rows, cols) in SHAPES {
            // K-quants exist for multiples of 256 only.
            let Some(row_bytes) = ggml_type.row_bytes(cols) else { continue };
            let mut group = c.benchmark_group(format!("linear/{}/{rows}x{cols}", ggml_type.name()));
            // Low bits everywhere: scales stay finite whatever the format.
            let data: Vec<u8> = (0..rows * row_bytes).map(|i| (i * 131 % 251) as u8 & 0x3b).collect();
            let weight = TensorView { name: "bench", ggml_type, rows, cols, data: &data };
            for threads in [1, 2] {
                let pool = ThreadPool::new(threads).unwrap();
                for num_rows in [1, 16, 512] {
                    let copies = if num_rows > 16 { 1 } else { STREAM.div_ceil(data.len()) };
                    let matrices: Vec<_> = (0..copies)
                        .map(|_| PackedMatrix::pack(&[LinearPart { weight, bias: None }], &pool).unwrap())
                        .collect();
                    let x: Vec<f32> = (0..num_rows * cols).map(|i| (i * 37 % 101) as f32 / 17.0 - 3.0).collect();
                    let mut out = vec![0.0; num_rows * rows];
                    let mut scratch = LinearScratch::new(num_rows, cols).unwrap();
                    group.throughput(match num_rows {
                        1 => Throughput::Bytes(matrices[0].bytes()),
                        _ => Throughput::Elements((num_rows * rows * cols) as u64),
                    });
                    let mut next = 0;
                    group.bench_function(BenchmarkId::new(format!("{threads} threads"), num_rows), |b| {
                        b.iter(|| {
                            matrices[next % copies].multiply(&x, num_rows, &mut out, &mut scratch, &pool);
                            next += 1;
                        });
                    });
                }
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_secs(1))
        .warm_up_time(std::time::Duration::from_millis(200));
    targets = bench
}
criterion_main!(benches);
