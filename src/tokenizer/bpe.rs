//! BPE: words from the pre-tokenizer, merged pair by pair in the order of `tokenizer.ggml.merges`. The merged symbols
//! are bytes. If the vocabulary spells text as SentencePiece does, they are characters. A character without a token
//! falls back to bytes.
//!
//! The merge loop does not use the `tokenizers` crate, which takes the vocabulary and the merges as maps of owned
//! strings. Building these takes longer than the whole time budget for loading a vocabulary of 150,000 tokens. That
//! crate also drops bytes that a vocabulary lacks without an error. Here merges are looked up by pairs of ids. A heap
//! of candidate merges processes a word of n bytes in O(n log n).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use hashbrown::HashMap as FastMap;

use super::byte_level;
use super::pretokenizer::{Class, PreTokenizer, WholeWords};
use super::vocab::{SPACE, Spelling, Vocab, reaches_across_words};
use crate::gguf::Metadata;
use crate::interrupt::Interrupt;
use crate::{Error, Result};

const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

/// Longer words rarely occur twice, so caching them would only fill the table.
const MAX_REMEMBERED_WORD: usize = 32;

/// The most characters of a word in an error: a word may be a line of megabytes.
const MAX_SHOWN_WORD: usize = 40;

#[derive(Debug)]
pub(super) struct Bpe {
    pre_tokenizer: PreTokenizer,
    spelling: Spelling,
    whole_words: WholeWords,
    /// The token of each single byte. A vocabulary may lack bytes that its training text did not contain.
    byte_ids: Vec<Option<u32>>,
    /// Merges by priority, lowest rank first.
    merges: Vec<Merge>,
    ranks: FastMap<(u32, u32), u32>,
}

#[derive(Debug, Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    result: u32,
}

/// A piece of the word being merged. `prev` and `next` are indices, `NONE` at the ends.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    prev: u32,
    next: u32,
}
const NONE: u32 = u32::MAX;

/// Scratch memory of one call of `encode`.
#[derive(Default)]
pub(super) struct Scratch<'t> {
    symbols: Vec<Symbol>,
    /// `(rank, index of the left symbol)`: the lowest rank first, then the leftmost.
    candidates: BinaryHeap<Reverse<(u32, u32)>>,
    spelled: String,
    /// The output range with the ids of each word that occurred before.
    seen: HashMap<&'t str, (usize, usize), hashbrown::DefaultHashBuilder>,
}

impl Bpe {
    /// `class` is the class of `tokenizer.ggml.pre`.
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab, class: Class) -> Result<Self> {
        let (merges, ranks) = read_merges(metadata, vocab)?;
        let mut pre_tokenizer = class.compile().map_err(Error::internal)?;
        let byte_ids = match class.spelling {
            Spelling::ByteLevel => {
                let mut buffer = [0; 4];
                (0..=u8::MAX).map(|b| vocab.text_id(byte_level::char_of(b).encode_utf8(&mut buffer))).collect()
            }
            Spelling::SentencePiece => {
                // If no merge reaches from one word into the next, words can be merged one by one.
                let across = |merge: &Merge| vocab.text(merge.result).is_some_and(reaches_across_words);
                if !merges.iter().any(across) {
                    pre_tokenizer.split_at_spaces().map_err(Error::internal)?;
                }
                vocab.byte_ids()
            }
        };
        Ok(Self { pre_tokenizer, spelling: class.spelling, whole_words: class.whole_words, byte_ids, merges, ranks })
    }

    /// Appends the ids of `text`.
    pub(super) fn encode<'t>(
        &self,
        vocab: &Vocab,
        text: &'t str,
        stop: &Interrupt,
        scratch: &mut Scratch<'t>,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        self.pre_tokenizer.split(text, &mut |word| {
            stop.check()?;
            if let Some(&(start, end)) = scratch.seen.get(word) {
                out.extend_from_within(start..end);
                return Ok(());
            }
            let start = out.len();
            self.encode_word(vocab, word, stop, scratch, out)?;
            if word.len() <= MAX_REMEMBERED_WORD {
                scratch.seen.insert(word, (start, out.len()));
            }
            Ok(())
        })
    }

    fn encode_word(
        &self,
        vocab: &Vocab,
        word: &str,
        stop: &Interrupt,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        if let Some(id) = self.whole_word(vocab, word, &mut scratch.spelled) {
            out.push(id);
            return Ok(());
        }
        let symbols = &mut scratch.symbols;
        symbols.clear();
        let mut push = |id: u32| {
            let index = symbols.len() as u32;
            symbols.push(Symbol { id, prev: index.checked_sub(1).unwrap_or(NONE), next: index + 1 });
        };
        let byte_id = |byte: u8| self.byte_ids[byte as usize].ok_or_else(|| unknown_byte(word, byte));
        match self.spelling {
            Spelling::ByteLevel => {
                for byte in word.bytes() {
                    push(byte_id(byte)?);
                }
            }
            Spelling::SentencePiece => {
                let mut buffer = [0; 4];
                for c in word.chars() {
                    let spelled = if c == ' ' { SPACE } else { c };
                    match vocab.text_id(spelled.encode_utf8(&mut buffer)) {
                        Some(id) => push(id),
                        // No merge produces a byte token.
                        None => {
                            for byte in spelled.encode_utf8(&mut buffer).bytes() {
                                push(byte_id(byte)?);
                            }
                        }
                    }
                }
            }
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        self.merge(symbols, stop, &mut scratch.candidates)?;
        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            out.push(symbol.id);
            at = symbol.next;
        }
        Ok(())
    }

    /// Returns the token of the whole word, for classes in which it takes precedence over merges.
    fn whole_word(&self, vocab: &Vocab, word: &str, spelled: &mut String) -> Option<u32> {
        let wanted = match self.whole_words {
            WholeWords::None => false,
            WholeWords::Newlines => word.bytes().all(|byte| byte == b'\n'),
            WholeWords::All => true,
        };
        if !wanted {
            return None;
        }
        spelled.clear();
        match self.spelling {
            Spelling::ByteLevel => spelled.extend(word.bytes().map(byte_level::char_of)),
            Spelling::SentencePiece => spelled.extend(word.chars().map(|c| if c == ' ' { SPACE } else { c })),
        }
        vocab.text_id(spelled)
    }

    /// Applies the merge of the lowest rank until none is left. The first symbol always stays the head of the list.
    fn merge(
        &self,
        symbols: &mut [Symbol],
        stop: &Interrupt,
        candidates: &mut BinaryHeap<Reverse<(u32, u32)>>,
    ) -> Result<()> {
        candidates.clear();
        for left in 1..symbols.len() as u32 {
            self.propose(symbols, left - 1, candidates);
        }
        while let Some(Reverse((rank, left))) = candidates.pop() {
            // A word may be megabytes long.
            stop.check()?;
            let merge = self.merges[rank as usize];
            let Symbol { id, prev, next } = symbols[left as usize];
            // An earlier merge may have taken either side, so that this pair no longer exists.
            let Some(&right) = symbols.get(next as usize) else { continue };
            if id != merge.left || right.id != merge.right {
                continue;
            }
            symbols[left as usize] = Symbol { id: merge.result, prev, next: right.next };
            symbols[next as usize] = Symbol { id: NONE, prev: NONE, next: NONE };
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.prev = left;
            }
            if prev != NONE {
                self.propose(symbols, prev, candidates);
            }
            self.propose(symbols, left, candidates);
        }
        Ok(())
    }

    fn propose(&self, symbols: &[Symbol], left: u32, candidates: &mut BinaryHeap<Reverse<(u32, u32)>>) {
        let symbol = symbols[left as usize];
        let Some(right) = symbols.get(symbol.next as usize) else { return };
        if let Some(&rank) = self.ranks.get(&(symbol.id, right.id)) {
            candidates.push(Reverse((rank, left)));
        }
    }
}

