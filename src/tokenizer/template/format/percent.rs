//! `'%s' % value`.

use super::floats;
use crate::template::fault::{Fault, Res};
use crate::template::text::{Builder, Origin, Text};
use crate::template::value::Value;

/// One conversion of a `%` format.
#[derive(Default)]
struct Conversion {
    left: bool,
    zeros: bool,
    /// The sign before a number that is not negative: `+`, a space or nothing.
    positive: &'static str,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

/// `arguments`: a tuple of values, a mapping for `%(name)s`, or one value.
pub(in crate::template) fn format(format: &Text, arguments: &Value) -> Res<Value> {
    let single = [arguments.clone()];
    let several;
    let values: &[Value] = if let Value::Tuple(list) = arguments {
        several = list.items();
        &several
    } else {
        &single
    };
    let mut used = 0;
    let mut named = false;
    let mut out = Builder::new();
    let source = format.as_str();
    let mut at = 0;
    while let Some(percent) = source[at..].find('%').map(|found| at + found) {
        out.push_slice(format, at..percent)?;
        let mut rest = &source[percent + 1..];
        let mut value = None;
        if let Some(inside) = rest.strip_prefix('(') {
            let end = inside.find(')').ok_or_else(|| Fault::new("format: incomplete key"))?;
            let Value::Dict(dict) = arguments else { return Err(Fault::new("format: expected a mapping")) };
            let key = &inside[..end];
            value = Some(dict.get_str(key)?.ok_or_else(|| Fault::new(format!("format: no key '{key}'")))?.clone());
            named = true;
            rest = &inside[end + 1..];
        }
        let conversion = Conversion::parse(&mut rest)?;
        at = source.len() - rest.len();
        if conversion.kind == '%' {
            out.push_slice(format, percent..percent + 1)?;
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => {
                used += 1;
                let missing = || Fault::new("format: not enough arguments for the format string");
                values.get(used - 1).cloned().ok_or_else(missing)?
            }
        };
        conversion.write(&value, &mut out)?;
    }
    out.push_slice(format, at..source.len())?;
    let unused = used < values.len() && !named && !matches!(arguments, Value::Dict(_));
    if unused {
        return Err(Fault::new("format: not all arguments are used by the format string"));
    }
    out.finish().map(Value::Str)
}

impl Conversion {
    fn parse(rest: &mut &str) -> Res<Self> {
        let mut conversion = Self::default();
        loop {
            let mut chars = rest.chars();
            match chars.next() {
                Some('-') => conversion.left = true,
                Some('0') => conversion.zeros = true,
                Some('+') => conversion.positive = "+",
                Some(' ') if conversion.positive.is_empty() => conversion.positive = " ",
                Some(' ') => {}
                _ => break,
            }
            *rest = chars.as_str();
        }
        conversion.width = number(rest)?.unwrap_or(0);
        if let Some(precision) = rest.strip_prefix('.') {
            *rest = precision;
            conversion.precision = Some(number(rest)?.unwrap_or(0));
        }
        let mut chars = rest.chars();
        conversion.kind = chars.next().ok_or_else(|| Fault::new("format: incomplete format"))?;
        *rest = chars.as_str();
        Ok(conversion)
    }

    fn write(&self, value: &Value, out: &mut Builder) -> Res<()> {
        let text = match self.kind {
            's' => self.cut(value.to_text()?)?,
            'r' => {
                let mut repr = Builder::new();
                value.write_repr(&mut repr)?;
                self.cut(repr.finish()?)?
            }
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => Text::new(&self.integer(value)?, Origin::Client)?,
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => Text::new(&self.float(value)?, Origin::Client)?,
            'c' => match value {
                Value::Str(text) if text.as_str().chars().count() == 1 => text.clone(),
                Value::Int(code) => {
                    let c = u32::try_from(*code).ok().and_then(char::from_u32);
                    let c = c.ok_or_else(|| Fault::new(format!("format: %c got {code}, which is not a character")))?;
                    Text::new(c.encode_utf8(&mut [0; 4]), Origin::Client)?
                }
                _ => return Err(Fault::new("format: %c needs one character")),
            },
            other => return Err(Fault::new(format!("format: unsupported conversion '{other}'"))),
        };
        let missing = self.width.saturating_sub(text.as_str().chars().count());
        let number = !matches!(self.kind, 's' | 'r' | 'c');
        if self.left {
            out.push_text(&text)?;
            return out.push_repeated(&Text::new(" ", Origin::Client)?, missing);
        }
        if self.zeros && number {
            let sign = usize::from(text.as_str().starts_with(['-', '+', ' ']));
            out.push_slice(&text, 0..sign)?;
            out.push_repeated(&Text::new("0", Origin::Client)?, missing)?;
            return out.push_slice(&text, sign..text.as_str().len());
        }
        out.push_repeated(&Text::new(" ", Origin::Client)?, missing)?;
        out.push_text(&text)
    }

    fn cut(&self, text: Text) -> Res<Text> {
        let Some(precision) = self.precision else { return Ok(text) };
        let end = text.as_str().char_indices().nth(precision).map_or(text.as_str().len(), |(at, _)| at);
        text.slice(0..end)
    }

    fn integer(&self, value: &Value) -> Res<String> {
        let number = match value {
            Value::Float(value) if value.is_finite() && matches!(self.kind, 'd' | 'i' | 'u') => *value as i128,
            value => value
                .as_int()
                .ok_or_else(|| Fault::new(format!("format: %{} needs a number, got a {}", self.kind, value.kind())))?,
        };
        let digits = match self.kind {
            'x' => format!("{:x}", number.unsigned_abs()),
            'X' => format!("{:X}", number.unsigned_abs()),
            'o' => format!("{:o}", number.unsigned_abs()),
            _ => number.unsigned_abs().to_string(),
        };
        Ok(self.signed(number < 0, &digits))
    }

    fn float(&self, value: &Value) -> Res<String> {
        let number = value
            .as_float()
            .ok_or_else(|| Fault::new(format!("format: %{} needs a number, got a {}", self.kind, value.kind())))?;
        let digits = floats::written(number.abs(), self.kind, self.precision.unwrap_or(6), false);
        Ok(self.signed(number.is_sign_negative(), &digits))
    }

    fn signed(&self, negative: bool, digits: &str) -> String {
        format!("{}{digits}", if negative { "-" } else { self.positive })
    }
}

fn number(rest: &mut &str) -> Res<Option<usize>> {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let digits = &rest[..end];
    *rest = &rest[end..];
    if digits.is_empty() {
        return Ok(None);
    }
    digits.parse().map(Some).map_err(|_| Fault::new(format!("format: {digits} is too wide")))
}
