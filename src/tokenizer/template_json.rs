//! The `tojson` filter as chat templates mean it: Python's `json.dumps(value, ensure_ascii=False)`, not the variant
//! for HTML that template engines have.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

/// Wider than any template writes; keeps `indent` from being a way to ask for memory.
const MAX_INDENT: usize = 64;

/// `value|tojson(indent=None, separators=None, ensure_ascii=False)`.
pub(super) fn tojson(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let fail = |problem: String| Error::new(ErrorKind::InvalidOperation, format!("tojson: {problem}"));
    let indent = indent.or(kwargs.get("indent")?);
    if let Some(indent) = indent.filter(|&indent| indent > MAX_INDENT) {
        return Err(fail(format!("indent is {indent}, expected at most {MAX_INDENT}")));
    }
    if kwargs.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(fail("ensure_ascii=True is not supported".into()));
    }
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(other) => return Err(fail(format!("{} separators, expected 2", other.len()))),
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let mut out = Vec::new();
    let formatter = PythonFormatter { item, key, indent, depth: 0, empty: true };
    value.serialize(&mut Serializer::with_formatter(&mut out, formatter)).map_err(|e| fail(e.to_string()))?;
    String::from_utf8(out).map_err(|e| fail(e.to_string()))
}

struct PythonFormatter {
    item: String,
    key: String,
    indent: Option<usize>,
    depth: usize,
    /// Nothing has been written into the innermost list or object yet.
    empty: bool,
}

impl PythonFormatter {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.new_line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.empty = false;
        self.new_line(writer)
    }

    fn new_line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        write!(writer, "\n{:1$}", "", indent * self.depth)
    }
}

impl Formatter for PythonFormatter {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }
    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    /// As Python's `repr`: the same digits as Rust's, but `1e+16` and `1e-05` for `1e16` and `1e-5`.
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let text = format!("{value:?}");
        match text.split_once('e') {
            None => writer.write_all(text.as_bytes()),
            Some((digits, exponent)) => {
                let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
                write!(writer, "{digits}e{sign}{exponent:0>2}")
            }
        }
    }

    /// Python leaves U+007F alone and so does serde; only the short forms and `\u00XX` below U+0020 are needed.
    fn write_char_escape<W: ?Sized + io::Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            CharEscape::Quote => writer.write_all(b"\\\""),
            CharEscape::ReverseSolidus => writer.write_all(b"\\\\"),
            CharEscape::Solidus => writer.write_all(b"/"),
            CharEscape::Backspace => writer.write_all(b"\\b"),
            CharEscape::FormFeed => writer.write_all(b"\\f"),
            CharEscape::LineFeed => writer.write_all(b"\\n"),
            CharEscape::CarriageReturn => writer.write_all(b"\\r"),
            CharEscape::Tab => writer.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(writer, "\\u{byte:04x}"),
        }
    }
}
