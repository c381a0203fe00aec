//! Converts values to text, as Python's `str` and `repr` do.

use std::fmt::Write;

use crate::template::fault::{Fault, Res};
use crate::template::text::{Builder, Text};
use crate::template::value::{List, Value};

impl Value {
    /// Python's `str`.
    pub(in crate::template) fn to_text(&self) -> Res<Text> {
        if let Self::Str(text) = self {
            return Ok(text.clone());
        }
        let mut out = Builder::new();
        self.write(&mut out)?;
        out.finish()
    }

    pub(in crate::template) fn write(&self, out: &mut Builder) -> Res<()> {
        match self {
            Self::Str(text) => out.push_text(text),
            Self::Undefined(_) => Ok(()),
            other => other.write_repr(out),
        }
    }

    /// Python's `repr`.
    pub(super) fn write_repr(&self, out: &mut Builder) -> Res<()> {
        crate::template::meter::spend(1)?;
        match self {
            Self::Undefined(_) => out.push_made("Undefined"),
            Self::None => out.push_made("None"),
            Self::Bool(value) => out.push_made(if *value { "True" } else { "False" }),
            Self::Int(value) => out.push_made(&value.to_string()),
            Self::BigInt(digits) => out.push_made(digits),
            Self::Float(value) => out.push_made(&float(*value)),
            Self::Str(text) => write_quoted(text, out),
            Self::List(list) => {
                out.push_made("[")?;
                write_items(list, out)?;
                out.push_made("]")
            }
            Self::Tuple(list) => {
                out.push_made("(")?;
                write_items(list, out)?;
                out.push_made(if list.items().len() == 1 { ",)" } else { ")" })
            }
            Self::Dict(dict) => {
                out.push_made("{")?;
                for (index, (key, value)) in dict.entries().iter().enumerate() {
                    out.push_made(if index > 0 { ", " } else { "" })?;
                    key.write_repr(out)?;
                    out.push_made(": ")?;
                    value.write_repr(out)?;
                }
                out.push_made("}")
            }
            Self::Namespace(_) | Self::Loop(_) | Self::Callable(_) => {
                Err(Fault::new(format!("a {} cannot be written as text", self.kind())))
            }
        }
    }
}

fn write_items(list: &List, out: &mut Builder) -> Res<()> {
    for (index, item) in list.items().iter().enumerate() {
        out.push_made(if index > 0 { ", " } else { "" })?;
        item.write_repr(out)?;
    }
    Ok(())
}

fn write_quoted(text: &Text, out: &mut Builder) -> Res<()> {
    let quote = if text.as_str().contains('\'') && !text.as_str().contains('"') { '"' } else { '\'' };
    out.push_made(quote.encode_utf8(&mut [0; 4]))?;
    for (c, origin) in text.chars() {
        let mut escaped = String::new();
        match c {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if c == quote => escaped.extend(['\\', c]),
            c if is_printable(c) => escaped.push(c),
            c => {
                let code = u32::from(c);
                let written = match code {
                    0..=0xff => write!(escaped, "\\x{code:02x}"),
                    0x100..=0xffff => write!(escaped, "\\u{code:04x}"),
                    _ => write!(escaped, "\\U{code:08x}"),
                };
                written.map_err(|e| Fault::new(e.to_string()))?;
            }
        }
        out.push(&escaped, origin)?;
    }
    out.push_made(quote.encode_utf8(&mut [0; 4]))
}

/// True if Python's `repr` shows the character itself: not controls, formats, separators and private characters.
fn is_printable(c: char) -> bool {
    let hidden = matches!(c, '\u{a0}' | '\u{ad}' | '\u{1680}' | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}'
        | '\u{205f}'..='\u{206f}' | '\u{3000}' | '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}' | '\u{feff}'
        | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}' | '\u{e0000}'..='\u{e00ff}' | '\u{f0000}'..='\u{10ffff}');
    !(c.is_control() || hidden)
}

/// Formats a float as Python's `repr`: Rust's digits, with `1e+16` and `1e-05` for `1e16` and `1e-5`.
pub(in crate::template) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}
