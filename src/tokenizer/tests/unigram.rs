//! Compares Unigram with SentencePiece, and pairs of texts with the tokenizers of transformers.

use proptest::prelude::{prop, *};

use super::golden::ids;
use super::*;

const MODEL_OF: &str = "tokenizers/unigram.json";

/// Returns the vocabulary of a small model as llama.cpp's converter writes it for XLM-RoBERTa.
fn unigram_entries() -> Vec<(String, Value)> {
    let golden = testdata::json(MODEL_OF);
    let list = |key: &str| golden[key].as_array().unwrap().clone();
    let tokens: Vec<String> = list("tokens").iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    let ints = |key: &str| list(key).iter().map(|n| n.as_i64().unwrap() as i32).collect::<Vec<i32>>();
    entries(&[
        ("model", Value::String("t5".into())),
        ("tokens", Value::Array(Array::String(tokens))),
        ("scores", Value::Array(Array::F32(list("scores").iter().map(|x| x.as_f64().unwrap() as f32).collect()))),
        ("token_type", Value::Array(Array::I32(ints("types")))),
        ("precompiled_charsmap", Value::Array(Array::U8(ints("charsmap").iter().map(|&byte| byte as u8).collect()))),
        ("bos_token_id", Value::U32(0)),
        ("eos_token_id", Value::U32(2)),
        ("unknown_token_id", Value::U32(3)),
        ("add_bos_token", Value::Bool(true)),
        ("add_space_prefix", Value::Bool(true)),
        ("remove_extra_whitespaces", Value::Bool(true)),
    ])
}

fn without(key: &str) -> Vec<(String, Value)> {
    unigram_entries().into_iter().filter(|(name, _)| !name.ends_with(key)).collect()
}

/// The texts have spaces of all kinds, sequences that the character map replaces or drops, unknown characters, long
/// words, and text that spells control tokens.
#[test]
fn texts_have_the_ids_of_sentencepiece() {
    let (tokenizer, golden) = (Arc::new(build(unigram_entries()).unwrap()), testdata::json(MODEL_OF));
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 64);
    for case in cases {
        let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        assert_eq!(tokenizer.encode(text, false, false).unwrap(), expected, "{text:?}");
        let whole: Vec<u32> = [0].into_iter().chain(expected.iter().copied()).chain([2]).collect();
        assert_eq!(tokenizer.encode(text, true, false).unwrap(), whole, "{text:?}");
        assert_eq!(streamed(&tokenizer, &expected, true), tokenizer.decode(&expected, true).unwrap());
    }
    let ids = tokenizer.encode("What  is a river?", true, false).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "What is a river?");
}

/// Words are split one by one. As one text they have the same tokens.
#[test]
fn a_token_across_words_changes_no_other_text() {
    let mut entries = unigram_entries();
    let golden = testdata::json(MODEL_OF);
    let mut tokens: Vec<&str> = golden["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    let unused = tokens.iter().position(|token| token.starts_with("[PAD")).unwrap();
    tokens[unused] = "▁qqq▁qqq";
    set(&mut entries, "tokens", strings(&tokens));
    let mut types: Vec<i32> = ids(&golden["types"]).iter().map(|&kind| kind as i32).collect();
    types[unused] = 1;
    set(&mut entries, "token_type", Value::Array(Array::I32(types)));
    let mut scores: Vec<f32> =
        golden["scores"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    scores[unused] = -9.0;
    set(&mut entries, "scores", Value::Array(Array::F32(scores)));
    let tokenizer = build(entries).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false, false).unwrap(), ids(&case["ids"]), "{text:?}");
    }
    assert_eq!(tokenizer.encode("qqq  qqq", false, false).unwrap(), [unused as u32]);
}

/// Without the keys for spaces, and without a map, text stays unchanged.
#[test]
fn keys_of_the_normalizer() {
    let plain = build(without("precompiled_charsmap")).unwrap();
    let full = build(unigram_entries()).unwrap();
    let ids = |tokenizer: &Tokenizer, text| tokenizer.encode(text, false, false).unwrap();
    assert_eq!(ids(&full, "ﬁne"), ids(&full, "fine"));
    assert!(ids(&plain, "ﬁne").contains(&3));
    assert_eq!(ids(&plain, "a  b "), ids(&full, "a b"));
    let kept = build(without("remove_extra_whitespaces")).unwrap();
    assert_eq!(kept.decode(&ids(&kept, " a  b "), true).unwrap(), " a  b ");
    let bare = build(without("add_space_prefix")).unwrap();
    assert_eq!(bare.decode(&ids(&bare, "  a  b "), true).unwrap(), "a b");
    assert_eq!(build(without("unknown_token_id")).unwrap().encode("☃", false, false).unwrap(), [4, 3]);
}

