//! Draft tokens of a draft model, compared with the golden logits of its file.

use std::time::{Duration, Instant};

use crate::backend::{Backend, Loader};
use crate::batch::{GroupKind, TO_DRAFT};
use crate::config::KvCacheDtype;
use crate::cpu::CpuLoader;
use crate::gguf::{GgufFile, Value};
use crate::testdata::{self, TempFile};
use crate::testmodels::{cut_vocabulary, of_vocabulary, rewritten};
use crate::tests::families::states::argmax;
use crate::tests::{
    MAX_TOKENS, Machine, Model, check_budget_of, distance, load_tensors, load_with_kv, max_abs, tokens,
};
use crate::vision::Images;
use crate::{Error, Result};
use crate::{ModelSpec, ModelTensors};

/// Pairs of a model and its draft model, with the same vocabulary. The draft models have, in order: other heads; the
/// model's windows and full attention; experts; latent attention; a recurrent model to draft for; per-layer inputs and
/// fewer tokens than the model; more tokens than the model.
const PAIRS: [[&str; 2]; 7] = [
    ["qwen3", "qwen2"],
    ["gemma2", "gemma3"],
    ["llama_tied", "mixtral"],
    ["deepseek2_lite", "deepseek2"],
    ["qwen35", "glm4"],
    ["gemma2", "gemma4_e"],
    ["smollm3", "phi4mini"],
];

fn golden(name: &str) -> TempFile {
    testdata::file(&format!("arch/{name}.gguf"))
}

fn open([main, draft]: [&TempFile; 2]) -> [GgufFile; 2] {
    [main, draft].map(|file| GgufFile::open(&file.0).unwrap())
}

fn spec_of([main, draft]: &[GgufFile; 2], max_model_len: Option<usize>) -> Result<ModelSpec> {
    ModelSpec::from_gguf(main, max_model_len).unwrap().with_draft_model(main, draft, max_model_len)
}

fn load_on<L: Loader>(loader: L, files: [&TempFile; 2], dtype: KvCacheDtype) -> Model<L::Backend> {
    let files = open(files);
    let spec = spec_of(&files, Some(128)).unwrap();
    let tensors = ModelTensors::collect(&files[0], &spec).unwrap().with_draft_model(&files[1]).unwrap();
    load_tensors(loader, &tensors, dtype).unwrap()
}

/// The token table of the draft model ends within a tile, and the model has more tokens. The draft model does not know
/// the last tokens of its table, or those that it lacks. The other tokens are unchanged.
#[test]
fn tables_that_end_within_a_tile_are_lengthened() {
    let main = golden("smollm3");
    for draft in ["glm4", "hunyuan_dense"] {
        let cut = cut_vocabulary(&golden(draft), &main, 5);
        let [mut short, mut whole] = [&cut, &of_vocabulary(&golden(draft), &main)]
            .map(|draft| load_on(cpu(), [&main, draft], KvCacheDtype::F32));
        let text: Vec<u32> = (0..30).map(|i| (7 + i * i * 5) % 432).collect();
        let [of_short, of_whole] = [&mut short, &mut whole].map(|model| {
            model.logits(&text[..29], 0);
            model.propose(&[&text]).remove(0)
        });
        assert!(of_short.len() == 448 && of_short[..432] == of_whole[..432], "{draft}");
        // The first rows are repeated after the last whole tile.
        assert_eq!(of_short[432..], of_short[..16], "{draft}");
        // Tokens of the model that the draft model lacks do no harm.
        short.logits(&[440, 447, 445], 0);
        assert!(short.draft(&[(&[440, 447, 445, 446], 3)])[0].iter().all(|&token| token < 448));
    }
}

/// Returns the model of a pair, the draft model's golden tokens that the model knows, and the golden logits.
fn load_pair<L: Loader>(
    loader: L,
    [main, draft]: [&str; 2],
    dtype: KvCacheDtype,
) -> (Model<L::Backend>, Vec<u32>, Vec<f32>) {
    let main = golden(main);
    let draft_file = of_vocabulary(&golden(draft), &main);
    let model = load_on(loader, [&main, &draft_file], dtype);
    let z = testdata::npz(&format!("arch/{draft}"));
    let known = model.decoder.spec().vocab_size as u32;
    let text = tokens(&z).into_iter().take_while(|&token| token < known).collect();
    (model, text, z.f32("logits"))
}

