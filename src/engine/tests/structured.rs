//! Requests with structured output. The grammars are so simple that the allowed tokens are known without one.

mod late_masks;
mod reasoning;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::fake::hashed;
use super::support::*;
use crate::Error;
use crate::FinishReason;
use crate::config::{Constraint, EngineConfig, SamplingParams, StructuredOutputs};
use crate::sampler::{Sampler, SequenceSampler, TokenLogprob, TokenLogprobs};

/// The tokens of `tokenizer`, and the larger number of the model's logits.
const TOKENS: usize = 286 + 1;
pub(super) const LOGITS: usize = 300;
pub(super) const PROMPT: [u32; 9] = [9, 8, 7, 6, 5, 4, 3, 2, 1];
const LENGTH: usize = 20;

pub(super) fn rig(config: EngineConfig) -> Rig {
    let logits = hashed(LOGITS);
    // Unconstrained text never uses the logits without a token.
    let rule = Arc::new(move |content: &[u32]| {
        let mut row = logits(content);
        row[TOKENS..].fill(-100.0);
        row
    });
    let rig = Rig::with(config, rule, Some(tokenizer(&["ab"])));
    rig.script.selects.store(true, SeqCst);
    rig
}

pub(super) fn matching(regex: &str) -> Option<StructuredOutputs> {
    let constraint = Constraint::Regex(regex.into());
    Some(StructuredOutputs { constraint, disable_any_whitespace: false, whitespace_pattern: None, begin: None })
}

/// Texts of `LENGTH` letters, each an `a` or a `b`.
fn guided(n: usize) -> SamplingParams {
    let structured_outputs = matching(&format!("[ab]{{{LENGTH}}}"));
    SamplingParams { n, max_tokens: 40, temperature: 1.3, seed: Some(77), structured_outputs, ..Default::default() }
}

/// Returns the tokens of the text by the rule and the sampler alone. All others are impossible in the row itself.
fn expected(rig: &Rig, prompt: &[u32], params: &SamplingParams, index: u32) -> Vec<u32> {
    let params = Arc::new(SamplingParams { n: 1, ..params.clone() });
    let mut sequence = SequenceSampler::new(Arc::clone(&params), 77, index, prompt, Arc::from([EOS]));
    let mut content = prompt.to_vec();
    let mut letters = 0;
    while letters < LENGTH && content.len() < prompt.len() + params.max_tokens {
        let mut row = (rig.rule)(&content);
        for (token, logit) in (0u32..).zip(&mut row) {
            let pair = token == word(0) && letters + 2 <= LENGTH;
            if ![letter('a'), letter('b'), byte(b'a'), byte(b'b')].contains(&token) && !pair {
                *logit = f32::NEG_INFINITY;
            }
        }
        let token = Sampler::new(row.len()).sample(&row, &sequence).unwrap();
        sequence.accept(token);
        content.push(token);
        letters += if token == word(0) { 2 } else { 1 };
    }
    content.split_off(prompt.len())
}

fn check(rig: &Rig, client: Client, prompt: &[u32], params: &SamplingParams) {
    for (index, one) in client.wait() {
        assert_eq!(one.tokens, expected(rig, prompt, params, index as u32), "sequence {index}");
        assert!(one.text.len() == LENGTH && one.text.chars().all(|c| "ab".contains(c)), "{}", one.text);
        assert_eq!(one.reason, Some(FinishReason::Stop));
        assert!(one.stop.is_none() && one.error.is_none());
    }
}

/// Each sequence is sampled under its own mask, whatever runs next to it: greedy, sampled, forked, penalized.
#[test]
fn masks_are_of_their_own_sequence() {
    for synchronous in [false, true] {
        let rig = rig(config());
        rig.script.synchronous.store(synchronous, SeqCst);
        let kinds = [
            guided(1),
            guided(3),
            SamplingParams { temperature: 0.0, ..guided(1) },
            SamplingParams { top_k: 2, frequency_penalty: 0.5, logprobs: Some(2), ..guided(2) },
            SamplingParams { min_tokens: 40, top_p: 0.6, ..guided(1) },
        ];
        let free = rig.submit(&[4, 5], SamplingParams { ignore_eos: true, ..greedy(40) });
        let clients: Vec<_> = kinds.iter().map(|params| rig.submit(&PROMPT, params.clone())).collect();
        for (client, params) in clients.into_iter().zip(&kinds) {
            check(&rig, client, &PROMPT, params);
        }
        assert_eq!(free.wait()[&0].tokens, alone(&rig.rule, &[4, 5], &greedy(40), 0, 0));
        // The device gets the masks, and picks tokens under them.
        assert_eq!(rig.script.rows_wanted.load(SeqCst), 0);
        assert_nothing_left(&rig.engine);
    }
}

