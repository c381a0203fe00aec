//! Malformed and contradictory files give a typed error that names the key, or load without harm.

use serde_json::json;

use super::*;
use crate::gguf::Value as V;

/// Returns the location of the `ModelFile` error that `result` must be.
fn location<T: std::fmt::Debug>(result: Result<T>, what: &str) -> String {
    match result {
        Err(Error::ModelFile { location, problem, .. }) if !problem.is_empty() => location,
        other => panic!("{what}: {other:?}"),
    }
}

fn good_spm() -> Vec<(String, Value)> {
    spm_entries(&[
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("▁", -1.0, 1),
        ("a", -2.0, 1),
        ("▁a", -3.0, 1),
    ])
    .into_iter()
    .chain(entries(&[("unknown_token_id", V::U32(0)), ("bos_token_id", V::U32(1)), ("eos_token_id", V::U32(2))]))
    .collect()
}

fn good_bpe() -> Vec<(String, Value)> {
    byte_level_entries(&[("ab", 1), ("<|endoftext|>", 3)], &["a b"], "gpt-2")
}

#[test]
fn files_of_the_collection_are_refused_by_the_key_that_is_wrong() {
    let refused = [
        ("tokenizer_unknown", "model"),
        ("scores_strings", "scores"),
        ("scores_nan", "scores"),
        ("token_types_unknown", "token_type"),
        ("tokens_u32", "tokens"),
        ("tokens_duplicate", "tokens"),
        ("bos_out_of_range", "bos_token_id"),
        ("bpe_no_merges", "merges"),
        ("bpe_merge_numbers", "merges"),
        ("bpe_merge_unknown_token", "merges"),
        ("bpe_pre_unknown", "pre"),
    ];
    let mut seen = 0;
    for (name, data) in testdata::tar("bad_gguf.tar") {
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        let file = testdata::temp_file(&name, &data);
        // Files that the format's own checks reject never reach the tokenizer.
        let Ok(gguf) = GgufFile::open(&file.0) else { continue };
        let tokenizer = Tokenizer::from_metadata(gguf.metadata());
        if let Some((_, key)) = refused.iter().find(|(name, _)| *name == stem) {
            assert_eq!(location(tokenizer, stem), format!("tokenizer.ggml.{key}"), "{stem}");
            seen += 1;
        } else if let Ok(tokenizer) = tokenizer {
            let ids = tokenizer.encode("ab é\n<s>", true, true).unwrap();
            tokenizer.decode(&ids, false).unwrap();
        }
        let template = ChatTemplate::from_metadata(gguf.metadata());
        let messages = json!([{"role": "user", "content": "x"}]);
        let render = |template: ChatTemplate| template.render(&messages, &json!(null), true, &serde_json::Map::new());
        let rendered = template.and_then(|template| template.map(render).transpose());
        if stem.starts_with("template_") {
            match rendered {
                Err(Error::ChatTemplate { .. }) => {}
                Err(Error::ModelFile { location, .. }) => assert_eq!(location, "tokenizer.chat_template"),
                other => panic!("{stem}: {other:?}"),
            }
            seen += 1;
        }
    }
    assert_eq!(seen, refused.len() + 6);
}

/// L12: a missing tokenizer is an error, and none is made up.
#[test]
fn a_missing_tokenizer_is_an_error() {
    assert_eq!(location(build(vec![]), "empty"), "tokenizer.ggml.model");
    let mut none = good_bpe();
    set(&mut none, "model", V::String("none".into()));
    let error = build(none).unwrap_err();
    assert!(error.to_string().contains("token ids"), "{error}");
    for key in ["tokens", "token_type", "merges"] {
        let mut entries = good_bpe();
        entries.retain(|(k, _)| !k.ends_with(&format!(".{key}")));
        assert_eq!(location(build(entries), key), format!("tokenizer.ggml.{key}"));
    }
    let mut no_scores = good_spm();
    no_scores.retain(|(k, _)| !k.ends_with("scores"));
    assert_eq!(location(build(no_scores), "scores"), "tokenizer.ggml.scores");
}

