//! Filters of strings. A value of another type is converted to a string first, as in Jinja.

use super::super::methods;
use crate::template::args::{Args, bool_or, count_or, int_or, optional_text, required, text as text_argument, wrong};
use crate::template::fault::{Fault, Res};
use crate::template::format::{casing, percent};
use crate::template::syntax::lexer::is_space;
use crate::template::text::{Builder, Origin, Text};
use crate::template::value::Value;

/// Applies one of `filter_names::STRINGS`.
pub(super) fn apply(name: &str, value: &Value, args: Args) -> Res<Value> {
    if name == "indent" && !matches!(value, Value::Str(_)) {
        return Err(wrong(name, value, "a string"));
    }
    let text = &value.to_text()?;
    crate::template::meter::work(text.as_str().len())?;
    match name {
        "lower" => args.none(name).and_then(|()| casing::lower(text)),
        "upper" => args.none(name).and_then(|()| casing::upper(text)),
        "capitalize" => args.none(name).and_then(|()| casing::capitalize(text)),
        "title" => args
            .none(name)
            .and_then(|()| casing::title_words(text, |c| !(is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<')))),
        "trim" => {
            let [chars] = args.bind(name, ["chars"])?;
            methods::strip(text, optional_text(chars.as_ref(), name)?.as_ref(), true, true)
        }
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            methods::padded(text, count_or(width.as_ref(), name, 80)?, &Text::new(" ", Origin::Client)?, name)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required(old, name)?.to_text()?, required(new, name)?.to_text()?);
            methods::replace(text, &old, &new, int_or(count.as_ref(), name, -1)?)
        }
        "format" => format(text, args),
        "indent" => indent(text, args),
        "truncate" => truncate(text, args),
        "wordcount" => {
            args.none(name)?;
            let words = text.as_str().split(|c: char| !(c.is_alphanumeric() || c == '_'));
            Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128))
        }
        "urlencode" => args.none(name).and_then(|()| percent_encoded(text)),
        "forceescape" => args.none(name).and_then(|()| text.force_escaped()).map(Value::Str),
        _ => args.none(name).and_then(|()| text.escaped()).map(Value::Str),
    }
}

fn format(text: &Text, args: Args) -> Res<Value> {
    let Args { positional, named, .. } = args;
    if !positional.is_empty() && !named.is_empty() {
        return Err(Fault::new("format: positional and named arguments at the same time"));
    }
    if named.is_empty() {
        return percent::format(text, &Value::tuple(positional)?);
    }
    let entry = |(name, value): (crate::template::syntax::ast::Name, _)| Ok((Value::made(&name)?, value));
    percent::format(text, &Value::dict(named.into_iter().map(entry).collect::<Res<Vec<_>>>()?)?)
}

fn indent(text: &Text, args: Args) -> Res<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let unit = methods::indent_unit(width.as_ref(), "indent", 4)?;
    let (first, blank) = (bool_or(first.as_ref(), false), bool_or(blank.as_ref(), false));
    let mut out = Builder::new();
    // A text that ends with a line end is followed by an empty line.
    let s = text.as_str();
    let ends_line =
        s.is_empty() || methods::lines(s, true).last().is_some_and(|line| line.ends_with(methods::is_line_end));
    let lines = methods::lines(s, false).chain(ends_line.then(|| &s[s.len()..]));
    for (index, line) in lines.enumerate() {
        if index > 0 {
            out.push_made("\n")?;
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            out.push_text(&unit)?;
        }
        out.push_text(&text.part(line)?)?;
    }
    out.finish().map(Value::Str)
}

fn truncate(text: &Text, args: Args) -> Res<Value> {
    let [length, kill_words, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let length = count_or(length.as_ref(), "truncate", 255)?;
    let leeway = count_or(leeway.as_ref(), "truncate", 5)?;
    let end = optional_text(end.as_ref(), "truncate")?.map_or_else(|| Text::new("...", Origin::Client), Ok)?;
    let s = text.as_str();
    if s.chars().count() <= length.saturating_add(leeway) {
        return Ok(Value::Str(text.clone()));
    }
    let kept = length.checked_sub(end.as_str().chars().count());
    let kept = kept.ok_or_else(|| Fault::new("truncate: the length is less than that of the end"))?;
    let mut cut = &s[..s.char_indices().nth(kept).map_or(s.len(), |(at, _)| at)];
    if !bool_or(kill_words.as_ref(), false) {
        cut = cut.rsplit_once(' ').map_or(cut, |(words, _)| words);
    }
    let mut out = Builder::new();
    out.push_text(&text.part(cut)?)?;
    out.push_text(&end)?;
    out.finish().map(Value::Str)
}

fn percent_encoded(text: &Text) -> Res<Value> {
    let mut out = Builder::new();
    for (c, origin) in text.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '~' | '/') {
            out.push_char(c, origin)?;
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            out.push(&format!("%{byte:02X}"), origin)?;
        }
    }
    out.finish().map(Value::Str)
}

/// Joins the items of a list, converted to strings.
pub(super) fn join(separator: Option<&Value>, items: &[Value]) -> Res<Value> {
    let none = Value::Str(Text::new("", Origin::Template)?);
    let separator = text_argument(Some(&Value::Str(separator.unwrap_or(&none).to_text()?)), "join")?;
    let texts = items.iter().map(|item| item.to_text().map(Value::Str)).collect::<Res<Vec<_>>>()?;
    methods::join(&separator, &texts)
}
