//! Encoders against transformers in float32: the rows of pictures, and files that must be refused.

use std::path::Path;

use super::*;
use crate::Error;
use crate::ModelSpec;
use crate::backend::{Loader, StepLimits};
use crate::config::KvCacheDtype;
use crate::cpu::{CpuLoader, Isa};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::pixels::{DecodeLimits, Picture};
use crate::testdata::{self, TempFile};

const NAMES: [&str; 12] = [
    "gemma3",
    "gemma4",
    "gemma4e",
    "glm4v",
    "glm4v_moe",
    "internvl",
    "lfm2vl",
    "mistral3",
    "pixtral",
    "qwen25vl",
    "qwen3vl",
    "smolvlm",
];

fn projector(name: &str) -> TempFile {
    testdata::file(&format!("vision/{name}.mmproj.gguf"))
}

pub(crate) fn picture(name: &str) -> Picture {
    Picture::decode(&testdata::bytes(&format!("vision/{name}.png")), DecodeLimits::default()).unwrap()
}

fn distance(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let errors = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs());
    errors.fold(0.0, |worst, error| if error > worst || error.is_nan() { error } else { worst })
}

/// Encodes both pictures of a golden encoder, and compares their rows with those of transformers.
fn check<L: Loader>(name: &str, loader: impl Fn(StepLimits) -> L, dtype: KvCacheDtype, bound: f32) -> Vec<ImageRows> {
    let file = projector(name);
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = VisionSpec::from_gguf(&gguf).unwrap();
    let tensors = VisionTensors::collect(&gguf, &spec).unwrap();
    let mut encoder = Encoder::load(loader(limits(&spec)), &tensors, dtype).unwrap();
    let z = testdata::npz(&format!("vision/{name}"));
    let check = |number| {
        let prepared = spec.preparation.prepare(&picture(&format!("{name}_{number}"))).unwrap();
        let rows = encoder.encode(&prepared).unwrap();
        let error = distance(&rows.rows, &z.f32(&format!("embeddings_{number}")));
        println!("{name}_{number}: {error:.1e}");
        assert!(error < bound, "{name}_{number}: {error:.1e}");
        if name == "qwen3vl" {
            let error = distance(&rows.deepstack.concat(), &z.f32(&format!("deepstack_{number}")));
            assert!(error < bound, "{name}_{number}, deepstack: {error:.1e}");
        }
        rows
    };
    [1, 2].map(check).into()
}

/// The spec of a golden encoder, and the rows of both its pictures.
pub(crate) fn encode_golden(name: &str) -> (VisionSpec, Vec<ImageRows>) {
    let gguf = projector(name);
    let spec = VisionSpec::from_gguf(&GgufFile::open(&gguf.0).unwrap()).unwrap();
    (spec, check(name, |limits| CpuLoader::new(2, limits.tokens).unwrap(), KvCacheDtype::F32, 1e-3))
}

#[test]
fn rows_are_those_of_transformers() {
    for name in NAMES {
        for isa in Isa::available() {
            let loader = |limits: StepLimits| CpuLoader::new(2, limits.tokens).unwrap().with_isa(isa);
            check(name, loader, KvCacheDtype::F32, 1e-3);
        }
    }
}

/// Rows have the same bits whatever number of threads computes them, and whatever was encoded before.
#[test]
fn rows_do_not_depend_on_threads_or_on_what_came_before() {
    for name in NAMES {
        let of =
            |threads| check(name, |limits| CpuLoader::new(threads, limits.tokens).unwrap(), KvCacheDtype::F32, 1e-3);
        assert!(of(1) == of(3), "{name}");
    }
    let file = projector("qwen25vl");
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = VisionSpec::from_gguf(&gguf).unwrap();
    let tensors = VisionTensors::collect(&gguf, &spec).unwrap();
    let loader = CpuLoader::new(2, limits(&spec).tokens).unwrap();
    let mut encoder = Encoder::load(loader, &tensors, KvCacheDtype::F32).unwrap();
    let prepared = |number| spec.preparation.prepare(&picture(&format!("qwen25vl_{number}"))).unwrap();
    let [small, large] = [1, 2].map(prepared);
    let first = encoder.encode(&small).unwrap();
    encoder.encode(&large).unwrap();
    assert!(encoder.encode(&small).unwrap() == first);
}

