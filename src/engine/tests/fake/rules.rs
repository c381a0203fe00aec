//! Rules by which the fake executor makes logits.

use std::sync::Arc;

/// Returns the logits of the token after a sequence, from the whole sequence.
pub(in crate::tests) type Rule = Arc<dyn Fn(&[u32]) -> Vec<f32> + Send + Sync>;

/// Logits that depend on every token of the sequence and on their order.
pub(in crate::tests) fn hashed(vocab_size: usize) -> Rule {
    Arc::new(move |content| {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for token in content {
            hash = (hash ^ u64::from(*token)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
        (0..vocab_size as u64)
            .map(|i| {
                let x = (hash ^ i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                (x >> 40) as f32 / (1u64 << 24) as f32 * 6.0
            })
            .collect()
    })
}

/// Logits that depend only on the last token, some far above the others. So greedy text is periodic, and sampled text
/// partly repeats itself.
pub(in crate::tests) fn repeating(vocab_size: usize) -> Rule {
    let of_last = hashed(vocab_size);
    Arc::new(move |content| of_last(&content[content.len() - 1..]).into_iter().map(|logit| 3.0 * logit).collect())
}

/// A rule that gives these tokens after the prompt, then the first of them for ever.
pub(in crate::tests) fn listed(vocab_size: usize, prompt_len: usize, tokens: Vec<u32>) -> Rule {
    Arc::new(move |content| {
        let next = content.len().checked_sub(prompt_len).map_or(0, |i| tokens.get(i).copied().unwrap_or(tokens[0]));
        (0..vocab_size as u32).map(|i| if i == next { 10.0 } else { 0.0 }).collect()
    })
}
