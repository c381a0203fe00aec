//! Errors for latent attention files with tensors or keys that this version does not support.

use crate::ModelSpec;
use crate::backend::{ExpertGroups, KvLayerSpec};
use crate::config::KvCacheDtype;
use crate::conformance::bytes_of;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{GgufFile, Value};
use crate::quant::GgmlType;
use crate::spec::Ffn;
use crate::testdata::{self, TempFile};

const GOLDEN: &str = "arch/deepseek2.gguf";

/// Returns a file of the golden model's keys, some of them changed, its tensors, and the tensor `more`.
fn file(changed: &[(&str, Value)], more: Option<&str>) -> TempFile {
    let file = testdata::file(GOLDEN);
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        let new = changed.iter().find(|(name, _)| key == format!("deepseek2.{name}"));
        writer = writer.key(key, new.map_or(value, |(_, value)| value));
    }
    for info in gguf.tensors() {
        let view = gguf.view(info);
        writer = writer.tensor(Tensor::new(&info.name, &info.shape, view.ggml_type, view.data));
    }
    if let Some(name) = more {
        writer = writer.tensor(Tensor::new(name, &[32, 256], GgmlType::F32, &bytes_of(&[0.0; 32 * 256])));
    }
    testdata::temp_file("latent.gguf", &writer.bytes())
}

fn refusal(changed: &[(&str, Value)], more: Option<&str>) -> String {
    let file = file(changed, more);
    ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap_err().to_string()
}

/// The cache has one row per token and layer, with the latent and the key after it. Experts are in two groups.
#[test]
fn rows_and_groups_are_those_of_the_file() {
    let file = file(&[], None);
    let spec = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap();
    let layers = spec.kv_layers(&[5], 16, KvCacheDtype::F16);
    assert_eq!(layers.iter().map(KvLayerSpec::block_bytes).collect::<Vec<_>>(), [Some(16 * 48 * 2); 3]);
    assert_eq!(spec.kv_groups[0].block_bytes(16, KvCacheDtype::F32).unwrap(), 3 * 16 * 48 * 4);
    assert_eq!(spec.kv_groups[0].block_bytes(16, KvCacheDtype::Int8).unwrap(), 3 * 16 * (48 + 2 * 4));
    let refused = spec.kv_groups[0].block_bytes(16, KvCacheDtype::Int4).unwrap_err();
    assert!(matches!(refused, crate::Error::InvalidRequest { what: "kv_cache_dtype", .. }), "{refused}");
    let groups = |layer: usize| match spec.layers[layer].ffn {
        Ffn::Experts { experts, .. } => experts.groups,
        _ => None,
    };
    assert_eq!(
        [0, 1, 2].map(groups),
        [None, Some(ExpertGroups { num: 4, used: 2 }), Some(ExpertGroups { num: 4, used: 2 })]
    );
}

#[test]
fn files_that_are_not_run_say_why() {
    let error = refusal(&[], Some("blk.0.attn_kv_b.weight"));
    assert!(error.contains("blk.0.attn_kv_b.weight") && error.contains("Convert the model again"), "{error}");
    let count = "expert_group_count";
    for (changed, key, problem) in [
        (&[("attention.head_count_kv", 4)][..], "attention.head_count_kv", "is 4, expected 1"),
        (&[("attention.key_length", 64)], "attention.key_length", "is 64, expected 48"),
        (&[("attention.value_length", 48)], "attention.value_length", "is 48, expected 32"),
        (&[("attention.key_length_mla", 16)], "attention.key_length_mla", "is 16, expected more than the 16"),
        (&[(count, 3)], count, "is 3, of which 2 are used"),
        (&[(count, 8)], count, "is 8, of which 2 are used"),
        (&[("expert_group_used_count", 5)], count, "is 4, of which 5 are used"),
        (&[("expert_gating_func", 1)], count, "weighed by softmax"),
        (&[("expert_gating_func", 1), (count, 1)], "expert_gating_func", "asks for softmax"),
    ] {
        let changed: Vec<_> = changed.iter().map(|&(key, value)| (key, Value::U32(value))).collect();
        let error = refusal(&changed, None);
        assert!(error.contains(problem) && error.contains(&format!("deepseek2.{key}")), "{changed:?}: {error}");
    }
}
