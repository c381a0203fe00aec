//! Rewrites JSON schemas so that the library reads them correctly, and rejects those that it would misread.

use serde_json::{Map, Value, json};

use super::keywords::{MAPS, SCHEMAS, is_exact};
use super::unsupported;

/// Keywords that apply to the value itself. The library reads the keywords between two of these together.
const IN_PLACE: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Keywords with numbers, which the library stores as 64-bit floats.
const NUMBERS: [&str; 7] =
    ["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// The most keys of an object in a schema; compile time grows with their square, or worse.
const MAX_KEYS: usize = 1000;

/// Calendar days: February has 29 only in leap years.
const DAY: &str = "(?:[0-9]{4}-(?:0[13-9]|1[0-2])|[0-9]{4}-02-(?:[01]|2[0-8])|\
    (?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";

/// Seconds up to 59. Second 60 is only valid in a few minutes, and few programs accept it.
const SECONDS: &str = ":[0-5][0-9]:[0-5]";

/// Host names without a label that has hyphens as third and fourth character. Such labels are encodings of other names.
const PLAIN_LABELS: &str =
    r"^(?:(?:[^.]{1,3}|[^.]{2}(?:-[^.-]|[^.-][^.])[^.]*)\.)*(?:[^.]{1,3}|[^.]{2}(?:-[^.-]|[^.-][^.])[^.]*)$";

/// The key of a schema that holds the library's settings.
pub(super) const SETTINGS: &str = "x-guidance";

/// The setting for the name of a schema in errors. The errors also say which part of it is not supported.
const NAME: &str = "name";

/// Returns the schema rewritten so that the library follows the standard, with the library's `settings`. With `lenient`
/// among them, unsupported keywords are removed, and parts that the library would misread stay.
///
/// # Errors
/// The problem with a schema that the library would misread, or with too large an object.
pub(super) fn read(schema: Value, mut settings: Map<String, Value>) -> Result<Value, String> {
    if widest(&schema) > MAX_KEYS {
        return Err(format!("an object of it has more than {MAX_KEYS} keys"));
    }
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"not": {}}),
        schema => schema,
    };
    let is_lenient = settings.get("lenient") == Some(&Value::Bool(true));
    let name = settings.remove(NAME).and_then(|name| name.as_str().map(str::to_owned));
    match &name {
        _ if is_lenient => unsupported::leave_out(&mut schema),
        Some(name) => unsupported::refuse(&schema).map_err(|problem| format!("{name}: {problem}"))?,
        None => {}
    }
    let read = match prepared(schema.clone(), 0, false) {
        Err(_) if is_lenient => schema,
        read => read.map_err(|problem| name.map_or(problem.clone(), |name| format!("{name}: {problem}")))?,
    };
    if has_open_names(&read) {
        // With \u, a property name could be written in a second way and escape the schema of its value.
        settings.entry("json_allowed_escapes").or_insert_with(|| json!("nrbtf\\\""));
    }
    let Value::Object(mut read) = read else {
        return Err("a schema that is neither an object nor a boolean".into());
    };
    read.insert(SETTINGS.into(), Value::Object(settings));
    Ok(Value::Object(read))
}

/// Returns the number of keys of the schema's largest object.
fn widest(schema: &Value) -> usize {
    match schema {
        Value::Object(entries) => entries.values().map(widest).max().unwrap_or(0).max(entries.len()),
        Value::Array(items) => items.iter().map(widest).max().unwrap_or(0),
        _ => 0,
    }
}

/// `depth`: the number of enclosing schemas. `embedded`: true if one of them other than the outermost has its own
/// `$id`.
fn prepared(schema: Value, depth: usize, embedded: bool) -> Result<Value, String> {
    let Value::Object(schema) = schema else { return Ok(schema) };
    let embedded = embedded || (depth > 0 && schema.contains_key("$id"));
    check(&schema, embedded)?;
    let properties_at = schema.keys().position(|key| key == "properties").unwrap_or(0);
    let (mut before, mut together, mut behind) = (Map::new(), Map::new(), Map::new());
    for (at, (key, value)) in schema.into_iter().enumerate() {
        let part = match IN_PLACE.contains(&key.as_str()) {
            false => &mut together,
            // Properties are written in the order of their first occurrence.
            true if at < properties_at => &mut before,
            true => &mut behind,
        };
        let value = inner(&key, value, depth + 1, embedded)?;
        part.insert(key, value);
    }
    let format = together.get("format").and_then(Value::as_str).and_then(beyond);
    before.append(&mut together);
    before.append(&mut behind);
    if let Some(format) = format
        && let Value::Array(all) = before.entry("allOf").or_insert_with(|| json!([]))
    {
        all.push(format);
    }
    Ok(Value::Object(before))
}

/// Returns the value of a keyword with its schemas rewritten.
fn inner(key: &str, value: Value, depth: usize, embedded: bool) -> Result<Value, String> {
    match value {
        Value::Object(named) if MAPS.contains(&key) => {
            let entries = named.into_iter().map(|(name, schema)| Ok((name, prepared(schema, depth, embedded)?)));
            entries.collect::<Result<_, String>>().map(Value::Object)
        }
        Value::Array(schemas) if SCHEMAS.contains(&key) => {
            let schemas = schemas.into_iter().map(|schema| prepared(schema, depth, embedded));
            schemas.collect::<Result<_, String>>().map(Value::Array)
        }
        schema if SCHEMAS.contains(&key) => prepared(schema, depth, embedded),
        value => Ok(value),
    }
}

/// # Errors
/// The keywords of this schema that the library would ignore or misread.
fn check(schema: &Map<String, Value>, embedded: bool) -> Result<(), String> {
    if embedded && schema.contains_key("$ref") {
        return Err("$ref inside of a schema with its own $id".into());
    }
    if schema.contains_key("prefixItems") && schema.contains_key("additionalItems") {
        return Err("prefixItems beside additionalItems".into());
    }
    // Properties that the schema does not require may be repeated, and then count once.
    let required = schema.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    let least = schema.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    if least > required + 1 {
        return Err(format!("minProperties {least} with {required} required properties"));
    }
    for key in NUMBERS {
        if schema.get(key).is_some_and(|value| !is_exact(value)) {
            return Err(format!("{key} with a number of 2**53 or more"));
        }
    }
    Ok(())
}

/// True if objects may have other properties besides named ones. It may also be true for other schemas.
fn has_open_names(schema: &Value) -> bool {
    match schema {
        Value::Array(values) => values.iter().any(has_open_names),
        Value::Object(entries) => {
            let named = ["properties", "patternProperties", "required"].iter().any(|key| entries.contains_key(*key));
            let open = entries.get("additionalProperties") != Some(&Value::Bool(false));
            (named && open) || entries.values().any(has_open_names)
        }
        _ => false,
    }
}

/// Returns a schema for the rules of a format that the library's regular expression for it lacks.
fn beyond(format: &str) -> Option<Value> {
    match format {
        "date" => Some(json!({"pattern": format!("^{DAY}")})),
        "time" => Some(json!({"pattern": SECONDS})),
        "date-time" => Some(json!({"pattern": format!("^{DAY}.*{SECONDS}")})),
        "hostname" => Some(json!({"pattern": PLAIN_LABELS, "maxLength": 253})),
        _ => None,
    }
}
