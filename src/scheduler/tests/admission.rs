//! Tests of rejected sequences, of `add`, and of admission.

use std::ops::Range;

use super::harness::{Harness, full, kv_config, limits, sequence, shares};
use crate::Error;
use crate::kv_cache::KvCache;
use crate::{NewSequence, ScheduledSeq, Scheduler, SchedulerConfig, Step};

fn is_invalid(result: crate::Result<()>) -> bool {
    matches!(result, Err(Error::InvalidRequest { .. }))
}

/// S18: a sequence that can never be served is rejected at once, with the limit that it exceeds.
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
    // The pool of 8 blocks of 4 holds 32 tokens, and the last token of a sequence is never computed.
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

/// A caller that adds without checking made a mistake, which `add` reports before anything is queued.
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
    // The caller counts the queue.
    let error = h.add(sequence(2, 4)).unwrap_err();
    assert!(matches!(error, Error::QueueFull { waiting: 1, limit: 1 }), "{error}");
    assert_eq!(h.scheduler.num_waiting(), 1);
}

/// The advice for a prompt that is too long depends on the model's context length.
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

/// A prompt may fill the model's length if nothing is to be generated and its logits are needed.
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
    // There are 5 free blocks. A prompt of 24 needs 6, although its first chunk would fit.
    h.add(sequence(2, 24)).unwrap();
    h.add(sequence(3, 1)).unwrap();
    let step = h.step();
    assert_eq!(shares(&step), [(1, 4)], "nobody passes the first in the queue");
    h.finish(1);
    assert_eq!(shares(&h.step()), [(2, 16)]);
}

/// A5: a prompt that did not fit is tried again once another has computed what it can share, and not only when blocks
/// were freed. Later sequences do not wait longer.
#[test]
fn a_refused_prompt_that_can_share_is_admitted() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_batched_tokens: 64, max_model_len: 80, ..limits() });
    let prompt = sequence(1, 48).prompt;
    h.add(sequence(1, 20)).unwrap();
    // The prompt has 12 blocks, of which the first sequence soon computes 5, and 11 are free. It has more tokens of its
    // own than it shares, so it does not wait for them.
    h.add(NewSequence { prompt, max_tokens: 1, ..sequence(2, 1) }).unwrap();
    h.add(sequence(3, 1)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 20)]);
    assert_eq!(shares(&h.step()), [(1, 1), (2, 28), (3, 1)]);
}

/// A new sequence leaves blocks for the running ones.
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

/// An urgent request does not wait for the rest of a less urgent long prompt.
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

/// K9: invalid limits are rejected when the scheduler is created.
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

/// F4: prompts take the same steps with and without their logits.
#[test]
fn prompt_logits_take_no_more_steps() {
    let steps = |all_logits| {
        let mut h = Harness::new(64, SchedulerConfig { max_drafts: 3, ..limits() });
        for id in 0..3 {
            h.add(NewSequence { all_logits, max_tokens: 1, ..sequence(id, 4 + 9 * id as usize) }).unwrap();
        }
        let mut steps = Vec::new();
        let mut rows = [0; 3];
        while rows.contains(&0) {
            let step = h.step();
            steps.push(shares(&step));
            step.seqs.iter().for_each(|seq| rows[seq.id.0 as usize] += seq.samples.len());
            for seq in step.seqs.iter().filter(|seq| !seq.samples.is_empty()) {
                h.finish(seq.id.0);
            }
        }
        steps
    };
    let steps_without = steps(false);
    assert_eq!(steps(true), steps_without);
    assert_eq!(steps_without.len(), 3);
}

/// F4: pieces of rows are as large as allowed, but the rows that sample for one sequence stay together.
#[test]
fn rows_come_in_pieces() {
    let mut h = Harness::new(64, SchedulerConfig { max_drafts: 3, ..limits() });
    h.add(NewSequence { max_tokens: 12, ..sequence(1, 3) }).unwrap();
    let step = h.schedule();
    h.accept(&step, &[(1, &[50], &[7, 8, 9])]).unwrap();
    h.add(NewSequence { all_logits: true, priority: -1, ..sequence(2, 5) }).unwrap();
    h.add(NewSequence { all_logits: true, ..sequence(3, 6) }).unwrap();
    let step = h.schedule();
    let rows: Vec<_> = step.seqs.iter().map(|seq| (seq.id.0, seq.logits.clone(), seq.samples.clone())).collect();
    assert_eq!(rows, [(1, 0..4, 0..4), (2, 4..9, 8..9), (3, 9..15, 14..15)]);
    let parts = |most| {
        let part = |(_, part): (_, ScheduledSeq)| (part.id.0, part.num_tokens, part.logits, part.samples.len());
        step.pieces(most).iter().map(|piece| step.parts(piece).map(part).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert_eq!(parts(15), [vec![(1, 4, 0..4, 4), (2, 5, 4..9, 1), (3, 6, 9..15, 1)]]);
    assert_eq!(
        parts(6),
        [vec![(1, 4, 0..4, 4), (2, 2, 4..6, 0)], vec![(2, 5, 0..3, 1), (3, 3, 3..6, 0)], vec![(3, 6, 0..3, 1)],]
    );
    let turned = Step { seqs: vec![step.seqs[1].clone(), step.seqs[0].clone()], ..step.clone() };
    let seq = |i: usize, logits: Range<usize>, num_samples: usize| {
        let samples = logits.end - num_samples..logits.end;
        ScheduledSeq { logits, samples, ..turned.seqs[i].clone() }
    };
    let turned = Step { seqs: vec![seq(0, 0..5, 1), seq(1, 5..9, 4), seq(0, 9..15, 1)], ..turned };
    assert_eq!(turned.pieces(7), [0..5, 5..12, 12..15]);
}
