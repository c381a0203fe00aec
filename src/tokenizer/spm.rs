//! SentencePiece-style BPE (`tokenizer.ggml.model` = `llama`). Characters are joined pair by pair, the pair whose token
//! has the highest score first. Text without a token falls back to bytes. Source of the algorithm: SentencePiece's BPE
//! model, as llama.cpp applies it to the scores in a GGUF file.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::vocab::{SPACE, Vocab, reaches_across_words};
use crate::Result;
use crate::gguf::Metadata;
use crate::interrupt::Interrupt;

pub(super) const SCORES: &str = "tokenizer.ggml.scores";

/// Longer words rarely occur twice, so caching them would only fill the table.
const MAX_REMEMBERED_WORD: usize = 32;

#[derive(Debug)]
pub(super) struct Spm {
    scores: Vec<f32>,
    byte_ids: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// True if words can be merged one by one, because no token reaches from one word into the next.
    words: bool,
}

/// A piece of the text; merged-away symbols have length 0. `prev` and `next` are indices, `NONE` at the ends.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    prev: u32,
    next: u32,
}
const NONE: u32 = u32::MAX;

/// A pair that forms a token.
struct Candidate {
    score: f32,
    left: u32,
    right: u32,
    /// The bytes of both together, which show whether either has grown since.
    len: usize,
}

/// Returns the words of an escaped text: each is a run of `▁` and the text up to the next one.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let letters = rest.find(|c| c != SPACE).unwrap_or(rest.len());
        let end = rest[letters..].find(SPACE).map_or(rest.len(), |at| letters + at);
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// Appends the ids of each word of an escaped text. `encode` appends those of a word that did not occur before.
pub(super) fn encode_words(
    text: &str,
    out: &mut Vec<u32>,
    mut encode: impl FnMut(&str, &mut Vec<u32>) -> Result<()>,
) -> Result<()> {
    // The output range with the ids of each word that occurred before.
    let mut seen: HashMap<&str, (usize, usize), hashbrown::DefaultHashBuilder> = HashMap::default();
    for word in words(text) {
        if let Some(&(start, end)) = seen.get(word) {
            out.extend_from_within(start..end);
            continue;
        }
        let start = out.len();
        encode(word, out)?;
        if word.len() <= MAX_REMEMBERED_WORD {
            seen.insert(word, (start, out.len()));
        }
    }
    Ok(())
}

impl Ord for Candidate {
    /// The highest score is the greatest; of equal scores the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Candidate {}

/// Returns the scores of a file's tokens, one for each.
///
/// # Errors
/// `ModelFile` if they are missing or not numbers.
pub(super) fn read_scores<'a>(metadata: &'a Metadata, vocab: &Vocab) -> Result<&'a [f32]> {
    let scores = metadata.opt_f32s(SCORES)?;
    let scores = scores.ok_or_else(|| metadata.error(SCORES, "missing: this kind of tokenizer needs them"))?;
    if scores.len() != vocab.len() {
        let problem = format!("has {} entries, expected {}, one per token", scores.len(), vocab.len());
        return Err(metadata.error(SCORES, problem));
    }
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => Err(metadata.error(SCORES, format!("the score of token {id} is NaN, expected a number"))),
        None => Ok(scores),
    }
}

impl Spm {
    /// `unknown` is the file's unknown token. It is only needed if byte tokens are missing.
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab, unknown: Option<u32>) -> Result<Self> {
        let scores = read_scores(metadata, vocab)?;
        let byte_ids = vocab.byte_ids();
        if let Some(byte) = byte_ids.iter().position(Option::is_none).filter(|_| unknown.is_none()) {
            let problem = format!("no byte token <0x{byte:02X}> and no unknown token, expected one of them");
            return Err(metadata.error("tokenizer.ggml.tokens", problem));
        }
        let across = vocab.iter().any(|(id, text, _)| vocab.is_text(id) && reaches_across_words(text));
        let words = !across && vocab.text_id("▁").is_some();
        Ok(Self { scores: scores.to_vec(), byte_ids, unknown, words })
    }

    /// Appends the ids of `text`, preceded by a space if `space_before`.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        space_before: bool,
        stop: &Interrupt,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + SPACE.len_utf8());
        escaped.extend(space_before.then_some(SPACE));
        escaped.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        match self.words {
            true => encode_words(&escaped, out, |word, out| self.encode_word(vocab, word, stop, out)),
            false => self.encode_word(vocab, &escaped, stop, out),
        }
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, stop: &Interrupt, out: &mut Vec<u32>) -> Result<()> {
        let mut symbols: Vec<Symbol> = (0u32..)
            .zip(word.char_indices())
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                prev: i.checked_sub(1).unwrap_or(NONE),
                next: i + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        self.merge(vocab, word, stop, &mut symbols)?;
        let start = out.len();
        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            self.push(vocab, &word[symbol.start..symbol.start + symbol.len], start, out);
            at = symbol.next;
        }
        Ok(())
    }

    fn merge(&self, vocab: &Vocab, text: &str, stop: &Interrupt, symbols: &mut [Symbol]) -> Result<()> {
        let mut candidates = BinaryHeap::new();
        for left in 1..symbols.len() as u32 {
            self.propose(vocab, text, symbols, left - 1, &mut candidates);
        }
        while let Some(Candidate { left, right, len, .. }) = candidates.pop() {
            // A text without spaces is one long word.
            stop.check()?;
            let (l, r) = (symbols[left as usize], symbols[right as usize]);
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            symbols[left as usize] = Symbol { len, next: r.next, ..l };
            symbols[right as usize].len = 0;
            if let Some(after) = symbols.get_mut(r.next as usize) {
                after.prev = left;
            }
            if l.prev != NONE {
                self.propose(vocab, text, symbols, l.prev, &mut candidates);
            }
            self.propose(vocab, text, symbols, left, &mut candidates);
        }
        Ok(())
    }

    fn propose(&self, vocab: &Vocab, text: &str, symbols: &[Symbol], left: u32, out: &mut BinaryHeap<Candidate>) {
        let l = symbols[left as usize];
        let Some(r) = symbols.get(l.next as usize) else { return };
        let len = l.len + r.len;
        if let Some(id) = vocab.text_id(&text[l.start..l.start + len]) {
            out.push(Candidate { score: self.scores[id as usize], left, right: l.next, len });
        }
    }

    /// True if a run of characters that the vocabulary lacks is a single token.
    pub(super) fn merges_unknown(&self) -> bool {
        self.byte_ids.iter().any(Option::is_none)
    }

    /// `start`: the index in `out` at which this text's ids begin.
    fn push(&self, vocab: &Vocab, symbol: &str, start: usize, out: &mut Vec<u32>) {
        if let Some(id) = vocab.text_id(symbol) {
            return out.push(id);
        }
        let bytes: Option<Vec<u32>> = symbol.bytes().map(|byte| self.byte_ids[byte as usize]).collect();
        match (bytes, self.unknown) {
            (Some(ids), _) => out.extend(ids),
            // A run of unknown characters is one unknown token, as in SentencePiece.
            (None, Some(unknown)) if out[start..].last() != Some(&unknown) => out.push(unknown),
            (None, _) => {}
        }
    }
}
