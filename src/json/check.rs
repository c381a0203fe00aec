//! Counts what a text has, before anything of it is built.

use super::{Scalar, Sink, Text, fault, read};
use crate::{Error, Result};

/// Most values of each kind.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Items of lists and fields of objects.
    pub values: usize,
    pub fields: usize,
    /// Objects and lists.
    pub containers: usize,
    pub escapes: usize,
}

/// Returns a text, without its byte order mark, once it is known to be JSON within the limits.
///
/// # Errors
/// `Error::InvalidRequest` that names the place or the limit.
pub fn check(mut content: Vec<u8>, limits: Limits) -> Result<String> {
    if content.starts_with(b"\xef\xbb\xbf") {
        content.drain(..3);
    }
    let text = String::from_utf8(content).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        fault(error.as_bytes(), at, Some(char::REPLACEMENT_CHARACTER), "UTF-8")
    })?;
    read(&text, &mut Counter { limits, found: Limits { values: 0, fields: 0, containers: 0, escapes: 0 } })?;
    Ok(text)
}

struct Counter {
    limits: Limits,
    found: Limits,
}

fn count(name: &str, found: &mut usize, more: usize, most: usize) -> Result<()> {
    *found += more;
    if *found <= most {
        return Ok(());
    }
    Err(Error::invalid("body", format!("more {name}"), format!("at most {most}; send less at once")))
}

impl Counter {
    fn text(&mut self, text: Text<'_>) -> Result<()> {
        count("escapes in texts", &mut self.found.escapes, text.escapes(), self.limits.escapes)
    }

    fn value(&mut self) -> Result<()> {
        count("values", &mut self.found.values, 1, self.limits.values)
    }
}

impl Sink for Counter {
    type Value = ();
    type Error = Error;

    fn scalar(&mut self, scalar: Scalar<'_>) -> Result<()> {
        match scalar {
            Scalar::Text(text) => self.text(text),
            _ => Ok(()),
        }
    }

    fn list(&mut self) -> Result<()> {
        count("objects and lists", &mut self.found.containers, 1, self.limits.containers)
    }

    fn push(&mut self, (): &(), (): ()) -> Result<()> {
        self.value()
    }

    fn object(&mut self) -> Result<()> {
        self.list()
    }

    fn insert(&mut self, (): &(), name: Text<'_>, (): ()) -> Result<()> {
        self.text(name)?;
        count("fields of objects", &mut self.found.fields, 1, self.limits.fields)?;
        self.value()
    }
}
