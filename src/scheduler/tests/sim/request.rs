//! Requests of the simulator, and the tokens that they must get, defined without any cache or batch.

use std::sync::Arc;

use crate::batch::{SeqExtras, TO_DRAFT};
use crate::images::{ImageId, ImageSpan, SeqImages, Sight};

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(b).wrapping_add(0xD1B5_4A32_D192_ED03);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns extras with an adapter and an image of `sides` at position `first`, which must fit into the prompt.
pub(crate) fn extras(
    adapter: Option<u32>,
    image: Option<(u8, u32, [u32; 2])>,
    (mrope, bidirectional): (bool, bool),
    prompt_len: usize,
) -> SeqExtras {
    let sight = if bidirectional { Sight::All } else { Sight::Causal };
    let span = image.map(|(digest, first, grid)| ImageSpan {
        first,
        image: ImageId(digest.into()),
        // Images of the same content have the same sides.
        digest: std::array::from_fn(|i| if i == 0 { digest } else { grid[i % 2] as u8 }),
        // The digest says what part of an image it is.
        first_row: u32::from(digest % 3),
        grid,
        // In M-RoPE, rows have no end.
        has_row_ends: !mrope && digest.is_multiple_of(2),
    });
    let span = span.filter(|span| span.tokens().end <= prompt_len);
    let images = span.map(|span| Arc::new(SeqImages { spans: vec![span], mrope, sight }));
    SeqExtras { adapter, images }
}

/// Drafts up to `most` tokens with each commit, of which one in `wrong` is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drafter {
    pub(crate) most: usize,
    pub(crate) wrong: u64,
    /// True if drafts become known only when their step is launched.
    pub(crate) at_launch: bool,
}

/// A request as its user sees it.
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

    /// Returns the image and the row that are the input at a position.
    pub(crate) fn image_row(&self, position: usize) -> Option<(u64, u64)> {
        let span = self.extras.images.as_ref()?.spans.iter().find(|span| span.tokens().contains(&position))?;
        Some((u64::from(span.digest[0]), u64::from(span.first_row) + (position - span.first as usize) as u64))
    }

    /// Returns the tokens that sequence `index` of the request generates alone.
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
    /// The name of the prefix that ends with each token, on which its keys and values depend.
    pub(super) names: Vec<u64>,
    /// The drafts of the last commit, to follow `tokens`.
    pub(super) drafts: Vec<u32>,
    /// Prompt positions whose logits were returned.
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
        let row = self.request.image_row(self.tokens.len()).map_or(0, |(digest, row)| 1 + mix(digest, row));
        let root = || mix(salt.map_or(1, |salt| mix(2, u64::from(salt))), adapter.map_or(0, |a| 1 + u64::from(a)));
        let before = self.names.last().copied().unwrap_or_else(root);
        self.tokens.push(token);
        self.names.push(mix(mix(before, u64::from(token)), row));
    }

    /// Returns the device model's next token, which depends on the whole prefix and the sampler's seed. There are few
    /// tokens, so that sequences coincide and share.
    pub(super) fn next_token(&self) -> u32 {
        let seed = mix(self.request.seed, self.index as u64);
        (mix(*self.names.last().unwrap(), seed) % 31) as u32
    }

    /// True if it has generated all its tokens or its end token.
    pub(super) fn is_end(&self, max_model_len: usize) -> bool {
        let (len, prompt_len) = (self.tokens.len(), self.request.prompt.len());
        len > prompt_len
            && (self.tokens.last() == Some(&0) || len >= (prompt_len + self.request.max_tokens).min(max_model_len))
    }

    /// Returns a copy in which the first `count` drafts are accepted.
    pub(super) fn with_drafts(&self, count: usize) -> Self {
        let mut drafted = self.clone();
        self.drafts[..count].iter().for_each(|token| drafted.push(*token));
        drafted
    }

    /// Returns the drafts that a commit may contain.
    pub(super) fn known_drafts(&self, drafts: &[u32]) -> Vec<u32> {
        let at_launch = self.request.drafter.is_some_and(|drafter| drafter.at_launch);
        drafts.iter().map(|&token| if at_launch { TO_DRAFT } else { token }).collect()
    }

    /// Drafts the tokens that will follow, with some errors.
    pub(super) fn draft(&self) -> Vec<u32> {
        let Some(Drafter { most, wrong, .. }) = self.request.drafter else { return vec![] };
        let mut draft = self.clone();
        let chance = |live: &Self, salt: u64| mix(*live.names.last().unwrap(), salt);
        let count = chance(self, 0xD4AF) % (2 * most as u64 + 1);
        for _ in 0..count.min(most as u64) {
            let mistake = u32::from(chance(&draft, 0xBAD).is_multiple_of(wrong));
            draft.push((draft.next_token() + mistake) % 31);
        }
        draft.tokens.split_off(self.tokens.len())
    }
}
