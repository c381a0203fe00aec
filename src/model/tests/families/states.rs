//! Models with recurrent layers: long texts, chunks, and states that are kept in the middle of a step.

use crate::ModelSpec;
use crate::backend::Backend;
use crate::batch::{Batch, GroupTables, NO_STATE, StateTables, StateWrite};
use crate::config::KvCacheDtype;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{Array, GgufFile, Value};
use crate::selection::{Needs, SamplingRequest, Wanted};
use crate::testdata::{self, TempFile};
use crate::tests::{
    BLOCK, CpuLoader, CpuModel, MAX_TOKENS, Model, distance, load_with_kv, max_abs, tokens, try_load_file,
};
use crate::vision::Images;

pub(super) const RECURRENT: [&str; 13] = [
    "falcon_h1",
    "granitehybrid",
    "jamba",
    "lfm2",
    "lfm2moe",
    "mamba",
    "mamba2",
    "nemotron_h",
    "qwen35",
    "qwen35_mtp",
    "qwen35moe",
    "qwen3next",
    "qwen3next_legacy",
];

fn load(name: &str) -> CpuModel {
    load_with_kv(&format!("arch/{name}.gguf"), KvCacheDtype::F32)
}

fn relative(got: &[f32], expected: &[f32]) -> f32 {
    distance(got, expected).0 / max_abs(expected)
}

pub(in crate::tests) fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
}

/// Texts with more tokens than a step.
#[test]
fn golden_logits_of_long_texts() {
    for name in RECURRENT {
        let z = testdata::npz(&format!("arch/{name}"));
        let tokens: Vec<u32> = z.i32("tokens_long").iter().map(|&token| token as u32).collect();
        let got = load(name).logits_in_steps(&tokens);
        let expected = z.f32("logits_long_last8");
        let vocab = got.len() / tokens.len();
        let argmaxes: Vec<i32> = got.chunks(vocab).map(|row| argmax(row) as i32).collect();
        assert_eq!(argmaxes, z.i32("argmax_long"), "{name}");
        let error = relative(&got[got.len() - expected.len()..], &expected);
        println!("{name}: {error:.2e} of the largest logit");
        assert!(error < 1e-3, "{name}: {error:.2e} of the largest logit");
    }
}

/// Falcon Mamba is Mamba with norms of time steps, B and C. The reference (transformers, in float64) has the weights of
/// the golden Mamba.
#[test]
fn golden_logits_of_falcon_mamba() {
    let file = with_key("mamba", "ssm.dt_b_c_rms", Some(Value::Bool(true)));
    let mut model = try_load_file(CpuLoader::new(2, MAX_TOKENS).unwrap(), &file, KvCacheDtype::F32).unwrap();
    let z = testdata::npz("arch/falcon_mamba");
    let error = relative(&model.logits(&tokens(&z), 0), &z.f32("logits"));
    println!("{error:.2e} of the largest logit");
    assert!(error < 1e-3, "{error:.2e} of the largest logit");
}

/// The logits at the end of each chunk of a text, compared with the reference.
#[test]
fn golden_logits_of_chunks() {
    for name in RECURRENT {
        let z = testdata::npz(&format!("arch/{name}"));
        let (tokens, ends) = (tokens(&z), z.f32("chunk_ends"));
        let mut model = load(name);
        let mut start = 0;
        for (length, expected) in z.i32("chunk_lengths").iter().zip(ends.chunks(z.shape("chunk_ends")[1])) {
            let end = start + *length as usize;
            let got = model.logits(&tokens[..end], start);
            let error = relative(&got[got.len() - expected.len()..], expected);
            assert!(error < 1e-3, "{name}: {error:.2e} of the largest logit behind token {end}");
            start = end;
        }
        assert_eq!(start, tokens.len(), "{name}");
    }
}

