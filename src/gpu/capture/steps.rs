//! Chooses the steps that are captured at load, before the first request: every batch size with every distinct launch
//! of attention. Nothing is captured later. A driver takes a graph's memory from the room reserved for it next to the
//! KV cache, and no request waits for a capture.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::buckets::buckets;
use crate::batch::{Batch, GroupTables, NO_STATE, StateTables, StateWrite};
use crate::tuning::Tuning;

/// Bytes reserved per graph in addition to the KV cache; the next constant is for the pieces in which drivers allocate.
pub(crate) const GRAPH_BYTES: u64 = 1 << 20;
const PIECE_BYTES: u64 = 32 << 20;
/// The numbers of splits of contexts, up to the longest.
const MOST_SPLITS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// A step to capture: the rows of its batch, and the splits of its longest context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub rows: usize,
    /// Numbers of splits with the same launches.
    pub context_splits: Vec<u32>,
}

/// Query heads, KV heads, and elements per head.
pub(crate) type AttentionShape = [u32; 3];

/// Kernels that a step of single rows launches, by its rows.
pub(crate) type StepKernels = BTreeMap<usize, u64>;

/// Rows of the second step that runs at load where no step is captured, to count its kernels.
pub(crate) const FEW_ROWS: usize = 8;

/// Returns the bytes to reserve for the graphs of steps of up to `most_rows` rows.
pub(crate) fn room(most_rows: usize) -> u64 {
    PIECE_BYTES + buckets(most_rows).count() as u64 * MOST_SPLITS.len() as u64 * GRAPH_BYTES
}

/// Progress of a graph warm-up.
pub(crate) enum WarmUp {
    /// A step of one row runs without capture. It does all first-time work, and shows attention's shapes.
    First,
    /// A step of a few rows runs, if steps are not captured.
    Few,
    Capturing(Capturing),
    Done,
}

pub(crate) struct Capturing {
    /// Steps, each with the turn of its integers.
    pub waiting: VecDeque<(Wanted, usize)>,
    pub begun: Instant,
    pub count: usize,
    /// Free memory at the beginning, and the decrease up to the last graph. It is not a sum over graphs, because other
    /// programs take and free memory meanwhile, and a sum would keep only the decreases.
    pub free: u64,
    pub taken: u64,
    /// Rows of the last step that ran without capture. The vendor's library may do uncapturable set-up when it first
    /// multiplies that many rows.
    pub warmed: usize,
    /// True if the vendor's library had refused a product before the present capture; `None` while a step runs without
    /// capture.
    pub refused_before: Option<bool>,
}

/// Returns the steps to capture, the smallest first: they serve most often, if memory runs short.
pub(crate) fn wanted(
    most_rows: usize,
    longest: u32,
    shapes: &[AttentionShape],
    tuning: &Tuning,
    multiprocessors: u32,
) -> Vec<Wanted> {
    let plan = |rows, shape, splits| tuning.attention_decode(rows, shape, multiprocessors, splits);
    let most_splits = tuning.context_splits(longest);
    let splits = MOST_SPLITS.into_iter().filter(|&splits| splits <= most_splits);
    let mut all: Vec<Wanted> = Vec::new();
    for rows in buckets(most_rows) {
        for splits in splits.clone() {
            let plans = |splits| shapes.iter().map(|&shape| plan(rows as u32, shape, splits)).collect::<Vec<_>>();
            match all.last_mut().filter(|last| last.rows == rows && plans(last.context_splits[0]) == plans(splits)) {
                Some(last) => last.context_splits.push(splits),
                None => all.push(Wanted { rows, context_splits: vec![splits] }),
            }
        }
    }
    all
}

/// Returns a batch of single rows. The first has the longest context with that number of splits. All rows use the first
/// block of each KV group, and the first state.
pub(crate) fn batch(rows: usize, splits: u32, contexts: &Contexts) -> Batch {
    let &Contexts { longest, split_tokens, block_size, groups, states } = contexts;
    let context = splits.saturating_mul(split_tokens).min(longest).max(1);
    let rows = rows as u32;
    let contexts = std::iter::once(context).chain((1..rows).map(|_| 1));
    let blocks = (context as usize).div_ceil(block_size) as u32;
    let group = GroupTables {
        slot_mapping: vec![0; rows as usize],
        block_tables: vec![0; (blocks + rows - 1) as usize],
        cu_blocks: std::iter::once(0).chain((0..rows).map(|row| blocks + row)).collect(),
    };
    let states = match states {
        false => StateTables::default(),
        true => StateTables {
            reads: vec![NO_STATE; rows as usize],
            writes: vec![StateWrite { num_tokens: 1, slot: 0 }],
            cu_writes: std::iter::once(0).chain((0..rows).map(|_| 1)).collect(),
        },
    };
    Batch {
        states,
        token_ids: vec![0; rows as usize],
        positions: contexts.clone().map(|context| context - 1).collect(),
        cu_seqlens_q: (0..=rows).collect(),
        context_lens: contexts.collect(),
        logits_indices: (0..rows).collect(),
        groups: vec![group; groups],
        ..Batch::default()
    }
}

/// The contexts that a step can have.
pub(crate) struct Contexts {
    /// Tokens of the longest one.
    pub longest: u32,
    /// Tokens of a split.
    pub split_tokens: u32,
    /// Tokens of a block.
    pub block_size: usize,
    /// KV groups.
    pub groups: usize,
    /// True if the model has recurrent states.
    pub states: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::check_batch::validate_batch;
    use crate::tuning::hopper;

    /// An 8B model on 132 multiprocessors has this many distinct launches of attention, among 84 pairs of rows and
    /// splits.
    #[test]
    fn steps_that_are_launched_alike_are_captured_once() {
        let tuning = &hopper::TUNING;
        let all = wanted(256, 1 << 17, &[[32, 8, 128]], tuning, 132);
        assert_eq!(all.len(), 33);
        assert_eq!(all.iter().map(|wanted| wanted.context_splits.len()).sum::<usize>(), 84);
        assert!(all.is_sorted_by_key(|wanted| wanted.rows));
        assert_eq!(all[0], Wanted { rows: 1, context_splits: vec![1, 2] });
        assert_eq!(all[32], Wanted { rows: 256, context_splits: MOST_SPLITS.to_vec() });
        // Contexts are short and sequences few.
        assert_eq!(wanted(3, 100, &[[32, 8, 128]], tuning, 132).iter().map(|w| w.rows).collect::<Vec<_>>(), [1, 2, 3]);
        let invariant = tuning.batch_invariant();
        assert_eq!(wanted(256, 1 << 17, &[[32, 8, 128]], &invariant, 132).len(), 14);
    }

    #[test]
    fn batches_are_split_as_wanted_and_stay_in_the_first_block() {
        let tuning = &hopper::TUNING;
        for (rows, splits, longest) in [(1, 1, 16), (7, 8, 1000), (256, 32, 1 << 17), (3, 16, 2000)] {
            let split_tokens = tuning.attention.split_tokens;
            let contexts = Contexts { longest, split_tokens, block_size: 16, groups: 2, states: true };
            let batch = batch(rows, splits, &contexts);
            validate_batch(&batch).unwrap();
            assert_eq!(batch.num_tokens(), rows);
            let most = batch.context_lens.iter().copied().max().unwrap();
            assert!(most <= longest && tuning.context_splits(most) == splits, "{most}");
            for group in 0..2 {
                let table = batch.block_table(group, 0);
                assert_eq!((table.len(), table.iter().max()), ((most as usize).div_ceil(16), Some(&0)));
            }
        }
    }
}
