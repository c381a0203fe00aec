//! Pre-tokenizers: how each class of BPE splits text into words before merging.
//!
//! A class is one or more passes. Each pass splits every piece of the previous one at the matches of its pattern. The
//! text between two matches is a piece, too.
//!
//! The patterns are matched by an automaton with guaranteed linear time, so no input causes exponential backtracking.
//! The look-aheads in the models' own patterns are not regular expressions; a [`Rule`] implements them in code.

mod classes;
#[cfg(test)]
mod tests;

use regex_automata::Input;
use regex_automata::meta::Regex;

use self::classes::CLASSES;
use super::vocab::Spelling;

/// How BPE splits and spells text, selected by `tokenizer.ggml.pre`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class {
    passes: &'static [(&'static str, Rule)],
    /// How the vocabulary spells text.
    pub(super) spelling: Spelling,
    pub(super) whole_words: WholeWords,
    pub(super) bos: Bos,
}

/// The words that become a single token if one exists, whatever the merges say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WholeWords {
    None,
    /// Words that consist of newlines only.
    Newlines,
    All,
}

/// When BOS is put before a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bos {
    /// BOS is added only if the file says so.
    OnRequest,
    /// BOS is added unless the file says otherwise.
    ByDefault,
    /// BOS is always added, since some files wrongly say otherwise.
    Always,
}

/// How the matches of a pass become words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Each match is a word.
    Plain,
    /// The pattern is followed by `|\s+(?!\S)|\s+`: a run of white space leaves its last character to the next word.
    LeaveLast,
    /// The pattern is followed by `|\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s`. A run of white space
    /// leaves its last character to the next word, and the rest is split into powers of two, largest first.
    HalveSpaces,
    /// The pattern is a whole run of digits, which is split into groups of three from its end, `(?=(?:\d{3})*\b)`.
    Threes,
}
use Rule::{HalveSpaces, LeaveLast, Plain, Threes};

/// The longest run of white space that is one word under [`Rule::HalveSpaces`], in characters.
const MAX_HALVED_SPACES: usize = 512;

/// Returns the known values of `tokenizer.ggml.pre`, grouped by equal splitting.
pub fn pre_tokenizers() -> impl Iterator<Item = &'static [&'static str]> {
    CLASSES.iter().map(|(_, names)| *names)
}

impl Class {
    pub(super) const GEMMA4: Self = classes::GEMMA4;

    pub(super) fn named(name: &str) -> Option<Self> {
        CLASSES.iter().find(|(_, names)| names.contains(&name)).map(|(class, _)| *class)
    }

    /// Lists all known names, for messages.
    pub(super) fn names() -> String {
        pre_tokenizers().flatten().copied().collect::<Vec<_>>().join(", ")
    }

    pub(super) fn compile(self) -> Result<PreTokenizer, String> {
        let passes = self.passes.iter().map(|&(pattern, rule)| Pass::new(pattern, rule));
        Ok(PreTokenizer { passes: passes.collect::<Result<_, _>>().map_err(|e| e.to_string())? })
    }
}

#[derive(Debug)]
pub(super) struct PreTokenizer {
    passes: Vec<Pass>,
}

impl PreTokenizer {
    /// Also splits before each run of spaces, whether these are written as such or as `▁`.
    pub(super) fn split_at_spaces(&mut self) -> Result<(), String> {
        let pass = Pass::new("[ ▁]+[^ ▁]*", Plain).map_err(|e| e.to_string())?;
        self.passes.push(pass);
        Ok(())
    }

    /// Calls `emit` with every word of `text`, in order. The joined words are `text`.
    pub(super) fn split<'t, E>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str) -> Result<(), E>) -> Result<(), E> {
        Self::split_with(&self.passes, text, emit)
    }

    fn split_with<'t, E>(
        passes: &[Pass],
        text: &'t str,
        emit: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        match passes {
            [] => emit(text),
            [pass, rest @ ..] => pass.split(text, &mut |piece| Self::split_with(rest, piece, emit)),
        }
    }
}

#[derive(Debug)]
struct Pass {
    /// Pattern 0 is the pass's own. Pattern 1, if any, is a run of white space.
    regex: Regex,
    rule: Rule,
}

impl Pass {
    fn new(pattern: &str, rule: Rule) -> Result<Self, Box<regex_automata::meta::BuildError>> {
        let regex = match rule {
            Plain | Threes => Regex::new(pattern),
            LeaveLast | HalveSpaces => Regex::new_many(&[pattern, r"\s+"]),
        };
        Ok(Self { regex: regex.map_err(Box::new)?, rule })
    }

    fn split<'t, E>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str) -> Result<(), E>) -> Result<(), E> {
        let (mut done, mut from) = (0, 0);
        while from < text.len() {
            let Some(found) = self.regex.search(&Input::new(text).range(from..)) else { break };
            let spaces = found.pattern().as_usize() == 1;
            let mut end = found.end();
            if spaces && end < text.len() {
                // `\s+(?!\S)`: a greedy run before another character gives back its last character. It keeps its only
                // one, which the plain `\s+` takes.
                let last = text[found.start()..end].chars().next_back().map_or(0, char::len_utf8);
                if end - last > found.start() {
                    end -= last;
                }
            }
            if end <= from {
                break; // No pattern matches the empty string; if one did, this would end the loop.
            }
            from = end;
            if self.rule == Threes && text[end..].starts_with(char::is_numeric) {
                continue; // In the models' patterns `½` is part of a word, since `\b` is Oniguruma's.
            }
            if found.start() > done {
                emit(&text[done..found.start()])?;
            }
            let found = &text[found.start()..end];
            match self.rule {
                HalveSpaces if spaces => emit_parts(found, emit, |left| match left {
                    ..=MAX_HALVED_SPACES => 1 << left.ilog2(),
                    _ => MAX_HALVED_SPACES,
                })?,
                Threes => emit_parts(found, emit, |left| if left % 3 == 0 { 3 } else { left % 3 })?,
                Plain | LeaveLast | HalveSpaces => emit(found)?,
            }
            done = end;
        }
        if done < text.len() { emit(&text[done..]) } else { Ok(()) }
    }
}

/// Calls `emit` with `text` in parts. `size` returns the characters of the next part from those that are left, at least
/// one.
fn emit_parts<'t, E>(
    mut text: &'t str,
    emit: &mut dyn FnMut(&'t str) -> Result<(), E>,
    size: impl Fn(usize) -> usize,
) -> Result<(), E> {
    let mut left = text.chars().count();
    while left > 0 {
        let size = size(left);
        let end = text.char_indices().nth(size).map_or(text.len(), |(at, _)| at);
        let (part, rest) = text.split_at(end);
        emit(part)?;
        text = rest;
        left -= size;
    }
    Ok(())
}
