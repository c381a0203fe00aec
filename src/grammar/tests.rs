mod hostile;
mod suite;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{Grammars, Guide};
use crate::config::{Constraint, StructuredFields, StructuredOutputs};
use crate::gguf::{Array, Metadata, Value};
use crate::selection::TokenMask;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Returns a vocabulary of one token per byte, a control token, an end token, and these words.
fn tokenizer(words: &[&str]) -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut types = vec![6u32; 256];
    tokens.extend(["<unk>", "</s>", "<ctrl>"].map(String::from));
    types.extend([2, 3, 3]);
    tokens.extend(words.iter().map(|word| (*word).to_string()));
    types.resize(tokens.len(), 1);
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let scores = vec![0.0; tokens.len()];
    let entries = vec![
        (key("model"), Value::String("llama".into())),
        (key("tokens"), Value::Array(Array::String(tokens))),
        (key("token_type"), Value::Array(Array::U32(types))),
        (key("scores"), Value::Array(Array::F32(scores))),
        (key("unknown_token_id"), Value::U32(256)),
        (key("eos_token_id"), Value::U32(END)),
        (key("add_bos_token"), Value::Bool(false)),
    ];
    Arc::new(Tokenizer::from_metadata(&Metadata::new(Path::new("test.gguf"), entries).unwrap()).unwrap())
}

/// No test waits for time to pass; this limit only turns a hang into a failure.
const HANG: Duration = Duration::from_secs(120);
const END: u32 = 257;
const CONTROL: u32 = 258;
const FIRST_WORD: u32 = 259;
/// The model's logits, of which the last few have no tokens.
const PADDED: usize = 320;

pub(super) fn grammars() -> Grammars {
    Grammars::new(tokenizer(&["true", "tru", "\"}", "a long word of many letters"]), PADDED)
}

fn of(constraint: Constraint) -> StructuredOutputs {
    StructuredOutputs { constraint, disable_any_whitespace: false, whitespace_pattern: None, begin: None }
}

fn regex(regex: &str) -> StructuredOutputs {
    of(Constraint::Regex(regex.into()))
}

pub(super) fn lark(grammar: &str) -> StructuredOutputs {
    of(Constraint::Grammar(grammar.into()))
}

fn compact(schema: serde_json::Value) -> StructuredOutputs {
    StructuredOutputs { disable_any_whitespace: true, ..of(Constraint::Json(schema.to_string())) }
}

/// Returns the allowed next tokens: the forced one, or those of the mask.
fn allowed(guide: &mut Guide) -> Vec<u32> {
    try_allowed(guide).unwrap()
}

fn mask(guide: &mut Guide) -> Result<&TokenMask> {
    guide.prepare();
    assert!(guide.settle_by(Instant::now() + HANG));
    guide.mask()
}

