//! Which kernel, and in how many pieces: pure functions of shapes and of the device, with the measurements' results in them.

use super::EXPERT_RUNS;
use super::args::Format;

/// Device memory for partial results of products, attention and argmax that are split; fewer splits are used where it would
/// not do.
pub const PARTIAL_BYTES: u64 = 32 << 20;
/// Counters of blocks that share an output.
pub const NUM_COUNTERS: usize = 1 << 16;

/// Blocks of `gemv` along x: they walk the tiles of 16 rows. One per multiprocessor keeps enough loads in flight to reach
/// the memory's speed; more would only repeat the prologue.
pub fn gemv_blocks(out_rows: usize, multiprocessors: u32) -> u32 {
    let tiles = u32::try_from(out_rows.div_ceil(16)).unwrap_or(u32::MAX);
    tiles.min(multiprocessors).max(1)
}

/// The same for `pairs` rows with a matrix each: together one block per multiprocessor, where there are not more rows.
pub fn expert_gemv_blocks(out_rows: usize, pairs: usize, multiprocessors: u32) -> u32 {
    let share = multiprocessors / u32::try_from(pairs.max(1)).unwrap_or(u32::MAX);
    gemv_blocks(out_rows, share.max(1))
}

/// Rows of the runs in which `pairs` pairs are brought together by expert, one of `EXPERT_RUNS`; `None` where each is
/// multiplied by itself, since an expert has one or so. Batch-invariant: always in runs of one size.
pub fn expert_run(pairs: usize, num_experts: usize, batch_invariant: bool) -> Option<u32> {
    let [short, long] = EXPERT_RUNS;
    match pairs.div_ceil(num_experts.max(1)) {
        _ if batch_invariant => Some(short),
        0..=1 => None,
        2..=32 => Some(short),
        _ => Some(long),
    }
}

/// How a product of runs of `n` rows, `rows` in all, is launched.
pub fn expert_matmul(n: u32, rows: u32, out_rows: u32) -> MatmulPlan {
    plan(n, rows, out_rows, 1)
}

/// How a product on the matrix units is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulPlan {
    /// Rows of a block: one of the variants.
    pub n: u32,
    pub grid: [u32; 3],
}

/// Tiles of 16 outputs that a block of a variant computes; `MATMUL_TILES_N*` in `args.h`.
fn tiles_per_block(n: u32) -> u32 {
    match n {
        8 | 16 => 2,
        32 => 4,
        _ => 8,
    }
}

fn plan(n: u32, rows: u32, out_rows: u32, splits: u32) -> MatmulPlan {
    let grid = [out_rows.div_ceil(16).div_ceil(tiles_per_block(n)), rows.div_ceil(n), splits];
    MatmulPlan { n, grid }
}

/// Bytes of partial sums per split: a block keeps its whole tile of outputs, of at least 16 rows.
fn partial_bytes(plan: MatmulPlan) -> u64 {
    let [x, y, _] = plan.grid.map(u64::from);
    4 * x * y * u64::from(16 * tiles_per_block(plan.n) * plan.n.max(16))
}

/// The variant whose rows cover the batch, split along the columns until the multiprocessors have as many blocks as they
/// hold, but not into pieces too short to be worth their partial sums. Fitted to measurements of Q4_K at the shapes of an
/// 8B model on an H200.
pub fn matmul(rows: u32, out_rows: u32, cols: u32, multiprocessors: u32) -> MatmulPlan {
    // Groups of a block that share the columns, blocks of a multiprocessor, and the least super-blocks of a group.
    let (n, groups, resident, least) = match rows {
        0..=8 => (8, 4, 2, 4),
        9..=16 => (16, 4, 2, 4),
        17..=32 => (32, 1, 4, 2),
        _ => (64, 1, 2, 2),
    };
    let whole = plan(n, rows, out_rows, 1);
    let blocks = whole.grid[0].saturating_mul(whole.grid[1]);
    let room = if blocks as usize > NUM_COUNTERS { 1 } else { PARTIAL_BYTES / partial_bytes(whole).max(1) };
    let super_blocks = cols.div_ceil(256);
    let mut splits = 1;
    while splits < 8
        && blocks.saturating_mul(2 * splits) <= multiprocessors * resident
        && super_blocks >= 2 * splits * groups * least
        && u64::from(2 * splits) <= room
    {
        splits *= 2;
    }
    plan(n, rows, out_rows, splits)
}

/// Batch-invariant: one variant, whose blocks sum over the columns in one order, whatever the rows.
pub fn invariant_matmul(rows: u32, out_rows: u32) -> MatmulPlan {
    plan(32, rows, out_rows, 1)
}

/// Most splits of the context in attention over single rows, where the longest context is `max_context`: a split has 128
/// tokens or more. A power of two, so that contexts of about the same length share a recorded step.
pub fn context_splits(max_context: u32) -> u32 {
    max_context.div_ceil(128).next_power_of_two().min(32)
}

/// Splits of the context for `items` sequences: no more than fill the multiprocessors.
pub fn attention_splits(
    items: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    multiprocessors: u32,
    context_splits: u32,
) -> u32 {
    let blocks = items.saturating_mul(num_kv_heads).max(1);
    let partial = 4 * u64::from(items) * u64::from(num_heads) * u64::from(head_dim + 2);
    let room = PARTIAL_BYTES / partial.max(1);
    let room = if blocks as usize > NUM_COUNTERS { 1 } else { u32::try_from(room).unwrap_or(u32::MAX) };
    (2 * multiprocessors).div_ceil(blocks).clamp(1, context_splits.max(1)).min(room.max(1))
}

