//! The `tojson` filter as chat templates mean it: Python's `json.dumps(value, ensure_ascii=False)`, not the HTML
//! variant of template engines.

use crate::template::args::{Args, bool_or, text};
use crate::template::fault::{Fault, Res};
use crate::template::format::show;
use crate::template::text::{Builder, Text};
use crate::template::value::Value;

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, args: Args) -> Res<Value> {
    let [ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match &indent {
        None | Some(Value::None) => None,
        given => Some(super::methods::indent_unit(given.as_ref(), "tojson: indent", 0)?),
    };
    let (item, key) = match &separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
        Some(Value::List(pair) | Value::Tuple(pair)) if pair.items().len() == 2 => {
            let part = |at: usize| text(pair.items().get(at), "tojson: separators");
            (part(0)?.as_str().to_owned(), part(1)?.as_str().to_owned())
        }
        Some(other) => return Err(crate::template::args::wrong("tojson: separators", other, "two strings")),
    };
    let ascii = bool_or(ascii.as_ref(), false);
    let mut writer = Writer {
        out: Builder::new(),
        indent,
        item,
        key,
        ascii,
        sort_keys: bool_or(sort_keys.as_ref(), false),
        depth: 0,
    };
    writer.value(value)?;
    Ok(Value::Str(writer.out.finish()?))
}

struct Writer {
    out: Builder,
    indent: Option<Text>,
    item: String,
    key: String,
    ascii: bool,
    sort_keys: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Res<()> {
        crate::template::meter::spend(1)?;
        match value {
            Value::None => self.out.push_made("null"),
            Value::Bool(value) => self.out.push_made(if *value { "true" } else { "false" }),
            Value::Int(_) | Value::BigInt(_) => value.write(&mut self.out),
            Value::Float(value) => self.out.push_made(&number(*value)),
            Value::Str(text) => self.string(text),
            Value::List(list) | Value::Tuple(list) => self.sequence("[", &list.items(), "]", Self::value),
            Value::Dict(dict) => {
                let mut entries: Vec<(Text, Value)> = Vec::with_capacity(dict.entries().len());
                for (key, value) in dict.entries() {
                    entries.push((key_text(key)?, value.clone()));
                }
                if self.sort_keys {
                    entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
                }
                self.sequence("{", &entries, "}", |writer, (key, value)| {
                    writer.string(key)?;
                    let separator = std::mem::take(&mut writer.key);
                    writer.out.push_made(&separator)?;
                    writer.key = separator;
                    writer.value(value)
                })
            }
            Value::Undefined(name) => Err(Fault::new(format!("tojson: {name} is undefined"))),
            Value::Namespace(_) | Value::Loop(_) | Value::Callable(_) => {
                Err(Fault::new(format!("tojson: a {} cannot be written as JSON", value.kind())))
            }
        }
    }

    fn sequence<T>(
        &mut self,
        open: &str,
        items: &[T],
        close: &str,
        mut write: impl FnMut(&mut Self, &T) -> Res<()>,
    ) -> Res<()> {
        self.out.push_made(open)?;
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                let separator = std::mem::take(&mut self.item);
                self.out.push_made(&separator)?;
                self.item = separator;
            }
            self.new_line()?;
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line()?;
        }
        self.out.push_made(close)
    }

    fn new_line(&mut self) -> Res<()> {
        let Some(unit) = &self.indent else { return Ok(()) };
        self.out.push_made("\n")?;
        (0..self.depth).try_for_each(|_| self.out.push_made(unit.as_str()))
    }

    fn string(&mut self, text: &Text) -> Res<()> {
        self.out.push_made("\"")?;
        for (piece, origin) in text.pieces(0..text.as_str().len()) {
            let mut plain = 0;
            for (at, c) in piece.char_indices() {
                let escaped = match c {
                    '"' => "\\\"".into(),
                    '\\' => "\\\\".into(),
                    '\n' => "\\n".into(),
                    '\r' => "\\r".into(),
                    '\t' => "\\t".into(),
                    '\u{8}' => "\\b".into(),
                    '\u{c}' => "\\f".into(),
                    c if c < ' ' => format!("\\u{:04x}", u32::from(c)),
                    c if self.ascii && !c.is_ascii() => {
                        c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>()
                    }
                    _ => continue,
                };
                self.out.push(&piece[plain..at], origin)?;
                self.out.push(&escaped, origin)?;
                plain = at + c.len_utf8();
            }
            self.out.push(&piece[plain..], origin)?;
        }
        self.out.push_made("\"")
    }
}

fn key_text(key: &Value) -> Res<Text> {
    match key {
        Value::Str(text) => Ok(text.clone()),
        Value::None => Text::new("null", crate::template::text::Origin::Client),
        Value::Bool(value) => Text::new(if *value { "true" } else { "false" }, crate::template::text::Origin::Client),
        Value::Float(value) => Text::new(&number(*value), crate::template::text::Origin::Client),
        Value::Int(_) => key.to_text(),
        other => Err(Fault::new(format!("tojson: a {} cannot be a key", other.kind()))),
    }
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.into()
    } else {
        show::float(value)
    }
}
