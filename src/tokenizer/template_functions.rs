//! What chat templates call beyond Jinja itself, and guards on the built-ins that a hostile file could ask for
//! terabytes with.

use std::fmt::{self, Write};

use minijinja::value::{Kwargs, StringInput, Value};
use minijinja::{Environment, Error, ErrorKind, State};

use super::template_json::tojson;

/// Widest indentation and padding that a template gets.
const MAX_WIDTH: usize = 1000;

pub(super) fn install(env: &mut Environment) {
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson);
    env.add_filter("indent", indent);
    // Their results grow with the value of an argument or with the square of the input, and no chat template uses them.
    for name in ["format", "batch", "slice", "pprint"] {
        env.remove_filter(name);
    }
    env.set_unknown_method_callback(method);
}

/// The message that a template gives `raise_exception`.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    // `to_string` would panic on a directive that chrono does not know.
    write!(text, "{}", chrono::Local::now().format(format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: bad format {format:?}")))?;
    Ok(text)
}

fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let asked = width.or(if kwargs.has("width") { kwargs.peek("width")? } else { None });
    if let Some(width) = asked.filter(|&width| width > MAX_WIDTH) {
        let problem = format!("indent: width is {width}, expected at most {MAX_WIDTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    minijinja::filters::indent(value, width, first, blank, kwargs)
}

/// Python's methods of strings, lists and dicts.
fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "format" {
        return Err(Error::new(ErrorKind::UnknownMethod, "str.format is not supported in chat templates"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}
