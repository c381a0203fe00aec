//! A draft model that is computed for those alone that it guesses for.

use std::sync::atomic::Ordering::SeqCst;

use super::fake::hashed;
use super::speculation::DRAFT_MODEL;
use super::support::*;
use crate::config::{EngineConfig, SpeculativeConfig};
use crate::engine::SpeculationStats;

/// An engine with a draft model whose guesses are all right. Steps of up to six rows take half a millisecond, and each
/// row more as long again.
fn rig(synchronous: bool) -> Rig {
    rig_with(synchronous, Some(DRAFT_MODEL))
}

fn rig_with(synchronous: bool, speculative_config: Option<SpeculativeConfig>) -> Rig {
    let config = EngineConfig {
        context_length: 512,
        max_model_len: 512,
        max_num_batched_tokens: 64,
        max_prompt_logits: 64,
        kv_groups: blocks(400),
        speculative_config,
        ..config()
    };
    let rig = Rig::with(config, hashed(VOCAB), None);
    rig.script.synchronous.store(synchronous, SeqCst);
    rig.script.step_micros.store(500, SeqCst);
    rig.script.row_micros.store(500, SeqCst);
    rig.script.free_rows.store(6, SeqCst);
    rig
}

fn counts(rig: &Rig) -> (SpeculationStats, u64) {
    let stats = rig.engine.stats();
    (stats.speculation, stats.engine_steps)
}

/// The prompt of so many tokens that no other `text` shares.
fn prompt(text: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 1 + (text * 7 + i * i * (text + 1)) % 60).collect()
}

/// Where another row costs more than it brings nothing is guessed, and the draft model is not computed. One of many
/// that is left alone is guessed for again, behind all that was computed without the draft model, and every guess is
/// right.
#[test]
fn who_remains_alone_is_guessed_for_again() {
    for synchronous in [true, false] {
        let rig = rig(synchronous);
        let expected = rig_with(synchronous, None).run(&prompt(0, 30), greedy(400));
        let last = rig.submit(&prompt(0, 30), greedy(400));
        let others: Vec<Client> = (1..8).map(|text| rig.submit(&prompt(text, 30), greedy(100))).collect();
        others.into_iter().for_each(|client| assert_eq!(client.wait()[&0].tokens.len(), 100));
        let (many, steps) = counts(&rig);
        // Trying it takes a few sequences once; all have 8 * 130 tokens.
        assert!(many.num_drafter_tokens < 8 * 130 / 2, "{many:?}");
        assert_eq!(last.wait()[&0].tokens, expected[&0].tokens);
        let (one, all_steps) = counts(&rig);
        let drafted = one.num_drafter_tokens - many.num_drafter_tokens;
        let (guessed, right) =
            (one.num_draft_tokens - many.num_draft_tokens, one.num_accepted_tokens - many.num_accepted_tokens);
        println!("{many:?} in {steps} steps, then {one:?} in {all_steps}");
        assert_eq!(one.num_accepted_tokens, one.num_draft_tokens, "{one:?}");
        // It may have been one of those that were tried, and lacks what came behind that.
        assert!(drafted > guessed + 60, "{drafted} computed, {guessed} guessed");
        assert!(right > 150 && all_steps - steps < 150, "{right} right in {} steps", all_steps - steps);
        assert_nothing_left(&rig.engine);
    }
}

/// A prompt whose blocks were computed without the draft model is computed with it before anything is guessed, and one
/// whose blocks hold what it has computed is not.
#[test]
fn cached_blocks_say_what_the_draft_model_has() {
    for synchronous in [true, false] {
        let rig = rig(synchronous);
        let (prompt, plain) = (prompt(3, 200), rig_with(synchronous, None));
        let mut drafted = Vec::new();
        for max_tokens in [1, 60, 61] {
            let before = rig.engine.stats();
            let done = rig.run(&prompt, greedy(max_tokens));
            assert_eq!(done[&0].tokens, plain.run(&prompt, greedy(max_tokens))[&0].tokens);
            let after = rig.engine.stats();
            let hits = after.kv_cache.prefix_cache_hits - before.kv_cache.prefix_cache_hits;
            assert_eq!(hits, if max_tokens == 1 { 0 } else { 196 });
            drafted.push(after.speculation.num_drafter_tokens - before.speculation.num_drafter_tokens);
        }
        let counts = rig.engine.stats().speculation;
        assert!(counts.num_accepted_tokens == counts.num_draft_tokens && counts.num_accepted_tokens > 40, "{counts:?}");
        assert!(drafted[0] == 0 && drafted[1] > 200 && (1..100).contains(&drafted[2]), "{drafted:?}");
        assert_nothing_left(&rig.engine);
    }
}
