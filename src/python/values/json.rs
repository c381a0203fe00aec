//! Converts Python values to JSON: chat messages, tools and template variables.

use pyo3::exceptions::{PyRecursionError, PyValueError};
use pyo3::prelude::*;
use serde_json::Value;

use crate::Error;

/// Converts a value through the standard library's `json`, whose errors name the cause.
///
/// # Errors
/// `TypeError` for an object that JSON cannot represent. `InvalidRequestError` for a cycle, for NaN, and for values
/// that are nested too deeply.
pub(in crate::python) fn to_json(what: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = value.py();
    let refused = |error: PyErr| {
        let deep = error.is_instance_of::<PyRecursionError>(py);
        if !deep && !error.is_instance_of::<PyValueError>(py) {
            return error;
        }
        let got = if deep { "values that are nested too deeply".to_owned() } else { error.value(py).to_string() };
        Error::invalid(what, got, "values that JSON can hold").into()
    };
    let text: String = py.import("json")?.call_method1("dumps", (value,)).map_err(refused)?.extract()?;
    let parsed = py.detach(|| serde_json::from_str(&text));
    parsed.map_err(|error| Error::invalid(what, error, "values that JSON can hold").into())
}
