//! Several tokens per sequence and step: drafts that a step computes, and how many of them are accepted.

use super::harness::{Harness, full, limits, sequence, shares, sliding};
use super::sim::extras;
use crate::batch::{SeqExtras, TO_DRAFT};
use crate::{NewSequence, SchedulerConfig, SeqId, Step};

/// Returns a harness with sequence 1, whose first token (50) came with these drafts.
fn drafted(num_blocks: usize, limits: SchedulerConfig, prompt_len: usize, drafts: &[u32]) -> Harness {
    let mut h = Harness::new(num_blocks, limits);
    h.add(sequence(1, prompt_len)).unwrap();
    let step = h.schedule();
    h.accept(&step, &[(1, &[50], drafts)]).unwrap();
    h
}

fn counts(h: &Harness, id: u64) -> (usize, usize) {
    let info = h.scheduler.info(SeqId(id)).unwrap();
    (info.num_tokens, info.num_computed_tokens)
}

#[test]
fn a_step_computes_drafts_and_samples_after_each() {
    let mut h = drafted(16, limits(), 3, &[7, 8, 9]);
    h.add(sequence(2, 2)).unwrap();
    let step = h.schedule();
    assert_eq!(shares(&step), [(1, 4), (2, 2)]);
    assert_eq!(step.batch.token_ids, [50, 7, 8, 9, 2000, 2001]);
    assert_eq!((&step.batch.positions[..4], &step.batch.context_lens[..]), (&[3, 4, 5, 6][..], &[7, 2][..]));
    assert_eq!(
        (step.seqs[0].logits.clone(), step.seqs[0].samples.clone(), step.seqs[1].samples.clone()),
        (0..4, 0..4, 4..5)
    );
    assert_eq!(step.batch.logits_indices, [0, 1, 2, 3, 5]);
    // The first two are right, and 55 follows them.
    h.accept(&step, &[(1, &[7, 8, 55], &[]), (2, &[60], &[])]).unwrap();
    assert_eq!((counts(&h, 1), counts(&h, 2)), ((7, 6), (3, 2)));
    let step = h.schedule();
    assert_eq!((&step.batch.token_ids[..], &step.batch.positions[..]), (&[55, 60][..], &[6, 2][..]));
}

/// Any number of accepted drafts leaves exactly the blocks of the remaining tokens, in groups of every kind.
#[test]
fn rejected_drafts_hold_no_blocks() {
    let drafts = [10, 11, 12, 13, 14, 15, 16];
    for num_right in 0..=7 {
        let mut h = Harness::with_groups(vec![full(16), sliding(5, 8)], limits());
        h.add(sequence(1, 4)).unwrap();
        let step = h.schedule();
        h.accept(&step, &[(1, &[50], &drafts)]).unwrap();
        let step = h.schedule();
        assert_eq!((shares(&step), h.blocks_owned()), (vec![(1, 8)], 3 + 3));
        let tokens: Vec<u32> = drafts[..num_right].iter().copied().chain([99]).collect();
        h.accept(&step, &[(1, &tokens, &[])]).unwrap();
        let computed = 5 + num_right;
        assert_eq!(counts(&h, 1), (computed + 1, computed));
        // The window of the next token begins at `computed - 4`.
        let in_window = computed.div_ceil(4) - (computed - 4) / 4;
        assert_eq!(h.blocks_owned(), computed.div_ceil(4) + in_window, "{num_right} are right");
        // No prefix-cache hit finds a rejected draft.
        assert!(h.finish(1));
        let prompt = sequence(1, 4).prompt.iter().copied().chain([50]).chain(drafts).chain([1]).collect();
        h.add(NewSequence { prompt, ..sequence(2, 1) }).unwrap();
        assert_eq!(h.schedule().seqs[0].start, computed / 4 * 4, "{num_right} are right");
    }
}

