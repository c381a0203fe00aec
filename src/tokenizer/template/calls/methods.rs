//! Methods of strings. Every result is built from slices of the string and of the arguments, so that origins are kept.

use std::ops::Range;

use hashbrown::HashSet;

use crate::template::args::{Args, bool_or, count_or, int_or, optional_text, required, text as text_argument, wrong};
use crate::template::fault::{Fault, Res};
use crate::template::format::braces;
use crate::template::format::casing;
use crate::template::meter;
use crate::template::syntax::lexer::is_space;
use crate::template::text::{Builder, Origin, Text};
use crate::template::value::Value;

/// The cost of comparing the end of a string besides its bytes, in bytes that could be compared instead.
const AFFIX_WORK: usize = 16;
/// The cost of each byte of a character set, in bytes that could be copied instead.
const SET_WORK: usize = 16;

/// Calls one of `method_names::STR`.
pub(in crate::template) fn call(text: &Text, name: &str, args: Args) -> Res<Value> {
    let s = text.as_str();
    meter::work(s.len())?;
    let all = |test: fn(char) -> bool| Ok(Value::Bool(!s.is_empty() && s.chars().all(test)));
    match name {
        "capitalize" => args.none(name).and_then(|()| casing::capitalize(text)),
        "casefold" => args.none(name).and_then(|()| casing::casefold(text)),
        "lower" => args.none(name).and_then(|()| casing::lower(text)),
        "upper" => args.none(name).and_then(|()| casing::upper(text)),
        "swapcase" => args.none(name).and_then(|()| casing::swapcase(text)),
        "title" => args.none(name).and_then(|()| casing::title(text)),
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"])?;
            expand_tabs(text, count_or(size.as_ref(), name, 8)?)
        }
        "center" | "ljust" | "rjust" => justify(text, name, args),
        "zfill" => {
            let [width] = args.bind(name, ["width"])?;
            zfill(text, count_or(width.as_ref(), name, 0)?)
        }
        "count" => search(text, name, args, |s, part| Some(s.matches(part).count())),
        "find" | "index" => search(text, name, args, |s, part| s.find(part).map(|at| s[..at].chars().count())),
        "rfind" | "rindex" => search(text, name, args, |s, part| s.rfind(part).map(|at| s[..at].chars().count())),
        "startswith" => affix(text, name, args, |s, part| s.starts_with(part)),
        "endswith" => affix(text, name, args, |s, part| s.ends_with(part)),
        "format" => braces::format(text, &args),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => Ok(Value::Bool(s.is_ascii())),
        "isdecimal" | "isdigit" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "islower" => Ok(Value::Bool(casing::is_lower(s))),
        "isupper" => Ok(Value::Bool(casing::is_upper(s))),
        "istitle" => Ok(Value::Bool(casing::is_title(s))),
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            join(text, &required(items, name)?.iterate()?.items())
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = optional_text(chars.as_ref(), name)?;
            strip(text, chars.as_ref(), name != "rstrip", name != "lstrip")
        }
        "partition" | "rpartition" => partition(text, name, args),
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(name, ["affix"])?;
            let affix = text_argument(affix.as_ref(), name)?;
            let rest =
                if name == "removeprefix" { s.strip_prefix(affix.as_str()) } else { s.strip_suffix(affix.as_str()) };
            text.part(rest.unwrap_or(s)).map(Value::Str)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let count = int_or(count.as_ref(), name, -1)?;
            replace(text, &text_argument(old.as_ref(), name)?, &text_argument(new.as_ref(), name)?, count)
        }
        "split" | "rsplit" => {
            let [separator, limit] = args.bind(name, ["sep", "maxsplit"])?;
            let limit = usize::try_from(int_or(limit.as_ref(), name, -1)?).unwrap_or(usize::MAX);
            split(text, optional_text(separator.as_ref(), name)?.as_ref(), limit, name == "rsplit")
        }
        "splitlines" => {
            let [keep_ends] = args.bind(name, ["keepends"])?;
            parts(text, lines(s, bool_or(keep_ends.as_ref(), false)))
        }
        _ => Err(Fault::new(format!("a str has no method '{name}'"))),
    }
}

fn justify(text: &Text, name: &str, args: Args) -> Res<Value> {
    let [width, fill] = args.bind(name, ["width", "fillchar"])?;
    let width = count_or(Some(&required(width, name)?), name, 0)?;
    let fill = optional_text(fill.as_ref(), name)?.map_or_else(|| Text::new(" ", Origin::Client), Ok)?;
    if fill.as_str().chars().count() != 1 {
        return Err(Fault::new(format!("{name}: the fill character must be exactly one character long")));
    }
    padded(text, width, &fill, name)
}

