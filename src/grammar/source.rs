//! Converts the user's structured-output setting to one of the library's grammar kinds.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::{gbnf, lark, schema};
use crate::config::{Constraint, StructuredOutputs};
use crate::{Error, Result};

/// Maximum bytes of the library's message, since some quote the whole grammar.
const MAX_MESSAGE: usize = 500;

/// # Errors
/// `InvalidRequest` for a schema with too large an object, and for an invalid GBNF grammar. Also for a schema that the
/// library would misread, even within a grammar.
pub(super) fn grammar(wanted: &StructuredOutputs) -> Result<TopLevelGrammar> {
    Ok(match &wanted.constraint {
        Constraint::Json(schema) => {
            let schema = serde_json::from_str(schema).map_err(|error| refused(wanted, &error))?;
            TopLevelGrammar::from_json_schema(read(schema, wanted)?)
        }
        Constraint::JsonObject => TopLevelGrammar::from_json_schema(read(json!({"type": "object"}), wanted)?),
        Constraint::Regex(regex) => TopLevelGrammar::from_regex(regex),
        Constraint::Choice(choices) => {
            let texts: Vec<String> = choices.iter().map(|choice| json!(choice).to_string()).collect();
            TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
        }
        Constraint::Grammar(grammar) => {
            let grammar = in_lark(grammar).and_then(|grammar| lark::read_schemas(&grammar));
            TopLevelGrammar::from_lark(grammar.map_err(|problem| refused(wanted, &problem))?)
        }
    })
}

/// Returns a Lark grammar unchanged, and a GBNF grammar in Lark syntax.
///
/// # Errors
/// The problem with a GBNF grammar.
pub fn in_lark(grammar: &str) -> std::result::Result<String, String> {
    if gbnf::is_gbnf(grammar) { gbnf::to_lark(grammar) } else { Ok(grammar.to_owned()) }
}

/// The argument that errors name.
const WHAT: &str = "structured_outputs";

/// Returns the schema with the requested white space, rewritten for the library.
fn read(schema: Value, wanted: &StructuredOutputs) -> Result<Value> {
    let (name, spacing) = match &wanted.whitespace_pattern {
        Some(pattern) => ("whitespace_pattern", json!(pattern)),
        None => ("whitespace_flexible", json!(!wanted.disable_any_whitespace)),
    };
    let settings = Map::from_iter([(name.to_owned(), spacing)]);
    schema::read(schema, settings).map_err(|problem| refused(wanted, &problem))
}

/// Returns the error of a grammar that the library rejects.
pub(super) fn refused(wanted: &StructuredOutputs, problem: &impl ToString) -> Error {
    let (field, expected) = match wanted.constraint {
        Constraint::Json(_) | Constraint::JsonObject => {
            ("json", "a schema whose keywords are supported, within the size limits")
        }
        Constraint::Regex(_) => {
            ("regex", "a regular expression in the syntax of Rust's crate regex, within the size limits")
        }
        Constraint::Choice(_) => ("choice", "fewer or shorter texts"),
        Constraint::Grammar(_) => ("grammar", "a grammar in the syntax of Lark or of GBNF, within the size limits"),
    };
    Error::invalid(WHAT, format!("{field} that is refused ({})", message(&problem.to_string())), expected)
}

/// Returns the part of the library's message that is useful to the user.
pub(super) fn message(text: &str) -> &str {
    let text = text.split(['\n']).next().unwrap_or(text).trim();
    let end = text.char_indices().map(|(at, _)| at).find(|&at| at >= MAX_MESSAGE);
    &text[..end.unwrap_or(text.len())]
}
