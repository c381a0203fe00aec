//! Upper and lower case as in Python's strings: full Unicode mappings, title case and case folding.

use crate::template::fault::Res;
use crate::template::text::Text;
use crate::template::value::Value;

/// The lower case of a text, returned character by character, since a final sigma depends on its neighbours.
struct Lowered {
    chars: std::vec::IntoIter<char>,
}

impl Lowered {
    fn of(text: &str) -> Self {
        Self { chars: text.to_lowercase().chars().collect::<Vec<_>>().into_iter() }
    }

    /// Returns the lower case of the text's next character, which is `c`.
    fn next(&mut self, c: char) -> Vec<char> {
        // The standard library's mapping of a whole text differs from that of its characters only in the sigma.
        self.chars.by_ref().take(c.to_lowercase().count()).collect()
    }
}

pub(in crate::template) fn lower(text: &Text) -> Res<Value> {
    let mut lowered = Lowered::of(text.as_str());
    text.map(|c| lowered.next(c).into_iter()).map(Value::Str)
}

pub(in crate::template) fn upper(text: &Text) -> Res<Value> {
    text.map(char::to_uppercase).map(Value::Str)
}

pub(in crate::template) fn casefold(text: &Text) -> Res<Value> {
    text.map(|c| folded(c).into_iter()).map(Value::Str)
}

pub(in crate::template) fn swapcase(text: &Text) -> Res<Value> {
    let mut lowered = Lowered::of(text.as_str());
    let swap = |c: char| {
        let lower = lowered.next(c);
        if c.is_uppercase() { lower } else { c.to_uppercase().collect() }.into_iter()
    };
    text.map(swap).map(Value::Str)
}

pub(in crate::template) fn capitalize(text: &Text) -> Res<Value> {
    let mut lowered = Lowered::of(text.as_str());
    let mut first = true;
    let cased = |c: char| {
        let lower = lowered.next(c);
        if std::mem::take(&mut first) { titled(c) } else { lower }.into_iter()
    };
    text.map(cased).map(Value::Str)
}

/// Python's `str.title`: title case for each character that does not follow a letter, lower case for the others.
pub(in crate::template) fn title(text: &Text) -> Res<Value> {
    by_words(text, char::is_alphabetic, titled)
}

/// Jinja's filter `title`: upper case for each character that does not follow one that is `inside` a word.
pub(in crate::template) fn title_words(text: &Text, inside: impl Fn(char) -> bool) -> Res<Value> {
    by_words(text, inside, |c| c.to_uppercase().collect())
}

fn by_words(text: &Text, inside: impl Fn(char) -> bool, begin: impl Fn(char) -> Vec<char>) -> Res<Value> {
    let mut lowered = Lowered::of(text.as_str());
    let mut in_word = false;
    let cased = |c: char| {
        let lower = lowered.next(c);
        if std::mem::replace(&mut in_word, inside(c)) { lower } else { begin(c) }.into_iter()
    };
    text.map(cased).map(Value::Str)
}

pub(in crate::template) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_digraph(c))
}

pub(in crate::template) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_digraph(c))
}

/// True if there is a word, and each word begins with upper or title case and continues in lower case.
pub(in crate::template) fn is_title(text: &str) -> bool {
    let (mut in_word, mut any) = (false, false);
    for c in text.chars() {
        let begins = c.is_uppercase() || is_digraph(c);
        if begins == in_word && (begins || c.is_lowercase()) {
            return false;
        }
        in_word = begins || c.is_lowercase();
        any |= in_word;
    }
    any
}

/// True for the letters that have a title case besides upper case (`ǅ`).
fn is_digraph(c: char) -> bool {
    matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}')
        || matches!(c, '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// Title case (Unicode's `SpecialCasing.txt`): upper case, but only for the first of several resulting characters.
fn titled(c: char) -> Vec<char> {
    const IOTA: char = '\u{399}';
    const IOTA_BELOW: char = '\u{345}';
    match c {
        '\u{1c4}'..='\u{1c6}' => vec!['\u{1c5}'],
        '\u{1c7}'..='\u{1c9}' => vec!['\u{1c8}'],
        '\u{1ca}'..='\u{1cc}' => vec!['\u{1cb}'],
        '\u{1f1}'..='\u{1f3}' => vec!['\u{1f2}'],
        // Its first character is not a cased letter.
        '\u{149}' => c.to_uppercase().collect(),
        // Georgian has upper case only for whole texts.
        '\u{10d0}'..='\u{10ff}' => vec![c],
        '\u{1f80}'..='\u{1faf}' => char::from_u32(u32::from(c) | 8).into_iter().collect(),
        '\u{1fb3}' | '\u{1fbc}' => vec!['\u{1fbc}'],
        '\u{1fc3}' | '\u{1fcc}' => vec!['\u{1fcc}'],
        '\u{1ff3}' | '\u{1ffc}' => vec!['\u{1ffc}'],
        _ => {
            let mut upper: Vec<char> = c.to_uppercase().collect();
            if upper.len() > 1 && upper.last() == Some(&IOTA) {
                upper.pop();
                upper.push(IOTA_BELOW);
            }
            let rest = upper.split_off(1.min(upper.len()));
            upper.extend(rest.into_iter().flat_map(char::to_lowercase));
            upper
        }
    }
}

/// Full case folding (Unicode's `CaseFolding.txt`).
fn folded(c: char) -> Vec<char> {
    match c {
        'ı' => vec![c],
        // Cherokee folds to upper case.
        '\u{13a0}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => c.to_uppercase().collect(),
        _ => c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect(),
    }
}