#[test]
fn a_picture_of_another_size_is_an_error() {
    let file = projector("gemma3");
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = VisionSpec::from_gguf(&gguf).unwrap();
    let tensors = VisionTensors::collect(&gguf, &spec).unwrap();
    let loader = CpuLoader::new(1, limits(&spec).tokens).unwrap();
    let mut encoder = Encoder::load(loader, &tensors, KvCacheDtype::F32).unwrap();
    let mut prepared = spec.preparation.prepare(&picture("gemma3_1")).unwrap();
    prepared[0].width = 32;
    assert!(encoder.encode(&prepared).is_err());
    prepared[0].values.truncate(3 * 32 * 64);
    assert!(encoder.encode(&prepared).is_ok());
    prepared[0].width = 36;
    prepared[0].values.resize(3 * 36 * 64, 0.0);
    assert!(encoder.encode(&prepared).is_err());
    assert!(encoder.encode(&[]).is_err());
}

/// The error of a golden file with one key changed, or without it.
fn refused(name: &str, key: &str, value: Option<Value>) -> String {
    let file = projector(name);
    let mut gguf = GgufFile::open(&file.0).unwrap();
    let others = gguf.metadata().iter().filter(|(name, _)| *name != key);
    let mut entries: Vec<(String, Value)> = others.map(|(name, value)| (name.to_owned(), value.clone())).collect();
    entries.extend(value.map(|value| (key.to_owned(), value)));
    gguf.set_metadata(Metadata::new(&file.0, entries).unwrap());
    let found = VisionSpec::from_gguf(&gguf).and_then(|spec| VisionTensors::collect(&gguf, &spec).map(drop));
    found.unwrap_err().to_string()
}

