//! Tokenizers from GGUF metadata, the streaming detokenizer, chat templates, and the prompts of conversations.
//!
//! Start with `Tokenizer` here; `bpe` is the most common model, `template` interprets chat templates, and `chat` makes
//! the prompts. Of the workspace, this crate knows the metadata of a file (`rocmforge_gguf`), and the errors and
//! interrupts of `rocmforge_core`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod bpe;
mod byte_level;
mod charsmap;
pub mod chat;
mod pretokenizer;
mod special;
mod spm;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod unigram;
mod vocab;
mod wordpiece;

// The crates below, by the names that the files of this one use.
use rocmforge_core::{Error, Result, interrupt};
use rocmforge_gguf as gguf;
#[cfg(test)]
use rocmforge_testdata as testdata;

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

pub use pretokenizer::pre_tokenizers;
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, Rendered};

use self::bpe::Bpe;
use self::pretokenizer::{Bos, Class};
use self::spm::Spm;
use self::stream::Cursor;
use self::unigram::Unigram;
use self::vocab::{Kind, Spelling, Vocab};
use self::wordpiece::WordPiece;
use crate::gguf::Metadata;
use crate::interrupt::Interrupt;

const MODEL: &str = "tokenizer.ggml.model";

/// The tokenizer of a file. It is thread-safe and created once.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    /// Tokens that are searched for in every text before it is split.
    always: TokenFinder,
    /// The tokens of `always` and the control tokens, for text that may spell them.
    with_control: TokenFinder,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space: bool,
    eos_ids: Vec<u32>,
    /// Control tokens after which white space is dropped, sorted.
    stripping_ids: Vec<u32>,
}

#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    Spm(Spm),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

/// The kinds of tokenizers, by `tokenizer.ggml.model`.
#[derive(Debug, Clone, Copy)]
enum Family {
    Bpe(Class),
    Spm,
    Unigram,
    WordPiece,
}

