//! Keys of files: none is ignored, keys of other converters have their stated meaning, and absent keys follow rules.

use super::{CpuLoader, MAX_TOKENS, distance, load_spec, max_abs, tokens};
use crate::ModelSpec;
use crate::config::KvCacheDtype;
use crate::gguf::{Array, GgufFile, Metadata, Value};
use crate::testdata;
use crate::{Error, Result};

/// A golden model whose keys a test changes.
struct Changed {
    gguf: GgufFile,
    entries: Vec<(String, Value)>,
    architecture: String,
}

impl Changed {
    fn new(name: &str) -> Self {
        let file = testdata::file(&format!("{name}.gguf"));
        let gguf = GgufFile::open(&file.0).unwrap();
        let architecture = gguf.metadata().str("general.architecture").unwrap().to_owned();
        let entries = gguf.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        Self { gguf, entries, architecture }
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.gguf.metadata().get(&self.full(key))
    }

    /// Returns the file's keys with these changes: other values, new keys, or removed ones.
    fn entries(&self, changes: &[(&str, Option<Value>)]) -> Vec<(String, Value)> {
        let changes = changes.iter().map(|(key, value)| (self.full(key), value.clone()));
        let mut entries = self.entries.clone();
        for (key, value) in changes {
            entries.retain(|(name, _)| *name != key);
            entries.extend(value.map(|value| (key, value)));
        }
        entries
    }

    fn spec(&mut self, changes: &[(&str, Option<Value>)]) -> Result<ModelSpec> {
        let metadata = Metadata::new(self.gguf.metadata().path(), self.entries(changes)).unwrap();
        self.gguf.set_metadata(metadata);
        ModelSpec::from_gguf(&self.gguf, Some(512))
    }

    /// Returns the greatest distance of the logits from the golden ones, relative to the largest logit.
    fn relative_distance(&mut self, name: &str, changes: &[(&str, Option<Value>)]) -> f32 {
        let spec = self.spec(changes).unwrap();
        let z = testdata::npz(name);
        let expected = z.f32("logits");
        let loader = CpuLoader::new(2, MAX_TOKENS).unwrap();
        let mut model = load_spec(loader, &self.gguf, &spec, KvCacheDtype::F32).unwrap();
        distance(&model.logits(&tokens(&z), 0), &expected).0 / max_abs(&expected)
    }
}

/// Returns the golden models' names, at least one per architecture.
fn names() -> Vec<String> {
    let decoders = testdata::architectures().into_iter().map(|name| format!("arch/{name}"));
    decoders.chain(testdata::ENCODERS.map(|name| format!("embedding/{name}"))).collect()
}

/// Returns the location and the problem of an error in a file.
fn problem(result: Result<ModelSpec>) -> Option<(String, String)> {
    match result {
        Ok(_) => None,
        Err(Error::ModelFile { location, problem, .. }) => Some((location, problem)),
        Err(other) => panic!("{other}"),
    }
}

/// Returns keys of `tests/data/converter_keys.json.xz`: those of gguf-py, or those that a converter writes for an
/// architecture.
fn keys_of(value: &serde_json::Value) -> Vec<String> {
    let keys = value.as_array().map_or(&[][..], |keys| &keys[..]);
    keys.iter().map(|key| key.as_str().unwrap().to_owned()).collect()
}

/// Keys that change nothing for any value. They were reviewed one by one; `unread_keys.rs` gives the reasons.
const MEANINGLESS: [&str; 33] = [
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "classifier.output_labels",
    "deepstack_mapping",
    "image_end_token_id",
    "image_start_token_id",
    "image_token_id",
    "image_token_index",
    "mrope_sections",
    "n_deepstack_layers",
    "normalize_embeddings",
    "rope.dimension_sections",
    "rope.mrope_interleaved",
    "rope.mrope_section",
    "rope.scaling.finetuned",
    "spatial_merge_size",
    "tensor_data_layout",
    "video_end_token_id",
    "video_start_token_id",
    "video_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
    // Keys of parts that the model does not have.
    "classifier.pooling_type",
    "expert_",
    "feed_forward_length",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "moe_every_n_layers",
    "norm_top_k_prob",
    "rope.",
    // Encoders.
    "audio.",
    "mm.",
    "vision.",
];