#[test]
fn files_that_are_computed_otherwise_are_refused() {
    for (name, key, value, part) in [
        ("gemma3", "clip.vision.feature_layer", Some(Value::U32(1)), "nothing in clip models"),
        ("gemma3", "clip.use_gelu", Some(Value::Bool(false)), "expected true"),
        ("qwen25vl", "clip.use_silu", Some(Value::Bool(false)), "expected true"),
        ("qwen25vl", "clip.vision.n_wa_pattern", None, "is missing"),
        ("qwen25vl", "clip.vision.window_size", Some(Value::U32(100)), "multiple of 28"),
        ("gemma3", "clip.projector_type", Some(Value::String("kimivl".into())), "'kimivl' is not supported"),
        ("gemma3", "clip.projector_type", Some(Value::String("pixtral".into())), "use_gelu"),
        ("gemma3", "clip.projector_type", Some(Value::String("qwen3vl_merger".into())), "scale_factor"),
        ("gemma3", "clip.has_vision_encoder", None, "no image encoder"),
        ("gemma3", "clip.has_audio_encoder", Some(Value::Bool(true)), "audio"),
        ("gemma3", "general.architecture", Some(Value::String("llama".into())), "expected 'clip'"),
        ("gemma3", "clip.vision.patch_size", Some(Value::U32(7)), "expected a multiple of 7"),
        ("gemma3", "clip.vision.patch_size", Some(Value::U32(16)), "v."),
        ("gemma3", "clip.vision.attention.head_count", Some(Value::U32(3)), "heads"),
        ("qwen3vl", "clip.vision.block_count", Some(Value::U32(3)), "entries"),
        ("qwen3vl", "clip.vision.is_deepstack_layers", None, "v.deepstack"),
        ("gemma3", "clip.vision.image_std", None, "is missing"),
        (
            "gemma4",
            "clip.vision.projector_type",
            Some(Value::String("kimivl".into())),
            "clip.vision.projector_type: 'kimivl' is not supported",
        ),
        ("gemma4", "clip.use_silu", Some(Value::Bool(true)), "expected false"),
        ("gemma4", "clip.vision.image_max_pixels", Some(Value::U32(143)), "less than 12 x 12"),
        (
            "gemma4e",
            "clip.vision.image_max_pixels",
            Some(Value::U32(22 * 144)),
            "has 64 positions, expected at least 66",
        ),
        ("gemma4e", "clip.vision.projector.scale_factor", Some(Value::U32(0)), "scale_factor"),
        ("internvl", "clip.use_gelu", Some(Value::Bool(false)), "expected true"),
        ("internvl", "clip.vision.preproc_max_tiles", Some(Value::U32(65)), "expected 1 ("),
        ("internvl", "clip.vision.preproc_min_tiles", Some(Value::U32(5)), "is 4, expected 5 ("),
        ("internvl", "clip.vision.image_size", Some(Value::U32(24)), "v.position_embd.weight"),
        ("lfm2vl", "clip.vision.preproc_max_tiles", Some(Value::U32(1)), "is 1, expected 2 ("),
        ("lfm2vl", "clip.vision.image_min_pixels", Some(Value::U32(257)), "is 257, more than 256"),
        ("lfm2vl", "clip.vision.image_size", Some(Value::U32(16)), "v.position_embd.weight"),
        ("lfm2vl", "clip.vision.projector.scale_factor", Some(Value::U32(1)), "mm.input_norm.weight"),
        ("mistral3", "clip.use_silu", Some(Value::Bool(false)), "expected true"),
        ("mistral3", "clip.vision.spatial_merge_size", None, "nothing in pixtral encoders is computed with this"),
        ("mistral3", "clip.vision.image_size", Some(Value::U32(88)), "expected a multiple of 16"),
        ("pixtral", "clip.vision.spatial_merge_size", Some(Value::U32(2)), "mm.patch_merger.weight"),
        ("pixtral", "clip.rope.freq_base", Some(Value::F32(0.0)), "expected a number above 0"),
        ("pixtral", "clip.vision.projection_dim", Some(Value::U32(32)), "mm.1.weight"),
        ("lfm2vl", "clip.vision.image_max_pixels", Some(Value::U32(63)), "is 63, less than 8 x 8"),
        ("glm4v", "clip.use_silu", Some(Value::Bool(false)), "expected true"),
        ("glm4v", "clip.vision.feed_forward_length", Some(Value::U32(32)), "mm.gate.weight"),
        ("glm4v", "clip.vision.spatial_merge_size", Some(Value::U32(1)), "mm.patch_merger.weight"),
        ("glm4v", "clip.vision.image_size", Some(Value::U32(16)), "v.position_embd.weight"),
        ("smolvlm", "clip.vision.preproc_image_size", Some(Value::U32(289)), "is 289, expected 1 to 288"),
        ("smolvlm", "clip.vision.image_size", Some(Value::U32(15)), "is 15, which holds 3 patches"),
        ("smolvlm", "clip.vision.image_size", Some(Value::U32(24)), "v.position_embd.weight"),
        ("smolvlm", "clip.vision.projector.scale_factor", Some(Value::U32(4)), "mm.model.fc.weight"),
    ] {
        let error = refused(name, key, value);
        assert!(error.contains(part), "{key}: {error}");
    }
}