/// A draft may be wrong, so prompts and other sequences' tokens take precedence.
#[test]
fn drafts_take_what_nobody_else_does() {
    // Tokens: a prompt that fills the step leaves no budget.
    let mut h = drafted(64, limits(), 3, &[7, 8, 9]);
    h.add(sequence(2, 30)).unwrap();
    let step = h.schedule();
    assert_eq!((shares(&step), step.seqs[0].samples.len()), (vec![(1, 1), (2, 15)], 1));
    h.accept(&step, &[(1, &[51], &[7, 8, 9])]).unwrap();
    // The prompt has 15 tokens left. Drafts without room are dropped, so nothing waits for them.
    assert_eq!(shares(&h.schedule()), [(1, 1), (2, 15)]);
    // Rows of logits: there are this many besides one per sequence.
    let mut h = drafted(64, SchedulerConfig { max_drafts: 2, ..limits() }, 3, &[7, 8, 9]);
    let step = h.schedule();
    assert_eq!((shares(&step), step.seqs[0].samples.clone()), (vec![(1, 3)], 0..3));
    h.accept(&step, &[(1, &[7, 8, 9], &[1, 2])]).unwrap();
    // The logits of a prompt come in pieces and use none of these rows.
    h.add(NewSequence { all_logits: true, ..sequence(2, 5) }).unwrap();
    assert_eq!(shares(&h.step()), [(1, 3), (2, 5)]);
    // Blocks: no sequence is preempted for a draft.
    let mut h = Harness::new(5, limits());
    for id in 1..=2 {
        h.add(NewSequence { max_tokens: 12, ..sequence(id, 5) }).unwrap();
    }
    let step = h.schedule();
    h.accept(&step, &[(1, &[50], &[7, 8, 9, 10, 11, 12, 13]), (2, &[60], &[])]).unwrap();
    // The 7 drafts need 2 blocks, and 1 is left.
    let step = h.schedule();
    assert_eq!(shares(&step), [(1, 1), (2, 1)]);
    h.accept(&step, &[(1, &[51], &[7, 8, 9]), (2, &[61], &[])]).unwrap();
    assert_eq!((shares(&h.schedule()), h.scheduler.num_preemptions()), (vec![(1, 4), (2, 1)], 0));
}

/// The very last token is sampled but never computed, so it cannot be a draft.
#[test]
fn drafts_end_with_the_sequence() {
    let mut h = Harness::new(16, limits());
    h.add(NewSequence { max_tokens: 4, ..sequence(1, 3) }).unwrap();
    let step = h.schedule();
    h.accept(&step, &[(1, &[50], &[7, 8, 9, 10])]).unwrap();
    let step = h.schedule();
    assert_eq!(step.batch.token_ids, [50, 7, 8]);
    h.accept(&step, &[(1, &[7, 8, 9], &[1, 2])]).unwrap();
    assert_eq!(counts(&h, 1), (7, 6));
    let step = h.schedule();
    assert_eq!(shares(&step), [(1, 1)]);
    assert!(h.accept(&step, &[(1, &[10], &[])]).is_err(), "beyond max_tokens");
}

