//! Finds keywords of a JSON schema that the library does not support, with their place, and removes them where allowed.

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::keywords::{MAPS, SCHEMAS, is_exact};

/// Keywords with numeric bounds.
const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// The most characters of a value that an error quotes.
const MAX_QUOTED: usize = 80;

/// Removes the keywords that no grammar supports: patterns with lookarounds or backreferences, bounds that floats
/// cannot represent, and references to other documents.
pub(super) fn leave_out(schema: &mut Value) {
    let root = schema.clone();
    // The callback never fails, so nothing is rejected.
    let _ = walk(schema, &root, &mut Vec::new(), &mut |_| Ok(()));
}

/// # Errors
/// The first unsupported keyword, with its place and the reason.
pub(super) fn refuse(schema: &Value) -> Result<(), String> {
    walk(&mut schema.clone(), schema, &mut Vec::new(), &mut |problem| Err(problem))
}

/// Removes each unsupported keyword after passing its problem to `found`.
fn walk(
    schema: &mut Value,
    root: &Value,
    place: &mut Vec<String>,
    found: &mut impl FnMut(String) -> Result<(), String>,
) -> Result<(), String> {
    let Value::Object(entries) = schema else { return Ok(()) };
    for (key, problem) in problems(entries, root) {
        let value: String = entries.remove(&key).unwrap_or_default().to_string().chars().take(MAX_QUOTED).collect();
        place.push(key);
        found(format!("{}: {value}: {problem}", place.join(".")))?;
        place.pop();
    }
    if let Some(Value::Object(named)) = entries.get_mut("patternProperties") {
        let wrong: Vec<(String, String)> =
            named.keys().filter_map(|pattern| Some((pattern.clone(), pattern_problem(pattern)?))).collect();
        let any = !wrong.is_empty();
        for (pattern, problem) in wrong {
            named.remove(&pattern);
            found(format!(
                "{}: {pattern:?}: {problem}",
                [&place[..], &["patternProperties".into()]].concat().join(".")
            ))?;
        }
        if any {
            // Names that such a pattern matched are allowed now.
            entries.remove("additionalProperties");
        }
    }
    for (key, value) in entries.iter_mut() {
        place.push(key.clone());
        match value {
            Value::Object(named) if MAPS.contains(&key.as_str()) => {
                for (name, schema) in named.iter_mut() {
                    place.push(name.clone());
                    walk(schema, root, place, found)?;
                    place.pop();
                }
            }
            Value::Array(schemas) if SCHEMAS.contains(&key.as_str()) => {
                for (i, schema) in schemas.iter_mut().enumerate() {
                    place.push(i.to_string());
                    walk(schema, root, place, found)?;
                    place.pop();
                }
            }
            schema if SCHEMAS.contains(&key.as_str()) => walk(schema, root, place, found)?,
            _ => {}
        }
        place.pop();
    }
    Ok(())
}

/// Returns the unsupported keywords of one schema, and the reasons.
fn problems(schema: &Map<String, Value>, root: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if let Some(problem) = schema.get("pattern").and_then(Value::as_str).and_then(pattern_problem) {
        all.push(("pattern".to_owned(), problem));
    }
    for key in BOUNDS {
        if schema.get(key).is_some_and(|value| !is_exact(value)) {
            all.push((key.to_owned(), "grammars hold numbers below 2**53".to_owned()));
        }
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str)
        && !is_known(reference, root)
    {
        all.push(("$ref".to_owned(), "there is no such part of the schema itself".to_owned()));
    }
    all
}

fn pattern_problem(pattern: &str) -> Option<String> {
    let read = RegexBuilder::new().mk_regex_for_serach(&regex_to_lark(pattern, "dw"));
    read.err().map(|error| {
        // The library quotes the pattern over several lines, followed by the reason.
        let text = error.to_string();
        let reason = text.lines().rev().find_map(|line| line.trim().strip_prefix("error: ")).unwrap_or(&text);
        let reason: String = reason.lines().next().unwrap_or_default().chars().take(MAX_QUOTED).collect();
        format!("no grammar can honour the pattern ({reason})")
    })
}

/// True if a reference is to a part of the schema. Also true if only the library can tell: for a name, or a part of a
/// schema with its own `$id`.
fn is_known(reference: &str, root: &Value) -> bool {
    match reference.strip_prefix('#') {
        Some("") => true,
        Some(pointer) if pointer.starts_with('/') && !pointer.contains('%') => {
            root.pointer(pointer).is_some() || has_names(root)
        }
        Some(_) => has_names(root) || reference.contains('%'),
        None => has_names(root),
    }
}

/// True if any schema in it has a name that references may use.
fn has_names(schema: &Value) -> bool {
    match schema {
        Value::Object(entries) => {
            ["$id", "id", "$anchor"].iter().any(|key| entries.get(*key).is_some_and(Value::is_string))
                || entries.values().any(has_names)
        }
        Value::Array(items) => items.iter().any(has_names),
        _ => false,
    }
}