/// F1: a key of the file's architecture that nothing reads is an error that names it, except for a reviewed list. Each
/// key of gguf-py or of Ollama's converters gets a value of a type that no key has.
#[test]
fn no_key_is_ignored() {
    let data = testdata::json("converter_keys.json");
    let nonsense = Value::Array(Array::F64(vec![0.5; 7]));
    let is_listed = |key: &str| {
        MEANINGLESS.iter().any(|name| if name.ends_with(['.', '_']) { key.starts_with(name) } else { key == *name })
    };
    let mut keys = keys_of(&data["all"]);
    keys.extend(data["ollama"].as_object().unwrap().values().flat_map(keys_of));
    keys.extend(["attention.new_form", "rope_of_tomorrow"].map(str::to_owned));
    keys.sort();
    keys.dedup();
    for name in names() {
        let mut model = Changed::new(&name);
        for key in &keys {
            match problem(model.spec(&[(key, Some(nonsense.clone()))])) {
                Some((location, _)) => assert_eq!(location, model.full(key), "{name}"),
                None => assert!(is_listed(key), "{name}: {key} is ignored"),
            }
        }
    }
}

/// Keys that no value makes harmless in a golden model. The converter only writes `rope.freq_base_swa` beside
/// `rope.freq_base`.
const REFUSED: [(&str, &str); 3] = [
    ("arch/falcon", "rope.freq_base_swa"),
    ("arch/gemma2", "rope.freq_base_swa"),
    ("arch/minicpm3", "rope.freq_base_swa"),
];
/// Keys of EAGLE-3 drafters, which a family's converter class writes under another architecture.
const OF_DRAFTERS: [&str; 4] = ["norm_before_fc", "norm_before_residual", "target_hidden_size", "target_layers"];