fn try_allowed(guide: &mut Guide) -> Result<Vec<u32>> {
    let mask = mask(guide)?.clone();
    Ok(match guide.forced().first() {
        Some(&token) => vec![token],
        None => (0..2 * PADDED as u32).filter(|&token| mask.allows(token)).collect(),
    })
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn got(result: Result<Guide>) -> String {
    match result {
        Err(Error::InvalidRequest { what: "structured_outputs", got, .. }) => got,
        other => panic!("{other:?}"),
    }
}

/// Returns a text that continues with random allowed tokens until it ends.
pub(super) fn walk(mut guide: Guide, random: &mut ChaCha8Rng, most: usize) -> Option<String> {
    let tokenizer = tokenizer(&["true", "tru", "\"}", "a long word of many letters"]);
    let mut text = Vec::new();
    for _ in 0..most {
        let choices = allowed(&mut guide);
        let token = choices[(random.next_u64() % choices.len() as u64) as usize];
        if token == END {
            return Some(String::from_utf8(text).unwrap());
        }
        text.extend_from_slice(tokenizer.token_bytes(token).unwrap());
        if guide.accept(token).unwrap() {
            return Some(String::from_utf8(text).unwrap());
        }
    }
    None
}

/// The masks of a choice follow from its texts, and include the end where one is complete.
#[test]
fn masks_are_what_may_come_next() {
    let grammars = grammars();
    let choice = of(Constraint::Choice(vec!["true".into(), "trunk".into(), "true story".into(), "\"q\\".into()]));
    let mut guide = grammars.guide(&choice, true).unwrap();
    assert_eq!(allowed(&mut guide), [u32::from(b'"'), u32::from(b't'), FIRST_WORD, FIRST_WORD + 1]);
    assert!(!guide.accept(FIRST_WORD).unwrap());
    assert_eq!(allowed(&mut guide), [u32::from(b' '), END], "true may end, and may become a true story");
    for token in bytes(" stor") {
        assert!(!guide.accept(token).unwrap());
    }
    assert!(guide.accept(u32::from(b'y')).unwrap(), "nothing can follow");
    let mut quoted = grammars.guide(&choice, true).unwrap();
    for token in bytes("\"q") {
        assert!(!quoted.accept(token).unwrap());
    }
    assert!(quoted.accept(u32::from(b'\\')).unwrap());
}

/// With ignored end tokens, these are allowed only where nothing else is.
#[test]
fn ignored_end_tokens_are_no_choice() {
    let grammars = grammars();
    let mut guide = grammars.guide(&regex("a|ab"), false).unwrap();
    assert!(!guide.accept(u32::from(b'a')).unwrap());
    assert_eq!(allowed(&mut guide), [u32::from(b'b')]);
}

/// No mask allows control tokens, invalid UTF-8, or logits without a token.
#[test]
fn any_text_is_made_of_text() {
    let mut guide = grammars().guide(&regex("(.|\n)*"), true).unwrap();
    let first = allowed(&mut guide);
    assert!(first.contains(&END) && first.contains(&FIRST_WORD));
    assert!(!first.contains(&CONTROL) && !first.contains(&256) && first.iter().all(|&token| token < FIRST_WORD + 4));
    assert!(!first.contains(&0xff) && !first.contains(&0x80), "no character begins so");
    assert!(!guide.accept(0xc3).unwrap());
    assert_eq!(allowed(&mut guide), (0x80..0xc0).collect::<Vec<u32>>(), "the second byte of a character");
}

/// Forced text is tokenized as the model's tokenizer does it, and known at once.
#[test]
fn forced_tokens_are_known_ahead() {
    let grammars = grammars();
    let schema = serde_json::json!({"type": "object", "properties": {"a long word of many letters": {"const": true}},
        "required": ["a long word of many letters"], "additionalProperties": false});
    let mut guide = grammars.guide(&compact(schema), true).unwrap();
    mask(&mut guide).unwrap();
    // The tokenizer's scores are all 0, so the longest word is found by merging.
    let text: Vec<u8> = guide.forced().iter().flat_map(|&token| word(token)).collect();
    assert_eq!(String::from_utf8(text).unwrap(), "{\"a long word of many letters\":true}");
    let forced = guide.forced().to_vec();
    for (i, &token) in forced.iter().enumerate() {
        assert_eq!(guide.forced(), &forced[i..]);
        assert_eq!(guide.accept(token).unwrap(), i + 1 == forced.len(), "complete with the last one");
    }
    // Nothing is forced before an optional end. After a choice, the rest is forced.
    let mut guide = grammars.guide(&regex("(ab|b)(cd)?"), true).unwrap();
    mask(&mut guide).unwrap();
    assert!(guide.forced().is_empty());
    assert!(!guide.accept(u32::from(b'a')).unwrap());
    assert_eq!(allowed(&mut guide), [u32::from(b'b')]);
    assert_eq!(guide.forced(), [u32::from(b'b')]);
    assert!(!guide.accept(u32::from(b'b')).unwrap());
    assert_eq!(allowed(&mut guide), [u32::from(b'c'), END]);
}

fn word(token: u32) -> Vec<u8> {
    tokenizer(&["true", "tru", "\"}", "a long word of many letters"]).token_bytes(token).unwrap().to_vec()
}

/// A token that was not allowed is an error, and so is everything after it.
#[test]
fn a_wrong_token_is_an_error() {
    let grammars = grammars();
    let mut guide = grammars.guide(&regex("abc"), true).unwrap();
    assert!(matches!(guide.accept(u32::from(b'x')), Err(Error::GrammarFailed { .. })));
    assert!(matches!(mask(&mut guide), Err(Error::GrammarFailed { .. })));
    assert!(matches!(guide.accept(u32::from(b'a')), Err(Error::GrammarFailed { .. })));
    // A grammar that broke is not used for others.
    assert_eq!(allowed(&mut grammars.guide(&regex("abc"), true).unwrap()), [u32::from(b'a')]);
}

/// Random walks through a schema give matching JSON, with the numbers that it allows.
#[test]
fn random_walks_give_what_the_schema_says() {
    let grammars = grammars();
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "flag": {"type": "boolean"},
            "count": {"type": "integer", "minimum": 3, "maximum": 1207},
            "kind": {"enum": ["x", 1.50, null]},
            "list": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 3}
        },
        "$defs": {"item": {"type": "string", "pattern": "^[a-c]{1,4}$"}},
        "required": ["flag", "count", "kind", "list"],
        "additionalProperties": false
    });
    let schema = compact(schema);
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..100 {
        let text = walk(grammars.guide(&schema, true).unwrap(), &mut random, 500).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().keys().collect::<Vec<_>>(), ["flag", "count", "kind", "list"]);
        assert!(value["flag"].is_boolean() && (3..=1207).contains(&value["count"].as_i64().unwrap()), "{text}");
        assert!(["\"x\"", "1.5", "null"].contains(&value["kind"].to_string().as_str()), "{text}");
        let list = value["list"].as_array().unwrap();
        assert!((1..=3).contains(&list.len()), "{text}");
        for item in list {
            let item = item.as_str().unwrap();
            assert!((1..=4).contains(&item.len()) && item.chars().all(|c| "abc".contains(c)), "{text}");
        }
        assert!(!text.contains([' ', '\n']), "{text}");
    }
    assert_eq!(grammars.cache.lock().len(), 1);
}

