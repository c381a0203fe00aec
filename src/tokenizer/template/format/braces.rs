//! `'{}'.format(value)`: fields, their attributes and items, conversions and format specifications.

use super::floats;
use crate::template::access;
use crate::template::args::Args;
use crate::template::fault::{Fault, Res};
use crate::template::text::{Builder, Origin, Text};
use crate::template::value::Value;

pub(in crate::template) fn format(format: &Text, arguments: &Args) -> Res<Value> {
    let source = format.as_str();
    let mut out = Builder::new();
    let mut at = 0;
    let mut next = 0;
    while let Some(brace) = source[at..].find(['{', '}']).map(|found| at + found) {
        out.push_slice(format, at..brace)?;
        let rest = &source[brace..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push_slice(format, brace..brace + 1)?;
            at = brace + 2;
            continue;
        }
        let field = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(field, _)| field);
        let field = field.ok_or_else(|| Fault::new("format: single brace in the format string"))?;
        if field.contains('{') {
            return Err(Fault::new(format!("format: '{{{field}' has a field within a field, which is not supported")));
        }
        write(field, arguments, &mut next, &mut out)?;
        at = brace + field.len() + 2;
    }
    out.push_slice(format, at..source.len())?;
    out.finish().map(Value::Str)
}

/// Writes one field, `name!conversion:specification`. `next` counts the unnamed fields.
fn write(field: &str, arguments: &Args, next: &mut usize, out: &mut Builder) -> Res<()> {
    let (name, specification) = field.split_once(':').unwrap_or((field, ""));
    let (name, conversion) = name.split_once('!').map_or((name, None), |(name, kind)| (name, Some(kind)));
    let value = looked_up(name, arguments, next)?;
    let value = match conversion {
        None => value,
        Some("s") => Value::Str(value.to_text()?),
        Some("r") => {
            let mut repr = Builder::new();
            value.write_repr(&mut repr)?;
            Value::Str(repr.finish()?)
        }
        Some(other) => return Err(Fault::new(format!("format: unknown conversion '!{other}', expected !s or !r"))),
    };
    if specification.is_empty() {
        return value.write(out);
    }
    Specification::parse(specification)?.write(&value, out)
}

/// Returns the value that `a`, `0`, `a.b` or `a[b]` refers to.
fn looked_up(name: &str, arguments: &Args, next: &mut usize) -> Res<Value> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut rest) = name.split_at(end);
    let found = if first.is_empty() {
        *next += 1;
        arguments.positional.get(*next - 1)
    } else if let Ok(place) = first.parse::<usize>() {
        arguments.positional.get(place)
    } else {
        arguments.named.iter().find(|(name, _)| **name == *first).map(|(_, value)| value)
    };
    let mut value = found.cloned().ok_or_else(|| Fault::new(format!("format: no argument for '{{{first}}}'")))?;
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let bad = || Fault::new(format!("format: '[' is not closed in '{{{name}}}'"));
            let (key, after) = inside.split_once(']').ok_or_else(bad)?;
            let place = key.parse().map(Value::Int);
            value = access::item(&value, &place.map_or_else(|_| Value::made(key), Ok)?)?;
            rest = after;
        } else {
            let plain = rest.strip_prefix('.').unwrap_or(rest);
            let end = plain.find(['.', '[']).unwrap_or(plain.len());
            value = access::attribute(&value, &plain[..end])?;
            rest = &plain[end..];
        }
    }
    Ok(value)
}

/// Python's format specification: `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
struct Specification {
    fill: char,
    align: Option<char>,
    /// The sign before a number that is not negative: `+`, a space or nothing.
    positive: &'static str,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Specification {
    fn parse(source: &str) -> Res<Self> {
        let is_align = |c: &char| matches!(c, '<' | '>' | '=' | '^');
        let mut chars: Vec<char> = source.chars().collect();
        let mut fill = None;
        let mut align = None;
        if chars.get(1).is_some_and(is_align) {
            (fill, align) = (Some(chars[0]), Some(chars[1]));
            chars.drain(..2);
        } else if chars.first().is_some_and(is_align) {
            align = Some(chars.remove(0));
        }
        let mut rest = chars.into_iter().peekable();
        let positive = match rest.next_if(|c| matches!(c, '+' | '-' | ' ')) {
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        };
        let alternate = rest.next_if_eq(&'#').is_some();
        if rest.next_if_eq(&'0').is_some() && align.is_none() {
            (fill, align) = (fill.or(Some('0')), Some('='));
        }
        let width = number(&mut rest, source)?.unwrap_or(0);
        let grouping = rest.next_if(|c| matches!(c, ',' | '_'));
        let precision = match rest.next_if_eq(&'.') {
            Some(_) => Some(number(&mut rest, source)?.ok_or_else(|| bad(source))?),
            None => None,
        };
        let kind = rest.next();
        if rest.next().is_some() {
            return Err(bad(source));
        }
        Ok(Self { fill: fill.unwrap_or(' '), align, positive, alternate, width, grouping, precision, kind })
    }

