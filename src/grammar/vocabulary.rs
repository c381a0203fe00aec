//! A model's vocabulary in the library's form: the bytes of each token, in a trie.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// The largest depth of the library's tries, in bytes. Longer tokens are never allowed.
const MAX_TOKEN_BYTES: usize = 1000;
/// The most nodes of a trie: a token needs one per byte that it does not share with another.
const MAX_NODES: usize = 4 << 20;
/// The byte that marks a control token. It does not occur in UTF-8.
const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Builds the trie of all tokens, except those that text never results in.
///
/// # Errors
/// `InvalidRequest` for a vocabulary without an end token, or one that is too large for the library.
pub(super) fn of(tokenizer: &Arc<Tokenizer>, vocab_size: usize) -> Result<TokEnv> {
    let end_tokens = tokenizer.eos_token_ids();
    let Some(&end) = end_tokens.first() else {
        return Err(unfit("a model without an end token", "one that has"));
    };
    // The model has no logits for tokens beyond its vocabulary, and the library has no names for those in front of it.
    if end_tokens.last().is_some_and(|&last| last as usize >= vocab_size) {
        return Err(unfit("a model without logits for its end token", "one that has"));
    }
    let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(|id| word(tokenizer, id)).collect();
    if words.iter().map(Vec::len).sum::<usize>() > MAX_NODES * 4 || words.len() > MAX_NODES / 2 {
        return Err(unfit(format!("a vocabulary of {vocab_size} tokens"), format!("at most {}", MAX_NODES / 2)));
    }
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words).with_eos_tokens(end_tokens);
    Ok(Arc::new(Vocabulary { trie, tokenizer: Arc::clone(tokenizer) }))
}

/// Tokenizes forced text with the model's own tokenizer, as the model was trained.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Bytes that are not text, or that the tokenizer spells differently, are split into the longest tokens.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.encode_continuing(text).ok());
        let known = |token: &TokenId| (*token as usize) < self.trie.vocab_size();
        let spelt = |tokens: &Vec<TokenId>| tokens.iter().all(known) && self.trie.decode_raw(tokens) == bytes;
        tokens.filter(spelt).unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}

fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if tokenizer.is_special(id) {
        return [&[MARK], bytes].concat();
    }
    if bytes.len() > MAX_TOKEN_BYTES || bytes.contains(&MARK) { Vec::new() } else { bytes.to_vec() }
}

fn unfit(got: impl ToString, expected: impl ToString) -> Error {
    Error::invalid("structured_outputs", got, expected)
}
