use std::sync::atomic::Ordering::SeqCst;

use crate::Error;
use crate::TokenLogprobs;
use crate::config::{EngineConfig, SamplingParams};
use crate::tests::fake::{Fault, hashed};
use crate::tests::support::*;

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let total: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
    row.iter().map(|x| f64::from(*x) - total.ln()).collect()
}

fn check(entries: &TokenLogprobs, row: &[f32], token: u32, top: usize) {
    let expected = log_softmax(row);
    assert_eq!(entries[0].token_id, token);
    assert_eq!(entries.len(), top + 1);
    for entry in entries {
        assert!((f64::from(entry.logprob) - expected[entry.token_id as usize]).abs() < 1e-5);
    }
    assert!(entries[1..].windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
}

/// Log-probabilities of generated tokens, and their sum.
#[test]
fn generated_tokens() {
    let rig = Rig::new();
    let prompt = [5u32, 6, 7];
    let params = SamplingParams { logprobs: Some(3), seed: Some(4), max_tokens: 12, ..Default::default() };
    let one = rig.run(&prompt, params)[&0].clone();
    assert_eq!(one.logprobs.len(), 12);
    let mut content = prompt.to_vec();
    let mut sum = 0.0;
    for (token, entries) in one.tokens.iter().zip(&one.logprobs) {
        let row = (rig.rule)(&content);
        check(entries, &row, *token, 3);
        sum += log_softmax(&row)[*token as usize];
        content.push(*token);
    }
    let cumulative = one.last.unwrap().cumulative_logprob.unwrap();
    assert!((cumulative - sum).abs() < 1e-4, "{cumulative} for {sum}");
    let plain = rig.run(&prompt, greedy(3))[&0].clone();
    assert!(plain.logprobs.is_empty() && plain.last.unwrap().cumulative_logprob.is_none());
}

/// Log-probabilities of the prompt: whole, in chunks, with a cached prefix, and after preemption.
#[test]
fn prompt_tokens() {
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 60).collect();
    let small = EngineConfig { kv_groups: blocks(16), ..config() };
    for config in [config(), EngineConfig { max_num_batched_tokens: 8, ..config() }, small] {
        let rig = Rig::with(config, hashed(VOCAB), None);
        rig.run(&prompt, greedy(3));
        let params = SamplingParams { prompt_logprobs: Some(2), ..greedy(10) };
        let clients: Vec<_> = (0..3).map(|_| rig.submit(&prompt, params.clone())).collect();
        for client in clients {
            let one = client.wait()[&0].clone();
            let entries = one.prompt_logprobs.unwrap();
            assert_eq!(entries.len(), prompt.len());
            assert!(entries[0].is_none());
            for position in 1..prompt.len() {
                let row = (rig.rule)(&prompt[..position]);
                check(entries[position].as_ref().unwrap(), &row, prompt[position], 2);
            }
            assert_eq!(one.tokens, alone(&rig.rule, &prompt, &greedy(10), 0, 0));
        }
        assert_nothing_left(&rig.engine);
    }
}

/// `start_prompt_logits` returns every row, chunked or not, up to the model's length, next to other requests.
#[test]
fn every_row_of_a_prompt() {
    let rig = Rig::new();
    let other = rig.submit(&[1, 2, 3], greedy(50));
    for n in [1usize, 23, 24, 25, 64] {
        let prompt: Vec<u32> = (0..n as u32).map(|i| i * 11 % 61).collect();
        let expected: Vec<f32> = (1..=n).flat_map(|len| (rig.rule)(&prompt[..len])).collect();
        assert_eq!(prompt_logits(&rig.engine, prompt.clone()).unwrap(), expected);
        // The second time the prefix is cached.
        assert_eq!(prompt_logits(&rig.engine, prompt).unwrap(), expected);
    }
    assert_eq!(other.wait()[&0].tokens, alone(&rig.rule, &[1, 2, 3], &greedy(50), 0, 0));
    let stats = rig.engine.stats();
    assert_eq!((stats.num_finished_length, stats.finished_records), (1, 1));
    assert_nothing_left(&rig.engine);
}

/// F4: a prompt takes the same number of steps with and without its logits, which come in pieces after each step.
#[test]
fn logits_of_a_prompt_take_no_step_more() {
    let prompt: Vec<u32> = (0..60).map(|i| i * 7 % 60).collect();
    let run = |wants_logits| {
        let rig = Rig::new();
        match wants_logits {
            true => assert_eq!(prompt_logits(&rig.engine, prompt.clone()).unwrap().len(), prompt.len() * VOCAB),
            false => assert_eq!(rig.run(&prompt, greedy(1))[&0].tokens.len(), 1),
        }
        assert_nothing_left(&rig.engine);
        (rig.engine.stats().engine_steps, rig.script.pieces.load(SeqCst))
    };
    assert_eq!((run(true), run(false)), ((3, 2), (3, 0)));
}

/// F4: a step that is interrupted between two pieces of its rows is computed again. No row of logits, log-probabilities
/// or hidden states is read twice.
#[test]
fn a_step_stopped_between_pieces_repeats_nothing() {
    let prompt: Vec<u32> = (0..60).map(|i| i * 11 % 61).collect();
    let expected: Vec<f32> = (1..=prompt.len()).flat_map(|len| (hashed(VOCAB))(&prompt[..len])).collect();
    let params = SamplingParams { prompt_logprobs: Some(2), ..greedy(5) };
    let without = Rig::new().run(&prompt, params.clone())[&0].clone();
    for stopped in 1..3 {
        let rig = || {
            let rig = Rig::new();
            rig.script.synchronous.store(true, SeqCst);
            rig.script.stopped_piece.store(stopped, SeqCst);
            rig
        };
        let logits = rig();
        assert!(prompt_logits(&logits.engine, prompt.clone()).unwrap() == expected);
        assert_nothing_left(&logits.engine);
        let of_text = rig();
        let one = of_text.run(&prompt, params.clone())[&0].clone();
        assert_eq!((one.tokens, one.prompt_logprobs), (without.tokens.clone(), without.prompt_logprobs.clone()));
        assert_nothing_left(&of_text.engine);
        assert_eq!(of_text.script.steps.load(SeqCst), 7, "the step was not stopped");
    }
}

#[test]
fn prompt_logits_that_fail() {
    let rig = Rig::new();
    rig.script.fault(0, Fault::Error);
    assert!(matches!(prompt_logits(&rig.engine, vec![1, 2]), Err(Error::StepFailed { .. })));
    assert!(matches!(prompt_logits(&rig.engine, vec![]), Err(Error::InvalidRequest { .. })));
    assert!(matches!(prompt_logits(&rig.engine, vec![64]), Err(Error::InvalidRequest { .. })));
    assert!(matches!(prompt_logits(&rig.engine, vec![1; 65]), Err(Error::InvalidRequest { .. })));
    // A caller may stop waiting.
    drop(rig.engine.start_prompt_logits(vec![1; 30]).unwrap());
    assert!(prompt_logits(&rig.engine, vec![1, 2]).is_ok());
    assert_nothing_left(&rig.engine);
}
