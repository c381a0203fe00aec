//! Keywords of JSON schemas, by the kind of their values.

use serde_json::Value;

/// Keywords whose values are maps of names to schemas.
pub(super) const MAPS: [&str; 4] = ["$defs", "definitions", "properties", "patternProperties"];

/// Keywords whose values are schemas, or lists of them.
pub(super) const SCHEMAS: [&str; 7] =
    ["allOf", "anyOf", "oneOf", "prefixItems", "items", "additionalItems", "additionalProperties"];

/// 2**53; 64-bit floats represent all smaller integers exactly.
const INEXACT: f64 = 9_007_199_254_740_992.0;

/// True if all numbers in it are small enough for 64-bit floats to represent integers exactly.
pub(super) fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number.abs() < INEXACT),
        Value::Array(values) => values.iter().all(is_exact),
        Value::Object(entries) => entries.values().all(is_exact),
        _ => true,
    }
}
