//! Tests of what is refused, what `add` takes, and who is let in.

use super::harness::{Harness, full, kv_config, limits, sequence, shares};
use crate::Error;
use crate::kv_cache::KvCache;
use crate::scheduler::{NewSequence, Scheduler, SchedulerConfig};

fn is_invalid(result: crate::Result<()>) -> bool {
    matches!(result, Err(Error::InvalidRequest { .. }))
}

/// S18: what can never be served is refused at once, with the limit that it breaks.
#[test]
fn impossible_requests_are_refused() {
    let mut h = Harness::new(8, limits());
    let with = |change: fn(&mut NewSequence)| {
        let mut seq = sequence(1, 4);
        change(&mut seq);
        seq
    };
    assert!(is_invalid(h.add(with(|seq| seq.prompt = [].into()))));
    assert!(is_invalid(h.add(with(|seq| seq.prompt = [1; 64].into()))), "no room for a token to generate");
    assert!(is_invalid(h.add(with(|seq| seq.prompt = [1; 65].into()))));
    // 8 blocks of 4 hold 32 tokens; the last token of a sequence is never computed.
    assert!(is_invalid(h.add(with(|seq| seq.max_tokens = 30))));
    assert!(is_invalid(h.add(with(|seq| seq.max_tokens = usize::MAX))));
    assert!(!h.scheduler.has_work());
    h.add(with(|seq| seq.max_tokens = 29)).unwrap();
    let in_use = h.add(sequence(1, 2)).unwrap_err();
    assert!(matches!(&in_use, Error::Internal { .. }) && in_use.to_string().contains("SeqId(1)"), "{in_use}");
    h.finish(1);
    let refusal = h.add(with(|seq| seq.max_tokens = 100)).unwrap_err().to_string();
    assert!(refusal.contains("got 64") && refusal.contains("32 tokens"), "{refusal}");
}

/// A caller that adds without checking first has made a mistake, which `add` names before anything is queued.
#[test]
fn what_was_not_checked_is_an_internal_error() {
    let mut h = Harness::new(8, SchedulerConfig { max_queue_size: 1, ..limits() });
    let mut add = |seq: NewSequence, problem: &str| {
        let error = h.scheduler.add(seq, 0).unwrap_err();
        assert!(matches!(error, Error::Internal { .. }) && error.to_string().contains(problem), "{error}");
        assert!(!h.scheduler.has_work());
        h.scheduler.check_integrity().unwrap();
    };
    add(sequence(1, 0), "no tokens");
    add(sequence(1, 64), "at most 63");
    add(NewSequence { max_tokens: 30, ..sequence(1, 4) }, "32 tokens");
    h.add(sequence(1, 4)).unwrap();
    // The queue is counted by who adds.
    let error = h.add(sequence(2, 4)).unwrap_err();
    assert!(matches!(error, Error::QueueFull { waiting: 1, limit: 1 }), "{error}");
    assert_eq!(h.scheduler.num_waiting(), 1);
}

/// The advice for a prompt that is too long depends on whether the model was made for longer ones.
#[test]
fn a_refusal_says_what_helps() {
    let kv = KvCache::new(kv_config(vec![full(64)])).unwrap();
    let refusal = |context_length| {
        let limits = SchedulerConfig { context_length, ..limits() };
        limits.check_length(70, 5, &kv).unwrap_err().to_string()
    };
    assert!(refusal(64).contains("the model was made for no more"), "{}", refusal(64));
    assert!(refusal(4096).contains("larger max_model_len (the model's limit is 4096)"), "{}", refusal(4096));
    assert_eq!(limits().check_length(60, 100, &kv).unwrap(), 64);
}

/// A prompt may fill the model when nothing is to be generated (its logits are wanted).
#[test]
fn prompt_as_long_as_the_model() {
    let mut h = Harness::new(16, limits());
    let whole = NewSequence { max_tokens: 0, all_logits: true, ..sequence(1, 64) };
    h.add(whole).unwrap();
    let steps: Vec<_> = (0..4).map(|_| h.schedule_and_commit_without_tokens()).collect();
    assert_eq!(steps.iter().map(|(_, rows)| rows).sum::<usize>(), 64);
    assert_eq!(steps.iter().map(|(tokens, _)| tokens).sum::<usize>(), 64);
    assert!(h.finish(1));
    assert_eq!(h.blocks_owned(), 0);
}

impl Harness {
    fn schedule_and_commit_without_tokens(&mut self) -> (usize, usize) {
        let step = self.schedule();
        self.give(&step, &[]).unwrap();
        (step.batch.num_tokens(), step.batch.logits_indices.len())
    }
}

#[test]
fn test_can_fit_full_sequence_full_attention_still_gates_oversized() {
    let mut h = Harness::new(10, limits());
    h.add(NewSequence { max_tokens: 1, ..sequence(1, 20) }).unwrap();
    h.step();
    // 5 blocks are free; a prompt of 24 needs 6, although its first chunk would fit.
    h.add(sequence(2, 24)).unwrap();
    h.add(sequence(3, 1)).unwrap();
    let step = h.step();
    assert_eq!(shares(&step), [(1, 4)], "nobody passes the first in the queue");
    h.finish(1);
    assert_eq!(shares(&h.step()), [(2, 16)]);
}

/// A5: a prompt that did not fit is tried again once another has computed what it can share, not only when blocks have
/// come back; nobody behind it waits longer.
#[test]
fn a_refused_prompt_that_can_share_is_admitted() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_batched_tokens: 64, max_model_len: 80, ..limits() });
    let prompt = sequence(1, 48).prompt;
    h.add(sequence(1, 20)).unwrap();
    // 12 blocks of which 5 are soon computed by the first; 11 are free. It has more tokens of its own than it shares,
    // so it does not wait for them.
    h.add(NewSequence { prompt, max_tokens: 1, ..sequence(2, 1) }).unwrap();
    h.add(sequence(3, 1)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 20)]);
    assert_eq!(shares(&h.step()), [(1, 1), (2, 28), (3, 1)]);
}

