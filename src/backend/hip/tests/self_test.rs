//! The load-time self-test finds what it is for.

use super::devices::{self, CPU_TARGETS};
use crate::Error;
use crate::backend::conformance::Random;
use crate::backend::hip::self_test::Sample;
use crate::backend::hip::{HipLoader, KernelType};
use crate::backend::{LinearPart, Loader};
use crate::config::HipOptions;
use crate::quant::GgmlType;
use crate::tensor::TensorView;

const ROWS: usize = 20;
const COLS: usize = 96;

/// Blocks of Q8_0: a scale and 32 codes.
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
    TensorView { name: "blk.0.test.weight", ggml_type: GgmlType::Q8_0, rows: ROWS, cols: COLS, data }
}

#[test]
fn a_wrong_weight_refuses_to_serve_and_names_it() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let tested = (device, HipOptions { self_test: true, ..options });
    let mut loader: HipLoader = devices::loader(&tested, 64);
    let data = q8_0(1);
    let matrix = loader.upload_matrix(&[LinearPart { weight: view(&data), bias: None }]).unwrap();
    // Passes for what was uploaded.
    let mut backend = loader.finish().unwrap();

    let mut other = data.clone();
    other[2 + 5 * 34 + 7] ^= 0x40; // one code
    let sample = Sample::new(&view(&other), KernelType::Q8_0, matrix.segments[0].tiles);
    let error = backend.self_test(&[sample]).unwrap_err();
    let Error::Device { device, problem } = error else { panic!("{error}") };
    assert!(device.contains("cpu-wave32"), "{device}");
    for part in ["gemv", "Q8_0", "blk.0.test.weight", "ROCMFORGE_SELF_TEST"] {
        assert!(problem.contains(part), "{problem}");
    }
}
