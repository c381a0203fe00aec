//! The token list of a file: texts, kinds, the bytes of each token, and the lookup of ids by text.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::byte_level;
use crate::Result;
use crate::gguf::Metadata;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";

/// `tokenizer.ggml.token_type`, with the format's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Controls the model; text becomes one only on request.
    Control,
    /// Ordinary text that is always one token.
    UserDefined,
    /// A placeholder: text never becomes one, and it has no text.
    Unused,
    /// One byte, spelled `<0x00>` to `<0xFF>`.
    Byte,
}

/// How a vocabulary spells the bytes of a normal token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte is one printable character (see [`byte_level`]).
    ByteLevel,
    /// UTF-8, with `▁` for a space. WordPiece in GGUF files is spelled so as well: words begin with it, and later parts
    /// have no `##`.
    SentencePiece,
}

/// The character that stands for a space in SentencePiece's spelling.
pub(super) const SPACE: char = '▁';

/// Many short byte strings, in one allocation for bytes and one for ends.
#[derive(Debug, Default)]
struct Pool {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pool {
    fn finish_item(&mut self) {
        self.ends.push(self.bytes.len());
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }
}

#[derive(Debug)]
pub(super) struct Vocab {
    texts: Vec<Box<str>>,
    kinds: Vec<Kind>,
    bytes: Pool,
    /// The bytes of the longest token, at least 1.
    longest: usize,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Vocab {
    /// Reads the token list and the token types. Errors name the key.
    pub(super) fn new(metadata: &Metadata) -> Result<Self> {
        let tokens = metadata.strings(TOKENS)?;
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(metadata.error(TOKENS, format!("holds {} tokens, expected 1 to 2^32 - 1", tokens.len())));
        }
        let types = metadata.opt_ints(TOKEN_TYPE)?;
        let types =
            types.ok_or_else(|| metadata.error(TOKEN_TYPE, "missing: it separates text from control tokens"))?;
        if types.len() != tokens.len() {
            let problem = format!("has {} entries, expected {}, one per token", types.len(), tokens.len());
            return Err(metadata.error(TOKEN_TYPE, problem));
        }
        let kinds = types.iter().enumerate().map(|(id, &number)| match number {
            1 => Ok(Kind::Normal),
            2 => Ok(Kind::Unknown),
            3 => Ok(Kind::Control),
            4 => Ok(Kind::UserDefined),
            5 => Ok(Kind::Unused),
            6 => Ok(Kind::Byte),
            _ => Err(metadata.error(TOKEN_TYPE, format!("token {id} has type {number}, expected 1 to 6"))),
        });
        let mut vocab = Self {
            texts: tokens.iter().map(|text| text.as_str().into()).collect(),
            kinds: kinds.collect::<Result<_>>()?,
            bytes: Pool::default(),
            longest: 1,
            ids: HashTable::with_capacity(tokens.len()),
            hasher: DefaultHashBuilder::default(),
        };
        vocab.index(metadata)?;
        Ok(vocab)
    }

    fn index(&mut self, metadata: &Metadata) -> Result<()> {
        let (texts, hasher) = (&self.texts, &self.hasher);
        for (id, text) in (0u32..).zip(texts) {
            // Padding is sometimes stored as many empty tokens, which cannot be found by text.
            if text.is_empty() {
                continue;
            }
            let hash = hasher.hash_one(&**text);
            if let Some(&other) = self.ids.find(hash, |&other| texts[other as usize] == *text) {
                return Err(metadata.error(TOKENS, format!("tokens {other} and {id} are both {text:?}")));
            }
            self.ids.insert_unique(hash, id, |&other| hasher.hash_one(&*texts[other as usize]));
        }
        Ok(())
    }

    /// Computes the text of every token. Called once, when the kinds are final.
    pub(super) fn spell(&mut self, metadata: &Metadata, spelling: Spelling) -> Result<()> {
        let total = self.texts.iter().map(|text| text.len()).sum();
        let mut pool = Pool { bytes: Vec::with_capacity(total), ends: Vec::with_capacity(self.texts.len()) };
        for (id, (text, kind)) in self.texts.iter().zip(&self.kinds).enumerate() {
            match (kind, spelling) {
                (Kind::Unused, _) => {}
                (Kind::Byte, _) => pool.bytes.push(byte_of(text).ok_or_else(|| {
                    metadata.error(TOKENS, format!("byte token {id} is {text:?}, expected <0x00> to <0xFF>"))
                })?),
                (Kind::Normal, Spelling::ByteLevel) => byte_level::decode(text, &mut pool.bytes),
                (Kind::Normal, Spelling::SentencePiece) => {
                    pool.bytes.extend_from_slice(text.replace(SPACE, " ").as_bytes());
                }
                (Kind::Unknown | Kind::Control | Kind::UserDefined, _) => pool.bytes.extend_from_slice(text.as_bytes()),
            }
            pool.finish_item();
        }
        self.bytes = pool;
        self.longest = (0..self.len() as u32).filter_map(|id| self.bytes(id)).map(<[u8]>::len).fold(1, usize::max);
        Ok(())
    }

    /// Returns the bytes of the longest token, at least 1.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(text), |&id| *self.texts[id as usize] == *text).copied()
    }

    /// Returns the id of a token that ordinary text may become.
    pub(super) fn text_id(&self, text: &str) -> Option<u32> {
        self.id(text).filter(|&id| self.is_text(id))
    }

    /// True for tokens that text may become: control tokens must not come from text, and byte tokens only stand for
    /// bytes.
    pub(super) fn is_text(&self, id: u32) -> bool {
        matches!(self.kinds.get(id as usize), Some(Kind::Normal | Kind::UserDefined))
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(|text| &**text)
    }

    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id as usize)
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// Returns the tokens of all bytes that are spelled `<0x00>` to `<0xFF>`, indexed by byte.
    pub(super) fn byte_ids(&self) -> Vec<Option<u32>> {
        let mut ids = vec![None; 256];
        for (id, _, kind) in self.iter() {
            if let (Kind::Byte, Some(&[byte])) = (kind, self.bytes(id)) {
                ids[byte as usize] = Some(id);
            }
        }
        ids
    }

    pub(super) fn set_control(&mut self, id: u32) {
        if let Some(kind) = self.kinds.get_mut(id as usize) {
            *kind = Kind::Control;
        }
    }

    /// Returns `(id, text, kind)` of every token.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str, Kind)> {
        (0u32..).zip(self.texts.iter().zip(&self.kinds)).map(|(id, (text, &kind))| (id, &**text, kind))
    }
}

/// True if a token is more than one word and the spaces before it.
pub(super) fn reaches_across_words(text: &str) -> bool {
    text.trim_start_matches(SPACE).contains(SPACE)
}

fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let two_digits = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if two_digits { u8::from_str_radix(digits, 16).ok() } else { None }
}
