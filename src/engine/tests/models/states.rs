//! Models with recurrent states: every sequence continues from its own state in any situation.

use std::sync::atomic::Ordering;

use crate::config::{DeviceKind, EngineArgs, EngineConfig, SamplingParams};
use crate::kv_cache::PrefixMiss;
use crate::testdata;
use crate::tests::drafts::speculation::EAGER;
use crate::tests::failures::interrupts::{assert_others_lose_nothing, synchronous};
use crate::tests::fake::hashed;
use crate::tests::structured::{self, matching};
use crate::tests::support::*;
use crate::{Engine, FinishReason};

fn hybrid(slots_per_seq: usize) -> EngineConfig {
    EngineConfig { states: slots(8, slots_per_seq, 16), ..config() }
}

fn rig(config: EngineConfig, synchronous: bool) -> Rig {
    let rig = Rig::with(config, hashed(VOCAB), None);
    rig.script.synchronous.store(synchronous, Ordering::SeqCst);
    rig
}

fn cached(done: &Finished) -> (usize, Option<PrefixMiss>) {
    let metrics = done[&0].last.as_ref().unwrap().metrics;
    (metrics.num_cached_tokens, metrics.prefix_miss)
}

/// Each turn of a conversation begins where the previous one ended, in whole blocks.
#[test]
fn a_conversation_goes_on_from_its_last_state() {
    for (synchronous, slots_per_seq) in [(false, 1), (true, 2)] {
        let rig = rig(hybrid(slots_per_seq), synchronous);
        let mut history = vec![5; 10];
        let mut computed = 0;
        for turn in 0..4 {
            let done = rig.run(&history, greedy(7));
            assert_eq!(done[&0].tokens, alone(&rig.rule, &history, &greedy(7), 0, 0));
            assert_eq!(cached(&done).0, computed, "turn {turn}");
            // The last token is never computed.
            history.extend(&done[&0].tokens);
            computed = (history.len() - 1) / 4 * 4;
            history.extend([turn; 4]);
        }
        assert_nothing_left(&rig.engine);
        assert!(rig.engine.reset_prefix_cache().unwrap());
        assert_eq!(rig.engine.stats().kv_cache.state_slots_free, 8 * slots_per_seq + 16);
    }
}

/// A12: a prompt that shares a prefix with another one gets the reason why it is recomputed. The third one finds it.
#[test]
fn a_state_that_was_not_kept_is_the_reason_of_a_miss() {
    let rig = rig(EngineConfig { max_num_batched_tokens: 64, ..hybrid(1) }, false);
    let prompt = |last: u32| [vec![1; 5], vec![2; 7], vec![last; 9]].concat();
    let ask = |last| cached(&rig.run(&prompt(last), greedy(1)));
    // The 12 tokens are three blocks, and a state was saved after 8 of them.
    assert_eq!(ask(3), (0, Some(PrefixMiss::New)));
    assert_eq!(ask(4), (8, Some(PrefixMiss::NoSnapshot)));
    assert_eq!(ask(5), (12, Some(PrefixMiss::New)));
    assert_eq!(rig.engine.stats().kv_cache.prefix_cache_misses.no_snapshot, 21 - 8);
    assert_nothing_left(&rig.engine);
}

/// A10: an interrupted step leaves garbage in everything that it writes. With two slots per sequence it is computed
/// again, and with one its sequences start over. Either way they lose no token. Forks are among them.
#[test]
fn the_others_of_a_stopped_step_lose_no_state() {
    for (slots_per_seq, stopped) in [1, 2].into_iter().flat_map(|slots| (1..7).map(move |step| (slots, step))) {
        assert_others_lose_nothing(&synchronous(hybrid(slots_per_seq)), stopped);
    }
}

/// K2: a request that is aborted within a step leaves no slot in use.
#[test]
fn an_abort_frees_the_slots() {
    let rig = rig(hybrid(2), false);
    rig.script.close_gate();
    let client = rig.submit(&[9; 9], greedy(40));
    rig.script.wait_at_gate();
    assert!(rig.engine.stats().kv_cache.state_slots_owned >= 2);
    rig.engine.abort_id(client.accepted.id).unwrap();
    rig.script.open_gate();
    assert_eq!(client.wait()[&0].reason, Some(FinishReason::Abort));
    assert_nothing_left(&rig.engine);
}

/// Tokens that a grammar forces are computed several per step, at most as many as drafts. The text may end among them.
#[test]
fn forced_tokens_are_drafts() {
    for (slots_per_seq, max_tokens) in [1, 2].into_iter().flat_map(|slots| [40, 7].map(|most| (slots, most))) {
        let rig = structured::rig(hybrid(slots_per_seq));
        let structured_outputs = matching("abbaabbaabba");
        let done = rig.run(&structured::PROMPT, SamplingParams { structured_outputs, ..greedy(max_tokens) });
        let (text, num_tokens) = (done[&0].text.as_str(), done[&0].tokens.len());
        assert!("abbaabbaabba".starts_with(text) && (text.len() == 12) == (max_tokens == 40), "{text}");
        let steps = rig.engine.stats().engine_steps;
        assert!(steps < num_tokens as u64 && num_tokens <= max_tokens, "{steps} steps for {num_tokens} tokens");
        assert_nothing_left(&rig.engine);
    }
}

/// The text of a model with gated delta nets has the same bits with right and wrong draft tokens as without any.
#[test]
fn a_hybrid_model_says_the_same_with_drafts() {
    let file = testdata::file("arch/qwen35.gguf");
    let engines = [None, Some(EAGER)].map(|speculative_config| {
        let args = EngineArgs {
            device: DeviceKind::Cpu,
            num_threads: Some(1),
            max_num_seqs: Some(4),
            kv_cache_memory: Some(8 << 20),
            speculative_config,
            ..EngineArgs::new(&file.0)
        };
        Engine::load(args, &mut |_| true).unwrap()
    });
    // Drafts of a text of three tokens are right now and then.
    let params = SamplingParams {
        logit_bias: vec![(7, 40.0), (8, 40.0), (9, 39.0)],
        logprobs: Some(2),
        seed: Some(3),
        ..greedy(90)
    };
    let draft = |seq: u32| {
        let temperature = if seq.is_multiple_of(2) { 0.0 } else { 4.0 };
        let n = if seq == 3 { 2 } else { 1 };
        let prompt: Vec<u32> = (0..5 + 9 * seq).map(|i| 7 + i * i % 3).collect();
        request(&prompt, SamplingParams { temperature, n, ..params.clone() })
    };
    let [plain, drafted] = [0, 1].map(|which| {
        let clients: Vec<Client> = (0..4).map(|seq| submit(&engines[which], draft(seq)).unwrap()).collect();
        clients.into_iter().map(Client::wait).collect::<Vec<_>>()
    });
    for (plain, drafted) in plain.iter().flatten().zip(drafted.iter().flatten()) {
        assert_eq!((plain.0, &plain.1.tokens), (drafted.0, &drafted.1.tokens));
        assert_eq!(drafted.1.logprobs, plain.1.logprobs);
    }
    let stats = engines[1].stats();
    let counts = stats.speculation;
    assert!(0 < counts.num_accepted_tokens && counts.num_accepted_tokens < counts.num_draft_tokens, "{counts:?}");
    for engine in engines {
        let allocations = engine.stats().device_allocations;
        assert_nothing_left_of(&engine, allocations);
        engine.close();
    }
}
