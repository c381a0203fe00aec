//! JSON texts of clients, which may be hostile: bounds are checked before anything is built.
//!
//! - `read` walks over a text and hands its values to a `Sink`.
//! - `check` does so with a sink that only counts. So it allocates nothing, and stops at the first excess.
//! - `text` decodes the escapes of strings.
//!
//! The caller builds its values with a second walk, whose sink may pause between two values.

mod check;
mod text;

#[cfg(test)]
mod tests;

pub use check::{Limits, check};
pub use text::{LoneSurrogates, Text};

use crate::Error;

/// Most levels of lists and objects.
pub const MAX_DEPTH: usize = 256;
/// Most digits of an integer, as Python has it: the time of its conversion grows with their square.
pub const MAX_DIGITS: usize = 4300;
/// Bytes of a string that are compared at once.
const BLOCK: usize = 32;

/// A value that has no parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar<'a> {
    Null,
    Bool(bool),
    /// The digits of an integer, with its sign.
    Integer(&'a str),
    Real(f64),
    Text(Text<'a>),
}

/// Takes the values of a text, and builds something of them.
pub trait Sink {
    type Value;
    type Error: From<Error>;

    fn scalar(&mut self, scalar: Scalar<'_>) -> Result<Self::Value, Self::Error>;
    fn list(&mut self) -> Result<Self::Value, Self::Error>;
    fn push(&mut self, list: &Self::Value, item: Self::Value) -> Result<(), Self::Error>;
    fn object(&mut self) -> Result<Self::Value, Self::Error>;
    fn insert(&mut self, object: &Self::Value, name: Text<'_>, item: Self::Value) -> Result<(), Self::Error>;
}

/// Reads a text that is one value. As Python does, it takes `NaN`, `Infinity` and half a surrogate pair.
///
/// # Errors
/// `Error::InvalidRequest` with the place, for a text that is not JSON or is too deep; and the errors of the sink.
pub fn read<S: Sink>(text: &str, sink: &mut S) -> Result<S::Value, S::Error> {
    let mut reader = Reader { text, at: 0, sink };
    let value = reader.value(0)?;
    reader.skip_space();
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.fault("the end of the body").into()),
    }
}

struct Reader<'a, 's, S> {
    text: &'a str,
    at: usize,
    sink: &'s mut S,
}

impl<'a, S: Sink> Reader<'a, '_, S> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes a mark if it comes next.
    fn takes(&mut self, mark: u8) -> bool {
        let is_next = self.peek() == Some(mark);
        self.at += usize::from(is_next);
        is_next
    }

    fn fault(&self, expected: &str) -> Error {
        let rest = self.text.get(self.at..).unwrap_or_default();
        fault(self.text.as_bytes(), self.at, rest.chars().next(), expected)
    }

    fn value(&mut self, depth: usize) -> Result<S::Value, S::Error> {
        self.skip_space();
        match self.peek() {
            Some(b'{' | b'[') if depth == MAX_DEPTH => {
                Err(self.fault(&format!("at most {MAX_DEPTH} levels of objects and lists")).into())
            }
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'"') => {
                let text = self.string()?;
                self.sink.scalar(Scalar::Text(text))
            }
            Some(b'-' | b'0'..=b'9') => {
                let number = self.number()?;
                self.sink.scalar(number)
            }
            Some(b'n') => self.word("null", Scalar::Null),
            Some(b't') => self.word("true", Scalar::Bool(true)),
            Some(b'f') => self.word("false", Scalar::Bool(false)),
            Some(b'N') => self.word("NaN", Scalar::Real(f64::NAN)),
            Some(b'I') => self.word("Infinity", Scalar::Real(f64::INFINITY)),
            _ => Err(self.fault("a value").into()),
        }
    }

    fn list(&mut self, depth: usize) -> Result<S::Value, S::Error> {
        self.at += 1;
        let list = self.sink.list()?;
        self.skip_space();
        if self.takes(b']') {
            return Ok(list);
        }
        loop {
            let item = self.value(depth)?;
            self.sink.push(&list, item)?;
            self.skip_space();
            if self.takes(b']') {
                return Ok(list);
            }
            if !self.takes(b',') {
                return Err(self.fault("`,` or `]`").into());
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<S::Value, S::Error> {
        self.at += 1;
        let object = self.sink.object()?;
        self.skip_space();
        if self.takes(b'}') {
            return Ok(object);
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.fault("a name in quotes").into());
            }
            let name = self.string()?;
            self.skip_space();
            if !self.takes(b':') {
                return Err(self.fault("`:`").into());
            }
            let item = self.value(depth)?;
            self.sink.insert(&object, name, item)?;
            self.skip_space();
            if self.takes(b'}') {
                return Ok(object);
            }
            if !self.takes(b',') {
                return Err(self.fault("`,` or `}`").into());
            }
        }
    }

    fn word(&mut self, word: &str, scalar: Scalar<'static>) -> Result<S::Value, S::Error> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.fault("a value").into());
        }
        self.at += word.len();
        self.sink.scalar(scalar)
    }

    fn digits(&mut self) -> crate::Result<()> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.fault("a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> crate::Result<Scalar<'a>> {
        let from = self.at;
        if self.takes(b'-') && self.text[self.at..].starts_with("Infinity") {
            self.at += "Infinity".len();
            return Ok(Scalar::Real(f64::NEG_INFINITY));
        }
        // A further digit after a leading zero is found as what may not follow a value.
        if !self.takes(b'0') {
            self.digits()?;
        }
        let whole = self.at;
        if self.takes(b'.') {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let number = &self.text[from..self.at];
        if self.at > whole {
            return number.parse().map(Scalar::Real).map_err(Error::internal);
        }
        if number.len() > MAX_DIGITS {
            self.at = from;
            return Err(self.fault(&format!("an integer of at most {MAX_DIGITS} digits")));
        }
        Ok(Scalar::Integer(number))
    }

    /// Reads from a quote to the next one.
    fn string(&mut self) -> crate::Result<Text<'a>> {
        self.at += 1;
        let from = self.at;
        let bytes = self.text.as_bytes();
        let mut escapes = 0;
        loop {
            while bytes[self.at..].first_chunk::<BLOCK>().is_some_and(|block| !has_end(block)) {
                self.at += BLOCK;
            }
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escapes += 1;
                    self.escape()?;
                }
                Some(byte) if byte >= b' ' => self.at += 1,
                _ => return Err(self.fault("the rest of a string")),
            }
        }
        let raw = &self.text[from..self.at];
        self.at += 1;
        Ok(Text::new(raw, escapes))
    }

    fn escape(&mut self) -> crate::Result<()> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.fault("four hexadecimal digits after `\\u`"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.fault("one of `\"\\/bfnrtu` after a backslash")),
        }
        Ok(())
    }
}

/// True if a byte is not part of a string as it is. Without an early return, compilers compare many bytes at once.
fn has_end(block: &[u8; BLOCK]) -> bool {
    block.iter().fold(false, |found, byte| found | (*byte == b'"') | (*byte == b'\\') | (*byte < b' '))
}

/// The error of a place in a text.
fn fault(text: &[u8], at: usize, got: Option<char>, expected: &str) -> Error {
    let before = &text[..at.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    let got = got.map_or_else(|| "its end".to_owned(), |letter| format!("{letter:?}"));
    Error::invalid("body", format!("{got} at line {line} column {column}"), format!("{expected}: send JSON"))
}
