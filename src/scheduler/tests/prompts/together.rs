//! Equal prompts that arrive together are computed once.

use crate::tests::harness::{Harness, limits, sequence, shares};
use crate::tests::sim::{Request, Sim, SimConfig};
use crate::{NewSequence, SchedulerConfig, SeqId};

fn roomy() -> Harness {
    Harness::new(200, SchedulerConfig { max_num_batched_tokens: 64, ..limits() })
}

/// Returns the first tokens of a common text, followed by some of its own.
fn of_text(id: u64, shared: usize, own: usize) -> NewSequence {
    let prompt = (0..shared as u32).chain((0..own as u32).map(|i| 1000 * id as u32 + i)).collect();
    NewSequence { prompt, ..sequence(id, 1) }
}

fn cached(h: &Harness, ids: &[u64]) -> Vec<usize> {
    ids.iter().map(|id| h.scheduler.info(SeqId(*id)).unwrap().num_cached_tokens).collect()
}

/// A22: equal prompts that arrive together are computed once. The others start a step later with what the first
/// computed. Later sequences do not wait.
#[test]
fn equal_prompts_are_computed_once() {
    let mut h = roomy();
    for id in 1..=3 {
        h.add(of_text(id, 30, 0)).unwrap();
    }
    h.add(sequence(4, 5)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 30), (4, 5)]);
    assert_eq!(shares(&h.step()), [(1, 1), (4, 1), (2, 2), (3, 2)]);
    assert_eq!(cached(&h, &[1, 2, 3, 4]), [0, 28, 28, 0]);
    let stats = h.kv_cache.read().stats();
    assert_eq!((stats.prefix_cache_queries, stats.prefix_cache_hits), (95, 56));
}

/// A22: a sequence waits if that saves half of what it would compute now, and not for less.
#[test]
fn a_small_shared_beginning_is_not_waited_for() {
    for (own, cached_tokens) in [(13, 16), (16, 16), (17, 0), (40, 0)] {
        let mut h = roomy();
        h.add(of_text(1, 16, 1)).unwrap();
        h.add(of_text(2, 16, own)).unwrap();
        h.step();
        h.step();
        assert_eq!(cached(&h, &[2]), [cached_tokens], "{own} tokens of its own");
    }
}

/// A22: a request for all logits of its prompt computes them itself. So does every request without a prefix cache or
/// with another salt.
#[test]
fn who_cannot_share_does_not_wait() {
    let mut h = roomy();
    h.add(of_text(1, 16, 0)).unwrap();
    h.add(NewSequence { all_logits: true, ..of_text(2, 16, 0) }).unwrap();
    h.add(NewSequence { cache_salt: Some("other".into()), ..of_text(3, 16, 0) }).unwrap();
    assert_eq!(shares(&h.step()), [(1, 16), (2, 16), (3, 16)]);
    let mut sim = Sim::new(SimConfig { prefix_caching: false, ..SimConfig::default() });
    for _ in 0..2 {
        sim.add(&Request::new((1..9).collect(), 1));
    }
    sim.step();
    assert_eq!((sim.num_steps, sim.num_live()), (1, 0));
    sim.drain();
}

/// A22: a cached prompt is not waited for, even while another sequence computes it again for its logits.
#[test]
fn a_cached_prompt_is_not_waited_for() {
    let mut h = roomy();
    h.add(of_text(1, 17, 0)).unwrap();
    h.step();
    h.add(NewSequence { all_logits: true, ..of_text(2, 17, 0) }).unwrap();
    h.add(of_text(3, 17, 0)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 1), (2, 17), (3, 1)]);
}

/// A22: the wait ends with the other sequence, whether it is cancelled, fails or is withdrawn.
#[test]
fn the_wait_ends_with_the_other() {
    for end in ["finish while it runs", "failure", "withdrawal"] {
        let mut h = roomy();
        h.add(of_text(9, 0, 2)).unwrap();
        let first = h.schedule();
        h.add(of_text(1, 30, 0)).unwrap();
        h.add(of_text(2, 30, 1)).unwrap();
        let ahead = h.schedule();
        assert_eq!(shares(&ahead), [(9, 1), (1, 30)]);
        let after = match end {
            "finish while it runs" => {
                h.commit(&first);
                h.finish(1);
                h.scheduler.complete(ahead, h.now).unwrap()
            }
            "failure" => {
                h.scheduler.discard(&ahead, h.now).unwrap();
                h.commit(&first);
                h.schedule()
            }
            _ => {
                h.scheduler.withdraw(&ahead).unwrap();
                h.commit(&first);
                h.schedule()
            }
        };
        let next = match end {
            "finish while it runs" => {
                h.commit(&after);
                h.step()
            }
            "failure" => after,
            _ => {
                assert_eq!(shares(&after), [(9, 1), (1, 30)]);
                h.commit(&after);
                h.step()
            }
        };
        let second = next.seqs.iter().find(|seq| seq.id == SeqId(2)).unwrap();
        assert_eq!(second.start, if end == "withdrawal" { 28 } else { 0 }, "{end}");
    }
}

/// A22: steps ahead count, too: a sequence waits for a step in flight that contains its prompt.
#[test]
fn a_step_in_flight_is_waited_for() {
    let mut h = roomy();
    h.add(of_text(1, 30, 0)).unwrap();
    let first = h.schedule();
    h.add(of_text(2, 30, 3)).unwrap();
    let ahead = h.schedule();
    assert_eq!(shares(&ahead), [(1, 1)]);
    h.commit(&first);
    let next = h.schedule();
    assert_eq!((next.seqs.last().unwrap().id, next.seqs.last().unwrap().start), (SeqId(2), 28));
}

/// A22, A17: a long prompt that another sequence is computing is followed to its end, step by step.
#[test]
fn a_long_prompt_is_followed() {
    let limits = SchedulerConfig { max_num_batched_tokens: 16, max_model_len: 200, ..limits() };
    let mut h = Harness::new(200, SchedulerConfig { long_prefill_token_threshold: 8, ..limits });
    h.add(of_text(1, 100, 0)).unwrap();
    h.add(of_text(2, 100, 0)).unwrap();
    let mut computed = 0;
    while h.scheduler.info(SeqId(2)).unwrap().scheduled_at.is_none() {
        computed += h.step().batch.num_tokens();
    }
    // The prompt is computed once, its last block again for the second's first token, and some tokens of the first.
    assert!(computed <= 100 + 4 + 1, "{computed} tokens");
    assert_eq!(cached(&h, &[2]), [96]);
}
