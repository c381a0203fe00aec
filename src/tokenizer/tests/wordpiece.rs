//! Compares WordPiece with Hugging Face's `tokenizers`, and on the files of the golden models.

use super::golden::ids;
use super::*;

type Entries = Vec<(String, Value)>;

/// Returns a vocabulary as a converter writes it: words begin with the mark of a space, and later parts have no `##`.
fn wordpiece_entries(tokens: &[&str], lowercase: Option<bool>) -> Entries {
    let is_control = |token: &str| matches!(token, "[PAD]" | "[UNK]" | "[CLS]" | "[SEP]" | "[MASK]");
    let spelled = |token: &&str| match token.strip_prefix("##") {
        Some(part) => part.to_owned(),
        None if is_control(token) => (*token).to_owned(),
        None => format!("▁{token}"),
    };
    let texts: Vec<String> = tokens.iter().map(spelled).collect();
    let id = |text: &str| Value::U32(tokens.iter().position(|token| *token == text).unwrap() as u32);
    let types = tokens.iter().map(|token| if is_control(token) { 3 } else { 1 }).collect();
    let mut entries = entries(&[
        ("model", Value::String("bert".into())),
        ("tokens", Value::Array(Array::String(texts))),
        ("token_type", Value::Array(Array::I32(types))),
        ("bos_token_id", id("[CLS]")),
        ("seperator_token_id", id("[SEP]")),
        ("unknown_token_id", id("[UNK]")),
    ]);
    if let Some(lowercase) = lowercase {
        set(&mut entries, "normalizer.lowercase", Value::Bool(lowercase));
    }
    entries
}

const SMALL: [&str; 9] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##want", "##ed", "running", "##a"];

/// Each text has the ids that `BertNormalizer`, `BertPreTokenizer` and `WordPiece` of `tokenizers` give it. The texts
/// have upper and lower case, punctuation, accents, Han, control and random characters, and long words. No text has a
/// `▁`, which files cannot spell.
#[test]
fn texts_have_the_ids_of_hugging_face() {
    let golden = testdata::json("tokenizers/wordpiece.json");
    let tokens: Vec<&str> = golden["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    for (key, lowercase) in [("lower", Some(true)), ("lower", None), ("cased", Some(false))] {
        let tokenizer = build(wordpiece_entries(&tokens, lowercase)).unwrap();
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, false, false).unwrap(), ids(&case[key]), "{key}: {text:?}");
        }
    }
}

/// Encodes the texts of the golden models, with the tokens around them.
#[test]
fn golden_models_encode_their_texts() {
    for name in testdata::ENCODERS.map(|name| format!("embedding/{name}")) {
        let (tokenizer, z) = (tokenizer(&name), testdata::npz(&name));
        let texts = String::from_utf8(z.u8("texts")).unwrap();
        let (all, ends) = (z.i32("tokens"), z.i32("offsets"));
        assert_eq!(texts.split('\0').count(), 4);
        for (text, ends) in texts.split('\0').zip(ends.windows(2)) {
            let expected: Vec<u32> = all[ends[0] as usize..ends[1] as usize].iter().map(|&id| id as u32).collect();
            assert_eq!(tokenizer.encode(text, true, false).unwrap(), expected, "{name}: {text}");
        }
    }
}

#[test]
fn ids_decode_to_words() {
    let tokenizer = Arc::new(build(wordpiece_entries(&SMALL, None)).unwrap());
    let ids = tokenizer.encode(" UNWANTED\trunning, ", true, false).unwrap();
    assert_eq!(ids, [2, 4, 5, 6, 7, 1, 3]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "unwanted running");
    assert_eq!(streamed(&tokenizer, &ids, true), "unwanted running");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "[CLS] unwanted running[UNK][SEP]");
    // A word is unknown as a whole, whatever its start.
    assert_eq!(tokenizer.encode("unwantedx x a una", false, false).unwrap(), [1, 1, 1, 4, 8]);
}

/// A1: control tokens come only from trusted text.
#[test]
fn texts_never_become_control_tokens() {
    let tokenizer = build(wordpiece_entries(&SMALL, None)).unwrap();
    assert_eq!(tokenizer.encode("un [SEP]", false, false).unwrap(), [4, 1, 1, 1]);
    assert_eq!(tokenizer.encode("un [SEP]", false, true).unwrap(), [4, 3]);
}

/// Older files name [CLS] by another key, end a prompt with their end token, and lack [UNK].
#[test]
fn older_names_of_keys() {
    let mut entries = wordpiece_entries(&SMALL, None);
    entries.retain(|(key, _)| !key.ends_with("_id"));
    set(&mut entries, "cls_token_id", Value::U32(2));
    set(&mut entries, "eos_token_id", Value::U32(3));
    let tokenizer = build(entries.clone()).unwrap();
    assert_eq!(tokenizer.encode("un ?", true, false).unwrap(), [2, 4, 1, 3]);
    set(&mut entries, "add_bos_token", Value::Bool(false));
    set(&mut entries, "add_eos_token", Value::Bool(false));
    assert_eq!(build(entries).unwrap().encode("un", true, false).unwrap(), [4]);
}

#[test]
fn files_that_lack_a_token_are_refused() {
    let location = |change: &dyn Fn(&mut Entries)| {
        let mut entries = wordpiece_entries(&SMALL, None);
        change(&mut entries);
        match build(entries) {
            Err(Error::ModelFile { location, .. }) => location,
            other => panic!("{other:?}"),
        }
    };
    let without = |key: &'static str| move |entries: &mut Entries| entries.retain(|(k, _)| !k.ends_with(key));
    assert_eq!(location(&without("bos_token_id")), "tokenizer.ggml.bos_token_id");
    assert_eq!(location(&without("seperator_token_id")), "tokenizer.ggml.eos_token_id");
    let unknown = location(&|entries| {
        entries.retain(|(key, _)| !key.ends_with("unknown_token_id"));
        let mut tokens = SMALL;
        tokens[1] = "[other]";
        set(entries, "tokens", strings(&tokens));
    });
    assert_eq!(unknown, "tokenizer.ggml.unknown_token_id");
    let beyond = location(&|entries| set(entries, "seperator_token_id", Value::U32(99)));
    assert_eq!(beyond, "tokenizer.ggml.seperator_token_id");
}
