//! The tokens of one sequence.

use std::ops::Range;
use std::sync::Arc;

/// A prompt, shared with its other holders, followed by the generated tokens.
#[derive(Debug, Clone)]
pub struct Tokens {
    prompt: Arc<[u32]>,
    generated: Vec<u32>,
}

impl Tokens {
    /// Returns the tokens of a prompt, with none generated.
    pub fn new(prompt: Arc<[u32]>) -> Self {
        Self { prompt, generated: Vec::new() }
    }

    /// Returns a copy with this prompt, followed by `token` only.
    pub fn with_first(&self, token: u32) -> Self {
        Self { prompt: Arc::clone(&self.prompt), generated: vec![token] }
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    pub fn prompt_len(&self) -> usize {
        self.prompt.len()
    }

    pub fn get(&self, position: usize) -> Option<u32> {
        self.range(position..position.saturating_add(1)).next()
    }

    /// Returns the tokens at these positions, as far as they exist.
    pub fn range(&self, positions: Range<usize>) -> impl Iterator<Item = u32> {
        let split = self.prompt.len();
        let of_prompt = positions.start.min(split)..positions.end.min(split);
        let generated = positions.start.saturating_sub(split)..positions.end.saturating_sub(split);
        let generated = generated.start.min(self.generated.len())..generated.end.min(self.generated.len());
        self.prompt[of_prompt].iter().chain(&self.generated[generated]).copied()
    }

    pub fn push(&mut self, token: u32) {
        self.generated.push(token);
    }
}