/// L1, L11: an error names the missing or malformed key.
#[test]
fn bad_vocabularies_are_refused() {
    let map = |bytes: Vec<u8>| {
        let mut entries = unigram_entries();
        set(&mut entries, "precompiled_charsmap", Value::Array(Array::U8(bytes)));
        entries
    };
    let bytes: Vec<u8> = ids(&testdata::json(MODEL_OF)["charsmap"]).iter().map(|&byte| byte as u8).collect();
    let cut = |len: usize| map(bytes[..len].to_vec());
    let mut no_text = bytes.clone();
    *no_text.last_mut().unwrap() = 0xff;
    let mut wide = unigram_entries();
    set(&mut wide, "precompiled_charsmap", Value::Array(Array::I32(vec![256])));
    let mut nan = unigram_entries();
    set(&mut nan, "scores", Value::Array(Array::F32(vec![f32::NAN; 512])));
    for (entries, problem) in [
        (cut(3), "fewer than it says"),
        (cut(500), "fewer than it says"),
        (cut(bytes.len() - 1), "leaves that are no replacements"),
        (map(no_text), "leaves that are no replacements"),
        (wide, "no bytes"),
        (nan, "is NaN"),
        (without("scores"), "scores: missing"),
        (without("bos_token_id"), "bos_token_id: missing"),
    ] {
        let error = build(entries).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}, expected {problem}");
    }
    assert!(build(map(Vec::new())).is_ok());
}

/// A1, M13: pairs with WordPiece, unigram and byte-level BPE; none of their texts becomes a control token.
#[test]
fn pairs_have_the_ids_of_transformers() {
    let golden = testdata::json("embedding/rankers.json");
    let pairs: Vec<[&str; 2]> =
        golden["pairs"].as_array().unwrap().iter().map(|pair| [0, 1].map(|i| pair[i].as_str().unwrap())).collect();
    assert!(pairs.iter().any(|pair| pair.iter().all(|text| text.contains("[SEP]") || text.contains("</s>"))));
    let xlm_roberta = Arc::new(build(unigram_entries()).unwrap());
    for (name, tokenizer) in [
        ("bert", tokenizer("embedding/bert")),
        ("modern_bert", tokenizer("embedding/modern_bert")),
        ("xlm_roberta", xlm_roberta),
    ] {
        for ([first, second], expected) in pairs.iter().zip(golden["models"][name]["ids"].as_array().unwrap()) {
            assert_eq!(tokenizer.encode_pair(first, second).unwrap(), ids(expected), "{name}: {first}, {second}");
        }
    }
    let error = tokenizer("embedding/qwen3_embedding").encode_pair("a", "b").unwrap_err().to_string();
    assert!(error.contains("knows no pairs"), "{error}");
}

/// Returns the highest sum of scores of all ways to split a text, by trying them all.
fn best_sum(scores: &[(&str, f32)], text: &str) -> f64 {
    let begins = scores.iter().filter(|(token, _)| text.starts_with(token));
    let sums = begins.map(|(token, score)| f64::from(*score) + best_sum(scores, &text[token.len()..]));
    if text.is_empty() { 0.0 } else { sums.fold(f64::NEG_INFINITY, f64::max) }
}

/// Returns a vocabulary in which all letters, and some sequences of them, are tokens.
fn small_vocabulary(scores: &[(&str, f32)]) -> Vec<(String, Value)> {
    let mut texts = vec!["<s>", "</s>", "<unk>"];
    texts.extend(scores.iter().map(|(text, _)| *text));
    let values = [0.0; 3].into_iter().chain(scores.iter().map(|(_, score)| *score)).collect();
    let types = [3, 3, 2].into_iter().chain(scores.iter().map(|_| 1)).collect();
    entries(&[
        ("model", Value::String("t5".into())),
        ("tokens", strings(&texts)),
        ("scores", Value::Array(Array::F32(values))),
        ("token_type", Value::Array(Array::I32(types))),
        ("eos_token_id", Value::U32(1)),
        ("add_space_prefix", Value::Bool(true)),
    ])
}

proptest! {
    /// No other split of a text has a higher sum.
    #[test]
    fn the_best_cut_is_found(
        scores in prop::collection::vec(-12.0f32..0.0, 10),
        words in prop::collection::vec("[abc]{1,7}", 1..4),
    ) {
        let texts = ["▁", "a", "b", "c", "ab", "▁a", "bc", "abc", "▁ba", "cab"];
        let scores: Vec<(&str, f32)> = texts.into_iter().zip(scores).collect();
        let tokenizer = build(small_vocabulary(&scores)).unwrap();
        let text = words.join(" ");
        let ids = tokenizer.encode(&text, false, false).unwrap();
        let tokens: Vec<&str> = ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect();
        let spelled = format!("▁{}", words.join("▁"));
        prop_assert_eq!(tokens.concat(), spelled);
        let sum: f64 = ids.iter().map(|&id| f64::from(scores[id as usize - 3].1)).sum();
        // The sums of words add up, since none of these tokens reaches across two words.
        let best: f64 = words.iter().map(|word| best_sum(&scores, &format!("▁{word}"))).sum();
        prop_assert!((sum - best).abs() < 1e-9, "{:?}: {} of {}", tokens, sum, best);
    }

    /// A map of any numbers is rejected or used, within its limits.
    #[test]
    fn any_character_map_is_safe(units in prop::collection::vec(any::<u32>(), 0..600), text in any::<String>()) {
        // Offsets are small, so that some of the leaves are replacements.
        let units = units.into_iter().map(|unit| if unit >> 31 == 1 { unit & ((1 << 31) | 3) } else { unit });
        let units: Vec<u8> = units.flat_map(u32::to_le_bytes).collect();
        let map = [&(units.len() as u32).to_le_bytes()[..], &units, b"x\0yz\0"].concat();
        let mut entries = unigram_entries();
        set(&mut entries, "precompiled_charsmap", Value::Array(Array::U8(map)));
        build(entries).unwrap().encode(&text, true, false).unwrap();
    }
}
