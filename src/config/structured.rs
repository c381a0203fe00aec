//! Settings of the form that a generated text is to have; names as in vLLM.

use std::fmt::Display;

use crate::{Error, Result};

/// Bytes of a schema, a regex or a grammar, and of all choices together, at most.
const MAX_BYTES: usize = 256 << 10;
/// The number of choices of one request at most.
const MAX_CHOICES: usize = 4096;
/// The argument that errors name.
const WHAT: &str = "structured_outputs";

/// The form that the text of a sequence is to have, and how JSON is spaced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StructuredOutputs {
    pub form: Form,
    /// JSON is written without white space between its parts.
    pub disable_any_whitespace: bool,
    /// Regular expression of the white space that may stand between the parts of JSON; by default any.
    pub whitespace_pattern: Option<String>,
    /// The form begins behind this token; by default with the text.
    pub begin: Option<BeginToken>,
}

/// A token behind which a form begins. All tokens may come before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BeginToken {
    pub id: u32,
    /// The text may end without it; else no end token comes before it.
    pub optional: bool,
}

/// The kinds of form that a text may be given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Form {
    /// A JSON value that a schema allows; the schema is JSON text.
    Json(String),
    /// Any JSON object.
    JsonObject,
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of the language that a grammar in the syntax of Lark or of GBNF describes.
    Grammar(String),
}

/// The fields as users write them: exactly one of the first five is to be given.
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
    /// Takes the one form that is given, and checks what can be checked without a vocabulary.
    ///
    /// # Errors
    /// `InvalidRequest` naming the fields when none or several forms are given, when one is empty or too long, when a
    /// schema is no JSON, and when settings of JSON are given for another form.
    pub fn new(fields: StructuredFields) -> Result<Self> {
        let StructuredFields { json, regex, choice, grammar, json_object, .. } = fields;
        let forms = [
            ("json", json.map(Form::Json)),
            ("regex", regex.map(Form::Regex)),
            ("choice", choice.map(Form::Choice)),
            ("grammar", grammar.map(Form::Grammar)),
            ("json_object", json_object.then_some(Form::JsonObject)),
        ];
        let names = forms.each_ref().map(|(name, _)| *name).join(", ");
        let mut given: Vec<(&str, Form)> = forms.into_iter().filter_map(|(name, form)| Some((name, form?))).collect();
        let (Some((_, form)), true) = (given.pop(), given.is_empty()) else {
            let got = if given.is_empty() { "none" } else { "several" };
            return Err(invalid(got, format_args!("exactly one of {names}")));
        };
        let all = Self {
            form,
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

    fn validate(&self) -> Result<()> {
        match &self.form {
            Form::Json(schema) => {
                check_bytes("json", schema.len())?;
                check_schema(schema)?;
            }
            Form::JsonObject => {}
            Form::Regex(regex) => check_bytes("regex", regex.len())?,
            Form::Grammar(grammar) => check_bytes("grammar", grammar.len())?,
            Form::Choice(choices) => {
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
        if spaces_json && !matches!(self.form, Form::Json(_) | Form::JsonObject) {
            let got = "disable_any_whitespace or whitespace_pattern without JSON";
            return Err(invalid(got, "them beside json or json_object only"));
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
    Err(invalid("json that is neither an object nor a truth value", expected))
}

fn invalid(got: impl Display, expected: impl Display) -> Error {
    Error::invalid(WHAT, got, expected)
}
