//! NVFP4 tensors with a scale of their own, or one of each expert, in tensors beside them.

use super::super::{CpuLoader, MAX_TOKENS, tokens, try_load_file};
use crate::backend::Loader;
use crate::config::KvCacheDtype;
use crate::conformance::Random;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{GgufFile, TensorInfo};
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::quant::GgmlType;
use crate::testdata::{self, TempFile};
use crate::{ModelSpec, ModelTensors};

const BLOCK_BYTES: usize = GgmlType::NVFP4.block_bytes();

/// Negated exponents of the factors of a tensor's experts, or of its one matrix.
fn exponents(info: &TensorInfo) -> Vec<u8> {
    match info.shape.get(2) {
        Some(&num) => (0..num as u8).map(|expert| expert % 3).collect(),
        None => vec![2],
    }
}

/// Random blocks with scales from 2^-4 on, so that those of a quarter are no subnormal numbers.
fn blocks(info: &TensorInfo) -> Vec<u8> {
    let mut random = Random(info.shape.iter().sum());
    let mut data = Vec::new();
    for _ in 0..info.shape.iter().product::<u64>() / 64 {
        data.extend((0..4).map(|_| 24 + random.next() as u8 % 16));
        data.extend((0..32).map(|_| random.next() as u8));
    }
    data
}

/// The golden model with random matrices of NVFP4: their factors in tensors of their own, or in the scales of the
/// blocks, whose numbers have their exponents in multiples of eight.
fn file(name: &str, has_scales: bool) -> TempFile {
    let file = testdata::file(&format!("arch/{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::with_keys(gguf.metadata());
    let mut count = 0;
    for info in gguf.tensors() {
        let view = gguf.view(info);
        let is_matrix = info.shape.len() > 1 && info.shape[0].is_multiple_of(64);
        let Some(stem) = info.name.strip_suffix("weight").filter(|stem| is_matrix && !stem.contains("gate_inp")) else {
            writer = writer.tensor(Tensor::new(&info.name, &info.shape, view.ggml_type, view.data));
            continue;
        };
        let (mut data, exponents) = (blocks(info), exponents(info));
        count += 1;
        if has_scales {
            let num = exponents.len() as u64;
            let factors: Vec<u8> = exponents.iter().flat_map(|&e| 0.5f32.powi(e.into()).to_le_bytes()).collect();
            writer = writer.tensor(Tensor::new(&format!("{stem}scale"), &[num], GgmlType::F32, &factors));
            writer = writer.tensor(Tensor::ones(&format!("{stem}input_scale"), num));
        } else {
            let of_expert = data.len() / exponents.len();
            for (data, exponent) in data.chunks_exact_mut(of_expert).zip(exponents) {
                for block in data.chunks_exact_mut(BLOCK_BYTES) {
                    block[..4].iter_mut().for_each(|scale| *scale -= 8 * exponent);
                }
            }
        }
        writer = writer.tensor(Tensor::new(&info.name, &info.shape, GgmlType::NVFP4, &data));
    }
    assert!(count > 7, "{name}: {count} matrices");
    testdata::temp_file("scales.gguf", &writer.bytes())
}

/// Factors that are powers of two give the bits of block scales that have them.
fn check<L: Loader>(loader: impl Fn() -> L, name: &str) {
    let tokens = tokens(&testdata::npz(&format!("arch/{name}")));
    let [beside, within] = [true, false].map(|has_scales| {
        let mut model = try_load_file(loader(), &file(name, has_scales), KvCacheDtype::F32).unwrap();
        model.logits(&tokens, 0)
    });
    assert!(within.iter().all(|x| x.is_finite()) && within.iter().any(|&x| x != 0.0));
    let differ = beside.iter().zip(&within).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert_eq!(differ, 0, "{name}: of {} logits", within.len());
}

const MODELS: [&str; 2] = ["llama_tied", "gpt_oss"];

#[test]
fn scales_of_tensors_count_on_the_cpu() {
    MODELS.into_iter().for_each(|name| check(|| CpuLoader::new(2, MAX_TOKENS).unwrap(), name));
}

#[test]
fn scales_of_tensors_count_on_a_gpu() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    MODELS.into_iter().for_each(|name| check(|| devices::loader(&device, MAX_TOKENS), name));
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// A scale that nothing would multiply with, of another type or shape, is an error that names it.
#[test]
fn scales_that_do_not_count_are_refused() {
    let nvfp4 = (GgmlType::NVFP4, 36 * 2);
    let cases = [
        ((GgmlType::Q4_0, 18 * 4), GgmlType::F32, 1, "blk.0.attn_q.scale"),
        (nvfp4, GgmlType::F16, 1, "expected F32"),
        (nvfp4, GgmlType::F32, 2, "has shape [2]"),
    ];
    for ((ggml_type, row_bytes), of_scale, num, problem) in cases {
        let file = testdata::file("arch/llama_tied.gguf");
        let gguf = GgufFile::open(&file.0).unwrap();
        let mut writer = Writer::with_keys(gguf.metadata());
        for info in gguf.tensors() {
            let view = gguf.view(info);
            let zeros = vec![0; row_bytes * view.rows];
            let (ggml_type, data) = match &*info.name {
                "blk.0.attn_q.weight" => (ggml_type, &zeros[..]),
                _ => (view.ggml_type, view.data),
            };
            writer = writer.tensor(Tensor::new(&info.name, &info.shape, ggml_type, data));
        }
        let bytes = vec![0; num * of_scale.block_bytes()];
        let file = writer.tensor(Tensor::new("blk.0.attn_q.scale", &[num as u64], of_scale, &bytes));
        let file = testdata::temp_file("refused.gguf", &file.bytes());
        let gguf = GgufFile::open(&file.0).unwrap();
        let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
        let error = ModelTensors::collect(&gguf, &spec).map(drop).unwrap_err().to_string();
        assert!(error.contains("blk.0.attn_q.scale") && error.contains(problem), "{error}");
    }
}
