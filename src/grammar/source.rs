//! From the form that a user gave to the library's kinds of grammar.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::{gbnf, schema};
use crate::config::{Form, StructuredOutputs};
use crate::{Error, Result};

/// Bytes of the library's message at most: some quote all of the grammar.
const MAX_MESSAGE: usize = 500;

/// Keys of an object in a schema at most: the time of a compilation grows with their square, or worse.
const MAX_KEYS: usize = 1000;

/// # Errors
/// `InvalidRequest` for a schema with too large an object, or that the library would read wrongly, and for a wrong
/// grammar in the syntax of GBNF.
pub(super) fn grammar(wanted: &StructuredOutputs) -> Result<TopLevelGrammar> {
    Ok(match &wanted.form {
        Form::Json(schema) => {
            let schema = serde_json::from_str(schema).map_err(|error| refused(wanted, &error))?;
            if widest(&schema) > MAX_KEYS {
                return Err(refused(wanted, &format_args!("an object of it has more than {MAX_KEYS} keys")));
            }
            let schema = schema::prepare(schema).map_err(|problem| refused(wanted, &problem))?;
            TopLevelGrammar::from_json_schema(spaced(schema, wanted))
        }
        Form::JsonObject => TopLevelGrammar::from_json_schema(spaced(json!({"type": "object"}), wanted)),
        Form::Regex(regex) => TopLevelGrammar::from_regex(regex),
        Form::Choice(choices) => {
            let texts: Vec<String> = choices.iter().map(|choice| json!(choice).to_string()).collect();
            TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
        }
        Form::Grammar(grammar) => {
            TopLevelGrammar::from_lark(in_lark(grammar).map_err(|problem| refused(wanted, &problem))?)
        }
    })
}

/// Returns a grammar in the syntax of Lark as it is, and one in the syntax of GBNF in that of Lark.
///
/// # Errors
/// The problem with a grammar in the syntax of GBNF.
pub fn in_lark(grammar: &str) -> std::result::Result<String, String> {
    if gbnf::is_gbnf(grammar) { gbnf::to_lark(grammar) } else { Ok(grammar.to_owned()) }
}

/// Keys of the schema's largest object.
fn widest(schema: &Value) -> usize {
    match schema {
        Value::Object(entries) => entries.values().map(widest).max().unwrap_or(0).max(entries.len()),
        Value::Array(items) => items.iter().map(widest).max().unwrap_or(0),
        _ => 0,
    }
}

/// The argument that errors name.
const WHAT: &str = "structured_outputs";

/// The schema with the library's settings, which are a key of the schema.
fn spaced(schema: Value, wanted: &StructuredOutputs) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"not": {}}),
        schema => schema,
    };
    let mut options = match &wanted.whitespace_pattern {
        Some(pattern) => json!({"whitespace_pattern": pattern}),
        None => json!({"whitespace_flexible": !wanted.disable_any_whitespace}),
    };
    if schema::has_open_names(&schema) {
        // With \u, a name of the schema could be written in a second way, for a value that its schema does not allow.
        options["json_allowed_escapes"] = json!("nrbtf\\\"");
    }
    schema["x-guidance"] = options;
    schema
}

/// The error of a form that the library refuses.
pub(super) fn refused(wanted: &StructuredOutputs, problem: &impl ToString) -> Error {
    let (field, expected) = match wanted.form {
        Form::Json(_) | Form::JsonObject => ("json", "a schema whose keywords are supported, within bounds of size"),
        Form::Regex(_) => ("regex", "a regular expression in the syntax of Rust's crate regex, within bounds of size"),
        Form::Choice(_) => ("choice", "fewer or shorter texts"),
        Form::Grammar(_) => ("grammar", "a grammar in the syntax of Lark or of GBNF, within bounds of size"),
    };
    Error::invalid(WHAT, format!("{field} that is refused ({})", message(&problem.to_string())), expected)
}

/// The part of the library's message that tells the user something.
pub(super) fn message(text: &str) -> &str {
    let text = text.split(['\n']).next().unwrap_or(text).trim();
    let end = text.char_indices().map(|(at, _)| at).find(|&at| at >= MAX_MESSAGE);
    &text[..end.unwrap_or(text.len())]
}