/// Masks do not depend on when they are requested, or on what is computed at the same time.
#[test]
fn masks_do_not_depend_on_company() {
    let grammars = grammars();
    let object = of(Constraint::JsonObject);
    let texts = ["{\"a\": [1, {}], \"b\"", "{}", "{\"\\n\":nul", "{ \"x\" : -1.5e"];
    let alone: Vec<Vec<Vec<u32>>> =
        texts.iter().map(|text| trace(&mut grammars.guide(&object, true).unwrap(), text)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut guides: Vec<Guide> = texts.iter().map(|_| grammars.guide(&object, true).unwrap()).collect();
                guides.iter_mut().for_each(Guide::prepare);
                for ((guide, text), expected) in guides.iter_mut().zip(texts).zip(&alone) {
                    assert_eq!(&trace(guide, text), expected, "{text}");
                }
            });
        }
    });
}

fn trace(guide: &mut Guide, text: &str) -> Vec<Vec<u32>> {
    let step = |token| {
        let mask = allowed(guide);
        assert!(mask.contains(&token), "{text}: {token}");
        guide.prepare();
        guide.accept(token).unwrap();
        mask
    };
    bytes(text).into_iter().map(step).collect()
}

fn wide(keys: usize) -> serde_json::Map<String, serde_json::Value> {
    (0..keys).map(|i| (format!("key{i}"), serde_json::json!({"type": "string"}))).collect()
}

/// An invalid grammar is an error with the reason, and the engine's threads never see it.
#[test]
fn bad_forms_are_refused() {
    let grammars = grammars();
    for (outputs, part) in [
        (regex("a("), "regex that is refused"),
        (regex("(?=a)b"), "regex that is refused"),
        (lark("start: missing"), "missing"),
        (lark("start: \"a"), "grammar that is refused"),
        (lark("other: \"a\""), "start"),
        (lark("root ::= \"a"), "line 1"),
        (compact(serde_json::json!({"type": "strnig"})), "strnig"),
        (compact(serde_json::json!({"$ref": "#/$defs/none"})), "none"),
        (compact(serde_json::json!({"$ref": "https://example.com/schema"})), "$ref"),
        (compact(serde_json::json!({"type": "integer", "minimum": 5, "maximum": 4})), "json that is refused"),
        (compact(serde_json::json!(false)), "json that is refused"),
        (compact(serde_json::json!({"properties": wide(1001)})), "more than 1000 keys"),
        (compact(serde_json::json!({"pattern": "(", "type": "string"})), "json that is refused"),
        (
            StructuredOutputs { whitespace_pattern: Some("(".into()), ..of(Constraint::JsonObject) },
            "json that is refused",
        ),
    ] {
        let message = got(grammars.guide(&outputs, true));
        assert!(message.contains(part), "{outputs:?}: {message}");
        assert!(!message.contains('\n') && message.len() < 700, "{message}");
    }
    assert_eq!(grammars.cache.lock().len(), 0);
    // The threads are alive.
    assert_eq!(allowed(&mut grammars.guide(&regex("abc"), true).unwrap()), [u32::from(b'a')]);
}

