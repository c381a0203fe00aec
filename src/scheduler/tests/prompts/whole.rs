//! Prompts of bidirectional models: each is computed in one step.

use crate::Error;
use crate::batch::GroupKind;
use crate::config::GroupConfig;
use crate::kv_cache::{KvCache, KvCacheConfig};
use crate::tests::harness::{Harness, limits, sequence, shares};
use crate::{NewSequence, SchedulerConfig, WaitingReason};

fn groups(num_blocks: usize) -> Vec<GroupConfig> {
    let group = |reach| GroupConfig { kind: GroupKind::Bidirectional { reach }, num_blocks };
    vec![group(u32::MAX), group(8)]
}

fn config(num_blocks: usize) -> KvCacheConfig {
    let enable_prefix_caching = false;
    KvCacheConfig { enable_prefix_caching, ..crate::tests::harness::kv_config(groups(num_blocks)) }
}

/// Steps have 16 tokens, prompts of more than 4 are long, and only one may be partially computed at a time.
fn harness(num_blocks: usize) -> Harness {
    let limits = SchedulerConfig {
        max_num_seqs: 8,
        max_queue_size: 100,
        max_num_partial_prefills: 1,
        long_prefill_token_threshold: 4,
        ..limits()
    };
    Harness::with_cache(config(num_blocks), limits)
}

/// Returns a prompt of `n` tokens whose hidden states are all needed, with nothing to generate.
fn prompt(id: u64, n: usize) -> NewSequence {
    NewSequence { max_tokens: 0, all_logits: true, ..sequence(id, n) }
}

/// Runs a step, ends its sequences, and returns its shares. Nothing of it stays in the cache.
fn step(h: &mut Harness) -> Vec<(u64, usize)> {
    let step = h.schedule();
    for seq in &step.seqs {
        assert_eq!((seq.start, seq.logits.len(), seq.samples.len()), (0, seq.num_tokens, 1), "{seq:?}");
    }
    h.give(&step, &[]).unwrap();
    shares(&step).iter().for_each(|&(id, _)| assert!(h.finish(id)));
    let stats = h.kv_cache.read().stats();
    assert_eq!((stats.blocks_owned, stats.blocks_cached), (0, 0));
    shares(&step)
}

/// A17: a prompt that does not fit in the rest of a step lets others pass, and is first in the next one.
#[test]
fn prompts_are_computed_as_a_whole() {
    let mut h = harness(64);
    for (id, n) in [(1, 10), (2, 7), (3, 4), (4, 16), (5, 1), (6, 2), (7, 3)] {
        h.add(prompt(id, n)).unwrap();
    }
    assert_eq!(step(&mut h), [(1, 10), (3, 4), (5, 1)]);
    assert_eq!(step(&mut h), [(2, 7), (6, 2), (7, 3)]);
    assert_eq!(step(&mut h), [(4, 16)]);
    assert!(!h.scheduler.has_work());
}

/// A17: a long prompt waits for one step at most, however many short ones arrive.
#[test]
fn nobody_starves() {
    let mut h = harness(64);
    let mut next = 2;
    h.add(prompt(100, 1)).unwrap();
    h.add(prompt(1, 16)).unwrap();
    for turn in 0..2 {
        for _ in 0..10 {
            h.add(prompt(next, 3)).unwrap();
            next += 1;
        }
        let step = step(&mut h);
        assert_eq!(step.contains(&(1, 16)), turn == 1, "{step:?}");
    }
}

/// The reason for waiting is reported.
#[test]
fn a_prompt_waits_for_the_tokens_of_a_step() {
    let mut h = harness(64);
    h.add(prompt(1, 10)).unwrap();
    h.add(prompt(2, 7)).unwrap();
    let step = h.schedule();
    assert_eq!(h.scheduler.waiting(), [(crate::SeqId(2), WaitingReason::StepTokens)]);
    // An interrupted step is repeated.
    h.scheduler.withdraw(&step).unwrap();
    h.scheduler.check_integrity().unwrap();
    assert_eq!(shares(&h.schedule()), [(1, 10)]);
}

/// There are blocks for two prompts and one more, so the third waits.
#[test]
fn blocks_bound_a_step_too() {
    let mut h = harness(5);
    for id in 1..=3 {
        h.add(prompt(id, 5)).unwrap();
    }
    assert_eq!(step(&mut h), [(1, 5), (2, 5)]);
    assert_eq!(step(&mut h), [(3, 5)]);
}

/// S18: a prompt that fits in no step is rejected with the setting that it exceeds.
#[test]
fn what_no_step_holds_is_refused() {
    let mut h = harness(64);
    let error = h.add(prompt(1, 17)).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::InvalidRequest { .. }) && text.contains("at most 16 (max_num_batched_tokens)"),
        "{text}"
    );
    let text = h.add(prompt(1, 65)).unwrap_err().to_string();
    assert!(text.contains("max_model_len"), "{text}");
    assert!(!h.scheduler.has_work());
}

#[test]
fn settings_that_contradict_are_refused() {
    let cached = KvCacheConfig { enable_prefix_caching: true, ..config(4) };
    assert!(matches!(KvCache::new(cached), Err(Error::Internal { .. })));
}
