//! JSON schemas as the library reads them rightly: what it would read wrongly is said in another way, or refused.

use serde_json::{Map, Value, json};

/// Keywords that apply to the value itself. The library reads the others together from one of these to the next.
const IN_PLACE: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Keywords whose values are maps of names to schemas.
const MAPS: [&str; 4] = ["$defs", "definitions", "properties", "patternProperties"];

/// Keywords whose values are schemas, or lists of them.
const SCHEMAS: [&str; 7] =
    ["allOf", "anyOf", "oneOf", "prefixItems", "items", "additionalItems", "additionalProperties"];

/// Keywords with numbers, which the library keeps as floats of 64 bits.
const NUMBERS: [&str; 7] =
    ["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Keys of an object in a schema at most: the time of a compilation grows with their square, or worse.
const MAX_KEYS: usize = 1000;

/// 2**53: floats of 64 bits hold all integers below.
const INEXACT: f64 = 9_007_199_254_740_992.0;

/// The days that a calendar has: February has 29 in leap years alone.
const DAY: &str = "(?:[0-9]{4}-(?:0[13-9]|1[0-2])|[0-9]{4}-02-(?:[01]|2[0-8])|\
    (?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";

/// Seconds up to 59. The 60th is right in few minutes, and few programs read it.
const SECONDS: &str = ":[0-5][0-9]:[0-5]";

/// Names whose labels have no two hyphens as their third and fourth characters: those are code for others.
const PLAIN_LABELS: &str =
    r"^(?:(?:[^.]{1,3}|[^.]{2}(?:-[^.-]|[^.-][^.])[^.]*)\.)*(?:[^.]{1,3}|[^.]{2}(?:-[^.-]|[^.-][^.])[^.]*)$";

/// The key of a schema that holds the library's settings.
pub(super) const SETTINGS: &str = "x-guidance";

/// Returns the schema in words that the library reads as the standard says, with the library's `settings`. With
/// `lenient` among them, what the library would read in another way stays as it is.
///
/// # Errors
/// The problem with a schema that the library would read in another way, or with too large an object.
pub(super) fn read(schema: Value, mut settings: Map<String, Value>) -> Result<Value, String> {
    if widest(&schema) > MAX_KEYS {
        return Err(format!("an object of it has more than {MAX_KEYS} keys"));
    }
    let schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"not": {}}),
        schema => schema,
    };
    let is_lenient = settings.get("lenient") == Some(&Value::Bool(true));
    let read = match prepared(schema.clone(), 0, false) {
        Err(_) if is_lenient => schema,
        read => read?,
    };
    if has_open_names(&read) {
        // With \u, a name of the schema could be written in a second way, for a value that its schema does not allow.
        settings.entry("json_allowed_escapes").or_insert_with(|| json!("nrbtf\\\""));
    }
    let Value::Object(mut read) = read else {
        return Err("a schema that is neither an object nor a boolean".into());
    };
    read.insert(SETTINGS.into(), Value::Object(settings));
    Ok(Value::Object(read))
}

/// Keys of the schema's largest object.
fn widest(schema: &Value) -> usize {
    match schema {
        Value::Object(entries) => entries.values().map(widest).max().unwrap_or(0).max(entries.len()),
        Value::Array(items) => items.iter().map(widest).max().unwrap_or(0),
        _ => 0,
    }
}

/// `depth` counts the schemas around it; `embedded` says that one of them but the outermost has a name of its own.
fn prepared(schema: Value, depth: usize, embedded: bool) -> Result<Value, String> {
    let Value::Object(schema) = schema else { return Ok(schema) };
    let embedded = embedded || (depth > 0 && schema.contains_key("$id"));
    check(&schema, embedded)?;
    let properties_at = schema.keys().position(|key| key == "properties").unwrap_or(0);
    let (mut before, mut together, mut behind) = (Map::new(), Map::new(), Map::new());
    for (at, (key, value)) in schema.into_iter().enumerate() {
        let part = match IN_PLACE.contains(&key.as_str()) {
            false => &mut together,
            // Properties are written in the order in which they come first.
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

/// The value of a keyword, its schemas prepared.
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
/// The keywords of this schema that the library would ignore, or read in another way.
fn check(schema: &Map<String, Value>, embedded: bool) -> Result<(), String> {
    if embedded && schema.contains_key("$ref") {
        return Err("$ref inside of a schema with its own $id".into());
    }
    if schema.contains_key("prefixItems") && schema.contains_key("additionalItems") {
        return Err("prefixItems beside additionalItems".into());
    }
    // The names of properties that the schema does not require may be repeated, and then count once.
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

/// Whether all numbers in it are small enough that floats of 64 bits hold integers exactly.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() < INEXACT),
        Value::Array(values) => values.iter().all(is_exact),
        Value::Object(entries) => entries.values().all(is_exact),
        _ => true,
    }
}

/// Whether objects have properties of given names and others beside them. A schema that does not say so may be taken
/// for one that does.
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

/// Returns the schema of what a format says beyond the library's regular expression for it.
fn beyond(format: &str) -> Option<Value> {
    match format {
        "date" => Some(json!({"pattern": format!("^{DAY}")})),
        "time" => Some(json!({"pattern": SECONDS})),
        "date-time" => Some(json!({"pattern": format!("^{DAY}.*{SECONDS}")})),
        "hostname" => Some(json!({"pattern": PLAIN_LABELS, "maxLength": 253})),
        _ => None,
    }
}
