//! A small model with the same vocabulary that proposes draft tokens for another model.

use super::spec::ModelSpec;
use crate::gguf::GgufFile;
use crate::{Error, Result};

/// The setting that names the draft model, for errors.
const MODEL: &str = "speculative_config.model";

/// The largest difference of vocabulary sizes, as in llama.cpp. Models pad their vocabulary to different multiples.
const MAX_PADDING: usize = 128;
/// The smallest vocabulary that may be padded.
const LEAST_PADDED: usize = 256;

impl ModelSpec {
    /// Adds the model of the file `draft`, which proposes draft tokens for this model of the file `gguf`. Its keys and
    /// values use this model's KV groups. `max_model_len` is that of `from_gguf`.
    ///
    /// # Errors
    /// `Error::InvalidRequest` for a model that cannot draft for this one, and errors of the draft model's file.
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
        // A recurrent state would have to be rolled back for each rejected draft token.
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
        if spec.output_bias && spec.vocab_size < self.vocab_size {
            return refuse(format!(
                "a draft model with the model's {} tokens, since its output projection has a bias; this one has {}",
                self.vocab_size, spec.vocab_size
            ));
        }
        if let Some(difference) = difference(gguf, draft, [self.vocab_size, spec.vocab_size])? {
            return refuse(format!("a draft model with the model's vocabulary; {difference}"));
        }
        let mut joined = self;
        // Every token of the model then has a row in the draft model's tables.
        spec.vocab_size = spec.vocab_size.max(joined.vocab_size);
        joined.join_kv_groups_of(&mut spec);
        joined.draft_model = Some(Box::new(spec));
        Ok(joined)
    }
}

/// Returns a text that says how the vocabulary of `draft` differs from that of `gguf`. Tokens are compared by text, up
/// to the end of the shorter list. Without token lists, only the sizes are compared.
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
