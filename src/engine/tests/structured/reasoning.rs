//! Texts that begin with reasoning of a bounded length, with or without structured output after it.

use std::collections::HashSet;
use std::sync::Arc;

use super::{LOGITS, PROMPT, matching, rig};
use crate::FinishReason;
use crate::config::{BeginToken, EngineConfig, SamplingParams, StructuredOutputs};
use crate::sampler::{Sampler, SequenceSampler};
use crate::tests::support::*;

/// A token without meaning in structured output.
const MARKER: u32 = 70;

fn sampled(max_tokens: usize) -> SamplingParams {
    SamplingParams { max_tokens, temperature: 1.1, seed: Some(5), ..Default::default() }
}

/// Returns the tokens of a text by the rule and the sampler alone. `allowed` returns the tokens allowed after a text,
/// or `None` for all.
fn expected(
    rig: &Rig,
    params: &SamplingParams,
    index: u32,
    allowed: impl Fn(&[u32]) -> Option<HashSet<u32>>,
) -> Vec<u32> {
    let plain = SamplingParams { structured_outputs: None, ..params.clone() };
    let mut sequence = SequenceSampler::new(Arc::new(plain), 5, index, &PROMPT, Arc::from([EOS]));
    let mut text: Vec<u32> = Vec::new();
    while text.len() < params.max_tokens && text.last() != Some(&EOS) {
        let mut row = (rig.rule)(&[&PROMPT[..], &text].concat());
        if let Some(allowed) = allowed(&text) {
            if allowed.is_empty() {
                break;
            }
            (0u32..)
                .zip(&mut row)
                .filter(|(token, _)| !allowed.contains(token))
                .for_each(|(_, x)| *x = f32::NEG_INFINITY);
        }
        let token = Sampler::new(row.len()).sample(&row, &sequence).unwrap();
        sequence.accept(token);
        text.push(token);
    }
    text
}

/// The end of reasoning is forced when the budget is used up, unless it came before. Nothing else changes.
#[test]
fn budgets_end_reasoning() {
    let rig = rig(EngineConfig { kv_groups: blocks(30), ..config() });
    for budget in [0, 1, 7, 20] {
        for n in [1, 3] {
            let params = SamplingParams {
                n,
                thinking_end_token_id: Some(MARKER),
                thinking_token_budget: Some(budget),
                ..sampled(24)
            };
            let forced =
                |text: &[u32]| (text.len() == budget && !text.contains(&MARKER)).then(|| HashSet::from([MARKER]));
            for (index, one) in rig.run(&PROMPT, params.clone()) {
                assert_eq!(one.tokens, expected(&rig, &params, index as u32, forced), "budget {budget}");
            }
        }
    }
    // A budget that is never used up changes nothing.
    let free = rig.run(&PROMPT, sampled(24));
    let params = SamplingParams { thinking_end_token_id: Some(MARKER), thinking_token_budget: Some(24), ..sampled(24) };
    assert_eq!(rig.run(&PROMPT, params)[&0].tokens, free[&0].tokens);
    assert_nothing_left(&rig.engine);
}

fn behind_marker(optional: bool) -> Option<StructuredOutputs> {
    let begin = Some(BeginToken { id: MARKER, optional });
    matching("[ab]{3}").map(|outputs| StructuredOutputs { begin, ..outputs })
}

/// Allows anything but `EOS` before the marker, and three letters after it.
fn three_letters(text: &[u32], optional: bool) -> Option<HashSet<u32>> {
    let Some(at) = text.iter().position(|&token| token == MARKER) else {
        return (!optional).then(|| (0..LOGITS as u32).filter(|&token| token != EOS).collect());
    };
    let letters: usize = text[at + 1..].iter().map(|&token| if token == word(0) { 2 } else { 1 }).sum();
    let mut allowed = HashSet::from([letter('a'), letter('b'), byte(b'a'), byte(b'b')]);
    match letters {
        0 | 1 => allowed.insert(word(0)),
        2 => true,
        _ => return Some(HashSet::new()),
    };
    Some(allowed)
}

/// Structured output begins after its token and ends the text. Before it only an end token may be forbidden.
#[test]
fn forms_begin_behind_their_token() {
    let rig = rig(EngineConfig { kv_groups: blocks(40), ..config() });
    for optional in [false, true] {
        for n in [1, 2, 4] {
            let params = SamplingParams {
                n,
                structured_outputs: behind_marker(optional),
                thinking_end_token_id: Some(MARKER),
                thinking_token_budget: Some(9),
                ..sampled(30)
            };
            for (index, one) in rig.run(&PROMPT, params.clone()) {
                let allowed = |text: &[u32]| {
                    let forced = text.len() == 9 && !text.contains(&MARKER);
                    if forced { Some(HashSet::from([MARKER])) } else { three_letters(text, optional) }
                };
                let wanted = expected(&rig, &params, index as u32, allowed);
                assert_eq!(one.tokens, wanted, "optional: {optional}");
                assert_eq!(one.reason, Some(FinishReason::Stop));
                assert!(optional || one.tokens.contains(&MARKER), "the structured output had to come");
            }
        }
    }
    assert_nothing_left(&rig.engine);
}

/// Texts that are preempted during reasoning or structured output continue exactly.
#[test]
fn preempted_reasoning_go_on_exactly() {
    let rig = rig(EngineConfig { kv_groups: blocks(14), ..config() });
    let params = SamplingParams {
        n: 3,
        structured_outputs: behind_marker(false),
        thinking_end_token_id: Some(MARKER),
        thinking_token_budget: Some(9),
        ..sampled(30)
    };
    let alone = rig.run(&PROMPT, params.clone());
    let clients: Vec<_> = (0..6).map(|_| rig.submit(&PROMPT, params.clone())).collect();
    for client in clients {
        for (index, one) in client.wait() {
            assert_eq!(one.tokens, alone[&index].tokens);
        }
    }
    assert!(rig.engine.stats().num_preemptions > 0);
    assert_nothing_left(&rig.engine);
}