/// Pads a text. The method's `name` determines the side of the padding.
pub(super) fn padded(text: &Text, width: usize, fill: &Text, name: &str) -> Res<Value> {
    let missing = width.saturating_sub(text.as_str().chars().count());
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // Python puts the odd character to the left if the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let mut out = Builder::new();
    out.push_repeated(fill, left)?;
    out.push_text(text)?;
    out.push_repeated(fill, missing - left)?;
    out.finish().map(Value::Str)
}

fn expand_tabs(text: &Text, size: usize) -> Res<Value> {
    let space = Text::new(" ", Origin::Client)?;
    let mut out = Builder::new();
    let mut column = 0;
    for (c, origin) in text.chars() {
        match c {
            '\t' => {
                let width = if size == 0 { 0 } else { size - column % size };
                out.push_repeated(&space, width)?;
                column += width;
            }
            c => {
                out.push_char(c, origin)?;
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out.finish().map(Value::Str)
}

fn zfill(text: &Text, width: usize) -> Res<Value> {
    let sign = usize::from(text.as_str().starts_with(['+', '-']));
    let mut out = Builder::new();
    out.push_slice(text, 0..sign)?;
    out.push_repeated(&Text::new("0", Origin::Client)?, width.saturating_sub(text.as_str().chars().count()))?;
    out.push_slice(text, sign..text.as_str().len())?;
    out.finish().map(Value::Str)
}

/// Returns the bytes of the characters from `start` to `end`; negative numbers count from the end of the text.
fn window(text: &Text, start: Option<&Value>, end: Option<&Value>, what: &str) -> Res<Range<usize>> {
    let s = text.as_str();
    let length = s.chars().count() as i128;
    let place = |argument, default| {
        let at = int_or(argument, what, default)?;
        let at = if at < 0 { (at + length).max(0) } else { at.min(length) };
        Ok::<_, Fault>(s.char_indices().nth(at as usize).map_or(s.len(), |(byte, _)| byte))
    };
    let (start, end) = (place(start, 0)?, place(end, length)?);
    Ok(start..end.max(start))
}

fn search(text: &Text, name: &str, args: Args, find: impl Fn(&str, &str) -> Option<usize>) -> Res<Value> {
    let [part, start, end] = args.bind(name, ["sub", "start", "end"])?;
    let part = text_argument(part.as_ref(), name)?;
    meter::work(part.as_str().len())?;
    let range = window(text, start.as_ref(), end.as_ref(), name)?;
    let before = if name == "count" { 0 } else { text.as_str()[..range.start].chars().count() };
    match find(&text.as_str()[range], part.as_str()) {
        Some(found) => Ok(Value::Int((found + before) as i128)),
        None if name.ends_with("index") => Err(Fault::new(format!("{name}: substring not found"))),
        None => Ok(Value::Int(-1)),
    }
}

fn affix(text: &Text, name: &str, args: Args, test: impl Fn(&str, &str) -> bool) -> Res<Value> {
    let [affix, start, end] = args.bind(name, ["affix", "start", "end"])?;
    let s = &text.as_str()[window(text, start.as_ref(), end.as_ref(), name)?];
    let single = [required(affix, name)?];
    let several;
    let affixes: &[Value] = if let Value::Tuple(list) = &single[0] {
        several = list.items();
        &several
    } else {
        &single
    };
    let mut found = false;
    for affix in affixes {
        match affix {
            Value::Str(affix) => {
                meter::work(AFFIX_WORK + affix.as_str().len().min(s.len()))?;
                found = found || test(s, affix.as_str());
            }
            other => return Err(wrong(name, other, "a string or a tuple of strings")),
        }
    }
    Ok(Value::Bool(found))
}

pub(in crate::template) fn join(separator: &Text, items: &[Value]) -> Res<Value> {
    let mut out = Builder::new();
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_text(separator)?;
        }
        match item {
            Value::Str(text) => out.push_text(text)?,
            other => return Err(wrong("join", other, "strings")),
        }
    }
    out.finish().map(Value::Str)
}

pub(in crate::template) fn strip(text: &Text, chars: Option<&Text>, left: bool, right: bool) -> Res<Value> {
    // A set is used because both strings may be long. It has no more characters than Unicode.
    let chars: Option<HashSet<char>> = match chars.map(Text::as_str) {
        None => None,
        Some(chars) => {
            meter::work(chars.len().saturating_mul(SET_WORK))?;
            Some(chars.chars().collect())
        }
    };
    let stripped = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(&c));
    let mut s = text.as_str();
    s = if left { s.trim_start_matches(stripped) } else { s };
    s = if right { s.trim_end_matches(stripped) } else { s };
    text.part(s).map(Value::Str)
}

