//! JSON Schema's own test suite. The grammars must allow exactly the valid instances. `deviations.json` lists the
//! exceptions: `refused` has the schemas that are an error, by a part of its message. `not_allowed` has valid instances
//! that are never written, and `allowed` invalid ones that may be, both by reason.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{END, Grammars, Guide, PADDED, compact, got, lark, mask, of, tokenizer};
use crate::config::Constraint;
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

/// Names by reason.
type Reasons = BTreeMap<String, Vec<String>>;

#[derive(Deserialize)]
struct Deviations {
    refused: Reasons,
    not_allowed: Reasons,
    allowed: Reasons,
}

fn deviations() -> Deviations {
    let path = testdata::folder().join("json_schema/deviations.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn names(reasons: &Reasons) -> BTreeSet<String> {
    reasons.values().flatten().cloned().collect()
}

/// True if the grammar allows the whole text.
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
        let spaced = grammars.guide(&of(Constraint::Json(group.schema.to_string())), true).unwrap();
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

/// A library that checks each keyword alone, or numbers as floats, would allow these texts. None is valid.
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
    // A name has only one spelling, so that a second one cannot get a value of another schema.
    for named in [json!({"properties": {"ab": integer()}}), json!({"patternProperties": {"^ab": integer()}})] {
        assert!(allowed(named.clone(), r#"{"ab":1,"c\n":"x"}"#));
        assert!(!allowed(named.clone(), r#"{"ab":"x"}"#) && !allowed(named, r#"{"\u0061b":"x"}"#));
    }
    // The properties of a schema come in its order, before those of the schemas after them.
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
        for outputs in [compact(schema.clone()), lark(&format!("start: \"a\" b\nb: %json {schema}\n"))] {
            let message = got(grammars.guide(&outputs, true));
            assert!(message.contains(part), "{schema}: {message}");
        }
        // With `lenient`, the library's own reading applies. It has none for a bound below the 64-bit integers.
        let mut lenient = schema.clone();
        lenient["x-guidance"] = json!({"lenient": true});
        let lenient = grammars.guide(&lark(&format!("start: %json {lenient}")), true);
        assert!(lenient.is_ok() || part == "maximum", "{schema}: {}", got(lenient));
    }
}

/// Schemas are found anywhere in a grammar. The keyword within a string, a pattern or a comment is not a schema.
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
    // The library's own date format has 31 days in each month.
    assert!(!allows(guide.sibling(), r#"%json {"type%json /{5"2023-02-29"]"#));
    assert!(!allows(guide.sibling(), r#"x"2023-02-29""#));
    for (wrong, part) in [("{", "json"), ("[1]", "neither"), ("", "json"), (r#"{"type": "strnig"}"#, "strnig")] {
        let message = got(grammars.guide(&lark(&format!("start: %json {wrong}")), true));
        assert!(message.contains(part), "{wrong}: {message}");
    }
}