fn cpu() -> CpuLoader {
    CpuLoader::new(2, MAX_TOKENS).unwrap()
}

/// Compares draft tokens and their logits with the golden ones, after each token of the draft model's golden text.
/// Covers steps of single tokens and steps after prompts.
pub(in crate::tests) fn check_golden<L: Loader>(loader: L, pair: [&str; 2], dtype: KvCacheDtype, bound: f32) {
    let (mut model, text, expected) = load_pair(loader, pair, dtype);
    let num_tokens = testdata::npz(&format!("arch/{}", pair[1])).i32("tokens").len();
    let vocab = expected.len() / num_tokens;
    let known = model.decoder.spec().vocab_size;
    assert!(text.len() > 12, "{pair:?}: {} tokens", text.len());
    let (mut worst, mut others) = (0.0f32, 0);
    for end in 1..text.len() {
        let start = if end == 9 { 0 } else { end - 1 };
        model.logits(&text[..end], start);
        let row = model.propose(&[&text[..=end]]).remove(0);
        let golden = &expected[end * vocab..][..vocab];
        worst = worst.max(distance(&row[..vocab], golden).0);
        let draft = model.draft(&[(&text[..=end], 1)])[0][0];
        assert!((draft as usize) < known);
        others += usize::from(draft != argmax(&golden[..vocab.min(known)]));
    }
    let relative = worst / max_abs(&expected);
    println!("{pair:?}: {relative:.2e} of the largest logit, {others} other tokens of {}", text.len() - 1);
    assert!(relative < bound, "{pair:?}: {relative:.2e}");
    // Rounding may decide between two tokens that are equally likely.
    assert!(others <= 1, "{pair:?}: {others} of {} draft tokens are others", text.len() - 1);
}

#[test]
fn golden_drafts_of_draft_models() {
    for pair in PAIRS {
        check_golden(cpu(), pair, KvCacheDtype::F32, 1e-3);
    }
}

/// Draft tokens equal the draft model's own continuation, for several texts and with any other sequences in the step.
/// The model's logits are bitwise equal to those without a draft model, even after wrong draft tokens.
#[test]
fn drafts_are_the_draft_models_own_and_leave_no_trace() {
    for [name, draft] in [["qwen3", "qwen2"], ["gemma2", "gemma3"], ["qwen35", "glm4"]] {
        let (mut model, text, _) = load_pair(cpu(), [name, draft], KvCacheDtype::F16);
        let mut plain = load_with_kv(&format!("arch/{name}.gguf"), KvCacheDtype::F16);
        let mut alone = load_with_kv(&format!("arch/{draft}.gguf"), KvCacheDtype::F16);
        let mut said = |text: &[u32], count: usize| {
            let mut ahead = text.to_vec();
            alone.logits(text, 0);
            for _ in 0..count {
                let row = alone.logits(&ahead, ahead.len() - 1);
                ahead.push(argmax(&row));
            }
            ahead[text.len()..].to_vec()
        };
        let other = &text[2..9];
        let expected = [said(&text[..30], 4), said(other, 6)];
        for cuts in [vec![1, 2, 17, 18, 29], vec![29], (1..=29).collect()] {
            let mut start = 0;
            for end in cuts {
                assert!(model.logits(&text[..end], start) == plain.logits(&text[..end], start), "{name}");
                // These are mostly wrong, because the text continues with other tokens.
                model.draft(&[(&text[..=end], 5)]);
                start = end;
            }
            model.step(&[(&text[..29], 28), (&other[..6], 0)]).unwrap();
            let of_both = model.draft(&[(&text[..30], 4), (other, 6)]);
            assert_eq!(of_both, expected, "{name}");
            // The longest gap comes second, then first.
            for [of_text, of_other] in [[1, 6], [4, 2]] {
                let proposed = model.draft(&[(&text[..30], of_text), (other, of_other)]);
                assert_eq!(proposed, [&expected[0][..of_text], &expected[1][..of_other]], "{name}");
            }
        }
    }
}