/// Logits that a block of `argmax` reads with one load a thread.
const ARGMAX_STRETCH: usize = 4096;
/// Blocks of a row at most; `ARGMAX_BLOCKS` in `args.h`.
const ARGMAX_BLOCKS: usize = 64;

/// Logits of a row that a block of `argmax` takes: the multiprocessors share few rows, with no less than one load a thread.
pub fn argmax_share(rows: usize, cols: usize, multiprocessors: u32) -> usize {
    let blocks = (multiprocessors as usize / rows.max(1)).clamp(1, ARGMAX_BLOCKS);
    cols.max(1).div_ceil(blocks).next_multiple_of(ARGMAX_STRETCH)
}

/// Batch sizes that decode steps are recorded for.
const BUCKETS: [usize; 14] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// The recorded size that serves `rows`; `most` is the largest step, which is a size of its own. `None`: too many rows
/// for a recording to matter.
pub fn bucket(rows: usize, most: usize) -> Option<usize> {
    if rows > most {
        return None;
    }
    BUCKETS.into_iter().find(|&size| rows <= size).map(|size| size.min(most))
}

/// From how many rows on the vendor's matrix library is faster than our own kernels: soonest for weights that have 16 bits
/// anyhow, latest where weights are dequantised for each product.
pub fn vendor_rows(all_16_bit: bool, kept: bool) -> usize {
    match (all_16_bit, kept) {
        (true, true) => 9,
        (false, true) => 65,
        (_, false) => 176,
    }
}

/// Device memory for weights on their way to the vendor's library: larger matrices go in pieces.
pub const VENDOR_WEIGHTS_BYTES: u64 = 256 << 20;

/// The format in which a product on the matrix units takes its rows, `on_units` being that of our own kernels (`None`:
/// the type has none). A single row goes to `gemv`, which takes f32; `vendor_rows` and more to the vendor's library.
pub fn activation_format(
    on_units: Option<Format>,
    rows: usize,
    batch_invariant: bool,
    vendor_rows: Option<usize>,
) -> Format {
    match on_units {
        Some(format) if vendor_rows.is_some_and(|least| rows >= least) && !batch_invariant => format.row_major(),
        Some(format) if rows > 1 || batch_invariant => format,
        _ => Format::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_and_output_is_in_a_block() {
        for rows in [1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 500, 2048] {
            for out_rows in [1, 16, 17, 1000, 4096, 151_936] {
                for plan in [matmul(rows, out_rows, 4096, 132), invariant_matmul(rows, out_rows)] {
                    assert!(plan.grid[1] * plan.n >= rows && (plan.grid[1] - 1) * plan.n < rows);
                    assert!(plan.grid[0] * tiles_per_block(plan.n) * 16 >= out_rows);
                    assert!(plan.grid[2] >= 1);
                }
            }
        }
    }

    /// Few blocks are split, many are not, and partial sums stay in their room.
    #[test]
    fn splits() {
        assert!(matmul(8, 4096, 14_336, 132).grid[2] > 1);
        assert_eq!(matmul(8, 28_672, 4096, 132).grid[2], 1);
        assert_eq!(matmul(1, 16, 256, 132).grid[2], 1);
        for rows in [1, 64, 2048] {
            let plan = matmul(rows, 64, 65_536, 1000);
            assert!(plan.grid[2] == 1 || u64::from(plan.grid[2]) * partial_bytes(plan) <= PARTIAL_BYTES);
        }
        assert_eq!(context_splits(0), 1);
        assert_eq!(context_splits(129), 2);
        assert_eq!(context_splits(300), 4);
        assert_eq!(context_splits(1 << 20), 32);
        assert_eq!(attention_splits(1, 32, 8, 128, 132, 32), 32);
        assert_eq!(attention_splits(1, 32, 8, 128, 132, 4), 4);
        assert_eq!(attention_splits(256, 32, 8, 128, 132, 32), 1);
        assert_eq!(attention_splits(1 << 14, 32, 8, 128, 132, 32), 1);
    }

    /// One block a multiprocessor at most where rows are split: their partial results have room.
    #[test]
    fn few_rows_of_logits_are_split() {
        let blocks = |rows, cols: usize, sms| cols.div_ceil(argmax_share(rows, cols, sms));
        assert_eq!(blocks(1, 151_936, 132), 38);
        assert_eq!(blocks(8, 151_936, 132), 13);
        assert_eq!(blocks(66, 151_936, 132), 2);
        assert_eq!(blocks(67, 151_936, 132), 1);
        assert_eq!(blocks(1, 4096, 132), 1);
        assert_eq!(blocks(1, 1 << 24, 1000), ARGMAX_BLOCKS);
        for (rows, sms) in [(1, 4), (3, 96), (16, 304), (304, 304)] {
            let blocks = blocks(rows, 1 << 20, sms);
            assert!(blocks == 1 || rows * blocks <= sms as usize && rows <= NUM_COUNTERS, "{rows} {sms}");
        }
    }

    #[test]
    fn buckets_hold_their_batches() {
        for most in [1, 3, 64, 100, 256, 300] {
            for rows in 1..=most {
                match bucket(rows, most) {
                    Some(size) => assert!((rows..=most).contains(&size)),
                    None => assert!(rows > 256),
                }
            }
            assert_eq!(bucket(most + 1, most), None);
        }
    }
}
