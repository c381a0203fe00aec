//! Pre-tokenizers: how each class of BPE splits text into words before merging.
//!
//! A class is one or more passes. Each pass splits every piece of the one before at the matches of its pattern; the
//! text between two matches is a piece too.
//!
//! An automaton with guaranteed linear time looks for the patterns, so no input makes a backtracking engine explode.
//! The look-aheads of the models' own patterns are no regular expressions: a [`Rule`] does their work by hand.

mod classes;
#[cfg(test)]
mod tests;

use regex_automata::Input;
use regex_automata::meta::Regex;

use self::classes::CLASSES;
use super::vocab::Spelling;

/// How BPE splits and spells text, chosen by a value of `tokenizer.ggml.pre`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class {
    passes: &'static [(&'static str, Rule)],
    /// How the vocabulary spells text.
    pub(super) spelling: Spelling,
    pub(super) whole_words: WholeWords,
    pub(super) bos: Bos,
}

/// Which words become a token as a whole, if there is one, whatever the merges say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WholeWords {
    None,
    /// Words of newlines alone.
    Newlines,
    All,
}

/// Whether BOS is put before a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bos {
    /// BOS is put only if the file says so.
    OnRequest,
    /// BOS is put unless the file says no.
    ByDefault,
    /// BOS is always put: there are files that say no, by mistake.
    Always,
}

/// How the matches of a pass become words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Each match is a word.
    Plain,
    /// The pattern is followed by `|\s+(?!\S)|\s+`: a run of white space leaves its last character to the word behind.
    LeaveLast,
    /// The pattern is followed by `|\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s`: a run of white space
    /// leaves its last character to the word behind, and the rest is cut into powers of two, the largest first.
    HalveSpaces,
    /// The pattern is a whole run of digits; each is cut into threes from its end, `(?=(?:\d{3})*\b)`.
    Threes,
}
use Rule::{HalveSpaces, LeaveLast, Plain, Threes};

/// The longest run of white space that is one word under [`Rule::HalveSpaces`], in characters.
const MAX_HALVED_SPACES: usize = 512;

/// The known values of `tokenizer.ggml.pre`, those that split alike side by side.
pub fn pre_tokenizers() -> impl Iterator<Item = &'static [&'static str]> {
    CLASSES.iter().map(|(_, names)| *names)
}

impl Class {
    pub(super) const GEMMA4: Self = classes::GEMMA4;

    pub(super) fn named(name: &str) -> Option<Self> {
        CLASSES.iter().find(|(_, names)| names.contains(&name)).map(|(class, _)| *class)
    }

    /// All known names, for messages.
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
    /// Splits before each run of spaces too, whether a space is written as such or as `▁`.
    pub(super) fn split_at_spaces(&mut self) -> Result<(), String> {
        let pass = Pass::new("[ ▁]+[^ ▁]*", Plain).map_err(|e| e.to_string())?;
        self.passes.push(pass);
        Ok(())
    }

    /// Calls `emit` with every word of `text`, in order; the words joined are `text`.
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
    /// Pattern 0 is the pass's own, pattern 1 (where there is one) a run of white space.
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
                // `\s+(?!\S)`: a greedy run that something follows gives back its last character, unless it is its
                // only one (then the plain `\s+` takes it).
                let last = text[found.start()..end].chars().next_back().map_or(0, char::len_utf8);
                if end - last > found.start() {
                    end -= last;
                }
            }
            if end <= from {
                break; // No pattern matches the empty string; were one to, this ends the loop.
            }
            from = end;
            if self.rule == Threes && text[end..].starts_with(char::is_numeric) {
                continue; // `½` is part of a word in the models' patterns, where `\b` is Oniguruma's.
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

/// Calls `emit` with `text` in parts; `size` gives the characters of the next one from those that are left, which are
/// one or more.
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