fn unknown_byte(word: &str, byte: u8) -> Error {
    let more = if word.chars().nth(MAX_SHOWN_WORD).is_some() { "…" } else { "" };
    let shown: String = word.chars().take(MAX_SHOWN_WORD).collect();
    let got = format!("{shown:?}{more}, whose byte 0x{byte:02x} this vocabulary cannot spell");
    Error::invalid("text", got, "text whose bytes are in the model's vocabulary")
}

/// Returns the class that `tokenizer.ggml.pre` names.
pub(super) fn pre_tokenizer_class(metadata: &Metadata) -> Result<Class> {
    let name = metadata.opt_str(PRE)?.unwrap_or_else(|| {
        tracing::warn!(
            "{}: {PRE} is missing: using 'default', which may split text wrongly",
            metadata.path().display()
        );
        "default"
    });
    Class::named(name)
        .ok_or_else(|| metadata.error(PRE, format!("unknown pre-tokenizer '{name}'; known are {}", Class::names())))
}

type Ranks = FastMap<(u32, u32), u32>;

fn read_merges(metadata: &Metadata, vocab: &Vocab) -> Result<(Vec<Merge>, Ranks)> {
    let lines = metadata.strings(MERGES)?;
    if u32::try_from(lines.len()).is_err() {
        return Err(metadata.error(MERGES, format!("holds {} merges, expected fewer than 2^32", lines.len())));
    }
    let mut merges = Vec::with_capacity(lines.len());
    let mut ranks = Ranks::with_capacity(lines.len());
    let mut joined = String::new();
    for (rank, line) in lines.iter().enumerate() {
        let malformed = || metadata.error(MERGES, format!("merge {rank} is {line:?}, expected two tokens and a space"));
        // A token is never empty, so the separator is not the first character.
        let first = line.chars().next().map_or(0, char::len_utf8);
        let at = first + line[first..].find(' ').ok_or_else(malformed)?;
        let (left, right) = (&line[..at], &line[at + 1..]);
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id = |text: &str| {
            let unknown = || format!("merge {rank} ({line:?}) needs token {text:?}, which the vocabulary lacks");
            vocab.id(text).ok_or_else(|| metadata.error(MERGES, unknown()))
        };
        let merge = Merge { left: id(left)?, right: id(right)?, result: id(&joined)? };
        // Skip merges that build a control token, since text must never become one. Bytes are spelled as they are.
        if [merge.left, merge.right, merge.result].into_iter().all(|id| vocab.is_text(id)) {
            ranks.entry((merge.left, merge.right)).or_insert(merges.len() as u32);
            merges.push(merge);
        }
    }
    Ok((merges, ranks))
}
