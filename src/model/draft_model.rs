//! A small model of the same vocabulary that guesses tokens for another one.

use super::spec::ModelSpec;
use crate::gguf::GgufFile;
use crate::{Error, Result};

/// The setting that names the draft model, for errors.
const MODEL: &str = "speculative_config.model";

/// Tokens by which the vocabularies may differ in length, as in llama.cpp: models are padded to other multiples.
const MAX_PADDING: usize = 128;
/// Tokens of a vocabulary below which there is no padding.
const LEAST_PADDED: usize = 256;

impl ModelSpec {
    /// Adds the model of the file `draft`, which is to guess tokens for this one, of the file `gguf`. Its keys and
    /// values share this one's KV groups. `max_model_len`: as for `from_gguf`.
    ///
    /// # Errors
    /// `Error::InvalidRequest` for a model that cannot guess for this one, and errors of the draft model's file.
    pub fn with_draft_model(self, gguf: &GgufFile, draft: &GgufFile, max_model_len: Option<usize>) -> Result<Self> {
        let longest = max_model_len.unwrap_or(usize::MAX).min(self.context_length);
        let mut spec = Self::from_gguf(draft, Some(longest))?;
        let refuse = |expected: String| Err(Error::invalid(MODEL, draft.metadata().path().display(), expected));
        if self.is_bidirectional() {
            return refuse("nothing, since the model attends in both directions and generates no text".to_owned());
        }
        if spec.is_bidirectional() {
            return refuse("a model that generates text; this one attends in both directions".to_owned());
        }
        // A state of its own would have to be taken back for each guess that is wrong.
        if spec.state_bytes() > 0 {
            let architecture = spec.architecture;
            return refuse(format!("a draft model whose layers all attend; {architecture} carries recurrent states"));
        }
        if spec.context_length < longest {
            return refuse(format!(
                "a draft model for {longest} tokens, as many as max_model_len; this one is made for {}: set \
                 max_model_len to no more",
                spec.context_length
            ));
        }
        if let Some(difference) = difference(gguf, draft, [self.vocab_size, spec.vocab_size])? {
            return refuse(format!("a draft model with the model's vocabulary; {difference}"));
        }
        let mut joined = self;
        // The model's tokens all have a row in the draft model's tables then.
        spec.vocab_size = spec.vocab_size.max(joined.vocab_size);
        joined.join_kv_groups_of(&mut spec);
        joined.draft_model = Some(Box::new(spec));
        Ok(joined)
    }
}

/// Says what tells the vocabulary of `draft` from that of `gguf`: tokens are compared by their texts, but for those
/// that one of the two has behind the other's. Files without a list of tokens have nothing but their number.
fn difference(gguf: &GgufFile, draft: &GgufFile, [tokens, draft_tokens]: [usize; 2]) -> Result<Option<String>> {
    let shorter = tokens.min(draft_tokens);
    let padding = if shorter < LEAST_PADDED { 0 } else { MAX_PADDING };
    if tokens.abs_diff(draft_tokens) > padding {
        return Ok(Some(format!("it has {draft_tokens} tokens, the model {tokens}")));
    }
    let [texts, of_draft] = [gguf, draft].map(|file| file.metadata().opt_strings("tokenizer.ggml.tokens"));
    Ok(match (texts?, of_draft?) {
        (None, None) => None,
        (None, Some(_)) => Some("the model's file has no list of tokens".to_owned()),
        (Some(_), None) => Some("its file has no list of tokens".to_owned()),
        (Some(texts), Some(of_draft)) => {
            let differs = texts.iter().zip(of_draft).position(|(text, of_draft)| text != of_draft);
            differs.map(|token| format!("its token {token} is {:?}, the model's {:?}", of_draft[token], texts[token]))
        }
    })
}
