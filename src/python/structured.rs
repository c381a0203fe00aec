//! `StructuredOutputsParams` in Python: checked when created, immutable afterwards.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use super::values::arrays::{optional_integer, text, wrong_type};
use super::values::json::to_json;
use crate::Error;
use crate::config::{Constraint, StructuredFields, StructuredOutputs};
use crate::grammar::in_lark;

/// A constraint on a generated text. Give exactly one of the first five. Immutable; checked when created.
///
/// Args:
///     json: A JSON value that this schema allows: a dictionary, JSON text, or a Pydantic class.
///     regex: A text that this regular expression matches as a whole, in the syntax of Rust's crate regex.
///     choice: One of these texts.
///     grammar: A text that this grammar allows, in the syntax of Lark (the first rule is `start`) or of GBNF (`root`).
///     json_object: Any JSON object.
///     disable_any_whitespace: No white space between the parts of JSON.
///     whitespace_pattern: A regular expression for white space between the parts of JSON. By default any is allowed.
///     begin_token_id: The constraint begins after the first such token; text before it is free. So a model can reason
///         before it answers.
///     optional: True if the text may end without that token; otherwise it cannot end before it.
#[pyclass(frozen, eq, name = "StructuredOutputsParams", module = "rocmforge")]
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PyStructuredOutputs(pub(super) StructuredOutputs);

/// Fields in the order of the constructor. `repr` and pickling iterate over them.
const FIELDS: [&str; 9] = [
    "json",
    "regex",
    "choice",
    "grammar",
    "json_object",
    "disable_any_whitespace",
    "whitespace_pattern",
    "begin_token_id",
    "optional",
];

#[pymethods]
impl PyStructuredOutputs {
    #[new]
    #[pyo3(signature = (json=None, regex=None, choice=None, grammar=None, json_object=false,
        disable_any_whitespace=false, whitespace_pattern=None, begin_token_id=None, optional=false))]
    #[allow(clippy::too_many_arguments)] // they are keyword arguments in Python
    fn new(
        json: Option<&Bound<'_, PyAny>>,
        regex: Option<&Bound<'_, PyAny>>,
        choice: Option<&Bound<'_, PyAny>>,
        grammar: Option<&Bound<'_, PyAny>>,
        json_object: bool,
        disable_any_whitespace: bool,
        whitespace_pattern: Option<&Bound<'_, PyAny>>,
        begin_token_id: Option<&Bound<'_, PyAny>>,
        optional: bool,
    ) -> PyResult<Self> {
        let fields = StructuredFields {
            json: json.map(schema).transpose()?,
            regex: string("regex", regex)?,
            choice: choice.map(choices).transpose()?,
            grammar: string("grammar", grammar)?,
            json_object,
            disable_any_whitespace,
            whitespace_pattern: string("whitespace_pattern", whitespace_pattern)?,
            begin_token_id: optional_integer("begin_token_id", begin_token_id)?,
            optional,
        };
        Ok(Self(StructuredOutputs::new(fields)?))
    }

    /// The schema as JSON text.
    #[getter]
    fn json(&self) -> Option<&str> {
        if let Constraint::Json(schema) = &self.0.constraint { Some(schema) } else { None }
    }
    #[getter]
    fn regex(&self) -> Option<&str> {
        if let Constraint::Regex(regex) = &self.0.constraint { Some(regex) } else { None }
    }
    #[getter]
    fn choice(&self) -> Option<Vec<String>> {
        if let Constraint::Choice(choices) = &self.0.constraint { Some(choices.clone()) } else { None }
    }
    #[getter]
    fn grammar(&self) -> Option<&str> {
        if let Constraint::Grammar(grammar) = &self.0.constraint { Some(grammar) } else { None }
    }
    #[getter]
    fn json_object(&self) -> bool {
        self.0.constraint == Constraint::JsonObject
    }
    #[getter]
    fn disable_any_whitespace(&self) -> bool {
        self.0.disable_any_whitespace
    }
    #[getter]
    fn whitespace_pattern(&self) -> Option<&str> {
        self.0.whitespace_pattern.as_deref()
    }
    #[getter]
    fn begin_token_id(&self) -> Option<u32> {
        self.0.begin.map(|begin| begin.id)
    }
    #[getter]
    fn optional(&self) -> bool {
        self.0.begin.is_some_and(|begin| begin.optional)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let fields = FIELDS.map(|name| Ok(format!("{name}={}", slf.getattr(name)?.repr()?)));
        let fields: Vec<String> = fields.into_iter().collect::<PyResult<_>>()?;
        Ok(format!("StructuredOutputsParams({})", fields.join(", ")))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        let values = FIELDS.map(|name| slf.getattr(name)).into_iter().collect::<PyResult<Vec<_>>>()?;
        Ok((slf.get_type(), PyTuple::new(slf.py(), values)?))
    }
}

/// Returns a grammar in the syntax of Lark: Lark unchanged, GBNF translated.
///
/// Raises:
///     InvalidRequestError: A GBNF grammar is invalid.
#[pyfunction]
pub(super) fn grammar_in_lark(grammar: &str) -> PyResult<String> {
    let expected = "a grammar in the syntax of Lark or of GBNF";
    Ok(in_lark(grammar)
        .map_err(|problem| Error::invalid("structured_outputs", format!("grammar ({problem})"), expected))?)
}

fn string(what: &'static str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<String>> {
    let string = |value: &Bound<'_, PyAny>| match value.cast::<PyString>() {
        Ok(value) => Ok(text(what, value)?),
        Err(_) => Err(wrong_type(what, value, "a string")),
    };
    value.map(string).transpose()
}

/// Returns a schema as text. Text is kept unchanged, and a Pydantic class is asked for its schema.
fn schema(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(value) = value.cast::<PyString>() {
        return Ok(text("json", value)?);
    }
    if value.is_instance_of::<PyType>() && value.hasattr("model_json_schema")? {
        return Ok(to_json("json", &value.call_method0("model_json_schema")?)?.to_string());
    }
    if !value.is_instance_of::<PyDict>() {
        return Err(wrong_type("json", value, "a JSON schema as a dictionary, as JSON text or as a Pydantic class"));
    }
    Ok(to_json("json", value)?.to_string())
}

fn choices(value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let wrong = || wrong_type("choice", value, "a list of strings");
    if !value.is_instance_of::<PyList>() && !value.is_instance_of::<PyTuple>() {
        return Err(wrong());
    }
    let texts: Vec<Bound<'_, PyString>> = value.extract().map_err(|_| wrong())?;
    Ok(texts.iter().map(|choice| text("choice", choice)).collect::<crate::Result<_>>()?)
}
