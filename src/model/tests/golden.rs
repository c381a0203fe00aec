//! Golden logits of every architecture on the CPU.

use super::{
    CpuLoader, KvCacheDtype, MAX_TOKENS, TempFile, distance, float_file, max_abs, testdata, tokens, try_load_file,
};

/// Returns the greatest distance of a golden model's logits, relative to the largest logit.
fn relative_distance(name: &str, file: &TempFile, dtype: KvCacheDtype) -> f32 {
    let z = testdata::npz(name);
    let expected = z.f32("logits");
    let mut model = try_load_file(CpuLoader::new(2, MAX_TOKENS).unwrap(), file, dtype).unwrap();
    let relative = distance(&model.logits(&tokens(&z), 0), &expected).0 / max_abs(&expected);
    println!("{name}, {dtype:?} cache: {relative:.2e} of the largest logit");
    relative
}

/// M1, M2, M3, M6, M11, M12: every architecture with float weights of each type, to 1e-3 of the largest logit. Rounding
/// K and V to f16 has wider bounds in some models. `llama_tied` moves by 1.45e-3 (computed in float64). Gemma 4,
/// without a score scale, moves by 6.4e-3, and by 4.7e-2 with experts. `llama_yarn` multiplies scores by 1.69: 3.1e-3.
/// `gemma` has one KV head and large scores: 9.2e-3.
#[test]
fn golden_logits_of_the_architectures() {
    let mut wrong = Vec::new();
    for name in testdata::architectures() {
        let file = float_file(&name);
        let rounded = match &*name {
            "gemma" | "gemma4_dense" | "gemma4_e" | "llama_yarn" => 1e-2,
            "gemma4_moe" => 6e-2,
            // Squares of activations (xIELU), and gates of attention outputs, amplify the rounding. Over an F32 cache
            // both are within 1e-5.
            "apertus" => 5e-3,
            "muse_glimmer" => 1.5e-2,
            _ => 3e-3,
        };
        for (dtype, bound) in [(KvCacheDtype::F32, 1e-3), (KvCacheDtype::F16, rounded)] {
            let distance = relative_distance(&format!("arch/{name}"), &file, dtype);
            if distance.is_nan() || distance >= bound {
                wrong.push(format!("{name}, {dtype:?} cache: {distance:.2e}, expected less than {bound:.0e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Rounding K and V to int8 moves logits of small random models by a few hundredths of the largest logit.
/// `tests/models/test_golden_model.py` covers real models.
#[test]
fn golden_logits_over_an_int8_cache() {
    for name in ["llama3_ropescale", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi4mini", "qwen35", "deepseek2"]
    {
        let distance = relative_distance(&format!("arch/{name}"), &float_file(name), KvCacheDtype::Int8);
        assert!((1e-4..8e-2).contains(&distance), "{name}: {distance:.2e}");
    }
}

/// Rounding K and V to int4 moves logits of small random models by 0.15 to 0.35 of the largest logit. Gemma 2, with its
/// large scores, moves by 0.6. The conformance cases check the rounding itself.
#[test]
fn golden_logits_over_an_int4_cache() {
    for name in ["llama3_ropescale", "mistral", "qwen2", "qwen3"] {
        let distance = relative_distance(&format!("arch/{name}"), &float_file(name), KvCacheDtype::Int4);
        assert!((1e-3..4e-1).contains(&distance), "{name}: {distance:.2e}");
    }
}

/// Families whose rules depend on the number of layers. EXAONE 4 of 64 layers has windows and layers without RoPE.
/// Gemma 2 of 46 and Gemma 3 of 62 scale scores differently. The models are narrow.
#[test]
fn golden_logits_of_models_of_many_layers() {
    for name in ["exaone4_swa", "gemma2_27b", "gemma3_27b"].map(|name| format!("deep/{name}")) {
        let file = testdata::file(&format!("{name}.gguf"));
        assert!(relative_distance(&name, &file, KvCacheDtype::F32) < 1e-3, "{name}");
    }
}
