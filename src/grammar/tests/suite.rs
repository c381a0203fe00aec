//! JSON Schema's own test suite: of its instances the grammars allow those that are valid, and no others. Where they
//! differ, `deviations.json` says so: `refused` lists the schemas that are an error, by a part of its message;
//! `not_allowed` the valid instances that are never written, and `allowed` the invalid ones that may be, by reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{END, Grammars, Guide, PADDED, compact, got, lark, mask, of, tokenizer};
use crate::config::Form;
use crate::testdata;

#[derive(Deserialize)]
struct Group {
    file: String,
    description: String,
    schema: Value,
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    description: String,
    data: Value,
    valid: bool,
}

/// Names by reasons.
type Reasons = BTreeMap<String, Vec<String>>;

#[derive(Deserialize)]
struct Deviations {
    refused: Reasons,
    not_allowed: Reasons,
    allowed: Reasons,
}

fn deviations() -> Deviations {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/json_schema/deviations.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn names(reasons: &Reasons) -> BTreeSet<String> {
    reasons.values().flatten().cloned().collect()
}

/// Whether the grammar allows the text, to its end.
fn allows(mut guide: Guide, text: &str) -> bool {
    let mut complete = false;
    for byte in text.bytes().map(u32::from) {
        let mask = mask(&mut guide).unwrap().clone();
        if complete || !guide.forced().first().map_or(mask.allows(byte), |&forced| forced == byte) {
            return false;
        }
        complete = guide.accept(byte).unwrap();
    }
    complete || (mask(&mut guide).unwrap().allows(END) && guide.forced().is_empty())
}

#[test]
fn valid_instances_are_allowed_and_others_are_not() {
    let groups: Vec<Group> = serde_json::from_value(testdata::json("json_schema/suite.json")).unwrap();
    let grammars = Grammars::new(tokenizer(&[]), PADDED);
    let known = deviations();
    let reason = |name: &String| known.refused.iter().find(|(_, names)| names.contains(name)).map(|(reason, _)| reason);
    let mut other_messages = Vec::new();
    let (mut refused, mut not_allowed, mut allowed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (i, group) in groups.iter().enumerate() {
        let name = format!("{}: {}", group.file, group.description);
        let Ok(guide) = grammars.guide(&compact(group.schema.clone()), true) else {
            let message = got(grammars.guide(&compact(group.schema.clone()), true));
            if reason(&name).is_some_and(|reason| !message.contains(reason)) {
                other_messages.push(format!("{name}: {message}"));
            }
            refused.insert(name);
            continue;
        };
        let spaced = grammars.guide(&of(Form::Json(group.schema.to_string())), true).unwrap();
        let within = lark(&format!("start: %json {}", group.schema));
        let within = if i % 8 == 0 { grammars.guide(&within, true).unwrap() } else { spaced.sibling() };
        for case in &group.tests {
            let allows_it = allows(guide.sibling(), &case.data.to_string());
            let pretty = serde_json::to_string_pretty(&case.data).unwrap();
            let name = format!("{name}: {}", case.description);
            assert_eq!(allows(spaced.sibling(), &pretty), allows_it, "{name}: white space makes a difference");
            assert_eq!(allows(within.sibling(), &pretty), allows_it, "{name}: a grammar around makes a difference");
            match (case.valid, allows_it) {
                (true, false) => _ = not_allowed.insert(name),
                (false, true) => _ = allowed.insert(name),
                _ => {}
            }
        }
    }
    assert!(other_messages.is_empty(), "{other_messages:#?}");
    for (what, found, known) in [
        ("refused", &refused, names(&known.refused)),
        ("not allowed", &not_allowed, names(&known.not_allowed)),
        ("allowed", &allowed, names(&known.allowed)),
    ] {
        let news: Vec<_> = found.difference(&known).collect();
        let gone: Vec<_> = known.difference(found).collect();
        assert!(news.is_empty() && gone.is_empty(), "{what}: new {news:#?}, no longer {gone:#?}");
    }
}

/// Texts that a library which looks at each keyword alone, or at numbers as floats, would allow. None is valid.
#[test]
fn what_keywords_say_together_holds() {
    let grammars = Grammars::new(tokenizer(&[]), PADDED);
    let allowed = |schema: Value, text: &str| allows(grammars.guide(&compact(schema), true).unwrap(), text);
    let integer = || json!({"type": "integer"});
    let listed = json!({"items": [integer()], "allOf": [{}], "additionalItems": integer()});
    assert!(allowed(listed.clone(), "[1,2]") && !allowed(listed, r#"[1,"a"]"#));
    let below = json!({"type": "number", "maximum": 3, "allOf": [{}], "exclusiveMaximum": true});
    assert!(allowed(below.clone(), "2.5") && !allowed(below, "3"));
    let patterns = json!({"patternProperties": {"^a": integer()}, "allOf": [{}], "additionalProperties": false});
    assert!(allowed(patterns.clone(), r#"{"ab":1}"#) && !allowed(patterns, r#"{"b":1}"#));
    // A name has one spelling, so that no second one has a value of another schema.
    for named in [json!({"properties": {"ab": integer()}}), json!({"patternProperties": {"^ab": integer()}})] {
        assert!(allowed(named.clone(), r#"{"ab":1,"c\n":"x"}"#));
        assert!(!allowed(named.clone(), r#"{"ab":"x"}"#) && !allowed(named, r#"{"\u0061b":"x"}"#));
    }
    // The properties of a schema come in its order, before those of the schemas behind them.
    let ordered = json!({"allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}, "required": ["a", "b"]});
    assert!(allowed(ordered.clone(), r#"{"a":1,"b":1}"#) && !allowed(ordered, r#"{"b":1,"a":1}"#));
}

#[test]
fn what_would_be_read_wrongly_is_refused() {
    let grammars = Grammars::new(tokenizer(&[]), PADDED);
    let inner = json!({"$id": "https://example.com/b", "$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"});
    for (schema, part) in [
        (json!({"prefixItems": [{"type": "integer"}], "additionalItems": true}), "prefixItems"),
        (json!({"type": "object", "minProperties": 2}), "minProperties"),
        (json!({"items": {"type": "object", "minProperties": 3, "required": ["a"]}}), "minProperties"),
        (json!({"const": 9_007_199_254_740_993u64}), "const"),
        (json!({"enum": [[{"a": 9_007_199_254_740_993u64}]]}), "enum"),
        (json!({"type": "integer", "maximum": -1e19}), "maximum"),
        (json!({"$defs": {"a": {"type": "integer"}, "b": inner}, "$ref": "#/$defs/b"}), "$id"),
    ] {
        for form in [compact(schema.clone()), lark(&format!("start: \"a\" b\nb: %json {schema}\n"))] {
            let message = got(grammars.guide(&form, true));
            assert!(message.contains(part), "{schema}: {message}");
        }
        // Who asks for it gets the library's reading. It has none of a number below those of 64 bits.
        let mut lenient = schema.clone();
        lenient["x-guidance"] = json!({"lenient": true});
        let lenient = grammars.guide(&lark(&format!("start: %json {lenient}")), true);
        assert!(lenient.is_ok() || part == "maximum", "{schema}: {}", got(lenient));
    }
}

/// Schemas stand anywhere in a grammar; the word for them in a text, a pattern or a comment is no schema.
#[test]
fn schemas_of_grammars_are_found() {
    let grammars = Grammars::new(tokenizer(&[]), PADDED);
    let grammar = r##"
        start: "%json {\"type" /%json \/\{[0-9]/ a | b // %json {
        b: %lark {
            start: "x" %json{"format": "date", "type": "string"}
        }
        # %json {"type": 5}
        a: %json {
            "type": "string", "format": "date", "x-guidance": {"whitespace_flexible": false}
        } "]"
        "##;
    let guide = grammars.guide(&lark(grammar), true).unwrap();
    assert!(allows(guide.sibling(), r#"%json {"type%json /{5"2024-02-29"]"#));
    assert!(allows(guide.sibling(), r#"x"2024-02-29""#));
    // The library's own format for dates has 31 days in each month.
    assert!(!allows(guide.sibling(), r#"%json {"type%json /{5"2023-02-29"]"#));
    assert!(!allows(guide.sibling(), r#"x"2023-02-29""#));
    for (wrong, part) in [("{", "json"), ("[1]", "neither"), ("", "json"), (r#"{"type": "strnig"}"#, "strnig")] {
        let message = got(grammars.guide(&lark(&format!("start: %json {wrong}")), true));
        assert!(message.contains(part), "{wrong}: {message}");
    }
}
