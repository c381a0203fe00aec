//! A draft model that only computes the sequences that it drafts for.

use std::sync::atomic::Ordering::SeqCst;

use super::speculation::DRAFT_MODEL;
use crate::config::{EngineConfig, SpeculativeConfig};
use crate::tests::fake::hashed;
use crate::tests::support::*;

/// Returns an engine with a draft model whose draft tokens are all right. Steps of up to six rows take half a
/// millisecond, and each further row adds as much.
fn rig(synchronous: bool) -> Rig {
    rig_with(synchronous, Some(DRAFT_MODEL))
}

fn rig_with(synchronous: bool, speculative_config: Option<SpeculativeConfig>) -> Rig {
    let config = EngineConfig {
        context_length: 512,
        max_model_len: 512,
        max_num_batched_tokens: 64,
        max_drafts: 64,
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

/// Returns a prompt of `len` tokens that no other `text` shares.
fn prompt(text: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 1 + (text * 7 + i * i * (text + 1)) % 60).collect()
}

/// A sequence that remains alone produces the same text, even if parts of it were computed without the draft model.
/// Every draft token for it is right. The number of drafts depends on measured times, which other tests cover.
#[test]
fn who_remains_alone_says_the_same() {
    for synchronous in [true, false] {
        let rig = rig(synchronous);
        let expected = rig_with(synchronous, None).run(&prompt(0, 30), greedy(400));
        let last = rig.submit(&prompt(0, 30), greedy(400));
        let others: Vec<Client> = (1..8).map(|text| rig.submit(&prompt(text, 30), greedy(100))).collect();
        others.into_iter().for_each(|client| assert_eq!(client.wait()[&0].tokens.len(), 100));
        assert_eq!(last.wait()[&0].tokens, expected[&0].tokens);
        let counts = rig.engine.stats().speculation;
        println!("{counts:?}");
        assert_eq!(counts.num_accepted_tokens, counts.num_draft_tokens, "{counts:?}");
        assert!(counts.num_drafter_tokens >= counts.num_draft_tokens, "{counts:?}");
        assert_nothing_left(&rig.engine);
    }
}

/// A prompt whose blocks were computed without the draft model is computed with it before drafting starts. A prompt
/// whose blocks hold the draft model's part is not computed again.
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
        assert_eq!(counts.num_accepted_tokens, counts.num_draft_tokens, "{counts:?}");
        // Measured times decide whether it drafts, which it may not on a busy machine.
        let (first, again) = (drafted[1], drafted[2]);
        assert!(drafted[0] == 0 && (first == 0 || first > 200 && again < 100), "{drafted:?}");
        assert_nothing_left(&rig.engine);
    }
}
