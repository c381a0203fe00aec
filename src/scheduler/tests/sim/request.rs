//! Requests of the simulator's users, and the tokens that they must get: the definition, without any cache or batch.

use crate::batch::{SeqExtras, TO_GUESS};

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(b).wrapping_add(0xD1B5_4A32_D192_ED03);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Drafts tokens for a request: up to `most` with each commit, of which one in `wrong` is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drafter {
    pub(crate) most: usize,
    pub(crate) wrong: u64,
    /// Drafts become known when their step is launched, and not before.
    pub(crate) at_launch: bool,
}

/// A request as the simulator's user sees it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) priority: i32,
    pub(crate) client: Option<u8>,
    pub(crate) salt: Option<u8>,
    pub(crate) extras: SeqExtras,
    pub(crate) all_logits: bool,
    pub(crate) n: usize,
    /// Stands for the sampler's seed.
    pub(crate) seed: u64,
    pub(crate) drafter: Option<Drafter>,
}

impl Request {
    pub(crate) fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        let extras = SeqExtras::default();
        Self {
            prompt,
            max_tokens,
            priority: 0,
            client: None,
            salt: None,
            extras,
            all_logits: false,
            n: 1,
            seed: 7,
            drafter: None,
        }
    }

    /// The tokens that sequence `index` of the request generates when it is alone.
    pub(crate) fn alone(&self, index: usize, max_model_len: usize) -> Vec<u32> {
        let mut live = Live::new(self.clone());
        live.index = index;
        while !live.is_end(max_model_len) {
            live.push(live.next_token());
        }
        live.tokens
    }
}

/// A live sequence, as the engine would know it.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) request: Request,
    pub(super) index: usize,
    pub(super) tokens: Vec<u32>,
    /// Name of the prefix that ends with each token: what its K and V depend on.
    pub(super) names: Vec<u64>,
    /// Drafts that came with the last commit, to follow `tokens`.
    pub(super) drafts: Vec<u32>,
    /// Prompt positions whose logits came.
    pub(super) logits_seen: usize,
}

impl Live {
    pub(super) fn new(request: Request) -> Self {
        let prompt = request.prompt.clone();
        let mut live = Self { request, index: 0, tokens: vec![], names: vec![], drafts: vec![], logits_seen: 0 };
        prompt.into_iter().for_each(|token| live.push(token));
        live
    }

    pub(super) fn push(&mut self, token: u32) {
        let (salt, adapter) = (self.request.salt, self.request.extras.adapter);
        let root = || mix(salt.map_or(1, |salt| mix(2, u64::from(salt))), adapter.map_or(0, |a| 1 + u64::from(a)));
        let before = self.names.last().copied().unwrap_or_else(root);
        self.tokens.push(token);
        self.names.push(mix(before, u64::from(token)));
    }

    /// The device's model: the next token depends on the whole prefix and on the sampler's seed. Few tokens, so that
    /// sequences fall together and share.
    pub(super) fn next_token(&self) -> u32 {
        let seed = mix(self.request.seed, self.index as u64);
        (mix(*self.names.last().unwrap(), seed) % 31) as u32
    }

    /// It has generated what it may, or its end token.
    pub(super) fn is_end(&self, max_model_len: usize) -> bool {
        let (len, prompt_len) = (self.tokens.len(), self.request.prompt.len());
        len > prompt_len
            && (self.tokens.last() == Some(&0) || len >= (prompt_len + self.request.max_tokens).min(max_model_len))
    }

    /// A copy of the sequence in which its first `count` drafts are accepted.
    pub(super) fn with_drafts(&self, count: usize) -> Self {
        let mut drafted = self.clone();
        self.drafts[..count].iter().for_each(|token| drafted.push(*token));
        drafted
    }

    /// The drafts that a commit may tell of.
    pub(super) fn known_drafts(&self, drafts: &[u32]) -> Vec<u32> {
        let at_launch = self.request.drafter.is_some_and(|drafter| drafter.at_launch);
        drafts.iter().map(|&token| if at_launch { TO_GUESS } else { token }).collect()
    }

    /// Tokens that may follow: what does follow, with some mistakes.
    pub(super) fn draft(&self) -> Vec<u32> {
        let Some(Drafter { most, wrong, .. }) = self.request.drafter else { return vec![] };
        let mut guess = self.clone();
        let chance = |live: &Self, salt: u64| mix(*live.names.last().unwrap(), salt);
        let count = chance(self, 0xD4AF) % (2 * most as u64 + 1);
        for _ in 0..count.min(most as u64) {
            let mistake = u32::from(chance(&guess, 0xBAD).is_multiple_of(wrong));
            guess.push((guess.next_token() + mistake) % 31);
        }
        guess.tokens.split_off(self.tokens.len())
    }
}