/// A draft model computes its missing tokens in pieces, also beside the drafts of another sequence. Its draft tokens
/// are bitwise equal to those after the whole text at once. No step of the model computes these tokens.
#[test]
fn what_is_lacking_is_computed_in_pieces() {
    for pair in [["qwen3", "qwen2"], ["deepseek2_lite", "deepseek2"], ["qwen35", "glm4"]] {
        let (mut model, text, _) = load_pair(cpu(), pair, KvCacheDtype::F16);
        assert!(model.decoder.spec().draft_lags());
        let (text, other) = (&text[..25], &text[3..9]);
        let expected = model.draft(&[(text, 4), (other, 2)]);
        for cuts in [vec![], vec![24], vec![1, 2, 17, 18], (1..24).collect()] {
            let (mut model, ..) = load_pair(cpu(), pair, KvCacheDtype::F16);
            let mut draft = |seq: (usize, &[u32], usize), piece: Option<(&[u32], usize)>| {
                let (id, tokens, count) = seq;
                let ahead = [tokens, &vec![TO_DRAFT; count]].concat();
                let mut batch = model.batch_of(&[(id, &ahead, tokens.len() - 1)]);
                let start = piece.filter(|_| id == 0).map_or(0, |(_, start)| start);
                let behind = piece.filter(|_| id > 0).map(|(tokens, start)| (0, tokens, start));
                let parts: Vec<_> = std::iter::once((id, tokens, start)).chain(behind).collect();
                let mut first = model.batch_of(&parts);
                first.logits_indices = vec![(tokens.len() - start - 1) as u32];
                first.states.clear_writes();
                model.decoder.draft(&mut model.backend, &mut batch, &first).unwrap();
                batch.token_ids[1..].to_vec()
            };
            let mut start = 0;
            for end in cuts {
                assert_eq!(draft((1, other, 2), Some((&text[..end], start))), expected[1], "{pair:?}");
                start = end;
            }
            assert_eq!(draft((0, text, 4), Some((&[], start))), expected[0], "{pair:?} from {start}");
        }
        let (mut model, ..) = load_pair(cpu(), pair, KvCacheDtype::F16);
        model.logits(&text[..24], 0);
        let mut alone = model.batch(&[(text, 24)]);
        alone.states.clear_writes();
        let row = model.decoder.propose(&mut model.backend, &alone, true).unwrap().whole_row(0).unwrap().to_vec();
        assert!(row != model.propose(&[text])[0], "{pair:?}: the model's step has computed the draft model");
    }
}

/// A draft model with windows is computed by each step. A step without logits stores the keys and values for drafting.
/// So does a step that was interrupted and repeated.
#[test]
fn prompts_and_interrupted_steps_store_all() {
    let pair = ["gemma2", "gemma3"];
    let (mut model, text, _) = load_pair(cpu(), pair, KvCacheDtype::F16);
    model.logits(&text[..20], 0);
    let expected = model.propose(&[&text[..21]]);
    let mut interrupted = 0;
    for micros in (0..20).map(|i| 25 * i) {
        let (mut model, ..) = load_pair(cpu(), pair, KvCacheDtype::F16);
        let interrupt = model.backend.interrupt().unwrap().clone();
        interrupt.stop_at(Instant::now() + Duration::from_micros(micros));
        match model.step(&[(&text[..20], 0)]) {
            Err(Error::Interrupted) => interrupted += 1,
            other => drop(other.unwrap()),
        }
        interrupt.clear();
        let mut batch = model.batch(&[(&text[..20], 0)]);
        batch.logits_indices.clear();
        let needs = crate::selection::Needs { logits: true, hidden: false };
        model.decoder.launch(&mut model.backend, &batch, &Images::new(), needs).unwrap();
        assert!(model.propose(&[&text[..21]]) == expected, "after {micros} us");
    }
    assert!(interrupted > 0, "the first one has no time at all");
}