/// Sequences that are preempted all the time continue where their texts were.
#[test]
fn preempted_texts_go_on_exactly() {
    let rig = rig(EngineConfig { kv_groups: blocks(14), ..config() });
    let clients: Vec<_> = (0..6).map(|i| rig.submit(&PROMPT[i..], guided(3))).collect();
    for (i, client) in clients.into_iter().enumerate() {
        check(&rig, client, &PROMPT[i..], &guided(3));
    }
    assert!(rig.engine.stats().num_preemptions > 0);
    assert_nothing_left(&rig.engine);
}

/// Asserts equal tokens and ranks. A device sums the probabilities in single precision.
fn assert_same(got: &[TokenLogprob], expected: &[TokenLogprob]) {
    let places = |entries: &[TokenLogprob]| -> Vec<(u32, u32)> {
        entries.iter().map(|entry| (entry.token_id, entry.rank)).collect()
    };
    assert_eq!(places(got), places(expected));
    assert!(got.iter().zip(expected).all(|(got, expected)| (got.logprob - expected.logprob).abs() < 1e-5));
}

pub(super) fn assert_all_same(got: &[TokenLogprobs], expected: &[TokenLogprobs]) {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).for_each(|(got, expected)| assert_same(got, expected));
}

/// Log-probabilities are those of the model's own row.
#[test]
fn logprobs_are_the_models_own() {
    let rig = rig(config());
    let params = SamplingParams { logprobs: Some(4), ..guided(1) };
    let done = rig.run(&PROMPT, params);
    let mut content = PROMPT.to_vec();
    for (token, logprobs) in done[&0].tokens.iter().zip(&done[&0].logprobs) {
        let row = (rig.rule)(&content);
        assert_same(logprobs, &Sampler::new(LOGITS).logprobs(&row, *token, 4).unwrap());
        content.push(*token);
    }
    assert_nothing_left(&rig.engine);
}

/// A rejected grammar takes no place in the queue. Without a tokenizer every grammar is rejected.
#[test]
fn refused_forms_take_no_place() {
    let rig = rig(config());
    let bad = SamplingParams { structured_outputs: matching("a("), ..greedy(5) };
    for _ in 0..3 {
        let refused = submit(&rig.engine, request(&PROMPT, bad.clone())).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::InvalidRequest { what: "structured_outputs", .. }), "{refused}");
    }
    assert_nothing_left(&rig.engine);
    let plain = Rig::new();
    let refused = submit(&plain.engine, request(&PROMPT, guided(1))).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("without a tokenizer"), "{refused}");
}

/// A text that is aborted while its mask is computed, while it waits or while it runs leaves nothing.
#[test]
fn aborted_texts_leave_nothing() {
    let rig = rig(EngineConfig { max_num_seqs: 3, ..config() });
    rig.script.close_gate();
    let clients: Vec<_> = (0..5).map(|_| rig.submit(&PROMPT, guided(2))).collect();
    for client in &clients {
        rig.script.wait_at_gate();
        rig.engine.abort_id(client.accepted.id).unwrap();
        rig.script.let_one_pass();
    }
    rig.script.open_gate();
    for client in clients {
        assert!(client.wait().values().all(|one| one.reason == Some(FinishReason::Abort)));
    }
    check(&rig, rig.submit(&PROMPT, guided(1)), &PROMPT, &guided(1));
    assert_nothing_left(&rig.engine);
}

/// A text that exceeds the limits of its grammar ends its own request, with the reason.
#[test]
fn a_grammar_out_of_bounds_ends_its_request() {
    let rig = rig(config());
    // The ambiguity is unbounded: each letter doubles the ways to read the text.
    let items: Vec<String> = (0..2100).map(|i| format!("r{i}")).collect();
    let rules: String = items.iter().map(|rule| format!("{rule}: \"a\" {rule} | \"b\"\n")).collect();
    let grammar = format!("start: {}\n{rules}", items.join(" | "));
    let structured_outputs = Some(StructuredOutputs {
        constraint: Constraint::Grammar(grammar),
        disable_any_whitespace: false,
        whitespace_pattern: None,
        begin: None,
    });
    let beside = rig.submit(&PROMPT, guided(2));
    match submit(&rig.engine, request(&PROMPT, SamplingParams { structured_outputs, ..greedy(20) })) {
        Ok(client) => {
            let done = client.wait();
            assert_eq!(done[&0].reason, Some(FinishReason::Error), "{done:?}");
            let message = done[&0].error.as_ref().unwrap().to_string();
            assert!(message.contains("structured_outputs"), "{message}");
        }
        Err(error) => assert!(error.to_string().contains("grammar that is refused"), "{error}"),
    }
    check(&rig, beside, &PROMPT, &guided(2));
    assert_nothing_left(&rig.engine);
}