/// Grammars with exponential compilation end in bounded time, with an error or a working guide.
#[test]
fn exploding_forms_end_in_bounded_time() {
    let grammars = grammars();
    let nested = |depth: usize| format!("start: {}\"a\"{}", "(".repeat(depth), ")".repeat(depth));
    let chain: String = (0..8000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let doubling: String = (0..60).map(|i| format!("r{i}: r{} r{}\n", i + 1, i + 1)).collect();
    let mut deep = serde_json::json!({"type": "integer"});
    for _ in 0..100 {
        deep = serde_json::json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    let cases = [
        regex("((a{0,1000}){0,1000}){0,1000}"),
        regex("(((((((((a{1,99}){1,99}){1,99}){1,99}){1,99}b){1,99}){1,99}){1,99}){1,99})"),
        regex(".{0,100000}x.{0,100000}y.{0,100000}"),
        regex("(a|b)*a(a|b){200}"),
        regex(&"(a|".repeat(5000)),
        regex(&"(".repeat(100_000)),
        lark(&nested(50_000)),
        lark(&format!("start: r0\n{chain}r8000: \"a\"\n")),
        lark(&format!("start: r0\n{doubling}r60: \"a\"\n")),
        lark("start: start start | \"a\""),
        lark("start: /(a{1,9999}){1,9999}/ start | start start"),
        lark("start: (((\"a\"~1..1000)~1..1000)~1..1000)~1..1000"),
        compact(serde_json::json!({"type": "string", "minLength": 10_000_000, "maxLength": 1_000_000_000})),
        compact(serde_json::json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "integer"}})),
        compact(
            serde_json::json!({"allOf": vec![serde_json::json!({"pattern": "(a|b)*a(a|b){50}"}); 50], "type": "string"}),
        ),
        compact(serde_json::json!({"$ref": "#"})),
        compact(serde_json::json!({"allOf": [{"$ref": "#"}]})),
        compact(deep),
        compact(serde_json::json!({"type": "object", "properties": wide(1000)})),
        compact(serde_json::json!({"type": "object", "properties": wide(5000)})),
        of(Constraint::Choice((0..4096).map(|i| format!("choice number {i}")).collect())),
    ];
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for outputs in cases {
        let start = Instant::now();
        let guide = grammars.guide(&outputs, true);
        let compiled = start.elapsed();
        let refused = guide.is_err();
        if let Ok(mut guide) = guide {
            for _ in 0..50 {
                let Ok(choices) = try_allowed(&mut guide) else { break };
                let token = choices[(random.next_u64() % choices.len() as u64) as usize];
                if token == END || guide.accept(token).unwrap_or(true) {
                    break;
                }
            }
        }
        let text: String = format!("{outputs:?}").chars().take(80).collect();
        assert!(start.elapsed() < Duration::from_secs(30), "{text}: {compiled:?} until it was refused: {refused}");
    }
}

/// The least recently used grammar is evicted.
#[test]
fn the_cache_is_bounded() {
    let grammars = grammars();
    let first = regex("first");
    for i in 0..300 {
        grammars.guide(&first, true).unwrap();
        grammars.guide(&regex(&format!("other {i}")), true).unwrap();
    }
    let mut cache = grammars.cache.lock();
    assert_eq!(cache.len(), 128);
    assert!(cache.get(&first).is_some() && cache.get(&regex("other 299")).is_some());
    assert!(cache.get(&regex("other 0")).is_none());
}

/// Exactly one constraint must be given, and JSON settings only for JSON.
#[test]
fn one_form_is_given() {
    let none = StructuredFields::default;
    let json = || Some("{}".to_owned());
    for (fields, part) in [
        (none(), "none"),
        (StructuredFields { json: json(), regex: Some("a".into()), ..none() }, "several"),
        (StructuredFields { json: json(), json_object: true, ..none() }, "several"),
        (StructuredFields { json: Some("{".into()), ..none() }, "no JSON"),
        (StructuredFields { json: Some("3".into()), ..none() }, "neither"),
        (StructuredFields { regex: Some(String::new()), ..none() }, "0 bytes"),
        (StructuredFields { regex: Some("a".repeat(300_000)), ..none() }, "300000 bytes"),
        (StructuredFields { choice: Some(vec![]), ..none() }, "0 texts"),
        (StructuredFields { choice: Some(vec!["a".into(), String::new()]), ..none() }, "empty text"),
        (StructuredFields { choice: Some(vec!["a".into(); 5000]), ..none() }, "5000 texts"),
        (StructuredFields { regex: Some("a".into()), disable_any_whitespace: true, ..none() }, "without JSON"),
        (
            StructuredFields {
                json_object: true,
                disable_any_whitespace: true,
                whitespace_pattern: Some(" ".into()),
                ..none()
            },
            "disable_any_whitespace and",
        ),
    ] {
        match StructuredOutputs::new(fields) {
            Err(Error::InvalidRequest { what: "structured_outputs", got, .. }) => assert!(got.contains(part), "{got}"),
            other => panic!("{other:?}"),
        }
    }
    let both = StructuredFields { json: json(), whitespace_pattern: Some(" ?".into()), ..none() };
    assert_eq!(StructuredOutputs::new(both).unwrap().constraint, Constraint::Json("{}".into()));
}