/// The token that drafts follow, and how many of them are right, are known only when no step holds their sequence.
/// Others continue meanwhile.
#[test]
fn a_sequence_with_drafts_waits_for_its_steps() {
    let mut h = Harness::new(32, limits());
    h.add(sequence(1, 3)).unwrap();
    h.add(sequence(2, 3)).unwrap();
    let first = h.schedule();
    let ahead = h.schedule();
    assert_eq!(shares(&ahead), [(1, 1), (2, 1)]);
    // These follow 50, which a step is already computing. They come too late, but the next ones will not.
    h.accept(&first, &[(1, &[50], &[7, 8]), (2, &[60], &[])]).unwrap();
    let ahead = h.scheduler.complete(ahead, h.now).unwrap();
    let next = h.schedule();
    assert_eq!(shares(&next), [(2, 1)]);
    h.accept(&ahead, &[(1, &[51], &[9, 10]), (2, &[61], &[])]).unwrap();
    let next = h.scheduler.complete(next, h.now).unwrap();
    let drafts = h.schedule();
    assert_eq!(shares(&drafts), [(1, 3), (2, 1)]);
    h.give(&next, &[(SeqId(2), 62)]).unwrap();
    // The drafts of sequence 1 are already in place; `complete` adds the token of sequence 2.
    let drafts = h.scheduler.complete(drafts, h.now).unwrap();
    assert_eq!(drafts.batch.token_ids, [51, 9, 10, 62]);
    assert_eq!(shares(&h.schedule()), [(2, 1)]);
    h.accept(&drafts, &[(1, &[9, 55], &[]), (2, &[63], &[])]).unwrap();
    // A sequence without drafts is scheduled ahead again.
    let (now, ahead) = (h.schedule(), h.schedule());
    assert_eq!((shares(&now), shares(&ahead)), (vec![(1, 1), (2, 1)], vec![(1, 1), (2, 1)]));
}

/// K15: tokens are accepted only as the step has computed them.
#[test]
fn tokens_that_were_not_computed_are_an_error() {
    let wrong: [&[u32]; 5] = [&[], &[8, 9], &[7, 9, 1], &[7, 8, 9, 1], &[7, 8, 9, 10]];
    for tokens in wrong {
        let mut h = drafted(16, limits(), 3, &[7, 8]);
        h.add(sequence(2, 2)).unwrap();
        let step = h.schedule();
        h.accept(&step, &[(1, tokens, &[]), (2, &[60], &[])]).unwrap_err();
        // The sequence has its computed tokens, and the other one its token.
        assert_eq!((counts(&h, 1), counts(&h, 2)), ((4, 4), (3, 2)), "{tokens:?}");
        assert!(h.finish(1) && h.finish(2));
        assert_eq!(h.blocks_owned(), 0);
    }
    let mut h = drafted(16, limits(), 3, &[]);
    let step = h.schedule();
    h.accept(&step, &[(1, &[7, 8], &[])]).unwrap_err();
}

/// A withdrawn step computes the same drafts when it is repeated. A preempted sequence has none.
#[test]
fn withdrawn_and_preempted_drafts() {
    let mut h = drafted(16, limits(), 3, &[7, 8, 9]);
    let step = h.schedule();
    h.scheduler.withdraw(&step).unwrap();
    h.scheduler.check_integrity().unwrap();
    let again = h.schedule();
    assert_eq!(Step { id: again.id, ..step }, again);
    h.accept(&again, &[(1, &[7, 8, 9, 10], &[])]).unwrap();
    assert_eq!(counts(&h, 1), (8, 7));

    let mut h = Harness::new(3, limits());
    h.add(NewSequence { priority: 1, max_tokens: 8, ..sequence(1, 3) }).unwrap();
    h.add(NewSequence { max_tokens: 8, ..sequence(2, 4) }).unwrap();
    h.step();
    let step = h.schedule();
    h.accept(&step, &[(2, &[60], &[]), (1, &[51], &[7, 8])]).unwrap();
    // The other, more urgent sequence has taken the last block, so there is none for the first one's next token.
    assert_eq!((shares(&h.step()), h.scheduler.num_preemptions()), (vec![(2, 1)], 1));
    assert!(h.finish(2));
    let step = h.schedule();
    assert_eq!((shares(&step), step.seqs[0].samples.len(), &step.batch.token_ids[..]), (vec![(1, 1)], 1, &[51][..]));
}