/// The tokens that the reference generates, one by one.
#[test]
fn greedy_tokens_are_the_golden_ones() {
    for name in RECURRENT {
        let z = testdata::npz(&format!("arch/{name}"));
        // They follow the first tokens of the text.
        let mut tokens = tokens(&z)[..16].to_vec();
        let mut model = load(name);
        let mut start = 0;
        for &expected in &z.i32("greedy") {
            let got = model.logits(&tokens, start);
            let vocab = got.len() / (tokens.len() - start);
            let token = argmax(&got[got.len() - vocab..]);
            assert_eq!(token, expected as u32, "{name}: token {}", tokens.len());
            start = tokens.len();
            tokens.push(token);
        }
    }
}

/// Computes a step of one sequence in the first blocks. Returns its logits.
fn step<B: Backend>(model: &mut Model<B>, tokens: &[u32], start: usize, states: StateTables) -> Vec<f32> {
    let (len, new) = (tokens.len(), tokens.len() - start);
    let blocks = len.div_ceil(BLOCK) as u32;
    let group = GroupTables {
        slot_mapping: (start as u32..len as u32).collect(),
        block_tables: (0..blocks).collect(),
        cu_blocks: vec![0, blocks],
    };
    let batch = Batch {
        token_ids: tokens[start..].to_vec(),
        positions: (start as u32..len as u32).collect(),
        cu_seqlens_q: vec![0, new as u32],
        context_lens: vec![len as u32],
        groups: vec![group; model.decoder.spec().kv_groups.len()],
        states,
        logits_indices: (0..new as u32).collect(),
        ..Batch::default()
    };
    let needs = Needs { logits: true, hidden: false };
    model.decoder.launch(&mut model.backend, &batch, &Images::new(), needs).unwrap();
    let sampling_requests: Vec<SamplingRequest<'_>> = (0..new).map(|_| Wanted::Row.into()).collect();
    model.decoder.select(&mut model.backend, 0..new, &sampling_requests).unwrap();
    let mut rows = model.decoder.collect(&mut model.backend).unwrap();
    (0..new).flat_map(|row| rows.whole_row(row).unwrap().to_vec()).collect()
}

/// A text continues from a state that was kept in the middle of a step. It has the bits of the text in one piece, even
/// if another text has continued from that state meanwhile.
#[test]
fn states_that_are_kept_half_way_are_exact() {
    for name in RECURRENT {
        let tokens = tokens(&testdata::npz(&format!("arch/{name}")));
        assert!(tokens.len() <= MAX_TOKENS);
        let mut model = load(name);
        let whole = model.logits(&tokens, 0);
        let vocab = whole.len() / tokens.len();
        let kept = [(2, 7), (16, 5), (32, 6), (40, 8)];
        let states = |slot: u32, kept: &[(u32, u32)]| StateTables {
            reads: vec![slot],
            writes: kept.iter().map(|&(num_tokens, slot)| StateWrite { num_tokens, slot }).collect(),
            cu_writes: vec![0, kept.len() as u32],
        };
        assert!(step(&mut model, &tokens[..40], 0, states(NO_STATE, &kept)) == whole[..40 * vocab], "{name}");
        for &(start, slot) in kept.iter().rev() {
            // By then the blocks after it hold another text.
            let mut other = tokens[..start as usize].to_vec();
            other.extend(tokens.iter().rev().take(8));
            step(&mut model, &other, start as usize, states(slot, &[(8, 9)]));
            let got = step(&mut model, &tokens, start as usize, states(slot, &[]));
            assert!(got == whole[start as usize * vocab..], "{name}: from token {start}");
        }
    }
}

