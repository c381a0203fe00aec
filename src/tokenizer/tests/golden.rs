//! Tests exact agreement with llama.cpp and Hugging Face on real vocabularies.

use std::sync::Arc;

use serde_json::Value;

use super::{GgufFile, Tokenizer, streamed, testdata, tokenizer};

const VOCABULARIES: [&str; 5] = ["gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3"];

pub(super) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn list<'a>(golden: &'a Value, key: &str) -> &'a [Value] {
    golden[key].as_array().unwrap()
}

fn each(check: impl Fn(&str, &Arc<Tokenizer>, &Value)) {
    for name in VOCABULARIES {
        check(name, &tokenizer(&format!("tokenizers/{name}")), &testdata::json(&format!("tokenizers/{name}.json")));
    }
}

/// True if llama.cpp "cleans up" spaces before punctuation in the decoded text, in the classes gpt-2 and llama-bpe.
/// This crate never alters text, so there the bytes must equal the encoded ones.
fn cleans_up(name: &str) -> bool {
    matches!(name, "gpt-2" | "llama-bpe")
}

#[test]
fn hugging_face_test_strings_encode_exactly() {
    for name in VOCABULARIES {
        let tokenizer = tokenizer(&format!("tokenizers/{name}"));
        let text = |kind| String::from_utf8(testdata::bytes(&format!("tokenizers/{name}.{kind}"))).unwrap();
        let (inputs, outputs) = (text("inp"), text("out"));
        let inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
        let outputs: Vec<&str> = outputs.lines().collect();
        let mut compared = 0;
        for (input, output) in inputs.iter().zip(&outputs) {
            let expected: Vec<u32> = output.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(input, false, false).unwrap(), expected, "{name}: {input:?}");
            compared += 1;
        }
        assert!(compared >= 46, "{name}: {compared}");
    }
}

#[test]
fn nasty_strings_encode_exactly() {
    each(|name, tokenizer, golden| {
        for case in list(golden, "cases") {
            let text = case["text"].as_str().unwrap();
            let at = format!("{name}: {}", case["name"]);
            assert_eq!(tokenizer.encode(text, false, false).unwrap(), ids(&case["ids"]), "{at}");
            let parsed = ids(&case["ids_parse_special"]);
            assert_eq!(tokenizer.encode(text, false, true).unwrap(), parsed, "{at}, parsed");
            let added = ids(&case["ids_add_and_parse_special"]);
            assert_eq!(tokenizer.encode(text, true, true).unwrap(), added, "{at}, added and parsed");
        }
    });
}

/// S21: text comes from bytes, and not from the vocabulary's spelling of tokens.
#[test]
fn nasty_strings_decode_exactly() {
    each(|name, tokenizer, golden| {
        for case in list(golden, "cases") {
            let at = format!("{name}: {}", case["name"]);
            let text = hex(&case["utf8_hex"]);
            let (back, back_special) = (hex(&case["back_hex"]), hex(&case["back_special_hex"]));
            let expected = if cleans_up(name) { [&text, &text] } else { [&back, &back_special] };
            for (ids, skip, expected) in
                [(ids(&case["ids"]), true, expected[0]), (ids(&case["ids_parse_special"]), false, expected[1])]
            {
                assert_eq!(tokenizer.decode_bytes(&ids, skip).unwrap(), *expected, "{at}, skip {skip}");
                assert_eq!(streamed(tokenizer, &ids, skip).as_bytes(), *expected, "{at}, streamed, skip {skip}");
            }
        }
    });
}

#[test]
fn random_sequences_decode_exactly() {
    each(|name, tokenizer, golden| {
        for sequence in list(golden, "random_sequences") {
            let ids = ids(&sequence["ids"]);
            for (key, skip) in [("hex", true), ("hex_special", false)] {
                let expected = hex(&sequence[key]);
                assert_eq!(tokenizer.decode_bytes(&ids, skip).unwrap(), expected, "{name}: {ids:?}");
                assert_eq!(streamed(tokenizer, &ids, skip), String::from_utf8_lossy(&expected), "{name}: {ids:?}");
            }
        }
    });
}

/// S21: a character that is split over tokens arrives whole, with its last token.
#[test]
fn split_characters_stream_whole() {
    each(|name, tokenizer, golden| {
        for case in list(golden, "split_characters") {
            let text = case["text"].as_str().unwrap();
            let ids = ids(&case["ids"]);
            assert_eq!(tokenizer.encode(text, false, false).unwrap(), ids, "{name}: {text}");
            let mut decoder = super::StreamDecoder::new(tokenizer.clone(), true);
            let mut whole = String::new();
            for (&id, piece) in ids.iter().zip(list(case, "pieces_hex")) {
                assert_eq!(tokenizer.token_bytes(id).unwrap(), hex(piece), "{name}: {id}");
                let piece = decoder.push(id).unwrap();
                assert!(!piece.contains(char::REPLACEMENT_CHARACTER), "{name}: {text}: {piece}");
                whole.push_str(&piece);
            }
            assert_eq!(whole, text, "{name}");
            assert_eq!(decoder.finish(), "", "{name}");
        }
    });
}