/// M8: lists that do not have one entry per token are errors.
#[test]
fn contradictions_are_errors_that_name_the_key() {
    let cases: Vec<(&str, Value, &str)> = vec![
        ("token_type", V::Array(Array::I32(vec![1; 257])), "token_type"),
        ("token_type", V::Array(Array::I32(vec![7; 258])), "token_type"),
        ("merges", strings(&["ab"]), "merges"),
        ("merges", strings(&[""]), "merges"),
        ("merges", strings(&[" b"]), "merges"),
        ("merges", strings(&["a "]), "merges"),
        ("merges", strings(&["a c"]), "merges"),
        ("bos_token_id", V::U32(258), "bos_token_id"),
        ("eot_token_id", V::U32(258), "eot_token_id"),
        ("eos_token_id", V::String("x".into()), "eos_token_id"),
        ("add_bos_token", V::Bool(true), "bos_token_id"),
        ("add_eos_token", V::Bool(true), "eos_token_id"),
        ("add_bos_token", V::U32(1), "add_bos_token"),
        ("model", V::String("rwkv".into()), "model"),
        ("pre", V::String("no-such".into()), "pre"),
    ];
    build(good_bpe()).unwrap();
    for (key, value, wrong) in cases {
        let what = format!("{key} = {value:?}");
        let mut entries = good_bpe();
        set(&mut entries, key, value);
        assert_eq!(location(build(entries), &what), format!("tokenizer.ggml.{wrong}"), "{what}");
    }
    let mut unspeakable = good_spm();
    unspeakable.retain(|(key, _)| !key.ends_with("unknown_token_id"));
    assert_eq!(location(build(unspeakable), "no bytes, no unknown"), "tokenizer.ggml.tokens");
    let mut byte = good_spm();
    set(&mut byte, "token_type", V::Array(Array::I32(vec![2, 3, 3, 1, 6, 1])));
    assert_eq!(location(build(byte), "byte token 'a'"), "tokenizer.ggml.tokens");
}

#[test]
fn an_unknown_pre_tokenizer_is_named_with_the_known_ones() {
    let mut entries = good_bpe();
    set(&mut entries, "pre", V::String("no-such".into()));
    let message = build(entries).unwrap_err().to_string();
    assert!(message.contains("'no-such'") && message.contains("llama-bpe") && message.contains("tekken"), "{message}");
}

#[test]
fn what_a_vocabulary_cannot_spell_is_unknown_or_an_error() {
    let spm = build(good_spm()).unwrap();
    assert_eq!(spm.encode("aéé a", false, false).unwrap(), [5, 0, 5]);
    let mut entries = good_bpe();
    let Some((_, V::Array(Array::String(tokens)))) = entries.iter_mut().find(|(k, _)| k.ends_with("tokens")) else {
        panic!("no tokens")
    };
    tokens[0x80] = "gone".into();
    let bpe = build(entries).unwrap();
    let error = bpe.encode("x\u{80}", false, false).unwrap_err();
    assert!(matches!(error, Error::InvalidRequest { what: "text", .. }), "{error:?}");
    assert!(error.to_string().contains("0x80"), "{error}");
    let error = bpe.encode(&"\u{80}".repeat(100_000), false, false).unwrap_err();
    assert!(error.to_string().len() < 1000, "{} bytes", error.to_string().len());
}

#[test]
fn ids_outside_the_vocabulary_are_invalid_requests() {
    let tokenizer = Arc::new(build(good_bpe()).unwrap());
    assert!(matches!(tokenizer.decode(&[258], false), Err(Error::InvalidRequest { what: "token id", .. })));
    assert!(tokenizer.token_text(u32::MAX).is_err());
    assert!(!tokenizer.is_special(u32::MAX));
    let mut decoder = StreamDecoder::new(tokenizer, false);
    assert_eq!(decoder.push(0xe9).unwrap(), "");
    assert!(decoder.push(258).is_err());
    assert_eq!(decoder.finish(), "\u{fffd}");
}

/// Some converters store padding as empty tokens, which have no text and no effect.
#[test]
fn empty_and_unused_tokens_have_no_text() {
    let tokenizer = build(byte_level_entries(&[("", 1), ("", 1), ("ab", 5)], &[], "gpt-2")).unwrap();
    assert_eq!(tokenizer.encode("ab", false, true).unwrap(), [97, 98]);
    assert_eq!(tokenizer.decode(&[97, 256, 257, 258, 98], false).unwrap(), "ab");
}

/// F5: converters write 4294967295 for a token that a vocabulary lacks. No prompt gets such a token, unless the file
/// asks for it.
#[test]
fn ids_of_no_token_are_none() {
    let mut entries = good_spm();
    set(&mut entries, "bos_token_id", V::U32(u32::MAX));
    set(&mut entries, "eos_token_id", V::U32(u32::MAX));
    let tokenizer = build(entries.clone()).unwrap();
    assert_eq!((tokenizer.bos_token_id(), tokenizer.eos_token_id()), (None, None));
    assert_eq!(tokenizer.encode("a", true, false).unwrap(), [5]);
    set(&mut entries, "add_bos_token", V::Bool(true));
    assert_eq!(location(build(entries), "asked for"), "tokenizer.ggml.bos_token_id");
    let mut entries = good_spm();
    set(&mut entries, "bos_token_id", V::U32(u32::MAX - 1));
    assert_eq!(location(build(entries), "beyond the vocabulary"), "tokenizer.ggml.bos_token_id");
}