fn partition(text: &Text, name: &str, args: Args) -> Res<Value> {
    let [separator] = args.bind(name, ["sep"])?;
    let separator = text_argument(separator.as_ref(), name)?;
    let (s, separator) = (text.as_str(), separator.as_str());
    if separator.is_empty() {
        return Err(Fault::new(format!("{name}: empty separator")));
    }
    meter::work(separator.len())?;
    let backwards = name == "rpartition";
    let found = if backwards { s.rfind(separator) } else { s.find(separator) };
    let (start, end) = match found {
        Some(at) => (at, at + separator.len()),
        None if backwards => (0, 0),
        None => (s.len(), s.len()),
    };
    let part = |range| text.slice(range).map(Value::Str);
    Value::tuple(vec![part(0..start)?, part(start..end)?, part(end..s.len())?])
}

/// Replaces the first `count` occurrences, or all if `count` is negative.
pub(in crate::template) fn replace(text: &Text, old: &Text, new: &Text, count: i128) -> Res<Value> {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let mut out = Builder::new();
    let mut done = 0;
    meter::work(old.as_str().len())?;
    for (at, found) in text.as_str().match_indices(old.as_str()).take(limit) {
        out.push_slice(text, done..at)?;
        out.push_text(new)?;
        done = at + found.len();
    }
    out.push_slice(text, done..text.as_str().len())?;
    out.finish().map(Value::Str)
}

/// Returns a list of slices of `text`.
pub(in crate::template) fn parts<'a>(text: &'a Text, parts: impl Iterator<Item = &'a str>) -> Res<Value> {
    Value::list(parts.map(|part| text.part(part).map(Value::Str)).collect::<Res<Vec<_>>>()?)
}

fn split(text: &Text, separator: Option<&Text>, limit: usize, backwards: bool) -> Res<Value> {
    let s = text.as_str();
    let Some(separator) = separator.map(Text::as_str) else { return split_at_spaces(text, limit, backwards) };
    if separator.is_empty() {
        return Err(Fault::new("split: empty separator"));
    }
    meter::work(separator.len())?;
    if backwards {
        let mut found: Vec<&str> = s.rsplitn(limit.saturating_add(1), separator).collect();
        found.reverse();
        return parts(text, found.into_iter());
    }
    parts(text, s.splitn(limit.saturating_add(1), separator))
}

fn split_at_spaces(text: &Text, limit: usize, backwards: bool) -> Res<Value> {
    let mut found = Vec::new();
    let mut rest =
        if backwards { text.as_str().trim_end_matches(is_space) } else { text.as_str().trim_start_matches(is_space) };
    while !rest.is_empty() {
        let border = if backwards { rest.rfind(is_space) } else { rest.find(is_space) };
        match border.filter(|_| found.len() < limit) {
            None => {
                found.push(rest);
                break;
            }
            Some(at) if backwards => {
                let width = rest[at..].chars().next().map_or(0, char::len_utf8);
                found.push(&rest[at + width..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            Some(at) => {
                found.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
        }
    }
    if backwards {
        found.reverse();
    }
    parts(text, found.into_iter())
}

/// Returns one unit of an indent, given as a string or as a number of spaces.
pub(super) fn indent_unit(given: Option<&Value>, what: &str, default: usize) -> Res<Text> {
    if let Some(Value::Str(unit)) = given {
        return Ok(unit.clone());
    }
    let mut unit = Builder::new();
    unit.push_repeated(&Text::new(" ", Origin::Client)?, count_or(given, what, default)?)?;
    unit.finish()
}

/// True if Python's `splitlines` ends a line at the character.
pub(super) fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Returns lines as Python's `splitlines` does.
pub(in crate::template) fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = rest.find(is_line_end).unwrap_or(rest.len());
        let width =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        let line = &rest[..if keep_ends { at + width } else { at }];
        rest = &rest[at + width..];
        Some(line)
    })
}