/// Drafts that are computed for their step are in its batch, and accepted tokens are checked against them. A withdrawn
/// step has them when it is repeated.
#[test]
fn drafts_that_are_made_for_their_step() {
    let mut h = drafted(16, limits(), 3, &[TO_DRAFT; 3]);
    let fill = |h: &mut Harness, tokens: &[u32]| {
        let mut step = h.schedule();
        step.batch.token_ids[1..].copy_from_slice(tokens);
        h.scheduler.note_drafts(&step);
        assert_eq!(step.drafts(&step.seqs[0]), tokens);
        step
    };
    let step = fill(&mut h, &[7, 8, 9]);
    h.scheduler.withdraw(&step).unwrap();
    let again = h.schedule();
    assert_eq!(again.batch.token_ids, [50, 7, 8, 9]);
    h.accept(&again, &[(1, &[7, 8, 10], &[TO_DRAFT])]).unwrap();
    assert_eq!(counts(&h, 1), (7, 6));
    let step = fill(&mut h, &[11]);
    h.accept(&step, &[(1, &[12, 13], &[])]).unwrap_err();
}

/// K22: after a fork, both sequences write their drafts to their own blocks.
#[test]
fn drafts_after_a_fork() {
    let mut h = Harness::new(16, limits());
    h.add(NewSequence { will_fork: true, ..sequence(1, 6) }).unwrap();
    let step = h.schedule();
    h.accept(&step, &[(1, &[50], &[7, 8])]).unwrap();
    h.scheduler.fork(SeqId(1), SeqId(2), 51, h.now).unwrap();
    let step = h.schedule();
    assert_eq!((shares(&step), &step.batch.token_ids[..]), (vec![(1, 3), (2, 1)], &[50, 7, 8, 51][..]));
    assert_eq!(step.batch.block_copies.len(), 1);
    h.accept(&step, &[(1, &[9], &[]), (2, &[52], &[3, 4, 5])]).unwrap();
    assert_eq!(h.blocks_owned(), 3, "one is shared, and each has one");
    let step = h.schedule();
    assert_eq!((shares(&step), &step.batch.token_ids[..]), (vec![(1, 1), (2, 4)], &[9, 52, 3, 4, 5][..]));
    h.accept(&step, &[(1, &[10], &[]), (2, &[3, 4, 5, 6], &[])]).unwrap();
    assert_eq!((counts(&h, 1), counts(&h, 2)), ((9, 8), (12, 11)));
}

/// Each batch has the images of its sequences, and a fork has those of its parent.
#[test]
fn images_stay_with_their_sequence() {
    let mut h = Harness::new(32, limits());
    let with = |id: u64, images: bool| NewSequence {
        extras: extras(None, images.then_some((id as u8, 0, [1, 2])), (false, false), 3),
        will_fork: id == 2,
        ..sequence(id, 3)
    };
    (1..=3).for_each(|id| h.add(with(id, id != 1)).unwrap());
    let runs =
        |step: &Step| step.batch.images.runs.iter().map(|run| (run.first_token, run.image.0)).collect::<Vec<_>>();
    assert_eq!(runs(&h.step()), [(3, 2), (6, 3)]);
    h.scheduler.fork(SeqId(2), SeqId(4), 9, h.now).unwrap();
    assert_eq!(runs(&h.step()), [], "text after the images");
    let [parent, fork] = [2, 4].map(|id| h.scheduler.sequences[h.scheduler.slots[&SeqId(id)]].extras.clone());
    assert_eq!(fork, parent);
}

/// Equal prompts under different adapters have different keys and values, so neither finds the other's.
#[test]
fn adapters_share_no_prefix() {
    let mut h = Harness::new(32, limits());
    let with = |id, adapter| NewSequence {
        prompt: sequence(9, 10).prompt,
        extras: SeqExtras { adapter, images: None },
        ..sequence(id, 1)
    };
    for (id, adapter, start) in [(1, None, 0), (2, Some(0), 0), (3, Some(1), 0), (4, Some(0), 8), (5, None, 8)] {
        h.add(with(id, adapter)).unwrap();
        assert_eq!(h.step().seqs[0].start, start, "adapter {adapter:?}");
        h.finish(id);
    }
}
