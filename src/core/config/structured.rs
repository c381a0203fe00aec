//! Settings of structured output; names as in vLLM.

use std::fmt::Display;

use crate::{Error, Result};

/// Maximum bytes of a schema, a regex or a grammar, and of all choices together.
const MAX_BYTES: usize = 256 << 10;
/// The most choices of one request.
const MAX_CHOICES: usize = 4096;
/// The argument that errors name.
const WHAT: &str = "structured_outputs";

/// The structured output that a sequence must match, and the spacing of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StructuredOutputs {
    pub constraint: Constraint,
    /// True if JSON is written without white space between its parts.
    pub disable_any_whitespace: bool,
    /// A regular expression for the white space between the parts of JSON; any by default.
    pub whitespace_pattern: Option<String>,
    /// The token after which the structured output begins; by default it begins with the text.
    pub begin: Option<BeginToken>,
}

/// A token after which structured output begins. Before it, all tokens are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BeginToken {
    pub id: u32,
    /// True if the text may end without it; otherwise no end token may precede it.
    pub optional: bool,
}

/// The kinds of structured output.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Constraint {
    /// A JSON value that matches a schema, given as JSON text.
    Json(String),
    /// Any JSON object.
    JsonObject,
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that matches a grammar in Lark or GBNF syntax.
    Grammar(String),
}

/// The fields as users write them. Exactly one of the first five must be given.
#[derive(Debug, Clone, Default)]
pub struct StructuredFields {
    pub json: Option<String>,
    pub regex: Option<String>,
    pub choice: Option<Vec<String>>,
    pub grammar: Option<String>,
    pub json_object: bool,
    pub disable_any_whitespace: bool,
    pub whitespace_pattern: Option<String>,
    pub begin_token_id: Option<u32>,
    pub optional: bool,
}

impl StructuredOutputs {
    /// Takes the one constraint that is given, and checks everything that does not depend on the vocabulary.
    ///
    /// # Errors
    /// `InvalidRequest` naming the fields if none or several constraints are given, or if one is empty or too long.
    /// Also for a schema that is not JSON, and for JSON settings with another constraint.
    pub fn new(fields: StructuredFields) -> Result<Self> {
        let StructuredFields { json, regex, choice, grammar, json_object, .. } = fields;
        let constraints = [
            ("json", json.map(Constraint::Json)),
            ("regex", regex.map(Constraint::Regex)),
            ("choice", choice.map(Constraint::Choice)),
            ("grammar", grammar.map(Constraint::Grammar)),
            ("json_object", json_object.then_some(Constraint::JsonObject)),
        ];
        let names = constraints.each_ref().map(|(name, _)| *name).join(", ");
        let mut given: Vec<(&str, Constraint)> =
            constraints.into_iter().filter_map(|(name, constraint)| Some((name, constraint?))).collect();
        let (Some((_, constraint)), true) = (given.pop(), given.is_empty()) else {
            let got = if given.is_empty() { "none" } else { "several" };
            return Err(invalid(got, format_args!("exactly one of {names}")));
        };
        let all = Self {
            constraint,
            disable_any_whitespace: fields.disable_any_whitespace,
            whitespace_pattern: fields.whitespace_pattern,
            begin: fields.begin_token_id.map(|id| BeginToken { id, optional: fields.optional }),
        };
        if fields.optional && all.begin.is_none() {
            return Err(invalid("optional without begin_token_id", "them together"));
        }
        all.validate()?;
        Ok(all)
    }

    /// Returns the bytes of the constraint as it was given.
    pub fn num_bytes(&self) -> usize {
        let constraint = match &self.constraint {
            Constraint::Json(text) | Constraint::Regex(text) | Constraint::Grammar(text) => text.len(),
            Constraint::Choice(choices) => choices.iter().map(String::len).sum(),
            Constraint::JsonObject => 0,
        };
        constraint + self.whitespace_pattern.as_ref().map_or(0, String::len)
    }

    fn validate(&self) -> Result<()> {
        match &self.constraint {
            Constraint::Json(schema) => {
                check_bytes("json", schema.len())?;
                check_schema(schema)?;
            }
            Constraint::JsonObject => {}
            Constraint::Regex(regex) => check_bytes("regex", regex.len())?,
            Constraint::Grammar(grammar) => check_bytes("grammar", grammar.len())?,
            Constraint::Choice(choices) => {
                if choices.is_empty() || choices.len() > MAX_CHOICES {
                    let got = format!("{} texts as choice", choices.len());
                    return Err(invalid(got, format_args!("1 to {MAX_CHOICES}")));
                }
                if choices.iter().any(String::is_empty) {
                    return Err(invalid("an empty text as choice", "texts of at least one byte"));
                }
                check_bytes("choice", choices.iter().map(String::len).sum())?;
            }
        }
        if let Some(pattern) = &self.whitespace_pattern {
            check_bytes("whitespace_pattern", pattern.len())?;
        }
        let spaces_json = self.disable_any_whitespace || self.whitespace_pattern.is_some();
        if spaces_json && !matches!(self.constraint, Constraint::Json(_) | Constraint::JsonObject) {
            let got = "disable_any_whitespace or whitespace_pattern without JSON";
            return Err(invalid(got, "them only with json or json_object"));
        }
        if self.disable_any_whitespace && self.whitespace_pattern.is_some() {
            return Err(invalid("disable_any_whitespace and whitespace_pattern", "one of them"));
        }
        Ok(())
    }
}

fn check_bytes(field: &str, len: usize) -> Result<()> {
    if (1..=MAX_BYTES).contains(&len) {
        return Ok(());
    }
    Err(invalid(format_args!("{field} of {len} bytes"), format_args!("1 to {MAX_BYTES} bytes")))
}

fn check_schema(text: &str) -> Result<()> {
    let expected = "a JSON schema: an object, true or false";
    let schema: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| invalid(format_args!("json that is no JSON ({error})"), expected))?;
    if schema.is_object() || schema.is_boolean() {
        return Ok(());
    }
    Err(invalid("json that is neither an object nor a boolean", expected))
}

fn invalid(got: impl Display, expected: impl Display) -> Error {
    Error::invalid(WHAT, got, expected)
}
