//! Python values as JSON: chat messages, tools and template variables.

use pyo3::prelude::*;
use serde_json::Value;

use crate::Error;

/// Converts a value through the standard library's `json`, whose errors (an object that JSON has no form for, a cycle)
/// name the cause.
pub(super) fn to_json(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let text: String = value.py().import("json")?.call_method1("dumps", (value,))?.extract()?;
    let parsed = value.py().detach(|| serde_json::from_str(&text));
    parsed.map_err(|error| Error::invalid(what, error, "values that JSON can hold").into())
}