/// Keys that are missing or contradict each other are errors that name them.
#[test]
fn keys_that_are_no_layer_of_states_are_errors() {
    let number = |value: u32| Some(Value::U32(value));
    let counts = |counts: &[i32]| Some(Value::Array(Array::I32(counts.to_vec())));
    let cases = [
        ("qwen35", "ssm.inner_size", number(63), "is 63, expected ssm.time_step_rank (4) times ssm.state_size (16)"),
        ("qwen35", "ssm.time_step_rank", number(3), "is 3, expected a multiple of ssm.group_count (2)"),
        ("qwen35", "ssm.state_size", number(256), "is 256; this version supports at most 128"),
        ("qwen35", "ssm.conv_kernel", number(1000), "is 1000, expected at most 64"),
        ("qwen35", "ssm.conv_kernel", number(0), "is 0, expected 1 to"),
        ("qwen35", "ssm.group_count", None, "is missing"),
        ("qwen35", "attention.recurrent_layers", number(1), "expected an array of bools"),
        (
            "qwen35",
            "attention.recurrent_layers",
            Some(Value::Array(Array::Bool(vec![true; 3]))),
            "has 3 entries, expected one per layer (8)",
        ),
        ("granitehybrid", "ssm.inner_size", number(130), "is 130, expected a multiple of ssm.time_step_rank (4)"),
        ("granitehybrid", "ssm.state_size", number(512), "is 512; this version supports at most 256"),
        ("granitehybrid", "attention.head_count_kv", None, "is missing"),
        ("granitehybrid", "attention.head_count_kv", counts(&[0, 0, -1, 0]), "is -1, expected 1 to"),
        ("mamba", "ssm.state_size", number(64), "is 64; this version supports at most 32"),
        ("mamba", "ssm.time_step_rank", None, "is missing"),
        ("mamba", "attention.head_count", number(4), "is 4"),
        ("jamba", "attention.head_count_kv", None, "is missing"),
        ("nemotron_h", "ssm.time_step_rank", number(5), "is 5, expected a multiple of ssm.group_count (2)"),
        (
            "nemotron_h",
            "feed_forward_length",
            counts(&[0, 128, 0, 64, 128, 0, 128]),
            "is 64 in layer 3, which has 2 KV heads; expected 0 for one of them",
        ),
        ("lfm2", "shortconv.l_cache", None, "is missing"),
        ("lfm2", "shortconv.l_cache", number(1000), "is 1000, expected at most 64"),
        ("lfm2", "attention.head_count_kv", counts(&[0; 4]), "has 4 entries, expected one per layer (5)"),
        ("qwen3next", "full_attention_interval", None, "is missing"),
        ("qwen3next", "full_attention_interval", number(0), "is 0, expected 1 to"),
    ];
    for (name, key, value, problem) in cases {
        let error = spec_error(name, key, value);
        assert!(error.contains(&format!("{name}.{key}")) && error.contains(problem), "{error}");
    }
}

/// Returns the error of a golden model with a changed or missing key.
fn spec_error(name: &str, key: &str, value: Option<Value>) -> String {
    let changed = with_key(name, key, value);
    ModelSpec::from_gguf(&GgufFile::open(&changed.0).unwrap(), None).unwrap_err().to_string()
}

/// Returns the file of a golden model with a changed or missing key.
fn with_key(name: &str, key: &str, value: Option<Value>) -> TempFile {
    let key = format!("{name}.{key}");
    let file = testdata::file(&format!("arch/{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::new();
    for (known, old) in gguf.metadata().iter() {
        match (&value, known == key) {
            (_, false) => writer = writer.key(known, old),
            (Some(new), true) => writer = writer.key(known, new),
            (None, true) => {}
        }
    }
    for info in gguf.tensors() {
        let view = gguf.view(info);
        writer = writer.tensor(Tensor::new(&info.name, &info.shape, view.ggml_type, view.data));
    }
    testdata::temp_file("keys.gguf", &writer.bytes())
}

/// A file that gives heads to no layer is refused, and the error names the key of the heads.
#[test]
fn heads_that_no_layer_uses_are_refused() {
    let error = spec_error("lfm2", "attention.head_count_kv", Some(Value::Array(Array::I32(vec![0; 5]))));
    assert!(error.contains("lfm2.attention.head_count: holds u32 2"), "{error}");
}