/// F1: every key that a converter writes for an architecture is read or harmless. It loads with some value.
#[test]
fn keys_that_converters_write_load() {
    let data = testdata::json("converter_keys.json");
    let mut refused = Vec::new();
    for name in names() {
        let mut model = Changed::new(&name);
        let layers = match model.value("block_count") {
            Some(Value::U32(layers)) => *layers as usize,
            other => panic!("{other:?}"),
        };
        let text = |text: &str| Value::String(text.to_owned());
        let spec = model.spec(&[]).unwrap();
        let head_sizes = spec.kv_groups.iter().flat_map(|group| &group.layers).map(|layer| layer.head_dim);
        let sizes: Vec<usize> = head_sizes.chain([spec.vocab_size, 0, 1, 2, 3]).collect();
        let mut candidates: Vec<Value> = sizes.into_iter().map(|size| Value::U32(size as u32)).collect();
        candidates.extend(
            model.entries.iter().filter(|(_, value)| matches!(value, Value::F32(_))).map(|(_, value)| value.clone()),
        );
        candidates.extend([0.0, 1.0, 2.0, 1e-5, 1e4].map(Value::F32));
        candidates.extend([Value::Bool(false), Value::Bool(true), text("none"), text("yarn"), text("gelu")]);
        candidates.extend([false, true].map(|flag| Value::Array(Array::Bool(vec![flag; layers]))));
        candidates.push(Value::Array(Array::I32(vec![1; layers])));
        // Sections of RoPE, which a text model lacks.
        candidates.push(Value::Array(Array::I32(vec![0; 4])));
        for converter in ["llama.cpp", "ollama"] {
            for key in keys_of(&data[converter][&model.architecture]) {
                let same = model.value("embedding_length").cloned();
                let candidates = same.into_iter().chain(candidates.iter().cloned());
                let loads = model.value(&key).is_some()
                    || candidates.into_iter().any(|value| model.spec(&[(&key, Some(value))]).is_ok());
                if !(loads || REFUSED.contains(&(&name, &key)) || OF_DRAFTERS.contains(&key.as_str())) {
                    refused.push(format!("{name}, {converter}: {key}"));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

/// F1: keys that are harmless only with values that turn a feature off.
#[test]
fn harmless_keys_are_refused_where_they_ask_for_something() {
    let cases = [
        ("llama_tied", "attention.clamp_kqv", Value::F32(3.0), false),
        ("llama_tied", "attention.clamp_kqv", Value::F32(0.0), true),
        ("llama_tied", "logit_scale", Value::F32(1.0), true),
        ("llama_tied", "logit_scale", Value::F32(0.5), false),
        ("llama_tied", "attention.sliding_window_pattern", Value::U32(4), false),
        ("llama_tied", "rope.freq_base_swa", Value::F32(10_000.0), true),
        ("llama_tied", "rope.freq_base_swa", Value::F32(5_000.0), false),
        ("llama_tied", "expert_used_count", Value::U32(0), true),
        ("qwen3moe", "expert_group_scale", Value::F32(0.5), false),
        ("qwen3moe", "expert_group_count", Value::U32(1), true),
        ("glm4", "rope.freq_base_swa", Value::F32(123.0), false),
        ("nemotron_h", "rope.freq_base", Value::F32(123.0), true),
        ("qwen35", "ssm.v_head_reordered", Value::Bool(true), true),
        ("qwen35", "ssm.v_head_reordered", Value::Bool(false), false),
    ];
    for (name, key, value, loads) in cases {
        let mut model = Changed::new(&format!("arch/{name}"));
        let found = problem(model.spec(&[(key, Some(value.clone()))]));
        assert_eq!(found.is_none(), loads, "{name}, {key} = {value}: {found:?}");
        assert!(found.is_none_or(|(location, _)| location == model.full(key)), "{name}, {key}");
    }
}

/// F1: the alternative names of keys in Ollama's converters mean the same. Different values under two names of a key
/// are refused.
#[test]
fn keys_have_other_names() {
    let renamed = |name: &str, names: &[(&str, &str)]| {
        let mut model = Changed::new(&format!("arch/{name}"));
        let expected = model.spec(&[]).unwrap();
        let values: Vec<_> = names.iter().map(|(old, _)| model.value(old).cloned()).collect();
        let removed = names.iter().map(|&(old, _)| (old, None));
        let added = names.iter().zip(values).map(|(&(_, new), value)| (new, value));
        let changes: Vec<_> = removed.chain(added).collect();
        assert_eq!(model.spec(&changes).unwrap(), expected, "{name}");
        model.relative_distance(&format!("arch/{name}"), &changes)
    };
    let gemma3 = [("rope.freq_base", "rope.global.freq_base"), ("rope.freq_base_swa", "rope.local.freq_base")];
    assert!(renamed("gemma3", &gemma3) < 1e-3);
    let mistral3 = [
        ("rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"),
        ("rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"),
        ("rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim"),
        ("attention.temperature_scale", "rope.scaling_beta"),
    ];
    assert!(renamed("mistral3", &mistral3) < 1e-3);
    assert!(renamed("llama_linear", &[("rope.scaling.factor", "rope.scale_linear")]) < 1e-3);
    let mut model = Changed::new("arch/gemma3");
    let found = problem(model.spec(&[("rope.global.freq_base", Some(Value::F32(123.0)))]));
    assert_eq!(found.unwrap().0, "gemma3.rope.global.freq_base");
    let same = model.value("rope.freq_base").cloned();
    assert!(model.spec(&[("rope.global.freq_base", same)]).is_ok());
}

/// F5: a pattern of windows may be a list of bools or of 0 and 1, not only a period.
#[test]
fn windows_may_be_a_list() {
    for (name, period) in [
        ("gemma2", 2),
        ("gemma3", 6),
        ("cohere2", 4),
        ("gpt_oss", 2),
        ("olmo3", 4),
        ("exaone_moe", 4),
        ("cohere2moe", 4),
    ] {
        let mut model = Changed::new(&format!("arch/{name}"));
        let expected = model.spec(&[]).unwrap();
        let flags: Vec<bool> = (0..expected.layers.len()).map(|layer| (layer + 1) % period != 0).collect();
        let numbers = |ty: fn(Vec<bool>) -> Array| Some(Value::Array(ty(flags.clone())));
        let lists = [
            numbers(Array::Bool),
            numbers(|flags| Array::I32(flags.into_iter().map(i32::from).collect())),
            numbers(|flags| Array::U8(flags.into_iter().map(u8::from).collect())),
            Some(Value::U32(period as u32)),
            None,
        ];
        for list in lists {
            let key = "attention.sliding_window_pattern";
            assert_eq!(model.spec(&[(key, list.clone())]).unwrap(), expected, "{name}: {list:?}");
        }
        let two = Value::Array(Array::I32(vec![2; expected.layers.len()]));
        let found = problem(model.spec(&[("attention.sliding_window_pattern", Some(two))])).unwrap();
        assert!(found.1.contains("holds 2, expected bools, or 0 and 1"), "{}", found.1);
    }
}

/// F5: a list of windows may leave out the MTP blocks, which the number of blocks includes.
#[test]
fn windows_of_blocks_behind_the_layers_may_be_left_out() {
    let mut model = Changed::new("arch/exaone_moe");
    let expected = model.spec(&[]).unwrap();
    let number = |n| Some(Value::U32(n));
    let spec = model.spec(&[("block_count", number(5)), ("nextn_predict_layers", number(1))]).unwrap();
    assert_eq!(ModelSpec { nextn_layers: 0, ..spec }, expected);
    let found = problem(model.spec(&[("block_count", number(5)), ("nextn_predict_layers", number(0))])).unwrap();
    assert!(found.1.contains("has 4 entries, expected one per layer (5)"), "{}", found.1);
}

/// F1: keys that describe contradictory parts of a model, or parts that this version does not compute.
#[test]
fn parts_that_cannot_be_are_refused() {
    let (number, flag) = (|n| Some(Value::U32(n)), |flag| Some(Value::Bool(flag)));
    let cases = [
        ("arch/gptneox", "use_parallel_residual", None, "is missing"),
        ("arch/mamba2", "attention.head_count", number(4), "is 4, expected 0"),
        ("arch/cohere2moe", "expert_gating_func", number(1), "is 1, expected 2"),
        ("arch/granite_swa", "attention.sliding_window_pattern", None, "is missing, expected a list of bools"),
        ("arch/dots1", "expert_gating_func", number(1), "asks for softmax, but layers have exp_probs_b.bias"),
        ("arch/olmo", "attention.clamp_kqv", Some(Value::F32(-1.0)), "is -1, expected a number above 0"),
        ("arch/ernie4_5_moe", "interleave_moe_layer_step", number(2), "is 2, which this version does not support"),
        ("embedding/eurobert", "attention.causal", flag(true), "is true, expected false"),
        ("embedding/gemma_embedding", "dense_3_feat_in", number(95), "is 95, expected 96"),
        ("embedding/gemma_embedding", "dense_3_feat_out", None, "is missing"),
    ];
    for (name, key, value, expected) in cases {
        let mut model = Changed::new(name);
        let (location, problem) = problem(model.spec(&[(key, value)])).unwrap();
        assert_eq!(location, model.full(key), "{name}");
        assert!(problem.contains(expected), "{name}, {key}: {problem}");
    }
}

/// F5: defaults of YaRN follow llama.cpp's rules. The context is the model's, and a factor that is missing or 0 means
/// 1.
#[test]
fn scaling_has_defaults() {
    let mut model = Changed::new("arch/qwen3_yarn");
    let original = "rope.scaling.original_context_length";
    let context = model.value("context_length").cloned();
    let expected = model.spec(&[(original, context)]).unwrap();
    assert_eq!(model.spec(&[(original, None)]).unwrap(), expected);
    let one = model.spec(&[("rope.scaling.factor", Some(Value::F32(1.0)))]).unwrap();
    for factor in [None, Some(Value::F32(0.0))] {
        assert_eq!(model.spec(&[("rope.scaling.factor", factor)]).unwrap(), one);
    }
    assert_ne!(one, model.spec(&[]).unwrap());
    let plain = model.spec(&[("rope.scaling.type", Some(Value::String("none".to_owned())))]).unwrap();
    assert_eq!(plain.ropes, one.ropes);
    for (key, value) in [("rope.scaling.yarn_ext_factor", 0.5), ("rope.scaling.factor", -2.0)] {
        assert_eq!(problem(model.spec(&[(key, Some(Value::F32(value)))])).unwrap().0, model.full(key));
    }
}

/// F5: a Gemma 3 without a window has full attention with the RoPE of its full layers. A ModernBERT without a pattern
/// has a period of three.
#[test]
fn windows_have_defaults() {
    let mut gemma = Changed::new("arch/gemma3_linear");
    let spec = gemma.spec(&[("attention.sliding_window", None)]).unwrap();
    assert_eq!((spec.kv_groups.len(), spec.ropes.len()), (1, 1));
    assert!(spec.ropes.iter().all(|rope| gemma.spec(&[]).unwrap().ropes.contains(rope)));
    let mut bert = Changed::new("embedding/modern_bert");
    let expected = bert.spec(&[]).unwrap();
    assert_eq!(bert.spec(&[("attention.sliding_window_pattern", None)]).unwrap(), expected);
}

/// F5: files that only accompany a model are reported with their kind.
#[test]
fn files_of_other_kinds_say_what_they_are() {
    let text = |text: &str| Value::String(text.to_owned());
    let cases = [
        (vec![("general.architecture", text("clip"))], "general.architecture", "mmproj"),
        (vec![("general.type", text("mmproj")), ("general.architecture", text("clip"))], "general.type", "mmproj"),
        (vec![("general.type", text("imatrix"))], "general.type", "importance matrix"),
        (vec![("imatrix.chunk_count", Value::U32(1))], "imatrix.chunk_count", "importance matrix"),
        (vec![("general.type", text("adapter")), ("general.architecture", text("llama"))], "general.type", "LoRA"),
    ];
    let mut model = Changed::new("arch/llama_tied");
    for (entries, key, word) in cases {
        let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        model.gguf.set_metadata(Metadata::new(model.gguf.metadata().path(), entries).unwrap());
        let (location, problem) = problem(ModelSpec::from_gguf(&model.gguf, None)).unwrap();
        assert!(location == key && problem.contains(word), "{location}: {problem}");
    }
}

/// F1: values of keys that this version does not compute, or that contradict other values.
#[test]
fn values_that_cannot_be_are_refused() {
    let (number, float) = (|n| Some(Value::U32(n)), |x| Some(Value::F32(x)));
    let floats = |values: &[f32]| Some(Value::Array(Array::F32(values.to_vec())));
    let cases = [
        ("llama4", "expert_used_count", number(2), "is 2, expected 1"),
        ("llama4", "expert_gating_func", number(1), "is 1, expected 2"),
        ("llama4", "attention.sliding_window", number(512), "is 512, expected 8192 or 0"),
        ("mimo2", "attention.value_scale", float(-1.0), "is -1, expected"),
        ("minicpm3", "attention.head_count_kv", number(1), "is 1, expected attention.head_count"),
        ("step35", "swiglu_clamp_exp", floats(&[7.0]), "has 1 entries, expected one per layer"),
        ("step35", "swiglu_clamp_shexp", float(-7.0), "holds -7; this version takes limits above 0"),
        ("step35", "swiglu_clamp_shexp", float(0.1), "holds 0.1; this version takes limits above 0"),
    ];
    for (name, key, value, expected) in cases {
        let mut model = Changed::new(&format!("arch/{name}"));
        let (location, problem) = problem(model.spec(&[(key, value)])).unwrap();
        assert_eq!(location, model.full(key), "{name}");
        assert!(problem.contains(expected), "{name}, {key}: {problem}");
    }
}

/// Limits of Step 3.5's feed-forwards change the logits only if activations reach them.
#[test]
fn limits_of_activations_are_read() {
    let mut model = Changed::new("arch/step35");
    let limits = ["swiglu_clamp_exp", "swiglu_clamp_shexp"];
    for limit in limits {
        let distance = |model: &mut Changed, x| model.relative_distance("arch/step35", &[(limit, Some(Value::F32(x)))]);
        assert!(distance(&mut model, 0.0) < 1e-3, "{limit} of 0");
        assert!(distance(&mut model, 1024.0) < 1e-3, "{limit} of 1024");
        assert!(distance(&mut model, 1.0 / 1024.0) > 1e-2, "{limit} of a thousandth");
    }
}
