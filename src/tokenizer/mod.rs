//! Tokenizers from GGUF metadata, the streaming detokenizer, and chat templates.

use std::sync::Arc;

use crate::Result;
use crate::gguf::Metadata;

/// The file's tokenizer. Thread-safe; created once.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let _ = metadata;
        todo!("tokenizer")
    }
    /// `add_special`: BOS/EOS as the file's rules say. `parse_special`: text that spells a control token becomes it
    /// (never for user text).
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let _ = (text, add_special, parse_special);
        todo!("tokenizer")
    }
    /// Invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let _ = (ids, skip_special);
        todo!("tokenizer")
    }
    pub fn decode_bytes(&self, ids: &[u32], skip_special: bool) -> Result<Vec<u8>> {
        let _ = (ids, skip_special);
        todo!("tokenizer")
    }
    pub fn vocab_size(&self) -> usize {
        todo!("tokenizer")
    }
    /// All end-of-generation tokens (EOS, EOT, EOM …), sorted.
    pub fn eos_token_ids(&self) -> &[u32] {
        todo!("tokenizer")
    }
    pub fn is_eos(&self, id: u32) -> bool {
        self.eos_token_ids().binary_search(&id).is_ok()
    }
    pub fn bos_token_id(&self) -> Option<u32> {
        todo!("tokenizer")
    }
    pub fn is_special(&self, id: u32) -> bool {
        let _ = id;
        todo!("tokenizer")
    }
}

/// Turns a stream of token ids into text: never half a character, pieces joined == the whole.
#[derive(Debug)]
pub struct StreamDecoder {}

impl StreamDecoder {
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let _ = (tokenizer, skip_special);
        todo!("tokenizer")
    }
    /// The text that `id` completes (possibly empty).
    pub fn push(&mut self, id: u32) -> Result<String> {
        let _ = id;
        todo!("tokenizer")
    }
    /// What is left at the end: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        todo!("tokenizer")
    }
}

/// A chat template, compiled once.
#[derive(Debug)]
pub struct ChatTemplate {}

impl ChatTemplate {
    /// The file's template; `None` when it has none (a default is not invented).
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        let _ = metadata;
        todo!("tokenizer")
    }
    /// `bos_token`/`eos_token` are the texts that templates may refer to.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self> {
        let _ = (source, bos_token, eos_token);
        todo!("tokenizer")
    }
    /// `messages`: a JSON list of `{role, content, …}`; `tools`: a JSON list or null; `vars`: a JSON object of further
    /// variables. Bounded in time and output.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: &serde_json::Value,
        add_generation_prompt: bool,
        vars: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String> {
        let _ = (messages, tools, add_generation_prompt, vars);
        todo!("tokenizer")
    }
}