/// A newcomer leaves blocks for those that run.
#[test]
fn newcomer_leaves_a_watermark() {
    let mut h = Harness::new(8, limits());
    h.add(sequence(1, 14)).unwrap();
    h.step();
    h.add(sequence(2, 16)).unwrap();
    h.step();
    assert_eq!((h.scheduler.num_running(), h.scheduler.num_waiting()), (1, 1), "it would take the last 4 blocks");
    h.add(sequence(3, 12)).unwrap();
    h.finish(2);
    h.step();
    assert_eq!((h.scheduler.num_running(), h.scheduler.num_waiting()), (2, 0));
}

#[test]
fn queue_is_bounded() {
    let mut h = Harness::new(8, SchedulerConfig { max_queue_size: 2, ..limits() });
    h.add(sequence(1, 4)).unwrap();
    h.add(sequence(2, 4)).unwrap();
    let error = h.add(sequence(3, 4)).unwrap_err();
    assert!(matches!(error, Error::QueueFull { waiting: 2, limit: 2 }), "{error}");
    // Running sequences do not count, and neither do those that end while they wait.
    h.step();
    for id in 3..5 {
        h.add(NewSequence { max_tokens: 1, ..sequence(id, 28) }).unwrap();
    }
    h.add(sequence(5, 4)).unwrap_err();
    assert!(h.finish(3));
    h.add(sequence(5, 4)).unwrap();
}

#[test]
fn token_budget_caps_prompt_admission() {
    let mut h = Harness::new(32, limits());
    for id in 1..=4 {
        h.add(sequence(id, 7)).unwrap();
    }
    assert_eq!(shares(&h.step()), [(1, 7), (2, 7), (3, 2)]);
    assert_eq!(shares(&h.step()), [(1, 1), (2, 1), (3, 5), (4, 7)]);
}

#[test]
fn active_decodes_are_prioritized_over_new_prompts() {
    let mut h = Harness::new(64, SchedulerConfig { max_num_batched_tokens: 5, ..limits() });
    h.add(sequence(1, 2)).unwrap();
    h.add(sequence(2, 2)).unwrap();
    h.step();
    h.add(sequence(3, 20)).unwrap();
    for _ in 0..6 {
        assert_eq!(shares(&h.step()), [(1, 1), (2, 1), (3, 3)]);
    }
}

/// Lower priority values run earlier, equal ones by arrival.
#[test]
fn test_priority_scheduling_order() {
    let mut h = Harness::new(64, SchedulerConfig { max_num_seqs: 1, ..limits() });
    for (id, priority) in [(1, 5), (2, 0), (3, 5), (4, -1), (5, 0)] {
        h.add(NewSequence { priority, ..sequence(id, 4) }).unwrap();
    }
    let mut order = Vec::new();
    while h.scheduler.has_work() {
        let step = h.step();
        order.push(step.seqs[0].id.0);
        h.finish(step.seqs[0].id.0);
    }
    assert_eq!(order, [4, 2, 5, 1, 3]);
}

/// An urgent request does not wait for the rest of a long prompt that is less urgent.
#[test]
fn urgent_prompt_passes_one_under_way() {
    let mut h = Harness::new(64, limits());
    h.add(sequence(1, 60)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 16)]);
    h.add(NewSequence { priority: -1, ..sequence(2, 12) }).unwrap();
    h.add(NewSequence { priority: 1, ..sequence(3, 12) }).unwrap();
    assert_eq!(shares(&h.step()), [(2, 12), (1, 4)]);
    assert_eq!(shares(&h.step()), [(2, 1), (1, 15)]);
}

/// K9: limits that cannot work are refused when the scheduler is made.
#[test]
fn bad_limits_are_refused() {
    let kv = std::sync::Arc::new(parking_lot::RwLock::new(KvCache::new(kv_config(vec![full(4)])).unwrap()));
    let bad = [
        SchedulerConfig { max_num_seqs: 0, ..limits() },
        SchedulerConfig { max_model_len: 0, ..limits() },
        SchedulerConfig { max_queue_size: 0, ..limits() },
        SchedulerConfig { max_num_partial_prefills: 0, ..limits() },
        SchedulerConfig { max_long_partial_prefills: 0, ..limits() },
        SchedulerConfig { long_prefill_token_threshold: 0, ..limits() },
        SchedulerConfig { max_num_batched_tokens: 3, ..limits() },
        SchedulerConfig { max_model_len: usize::MAX, ..limits() },
    ];
    for config in bad {
        let error = Scheduler::new(config.clone(), std::sync::Arc::clone(&kv)).unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{config:?}: {error}");
    }
}

/// A step never has more rows of logits than one per sequence and `max_prompt_logits`; prompts get all of theirs.
#[test]
fn prompt_logits_are_rationed() {
    let mut h = Harness::new(64, SchedulerConfig { max_prompt_logits: 3, ..limits() });
    for id in 0..3 {
        h.add(NewSequence { all_logits: id != 1, ..sequence(id, 10) }).unwrap();
    }
    let mut prompt_rows = [0; 3];
    for _ in 0..12 {
        let step = h.step();
        assert!(step.batch.logits_indices.len() <= 3 + 3, "{step:?}");
        for seq in step.seqs.iter().filter(|seq| seq.start < 10) {
            prompt_rows[seq.id.0 as usize] += seq.logits.len();
        }
    }
    assert_eq!(prompt_rows, [10, 1, 10]);
}