/// The draft model's keys and values are in the groups of layers that attend to the same tokens. It adds no states to a
/// model without states. The budget equals the allocated memory.
#[test]
fn a_draft_model_is_part_of_the_plan() {
    let machine = Machine::new("draft_budget", 1 << 20);
    for [main, draft] in PAIRS {
        let main = golden(main);
        let files = open([&main, &of_vocabulary(&golden(draft), &main)]);
        let [plain, alone] = [0, 1].map(|file| ModelSpec::from_gguf(&files[file], Some(128)).unwrap());
        let with = spec_of(&files, Some(128)).unwrap();
        let bytes = |spec: &ModelSpec, kind: GroupKind| -> u64 {
            let of_kind = spec.kv_groups.iter().filter(|group| group.kind == kind);
            of_kind.map(|group| group.block_bytes(16, KvCacheDtype::F16).unwrap()).sum()
        };
        for (index, group) in with.kv_groups.iter().enumerate() {
            assert_eq!(with.kv_groups.iter().position(|other| other.kind == group.kind), Some(index));
            assert_eq!(bytes(&with, group.kind), bytes(&plain, group.kind) + bytes(&alone, group.kind));
        }
        assert_eq!(with.state_bytes(), plain.state_bytes());
        let blocks = vec![4; with.kv_groups.len()];
        let layers = [&plain, &alone].map(|spec| spec.kv_layers(&blocks, 16, KvCacheDtype::F16)).concat();
        assert_eq!(with.kv_layers(&blocks, 16, KvCacheDtype::F16), layers);
        let tensors = ModelTensors::collect(&files[0], &with).unwrap().with_draft_model(&files[1]).unwrap();
        let loader = CpuLoader::new(1, MAX_TOKENS).unwrap().with_system_root(&machine.0);
        check_budget_of(loader, &tensors, 1 << 30, |_| {});
    }
}

/// Each model that cannot draft is refused with an error that gives the reason.
#[test]
fn models_that_cannot_draft_are_refused() {
    let refusal = |main: &TempFile, draft: &TempFile, max_model_len: Option<usize>| {
        let error = spec_of(&open([main, draft]), max_model_len).unwrap_err();
        let Error::InvalidRequest { what, .. } = &error else { panic!("{error}") };
        assert_eq!(*what, "speculative_config.model");
        let error = error.to_string();
        assert!(error.contains(&draft.0.display().to_string()), "{error}");
        error
    };
    let [qwen3, qwen2, gemma3, llama] = ["qwen3", "qwen2", "gemma3", "llama3_ropescale"].map(golden);
    let bert = testdata::file("embedding/bert.gguf");
    let states = of_vocabulary(&golden("qwen35moe"), &golden("granitehybrid"));
    // Both have 640 tokens with different texts.
    assert!(refusal(&qwen3, &llama, None).contains("vocabulary; its token "));
    assert!(refusal(&llama, &qwen3, Some(256)).contains("vocabulary; its token "));
    assert!(refusal(&qwen3, &golden("glm4"), None).contains("it has 448 tokens, the model 640"));
    assert!(refusal(&gemma3, &qwen3, None).contains("vocabulary; its token "), "128 more are allowed, by themselves");
    assert!(refusal(&golden("granitehybrid"), &states, Some(64)).contains("qwen35moe carries recurrent states"));
    assert!(refusal(&qwen3, &bert, None).contains("this one attends in both directions"));
    assert!(refusal(&bert, &qwen3, None).contains("the model attends in both directions"));
    // Llama's file has a context of 512 tokens.
    let short = of_vocabulary(&qwen2, &llama);
    let error = refusal(&llama, &short, None);
    assert!(error.contains("for 512 tokens") && error.contains("made for 256: set max_model_len"), "{error}");
    spec_of(&open([&llama, &short]), Some(256)).unwrap();
    assert!(refusal(&llama, &short, Some(257)).contains("for 257 tokens"));
    // A file without a token list cannot be compared with a file that has one.
    let without = |key: &str, value: &Value| (!key.starts_with("tokenizer.")).then(|| value.clone());
    let nameless = rewritten(&qwen2, 0, without);
    assert!(refusal(&qwen3, &nameless, None).contains("its file has no list of tokens"));
    assert!(refusal(&nameless, &qwen3, None).contains("the model's file has no list of tokens"));
    spec_of(&open([&nameless, &nameless]), None).unwrap();
}