#[test]
fn pieces_are_exact() {
    each(|name, tokenizer, golden| {
        for (id, pieces) in golden["pieces_hex_plain_and_special"].as_object().unwrap() {
            let id: u32 = id.parse().unwrap();
            let (plain, special) = (hex(&pieces[0]), hex(&pieces[1]));
            assert_eq!(tokenizer.token_bytes(id).unwrap(), special, "{name}: {id}");
            assert_eq!(tokenizer.is_special(id), plain != special, "{name}: {id}");
        }
    });
}

/// M8: the vocabulary size, BOS, EOS and all end tokens are those of the file.
#[test]
fn sizes_and_special_ids_are_those_of_the_file() {
    each(|name, tokenizer, golden| {
        assert_eq!(tokenizer.vocab_size() as u64, golden["n_vocab"].as_u64().unwrap(), "{name}");
        assert_eq!(tokenizer.bos_token_id().map(u64::from), golden["bos"].as_u64(), "{name}");
        let eos = golden["eos"].as_u64().unwrap() as u32;
        assert!(tokenizer.eos_token_ids().contains(&eos), "{name}");
        assert_eq!(tokenizer.eos_token_ids(), ids(&golden["eog_ids"]), "{name}");
        let added = tokenizer.encode("a", true, false).unwrap();
        let starts_with_bos = added.first() == tokenizer.bos_token_id().as_ref();
        assert_eq!(starts_with_bos, golden["add_bos"].as_bool().unwrap(), "{name}");
        assert_eq!(added.last() == Some(&eos), golden["add_eos"].as_bool().unwrap(), "{name}");
    });
}

/// Compares a vocabulary of each family, without weights, with llama.cpp's ids. Texts are left out if llama.cpp's
/// patterns split them differently from the models' own (`splits.json` has them). So are gpt-oss's control tokens,
/// which llama.cpp treats as text.
#[test]
fn vocabularies_of_every_family_encode_exactly() {
    let members = testdata::tar("tokenizers/arch.tar");
    let mut kinds = std::collections::BTreeSet::new();
    for (file, data) in members.iter().filter(|(name, _)| name.ends_with(".gguf")) {
        let name = file.trim_end_matches(".gguf");
        let on_disk = testdata::temp_file(file, data);
        let gguf = GgufFile::open(&on_disk.0).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_metadata(gguf.metadata()).unwrap());
        let of = |key| gguf.metadata().opt_str(key).unwrap().unwrap_or_default().to_owned();
        kinds.insert((of("tokenizer.ggml.model"), of("tokenizer.ggml.pre")));
        let (_, golden) = members.iter().find(|(other, _)| *other == format!("{name}.json")).unwrap();
        let golden: Value = serde_json::from_slice(golden).unwrap();
        let text = golden["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, true, true).unwrap(), ids(&golden["text_ids"]), "{name}");
        let plain = ids(&golden["text_ids_no_special"]);
        assert_eq!(tokenizer.encode(text, false, true).unwrap(), plain, "{name}");
        assert_eq!(tokenizer.decode(&plain, false).unwrap(), golden["text_back"].as_str().unwrap(), "{name}");
        assert_eq!(streamed(&tokenizer, &plain, false), golden["text_back"].as_str().unwrap(), "{name}, streamed");
        assert_eq!(tokenizer.eos_token_ids(), ids(&golden["eog_ids"]), "{name}");
        for case in list(&golden, "cases") {
            let text = case["text"].as_str().unwrap();
            for (key, add, parse) in
                [("ids", false, false), ("ids_parse_special", false, true), ("ids_add_and_parse_special", true, true)]
            {
                assert_eq!(tokenizer.encode(text, add, parse).unwrap(), ids(&case[key]), "{name}: {key} of {text:?}");
            }
        }
    }
    assert_eq!(kinds.len(), 18, "{kinds:?}");
}

/// The tiny models of every architecture have their own small vocabularies.
#[test]
fn tiny_models_encode_their_text() {
    let more = ["qwen35", "qwen3next", "gemma4_dense", "gemma4_e", "gemma4_moe"];
    for name in ["llama3_ropescale", "llama_tied", "mistral", "qwen2", "qwen3"].into_iter().chain(more) {
        let tokenizer = tokenizer(&format!("arch/{name}"));
        let golden = testdata::npz(&format!("arch/{name}"));
        let text = String::from_utf8(golden.u8("text")).unwrap();
        let ids = |key| golden.i32(key).iter().map(|&id| id as u32).collect::<Vec<_>>();
        assert_eq!(tokenizer.encode(&text, true, true).unwrap(), ids("text_ids"), "{name}");
        assert_eq!(tokenizer.encode(&text, false, true).unwrap(), ids("text_ids_no_special"), "{name}");
        let back = tokenizer.decode_bytes(&ids("text_ids_no_special"), false).unwrap();
        assert_eq!(back, golden.u8("text_back"), "{name}");
    }
}