impl Tokenizer {
    /// Reads `tokenizer.ggml.*`. Errors are `ModelFile` and name the key: an unknown kind of tokenizer or
    /// pre-tokenizer, lists that contradict each other, ids outside the vocabulary, or a file without a tokenizer.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let family = match metadata.str(MODEL)? {
            "gpt2" => Family::Bpe(bpe::pre_tokenizer_class(metadata)?),
            "gemma4" => Family::Bpe(Class::GEMMA4),
            "llama" => Family::Spm,
            "t5" => Family::Unigram,
            "bert" => Family::WordPiece,
            name @ ("none" | "no_vocab") => {
                return Err(metadata.error(MODEL, format!("'{name}': the file has no tokenizer; use token ids")));
            }
            name => {
                let known = "known are 'gpt2' and 'gemma4' (BPE), 'llama' (SPM), 't5' (unigram) and 'bert' (WordPiece)";
                return Err(metadata.error(MODEL, format!("unknown kind of tokenizer '{name}'; {known}")));
            }
        };
        let mut vocab = Vocab::new(metadata)?;
        let eos_ids = special::end_of_generation(metadata, &mut vocab)?;
        let spelling = match family {
            Family::Bpe(class) => class.spelling,
            Family::Spm | Family::Unigram | Family::WordPiece => Spelling::SentencePiece,
        };
        vocab.spell(metadata, spelling)?;
        let id = |key| special::id(metadata, key, vocab.len());
        let (mut bos, mut eos) = (id("tokenizer.ggml.bos_token_id")?, id("tokenizer.ggml.eos_token_id")?);
        let unknown = id("tokenizer.ggml.unknown_token_id")?;
        let (model, adds_bos) = match family {
            Family::Bpe(class) => (Model::Bpe(Bpe::new(metadata, &vocab, class)?), class.bos),
            Family::Spm => (Model::Spm(Spm::new(metadata, &vocab, unknown)?), Bos::ByDefault),
            Family::Unigram => (Model::Unigram(Unigram::new(metadata, &vocab, unknown)?), Bos::OnRequest),
            Family::WordPiece => {
                // [CLS] and [SEP], by the names that files have used for them.
                bos = bos.or(id("tokenizer.ggml.cls_token_id")?);
                eos = id("tokenizer.ggml.seperator_token_id")?.or(eos);
                (Model::WordPiece(WordPiece::new(metadata, &vocab, unknown)?), Bos::ByDefault)
            }
        };
        let adds_eos = matches!(family, Family::WordPiece | Family::Unigram);
        let flag = |key, default| Ok::<_, Error>(metadata.opt_bool(key)?.unwrap_or(default));
        let has_none = |key| Ok::<_, Error>(metadata.opt_u32(key)? == Some(special::NO_TOKEN));
        // A file that declares that it has no such token adds none, unless it asks for one.
        let adds_bos_unasked = adds_bos != Bos::OnRequest && !has_none("tokenizer.ggml.bos_token_id")?;
        let adds_eos = adds_eos && !has_none("tokenizer.ggml.eos_token_id")?;
        let tokenizer = Self {
            always: TokenFinder::new(&vocab, |kind| kind == Kind::UserDefined)?,
            with_control: TokenFinder::new(&vocab, |kind| {
                matches!(kind, Kind::UserDefined | Kind::Control | Kind::Unknown)
            })?,
            model,
            bos,
            eos,
            add_bos: flag("tokenizer.ggml.add_bos_token", adds_bos_unasked)? || adds_bos == Bos::Always,
            add_eos: flag("tokenizer.ggml.add_eos_token", adds_eos)?,
            // A vocabulary with merges has spaces as part of its words, so the key has no meaning there. In WordPiece
            // every word has a space before it, even the first one.
            add_space: match family {
                Family::Bpe(_) => false,
                Family::Spm => flag("tokenizer.ggml.add_space_prefix", true)?,
                Family::Unigram => flag("tokenizer.ggml.add_space_prefix", false)?,
                Family::WordPiece => true,
            },
            eos_ids,
            stripping_ids: special::stripping_ids(metadata, &vocab)?,
            vocab,
        };
        for (added, id, key) in [
            (tokenizer.add_bos, bos, "tokenizer.ggml.bos_token_id"),
            (tokenizer.add_eos, eos, "tokenizer.ggml.eos_token_id"),
        ] {
            if added && id.is_none() {
                return Err(metadata.error(key, "missing, but the tokenizer adds this token to every prompt"));
            }
        }
        Ok(tokenizer)
    }

    /// Tokenizes text. `add_special`: add BOS/EOS by the file's rules. `parse_special`: text that spells a control
    /// token becomes that token (never for user text).
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        out.extend(self.bos.filter(|_| add_special && self.add_bos));
        let whole = 0..text.len();
        let trusted = if parse_special { std::slice::from_ref(&whole) } else { &[] };
        self.encode_into(text, trusted, self.add_space, &mut out)?;
        out.extend(self.eos.filter(|_| add_special && self.add_eos));
        Ok(out)
    }

    /// Tokenizes a pair of texts as ranking models expect it: BOS, then each text followed by EOS. Vocabularies of
    /// XLM-RoBERTa (`t5`) have EOS twice between the texts. No text becomes a control token.
    ///
    /// # Errors
    /// `InvalidRequest` for a tokenizer that lacks one of these tokens.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Vec<u32>> {
        let (Some(bos), Some(eos)) = (self.bos, self.eos) else {
            let expected = "one with a token for the beginning and one for the end ([CLS] and [SEP], or <s> and </s>)";
            return Err(Error::invalid("tokenizer", "one that knows no pairs", expected));
        };
        let mut out = vec![bos];
        self.encode_into(first, &[], self.add_space, &mut out)?;
        out.extend(std::iter::repeat_n(eos, if matches!(self.model, Model::Unigram(_)) { 2 } else { 1 }));
        self.encode_into(second, &[], self.add_space, &mut out)?;
        out.push(eos);
        Ok(out)
    }

    /// Tokenizes text in which only the ranges `trusted` may become control tokens. These are in bytes, in order and at
    /// character boundaries. A control token must lie completely within one of them.
    pub fn encode_trusting(&self, text: &str, trusted: &[Range<usize>]) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        self.encode_into(text, trusted, self.add_space, &mut out)?;
        Ok(out)
    }

    /// Tokenizes text that follows other text, so nothing is put in front of it.
    pub fn encode_continuing(&self, text: &str) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        self.encode_into(text, &[], false, &mut out)?;
        Ok(out)
    }

    fn encode_into(&self, text: &str, trusted: &[Range<usize>], add_space: bool, out: &mut Vec<u32>) -> Result<()> {
        let stop = &Interrupt::current();
        let mut scratch = bpe::Scratch::default();
        // Plain text begins at the start or after a token found below, and gets the space prefix in both cases.
        let mut plain = |text, out: &mut Vec<u32>| match &self.model {
            Model::Bpe(bpe) => bpe.encode(&self.vocab, text, stop, &mut scratch, out),
            Model::Spm(spm) => spm.encode(&self.vocab, text, add_space, stop, out),
            Model::Unigram(unigram) => unigram.encode(&self.vocab, text, add_space, stop, out),
            Model::WordPiece(wordpiece) => wordpiece.encode(&self.vocab, text, stop, out),
        };
        // Between two control tokens all text is one, regardless of its origin.
        let mut between = |range: Range<usize>, out: &mut Vec<u32>| {
            let mut done = range.start;
            for (start, end, id) in self.always.find(&text[range.clone()]) {
                let (start, end) = (range.start + start, range.start + end);
                if start > done {
                    plain(&text[done..start], out)?;
                }
                out.push(id);
                done = end;
            }
            if done < range.end { plain(&text[done..range.end], out) } else { Ok(()) }
        };
        let mut done = 0;
        for stretch in trusted {
            for (start, end, id) in self.with_control.find(&text[stretch.clone()]) {
                if self.is_special(id) {
                    // A token that begins with white space may have lost it to the previous token.
                    between(done..done.max(stretch.start + start), out)?;
                    out.push(id);
                    done = stretch.start + end;
                    if self.stripping_ids.binary_search(&id).is_ok() {
                        done = text.len() - text[done..].trim_start().len();
                    }
                }
            }
        }
        between(done..text.len(), out)
    }

    /// Decodes ids; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let bytes = self.decode_bytes(ids, skip_special)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// Decodes ids to bytes. `skip_special` skips control and unknown tokens. An id outside the vocabulary is an error.
    pub fn decode_bytes(&self, ids: &[u32], skip_special: bool) -> Result<Vec<u8>> {
        let mut cursor = Cursor::start(self, skip_special);
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            out.extend_from_slice(cursor.advance(self, id)?);
        }
        Ok(out)
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// Returns the maximum number of bytes of text that `num_tokens` tokens can represent. `None` for WordPiece and
    /// Unigram, where white space and unknown characters need no tokens, so that the length of a text gives no bound.
    pub fn max_text_bytes(&self, num_tokens: usize) -> Option<usize> {
        match self.model {
            // A character without a token becomes bytes, or an unknown token per byte at most.
            Model::Bpe(_) => Some(num_tokens.saturating_mul(self.vocab.longest())),
            Model::Spm(ref spm) if !spm.merges_unknown() => Some(num_tokens.saturating_mul(self.vocab.longest())),
            Model::Spm(_) | Model::Unigram(_) | Model::WordPiece(_) => None,
        }
    }

    /// Returns the control token that is spelled like this.
    pub fn control_token(&self, text: &str) -> Option<u32> {
        self.vocab.id(text).filter(|&id| self.is_special(id))
    }

    /// Returns the token as the file spells it (`Ġhello`, `▁hello`, `<0x0A>`).
    pub fn token_text(&self, id: u32) -> Result<&str> {
        self.vocab.text(id).ok_or_else(|| self.unknown_id(id))
    }

    /// Returns the bytes of the token alone, which may be part of a character.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        self.vocab.bytes(id).ok_or_else(|| self.unknown_id(id))
    }

    fn unknown_id(&self, id: u32) -> Error {
        Error::invalid("token id", id, format_args!("an id below the vocabulary size {}", self.vocab_size()))
    }

    /// Returns all end-of-generation tokens (EOS, EOT, EOM …), sorted.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos
    }

    /// Returns the end-of-generation token that the file calls EOS, which templates write.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.eos
    }

    /// True if the token controls the model, or stands for text that the vocabulary cannot spell.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocab.kind(id), Some(Kind::Control | Kind::Unknown))
    }

    fn adds_space(&self) -> bool {
        self.add_space
    }
}

/// Finds tokens in text by their spelling: the leftmost first, and of these the longest.
#[derive(Debug)]
struct TokenFinder {
    /// `None` if there are no tokens to find.
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl TokenFinder {
    fn new(vocab: &Vocab, wanted: impl Fn(Kind) -> bool) -> Result<Self> {
        let tokens = vocab.iter().filter(|(_, text, kind)| wanted(*kind) && !text.is_empty());
        let (ids, texts): (Vec<_>, Vec<_>) = tokens.map(|(id, text, _)| (id, text)).unzip();
        if ids.is_empty() {
            return Ok(Self { automaton: None, ids });
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        Ok(Self { automaton: Some(automaton.map_err(Error::internal)?), ids })
    }

    /// Returns `(start, end, id)` of every token in `text`, without overlaps.
    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, usize, u32)> + 'a {
        let matches = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        matches.map(|found| (found.start(), found.end(), self.ids[found.pattern().as_usize()]))
    }
}
