//! Turns ids back into text, at once or as a stream.

use std::sync::Arc;

use super::Tokenizer;
use crate::Result;

/// The state of decoding between two tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    skip_special: bool,
    /// True if the next token starts the text, so that the space added by encoding is removed.
    strip_space: bool,
}

impl Cursor {
    pub(super) fn start(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self { skip_special, strip_space: tokenizer.adds_space() }
    }

    /// Returns the bytes that `id` adds to the text.
    pub(super) fn advance<'t>(&mut self, tokenizer: &'t Tokenizer, id: u32) -> Result<&'t [u8]> {
        let bytes = tokenizer.token_bytes(id)?;
        if self.skip_special && tokenizer.is_special(id) {
            return Ok(&[]);
        }
        let strip = std::mem::take(&mut self.strip_space);
        Ok(if strip { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes })
    }
}

/// Turns a stream of token ids into text, never splitting a character. The pieces, including that of
/// [`finish`](Self::finish), join to exactly what [`Tokenizer::decode`] returns for all ids. Keeps at most three bytes.
#[derive(Debug)]
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    cursor: Cursor,
    /// The start of a character whose other bytes have not arrived.
    pending: Vec<u8>,
}

impl StreamDecoder {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let cursor = Cursor::start(&tokenizer, skip_special);
        Self { tokenizer, cursor, pending: Vec::new() }
    }

    /// Returns a decoder for ids that continue a text, such as a prompt. It keeps a space before the first word, while
    /// [`new`](Self::new) removes it as the one that a SentencePiece tokenizer adds.
    pub fn continuing(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, cursor: Cursor { skip_special, strip_space: false }, pending: Vec::new() }
    }

    /// Returns the text that `id` completes (possibly empty). Invalid UTF-8 becomes U+FFFD, as in
    /// [`String::from_utf8_lossy`]. An id outside the vocabulary is an error and changes nothing.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let bytes = self.cursor.advance(&self.tokenizer, id)?;
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    // An error without length: the bytes may still become a character.
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
        Ok(text)
    }

    /// Returns the rest of the text at the end; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}
