//! WordPiece (`tokenizer.ggml.model` = `bert`): text is normalized and divided into words. Each word is divided
//! greedily into the longest tokens. Source: BERT's tokenizer (arXiv 1810.04805), as Hugging Face's `BertNormalizer`,
//! `BertPreTokenizer` and `WordPiece` apply it.

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::UnicodeNormalization;

use super::vocab::{SPACE, Vocab};
use crate::gguf::Metadata;
use crate::interrupt::Interrupt;
use crate::{Error, Result};

/// Longer words, in characters, become the unknown token.
const MAX_WORD: usize = 100;

/// Han characters, each of which is a word.
const HAN: [(char, char); 8] = [
    ('\u{3400}', '\u{4dbf}'),
    ('\u{4e00}', '\u{9fff}'),
    ('\u{f900}', '\u{faff}'),
    ('\u{20000}', '\u{2a6df}'),
    ('\u{2a700}', '\u{2b73f}'),
    ('\u{2b740}', '\u{2b81f}'),
    ('\u{2b920}', '\u{2ceaf}'),
    ('\u{2f800}', '\u{2fa1f}'),
];

#[derive(Debug)]
pub(super) struct WordPiece {
    unknown: u32,
    /// True if text is lowercased and loses its accents.
    lowercase: bool,
    /// The bytes of the longest token.
    longest: usize,
    control: Characters,
    marks: Characters,
    punctuation: Characters,
}

impl WordPiece {
    /// `unknown` is the file's unknown token.
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab, unknown: Option<u32>) -> Result<Self> {
        let missing = || {
            let problem = "missing, and there is no token [UNK]: it stands for words that no tokens spell";
            metadata.error("tokenizer.ggml.unknown_token_id", problem)
        };
        Ok(Self {
            unknown: unknown.or_else(|| vocab.id("[UNK]")).ok_or_else(missing)?,
            lowercase: metadata.opt_bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true),
            longest: vocab.iter().map(|(_, text, _)| text.len()).max().unwrap_or(0),
            control: Characters::of(r"[\p{C}\x{fffd}--[\t\n\r]]")?,
            marks: Characters::of(r"\p{Mn}")?,
            punctuation: Characters::of(r"[!-/:-@\[-`{-~\p{P}]")?,
        })
    }

    /// Appends the ids of `text`.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, stop: &Interrupt, out: &mut Vec<u32>) -> Result<()> {
        let text = self.normalize(text);
        let mut spelled = String::new();
        for part in text.split(char::is_whitespace) {
            stop.check()?;
            let mut rest = part;
            while let Some(first) = rest.chars().next() {
                let end = match self.punctuation.has(first) {
                    true => first.len_utf8(),
                    false => rest.find(|c| self.punctuation.has(c)).unwrap_or(rest.len()),
                };
                let (word, behind) = rest.split_at(end);
                self.encode_word(vocab, word, &mut spelled, out);
                rest = behind;
            }
        }
        Ok(())
    }

    /// Returns the text without control characters, with spaces around Han characters, and optionally in lower case
    /// without accents.
    fn normalize(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len() + text.len() / 4);
        for c in text.chars().filter(|&c| !self.control.has(c)) {
            match is_within(&HAN, c) {
                true => clean.extend([' ', c, ' ']),
                false => clean.push(c),
            }
        }
        match self.lowercase {
            true => clean.nfd().filter(|&c| !self.marks.has(c)).flat_map(char::to_lowercase).collect(),
            false => clean,
        }
    }

    /// Appends the tokens of a word, or the unknown token if some part of it has none. `spelled` is scratch.
    fn encode_word(&self, vocab: &Vocab, word: &str, spelled: &mut String, out: &mut Vec<u32>) {
        let first_id = out.len();
        spelled.clear();
        spelled.push(SPACE);
        spelled.push_str(word);
        let mut at = 0;
        let fits = word.chars().nth(MAX_WORD).is_none();
        while fits && at < spelled.len() {
            let rest = &spelled[at..];
            let mut end = rest.floor_char_boundary(self.longest);
            // The mark of a word's start is not a token by itself.
            let least = if at == 0 { SPACE.len_utf8() } else { 0 };
            let found = loop {
                if end <= least {
                    break None;
                }
                if let Some(id) = vocab.text_id(&rest[..end]) {
                    break Some(id);
                }
                end = rest.floor_char_boundary(end - 1);
            };
            let Some(id) = found else { break };
            out.push(id);
            at += end;
        }
        if at < spelled.len() {
            out.truncate(first_id);
            out.push(self.unknown);
        }
    }
}

/// A set of characters.
#[derive(Debug)]
struct Characters(Vec<(char, char)>);

impl Characters {
    /// Returns the characters of a class in regular-expression syntax.
    fn of(class: &str) -> Result<Self> {
        let hir = regex_syntax::parse(class).map_err(Error::internal)?;
        match hir.kind() {
            HirKind::Class(Class::Unicode(class)) => {
                Ok(Self(class.ranges().iter().map(|range| (range.start(), range.end())).collect()))
            }
            _ => Err(Error::internal(format!("{class} is not a character class"))),
        }
    }

    fn has(&self, c: char) -> bool {
        is_within(&self.0, c)
    }
}

/// True if one of the sorted ranges contains the character.
fn is_within(ranges: &[(char, char)], c: char) -> bool {
    let behind = ranges.partition_point(|&(first, _)| first <= c);
    behind.checked_sub(1).is_some_and(|at| c <= ranges[at].1)
}