    fn write(&self, value: &Value, out: &mut Builder) -> Res<()> {
        match value {
            Value::Str(text) => self.write_text(text, out),
            Value::Int(_) | Value::Bool(_) | Value::Float(_) => self.write_number(value, out),
            other => Err(Fault::new(format!("format: a {} takes no format specification", other.kind()))),
        }
    }

    fn write_text(&self, text: &Text, out: &mut Builder) -> Res<()> {
        if !matches!(self.kind, None | Some('s')) || self.align == Some('=') || self.grouping.is_some() {
            return Err(Fault::new("format: a format specification of numbers is given a str"));
        }
        let s = text.as_str();
        let limit = self.precision.unwrap_or(usize::MAX);
        let end = s.char_indices().nth(limit).map_or(s.len(), |(at, _)| at);
        self.pad("", &text.slice(0..end)?, '<', out)
    }

    fn write_number(&self, value: &Value, out: &mut Builder) -> Res<()> {
        let digits = match (self.kind, value) {
            (None, Value::Float(number)) if self.precision.is_none() => {
                Value::Float(number.abs()).to_text()?.as_str().to_owned()
            }
            (None, Value::Float(number)) => floats::plain(number.abs(), self.precision.unwrap_or(6)),
            (Some('e' | 'E' | 'f' | 'F' | 'g' | 'G'), _) => {
                let kind = self.kind.unwrap_or('f');
                floats::written(float(value)?.abs(), kind, self.precision.unwrap_or(6), self.alternate)
            }
            (Some('%'), _) => {
                floats::written(float(value)?.abs() * 100.0, 'f', self.precision.unwrap_or(6), false) + "%"
            }
            _ if self.precision.is_some() => return Err(Fault::new("format: an int takes no precision")),
            _ => self.integer(value)?,
        };
        let negative = match value {
            Value::Float(number) => number.is_sign_negative() && !number.is_nan(),
            value => value.as_int().is_some_and(|number| number < 0),
        };
        let prefix = match self.kind {
            Some(kind @ ('b' | 'o' | 'x' | 'X')) if self.alternate => format!("0{kind}"),
            _ => String::new(),
        };
        let sign = format!("{}{prefix}", if negative { "-" } else { self.positive });
        self.pad(&sign, &Text::new(&self.grouped(&digits), Origin::Client)?, '>', out)
    }

    fn integer(&self, value: &Value) -> Res<String> {
        let wrong = || Fault::new(format!("format: got a {}, expected an int for this type", value.kind()));
        let number = value.as_int().ok_or_else(wrong)?.unsigned_abs();
        Ok(match self.kind {
            None | Some('d' | 'n') => number.to_string(),
            Some('b') => format!("{number:b}"),
            Some('o') => format!("{number:o}"),
            Some('x') => format!("{number:x}"),
            Some('X') => format!("{number:X}"),
            Some('c') => {
                let c = u32::try_from(number).ok().and_then(char::from_u32);
                c.ok_or_else(|| Fault::new(format!("format: {number} is not a character")))?.to_string()
            }
            Some(kind) => return Err(Fault::new(format!("format: unknown type '{kind}'"))),
        })
    }

    /// Returns the digits with a mark between each three (in bases other than ten: four) before the decimal point.
    fn grouped(&self, digits: &str) -> String {
        let Some(mark) = self.grouping else { return digits.to_owned() };
        let size = if matches!(self.kind, Some('b' | 'o' | 'x' | 'X')) { 4 } else { 3 };
        let end = digits.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(digits.len());
        let mut out = String::new();
        for (at, c) in digits[..end].chars().enumerate() {
            if at > 0 && (end - at) % size == 0 {
                out.push(mark);
            }
            out.push(c);
        }
        out + &digits[end..]
    }

    /// Writes a sign and a body, padded to the width.
    fn pad(&self, sign: &str, body: &Text, align: char, out: &mut Builder) -> Res<()> {
        let missing = self.width.saturating_sub(sign.len() + body.as_str().chars().count());
        let align = self.align.unwrap_or(align);
        let before = match align {
            '<' | '=' => 0,
            '^' => missing / 2,
            _ => missing,
        };
        let inside = if align == '=' { missing } else { 0 };
        let fill = Text::new(self.fill.encode_utf8(&mut [0; 4]), Origin::Client)?;
        out.push_repeated(&fill, before)?;
        out.push_made(sign)?;
        out.push_repeated(&fill, inside)?;
        out.push_text(body)?;
        out.push_repeated(&fill, missing - before - inside)
    }
}

fn float(value: &Value) -> Res<f64> {
    let wrong = || Fault::new(format!("format: got a {}, expected a number", value.kind()));
    value.as_float().ok_or_else(wrong)
}

fn number(rest: &mut std::iter::Peekable<std::vec::IntoIter<char>>, source: &str) -> Res<Option<usize>> {
    let mut digits = String::new();
    while let Some(digit) = rest.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    if digits.is_empty() { Ok(None) } else { digits.parse().map(Some).map_err(|_| bad(source)) }
}

fn bad(source: &str) -> Fault {
    Fault::new(format!("format: '{source}' is not a format specification"))
}
