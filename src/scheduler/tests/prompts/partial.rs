//! Long prompts and short ones.

use crate::tests::harness::{Harness, full, limits, sequence, shares};
use crate::tests::sim::{Request, Sim, SimConfig};
use crate::{NewSequence, SchedulerConfig};

/// Steps have 64 tokens, and prompts of more than 20 are long.
fn with_long_prompts() -> Harness {
    let limits = SchedulerConfig {
        max_num_seqs: 16,
        max_num_batched_tokens: 64,
        max_model_len: 1000,
        long_prefill_token_threshold: 20,
        max_queue_size: 100,
        ..limits()
    };
    Harness::new(2000, limits)
}

/// A17: a short prompt is computed in the step after its arrival, however much is left of a long one. The long one gets
/// the rest of that step.
#[test]
fn a_short_prompt_passes_a_long_one() {
    let mut h = with_long_prompts();
    h.add(sequence(1, 600)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 64)]);
    h.add(sequence(2, 8)).unwrap();
    let step = h.step();
    assert_eq!(shares(&step), [(1, 56), (2, 8)]);
    assert_eq!(step.seqs[1].samples.len(), 1);
    assert_eq!(shares(&h.step()), [(2, 1), (1, 63)]);
}

/// A17: many short prompts take at most half of a step's prompt tokens from a long one.
#[test]
fn a_long_prompt_keeps_half_of_each_step() {
    let mut h = with_long_prompts();
    h.add(sequence(1, 400)).unwrap();
    h.step();
    let mut left = 400 - 64;
    let mut next = 2;
    while left > 0 {
        // New prompts of 20 tokens keep arriving; each ends with its first token.
        for _ in 0..4 {
            h.add(sequence(next, 20)).unwrap();
            next += 1;
        }
        let step = h.step();
        let long = step.seqs.iter().find(|seq| seq.id.0 == 1).unwrap();
        assert!(long.num_tokens >= left.min(32), "{:?}", shares(&step));
        assert_eq!(step.batch.num_tokens(), 64);
        left -= long.num_tokens;
        for seq in step.seqs.iter().filter(|seq| seq.id.0 > 1 && !seq.samples.is_empty()) {
            h.finish(seq.id.0);
        }
    }
}

/// A17: no token of a step is wasted if only long prompts wait, and they are computed one after the other.
#[test]
fn long_prompts_fill_every_step() {
    let mut h = with_long_prompts();
    for id in 1..=4 {
        h.add(sequence(id, 100)).unwrap();
    }
    let steps: Vec<_> = (0..3).map(|_| shares(&h.step())).collect();
    assert_eq!(steps, [vec![(1, 64)], vec![(1, 36), (2, 28)], vec![(1, 1), (2, 63)]]);
    // The second prompt has 9 tokens left, so it is short now.
    assert_eq!(shares(&h.step()), [(1, 1), (2, 9), (3, 54)]);
}

/// A17: tokens that short prompts could not use, for lack of a slot, go to the long one.
#[test]
fn tokens_kept_in_vain_come_back() {
    let mut h = with_long_prompts();
    h.add(sequence(1, 600)).unwrap();
    h.step();
    for id in 2..=40 {
        h.add(NewSequence { max_tokens: 100, ..sequence(id, 2) }).unwrap();
    }
    assert_eq!(shares(&h.step())[0], (1, 34));
    for _ in 0..3 {
        let step = h.step();
        assert_eq!((step.seqs.len(), step.batch.num_tokens()), (16, 64));
    }
}

/// A17: a second long prompt waits for the first, unless more are allowed. A more urgent one does not wait.
#[test]
fn long_prompts_at_a_time() {
    let mut h = with_long_prompts();
    h.scheduler.config.max_long_partial_prefills = 2;
    for id in 1..=3 {
        h.add(NewSequence { all_logits: id == 1, ..sequence(id, 300) }).unwrap();
    }
    // A prompt with requested logits is like any other.
    assert_eq!(shares(&h.step()), [(1, 64)]);
    h.add(NewSequence { priority: -1, ..sequence(4, 60) }).unwrap();
    assert_eq!(shares(&h.step()), [(4, 60), (1, 4)]);
    h.add(NewSequence { priority: -1, ..sequence(5, 100) }).unwrap();
    assert_eq!(shares(&h.step()), [(4, 1), (5, 63)]);
    assert_eq!(shares(&h.step()), [(4, 1), (5, 37), (1, 26)]);
}

/// A17: the remaining tokens count, so a long prompt with a cached prefix is short.
#[test]
fn a_cached_long_prompt_is_short() {
    let mut h = with_long_prompts();
    h.add(sequence(1, 200)).unwrap();
    while h.step().seqs.iter().all(|seq| seq.samples.is_empty()) {}
    h.finish(1);
    h.add(sequence(2, 600)).unwrap();
    h.step();
    for id in 3..=6 {
        h.add(sequence(id, 100)).unwrap();
    }
    h.add(NewSequence { prompt: sequence(1, 200).prompt, ..sequence(7, 1) }).unwrap();
    let step = h.step();
    assert_eq!((shares(&step), step.seqs[1].start), (vec![(2, 60), (7, 4)], 196));
}

/// A17: with one partial prompt at a time, the others wait until they can be computed as a whole.
#[test]
fn one_partial_prefill_at_a_time() {
    let mut h = with_long_prompts();
    h.scheduler.config.max_num_partial_prefills = 1;
    h.add(sequence(1, 100)).unwrap();
    h.add(sequence(2, 18)).unwrap();
    h.add(sequence(3, 18)).unwrap();
    h.add(sequence(4, 8)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 38), (2, 18), (4, 8)]);
    assert_eq!(shares(&h.step()), [(2, 1), (4, 1), (1, 44), (3, 18)]);
}

/// A17: a long prompt among an endless stream of short ones gets its first token after a bounded number of steps. It
/// generates the same as alone.
#[test]
fn a_long_prompt_is_not_starved() {
    for depth in 1..=2 {
        let config =
            SimConfig { groups: vec![full(200)], max_model_len: 300, max_num_seqs: 6, depth, ..SimConfig::default() };
        let mut sim = Sim::new(config);
        let long = sim.add(&Request::new((1..=200).collect(), 1)).unwrap();
        let mut steps = 0;
        while !sim.finished.contains_key(&long) {
            for i in 0..3 {
                let text = 1000 + 10 * (3 * steps + i);
                sim.add(&Request::new((text..text + 8).collect(), 3));
            }
            sim.step();
            sim.check();
            steps += 1;
            // At most 5 others generate, and it gets 6 of the other 11 tokens.
            assert!(steps <= 200u32.div_ceil(6) + 2, "{steps} steps");
        }
        while sim.num_live() > 0 {
            sim.cancel(0);
        }
        sim.drain();
    }
}