#[test]
fn an_encoder_of_another_model_is_refused_with_both_sizes() {
    let open = |model: &str, projector: &str| {
        let file = testdata::file(model);
        let gguf = GgufFile::open(&file.0).unwrap();
        let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
        let projector = self::projector(projector);
        open_projector(&projector.0, &gguf, &spec).map(drop).map_err(|error| error.to_string())
    };
    for name in NAMES {
        open(&format!("vision/{name}.gguf"), name).unwrap();
    }
    let error = open("vision/gemma3.gguf", "qwen3vl").unwrap_err();
    assert!(error.contains("qwen3vl_merger") && error.contains("'gemma3'"), "{error}");
    let error = open("vision/gemma3.gguf", "gemma4").unwrap_err();
    assert!(error.contains("clip.vision.projector_type: is 'gemma4v', which goes with gemma4;"), "{error}");
    let error = open("arch/gemma3.gguf", "gemma3").unwrap_err();
    assert!(error.contains("image rows of 64 columns") && error.contains("gemma3.embedding_length"), "{error}");
    let error = open("arch/gemma4_e.gguf", "gemma4e").unwrap_err();
    assert!(error.contains("image rows of 32 columns") && error.contains("gemma4.embedding_length"), "{error}");
    let error = open("arch/qwen2.gguf", "internvl").unwrap_err();
    assert!(error.contains("image rows of 32 columns") && error.contains("qwen2.embedding_length"), "{error}");
    let error = open("arch/lfm2.gguf", "lfm2vl").unwrap_err();
    assert!(error.contains("image rows of 32 columns") && error.contains("whose rows have 64"), "{error}");
    let error = open("arch/mistral.gguf", "pixtral").unwrap_err();
    assert!(error.contains("image rows of 64 columns") && error.contains("llama.embedding_length"), "{error}");
    let error = open("arch/glm4v_moe.gguf", "glm4v_moe").unwrap_err();
    assert!(error.contains("image rows of 32 columns") && error.contains("glm4moe.embedding_length"), "{error}");
    let error = open("arch/glm4v.gguf", "glm4v").unwrap_err();
    assert!(error.contains("image rows of 32 columns") && error.contains("whose rows have 64"), "{error}");
    let error = open("arch/mistral.gguf", "smolvlm").unwrap_err();
    assert!(error.contains("image rows of 32 columns") && error.contains("whose rows have 192"), "{error}");
    let error = open("arch/qwen3vlmoe.gguf", "qwen3vl").unwrap_err();
    assert!(error.contains("projection_dim") || error.contains("deepstack"), "{error}");
}

fn write(folder: &Path, name: &str, data: &str) {
    std::fs::write(folder.join(name), testdata::bytes(data)).unwrap();
}

#[test]
fn the_encoder_beside_a_model_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name_of = |file: &GgufFile| file.metadata().path().file_name().unwrap().to_str().unwrap().to_owned();
    let find_but = |refused: &str, name: &str| {
        let gguf = GgufFile::open(&folder.join(name)).unwrap();
        let accept = |file: GgufFile, _| match name_of(&file) {
            name if name == refused => Err(Error::invalid("mmproj", name, "another one")),
            name => Ok(name),
        };
        find_projector(&gguf, &ModelSpec::from_gguf(&gguf, None).unwrap(), accept)
    };
    let find = |name: &str| find_but("", name);
    write(folder, "gemma-3-Q4.gguf", "vision/gemma3.gguf");
    write(folder, "llama.gguf", "arch/mistral.gguf");
    assert_eq!(find("gemma-3-Q4.gguf"), None);
    // One is of another model, and one is no GGUF file.
    write(folder, "mmproj-F16.gguf", "vision/qwen3vl.mmproj.gguf");
    std::fs::write(folder.join("mmproj-gemma-3.gguf"), b"no").unwrap();
    assert_eq!(find("gemma-3-Q4.gguf"), None);
    for name in ["other-mmproj-f16.gguf", "mmproj-gemma-3-BF16.gguf", "mmproj-gemma-3-f32.gguf"] {
        write(folder, name, "vision/gemma3.mmproj.gguf");
    }
    assert_eq!(find("gemma-3-Q4.gguf").as_deref(), Some("mmproj-gemma-3-BF16.gguf"));
    write(folder, "mmproj-gemma-3-F16.gguf", "vision/gemma3.mmproj.gguf");
    assert_eq!(find("gemma-3-Q4.gguf").as_deref(), Some("mmproj-gemma-3-F16.gguf"));
    let next = find_but("mmproj-gemma-3-F16.gguf", "gemma-3-Q4.gguf");
    assert_eq!(next.as_deref(), Some("mmproj-gemma-3-BF16.gguf"));
    assert_eq!(find("llama.gguf"), None);
}
