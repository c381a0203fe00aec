//! The tokens that a row may be sampled from, as a bit set.

/// A set of tokens: bit `i % 32` of word `i / 32` says whether token `i` is in it. Tokens after its last word are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask(Vec<u32>);

impl TokenMask {
    pub fn from_words(words: Vec<u32>) -> Self {
        Self(words)
    }

    pub fn words(&self) -> &[u32] {
        &self.0
    }

    pub fn allows(&self, token: u32) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Removes these tokens from the set, unless it has no others.
    pub fn remove_unless_alone(&mut self, tokens: &[u32]) {
        if !tokens.iter().any(|&token| self.allows(token)) {
            return;
        }
        let mut rest = self.0.clone();
        for &token in tokens {
            if let Some(word) = rest.get_mut(token as usize / 32) {
                *word &= !(1 << (token % 32));
            }
        }
        if rest.iter().any(|&word| word != 0) {
            self.0 = rest;
        }
    }

    /// Makes all other tokens of a row of logits impossible, in place.
    pub fn apply(&self, row: &mut [f32]) {
        for (i, chunk) in row.chunks_mut(32).enumerate() {
            let word = self.0.get(i).copied().unwrap_or(0);
            if word == u32::MAX {
                continue;
            }
            if word == 0 {
                chunk.fill(f32::NEG_INFINITY);
                continue;
            }
            for (bit, logit) in chunk.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}
