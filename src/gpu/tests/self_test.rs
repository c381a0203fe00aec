//! The load-time self-test finds wrong weights.

use crate::Error;
use crate::backend::{LinearPart, Loader};
use crate::config::GpuOptions;
use crate::conformance::Random;
use crate::gpu_backend::Sample;
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::testing::devices::{self, CPU_TARGETS};
use crate::{GpuLoader, KernelType};

const ROWS: usize = 20;
const COLS: usize = 96;

/// Returns blocks of Q8_0: a scale and 32 codes.
fn q8_0(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut data = Vec::new();
    for _ in 0..ROWS * COLS / 32 {
        data.extend(half::f16::from_f32(random.value()).to_le_bytes());
        data.extend((0..32).map(|_| random.next() as u8));
    }
    data
}

fn view(data: &[u8]) -> TensorView<'_> {
    TensorView { name: "blk.0.test.weight", ggml_type: GgmlType::Q8_0, rows: ROWS, cols: COLS, data, scales: &[] }
}

#[test]
fn a_wrong_weight_refuses_to_serve_and_names_it() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let tested = (device, GpuOptions { self_test: true, ..options });
    let mut loader: GpuLoader = devices::loader(&tested, 64);
    let data = q8_0(1);
    let matrix = loader.upload_matrix(&[LinearPart { weight: view(&data), bias: None }], &mut |_| Ok(())).unwrap();
    // The self-test passes with the uploaded data.
    let mut backend = loader.finish().unwrap();

    let mut other = data.clone();
    other[2 + 5 * 34 + 7] ^= 0x40; // one code
    let sample = Sample::new(&[(&view(&other), KernelType::Q8_0, &matrix.segments[0].tiles)]);
    let error = backend.self_test(&[sample]).unwrap_err();
    let Error::Device { device, problem } = error else { panic!("{error}") };
    assert!(device.contains("cpu-wave32"), "{device}");
    for part in ["gemv", "Q8_0", "blk.0.test.weight", "self_test=False or ROCMFORGE_SELF_TEST=0"] {
        assert!(problem.contains(part), "{problem}");
    }
}

const STACK: [GgmlType; 2] = [GgmlType::Q4_K, GgmlType::Q6_K];

fn stacked(data: &[Vec<u8>; 2]) -> [TensorView<'_>; 2] {
    let view =
        |i: usize, name| TensorView { name, ggml_type: STACK[i], rows: ROWS, cols: 256, data: &data[i], scales: &[] };
    [view(0, "blk.0.q.weight"), view(1, "blk.0.v.weight")]
}

/// The stack of two types goes through special kernels, and a fault in either half is found.
#[test]
fn a_wrong_weight_of_a_stack_is_found_in_either_type() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let tested = (device, GpuOptions { self_test: true, ..options });
    // The codes of these blocks are all ones, with scales of one.
    let data = STACK.map(|ty| {
        let mut block = vec![0x11; ty.block_bytes()];
        let scale = if ty == GgmlType::Q4_K { 0..2 } else { 208..210 };
        block[scale].copy_from_slice(&half::f16::ONE.to_le_bytes());
        block.repeat(ROWS)
    });
    let mut loader: GpuLoader = devices::loader(&tested, 64);
    let matrix =
        loader.upload_matrix(&stacked(&data).map(|weight| LinearPart { weight, bias: None }), &mut |_| Ok(())).unwrap();
    // The self-test passes with the uploaded data.
    let mut backend = loader.finish().unwrap();

    for wrong in [0, 1] {
        let mut other = data.clone();
        let codes = if wrong == 0 { 16 } else { 0 };
        other[wrong][5 * STACK[wrong].block_bytes() + codes + 7] ^= 0x0f; // one code
        let weights = stacked(&other);
        let parts = [0, 1].map(|i| (&weights[i], matrix.segments[i].ty, &matrix.segments[i].tiles));
        let problem = backend.self_test(&[Sample::new(&parts)]).unwrap_err().to_string();
        for part in ["gemv", "Q4_K and Q6_K", "blk.0.q.weight and blk.0.v.weight"] {
            assert!(problem.contains(part), "{problem}");
        }
    }
}