/// Each round has one letter with a choice and five forced ones.
const ROUNDS: usize = 4;
const FORCED: [char; 5] = ['c', 'd', 'd', 'c', 'd'];

/// Returns the tokens of such a text by the rule and the sampler alone, with log-probabilities of the model's own rows.
fn expected_rounds(rig: &Rig, params: &SamplingParams, index: u32) -> (Vec<u32>, Vec<TokenLogprobs>) {
    let mut sampler = Sampler::new(LOGITS);
    let params = Arc::new(SamplingParams { n: 1, structured_outputs: None, ..params.clone() });
    let mut sequence = SequenceSampler::new(params, 77, index, &PROMPT, Arc::from([EOS]));
    let mut content = PROMPT.to_vec();
    let mut logprobs = Vec::new();
    for i in 0..ROUNDS * (1 + FORCED.len()) {
        let row = (rig.rule)(&content);
        let token = match i % (1 + FORCED.len()) {
            0 => {
                let choices = [letter('a'), letter('b'), byte(b'a'), byte(b'b')];
                let masked = |(id, logit): (u32, &f32)| if choices.contains(&id) { *logit } else { f32::NEG_INFINITY };
                sampler.sample(&(0u32..).zip(&row).map(masked).collect::<Vec<f32>>(), &sequence).unwrap()
            }
            place => letter(FORCED[place - 1]),
        };
        logprobs.push(sampler.logprobs(&row, token, 3).unwrap());
        sequence.accept(token);
        content.push(token);
    }
    (content.split_off(PROMPT.len()), logprobs)
}

/// Several forced tokens are computed per step, and the text equals that of single steps, whatever runs next to it:
/// sampled or greedy, with penalties, forked and preempted.
#[test]
fn forced_tokens_take_no_steps_of_their_own() {
    let regex = format!("([ab]{}){{{ROUNDS}}}", FORCED.iter().collect::<String>());
    let params = |n| SamplingParams { n, logprobs: Some(3), structured_outputs: matching(&regex), ..guided(1) };
    for (synchronous, num_blocks) in [(true, 60), (false, 60), (true, 14), (false, 14)] {
        let rig = rig(EngineConfig { kv_groups: blocks(num_blocks), ..config() });
        rig.script.synchronous.store(synchronous, SeqCst);
        let before = rig.engine.stats().engine_steps;
        let alone = rig.run(&PROMPT, params(1));
        let (tokens, logprobs) = expected_rounds(&rig, &params(1), 0);
        assert_eq!(alone[&0].tokens, tokens);
        assert_all_same(&alone[&0].logprobs, &logprobs);
        let steps = rig.engine.stats().engine_steps - before;
        let most = if synchronous { 2 * ROUNDS as u64 + 1 } else { 3 * ROUNDS as u64 + 2 };
        assert!(steps <= most, "{steps} steps for {} tokens", tokens.len());
        let kinds = [
            params(3),
            SamplingParams { temperature: 0.0, ..params(1) },
            SamplingParams { frequency_penalty: 1.5, repetition_penalty: 1.3, ..params(2) },
            SamplingParams { logprobs: None, presence_penalty: 0.7, ..params(2) },
            SamplingParams { max_tokens: 9, ..params(1) },
        ];
        let clients: Vec<_> = kinds.iter().map(|params| rig.submit(&PROMPT, params.clone())).collect();
        for (client, params) in clients.into_iter().zip(&kinds) {
            for (index, one) in client.wait() {
                let (mut tokens, mut logprobs) = expected_rounds(&rig, params, index as u32);
                tokens.truncate(params.max_tokens);
                logprobs.truncate(params.logprobs.map_or(0, |_| params.max_tokens));
                assert_eq!(one.tokens, tokens, "sequence {index} of {params:?}");
                assert_all_same(&one.logprobs, &logprobs);
            }
        }
        assert_eq!(rig.engine.stats().num_preemptions > 0, num_blocks == 14);
        assert_nothing_left(&rig.engine);
    }
}

/// A stop string among forced tokens ends the text there.
#[test]
fn forced_tokens_stop_where_the_text_does() {
    let rig = rig(config());
    rig.script.synchronous.store(true, SeqCst);
    let regex = format!("([ab]{}){{{ROUNDS}}}", FORCED.iter().collect::<String>());
    let params = SamplingParams { structured_outputs: matching(&regex), stop: vec!["dd".into()], ..guided(2) };
    for (_, one) in rig.run(&PROMPT, params) {
        assert!(one.text == "ac" || one.text == "bc", "{}", one.text);
        assert_eq!((one.tokens.len(), one.reason), (4, Some(FinishReason::Stop)));
    }
    assert_nothing_left(&rig.engine);
}
