//! Launch plans: which kernel, and in how many splits. They depend on shapes, on the tuning table, and on the device's
//! number of multiprocessors.

use super::args::{self, Format};
use super::catalog::{EXPERT_RUNS, MATMUL_F32_ROWS};
use crate::driver::Block;
use crate::tuning::{Cut, Experts, F32Rows, LibraryRows, Matmul, MatmulShape, SplitKv, Tuning};

/// Device memory for partial results of split products, attention and argmax. Fewer splits are used if this is too
/// little.
pub(crate) const PARTIAL_BYTES: u64 = 40 << 20;
/// Counters for blocks that share an output.
pub(crate) const NUM_COUNTERS: usize = 1 << 16;
/// Device memory for weights dequantised for the vendor's library; larger matrices are dequantised in parts.
pub(crate) const VENDOR_WEIGHTS_BYTES: u64 = 256 << 20;

/// The most floats that a row of split prefill attention stores per split in addition to its values.
const PREFILL_EXTRA: u32 = 32;

/// The launch of a product on the matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulPlan {
    /// Rows per block: one of the variants.
    pub n: u32,
    /// Tiles of 16 outputs per block.
    pub tiles: u32,
    pub grid: [u32; 3],
    /// True if the norm after the product adds the splits' partial sums to the residual.
    pub leaves: bool,
}

/// The launch of attention over single rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodePlan {
    /// True if a block serves one query head, for the lowest latency. Otherwise it serves one KV head and reads the
    /// cache only once.
    pub per_head: bool,
    /// Number of splits of the context.
    pub splits: u32,
}

/// The launch of attention over single rows on the matrix units, with the contexts cut into splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitKvPlan {
    /// Number of splits into which all contexts together are cut. Contexts that are too short are not counted. 0: none
    /// is cut.
    pub splits: u32,
    /// The minimum number of tokens of a split.
    pub split_tokens: u32,
    /// True if blocks have half the threads.
    pub in_small_blocks: bool,
}

/// Logits that a block of `argmax` reads with one load per thread.
const ARGMAX_STRETCH: usize = 4096;

/// Returns the launch of a variant whose blocks compute `tiles` tiles.
fn plan(n: u32, tiles: u32, rows: u32, out_rows: u32, splits: u32) -> MatmulPlan {
    MatmulPlan { n, tiles, grid: [out_rows.div_ceil(16).div_ceil(tiles), rows.div_ceil(n), splits], leaves: false }
}

/// Returns the launch of a variant whose blocks have as many up tiles as gate tiles, and also compute the padding
/// outputs.
fn gated_plan(n: u32, tiles: u32, rows: u32, out_rows: u32) -> MatmulPlan {
    plan(n, tiles / 2, rows, out_rows.next_multiple_of(256), 1)
}

/// Returns the time of a product of `blocks` blocks, of which the device runs `at_once`, relative to a product that
/// fills the device evenly. Each additional split adds `split_time` for writing and reading its partial sums.
fn time_of_splits(blocks: u32, splits: u32, at_once: u32, split_time: f64) -> f64 {
    let at_once = at_once.max(1);
    let turns = blocks.div_ceil(at_once);
    f64::from(turns) * f64::from(at_once) / f64::from(blocks.max(1)) + split_time * f64::from(splits - 1)
}

/// Returns the bytes of partial sums: a block keeps its whole tile of outputs, of at least 16 rows.
pub(crate) fn partial_bytes(plan: MatmulPlan) -> u64 {
    let [x, y, splits] = plan.grid.map(u64::from);
    4 * x * y * splits * u64::from(16 * plan.tiles * plan.n.max(16))
}

impl Matmul {
    /// Returns the tiles of 16 outputs that a block of a `matmul` variant computes.
    fn tiles(&self, n: u32) -> u32 {
        match (self.wgmma, n) {
            (true, 8) => args::MATMUL_WGMMA_TILES_N8,
            (true, 16) => args::MATMUL_WGMMA_TILES_N16,
            (true, 32) => args::MATMUL_WGMMA_TILES_N32,
            (true, _) => args::MATMUL_WGMMA_TILES_N64,
            (false, 8) => args::MATMUL_TILES_N8,
            (false, 16) => args::MATMUL_TILES_N16,
            (false, 32) => args::MATMUL_TILES_N32,
            (false, _) => args::MATMUL_TILES_N64,
        }
    }

    /// Returns the groups of 32 lanes in a block that share the columns of a tile.
    fn column_groups(&self, n: u32) -> u32 {
        match n {
            _ if self.wgmma => 1,
            8 => args::MATMUL_KW_N8,
            16 => args::MATMUL_KW_N16,
            32 => args::MATMUL_KW_N32,
            _ => args::MATMUL_KW_N64,
        }
    }
}

impl Tuning {
    /// Returns the blocks of `gemv` along x. Each has at least one tile of 16 rows.
    pub fn gemv_blocks(&self, out_rows: usize, multiprocessors: u32) -> u32 {
        let tiles = u32::try_from(out_rows.div_ceil(16)).unwrap_or(u32::MAX);
        tiles.min(multiprocessors.saturating_mul(self.gemv.blocks)).max(1)
    }

    /// Returns the blocks of `gemv` along x for two matrices in one launch. Together they are as many as for one
    /// matrix, divided to minimise the largest block's reads, in whole tiles of 16 rows. `tile_bytes` are the bytes of
    /// one tile of each matrix.
    pub fn gemv_pair_blocks(&self, out_rows: [usize; 2], tile_bytes: [u64; 2], multiprocessors: u32) -> [u32; 2] {
        let tiles = out_rows.map(|rows| u32::try_from(rows.div_ceil(16)).unwrap_or(u32::MAX));
        let blocks = multiprocessors.saturating_mul(self.gemv.blocks);
        let blocks = tiles[0].saturating_add(tiles[1]).min(blocks).max(2);
        // Divisions are compared by the bytes that the largest block reads, then by those of the mean block.
        let most_bytes = |first: &u32| {
            let both =
                [(0, *first), (1, blocks - first)].map(|(i, blocks)| (tiles[i], u64::from(blocks), tile_bytes[i]));
            let most = both.map(|(tiles, blocks, bytes)| u64::from(tiles).div_ceil(blocks) * bytes);
            let mean = both.map(|(tiles, blocks, bytes)| u64::from(tiles) * bytes / blocks);
            (most[0].max(most[1]), mean[0].max(mean[1]))
        };
        let fewest = blocks.saturating_sub(tiles[1]).max(1);
        let first = (fewest..=tiles[0].min(blocks - 1)).min_by_key(most_bytes).unwrap_or(1);
        [first, blocks - first]
    }

    /// Returns the blocks of `gemv` along x for each of `pairs` rows, which have a matrix each. If pairs share the
    /// multiprocessors, all together have as many blocks as one row. Each pair has at least the blocks of one
    /// multiprocessor.
    pub fn expert_gemv_blocks(&self, out_rows: usize, pairs: usize, multiprocessors: u32) -> u32 {
        let pairs = if self.gemv.pairs_share { u32::try_from(pairs.max(1)).unwrap_or(u32::MAX) } else { 1 };
        self.gemv_blocks(out_rows, (multiprocessors / pairs).max(1))
    }

    /// Returns the rows per run, one of `EXPERT_RUNS`. A run groups (row, expert) pairs by expert; each row has `used`
    /// experts. `None` if each pair is multiplied separately.
    pub fn expert_run(&self, rows: usize, used: usize, num_experts: usize) -> Option<u32> {
        let [short, long] = EXPERT_RUNS;
        let Experts { alone_from, few_pairs, most_in_short_runs } = self.experts;
        let pairs = rows.saturating_mul(used);
        // The experts of a single row all differ.
        let alone_from = alone_from.map(|experts| if pairs <= few_pairs { experts / 2 } else { experts });
        if alone_from.is_some_and(|experts| rows == 1 || pairs.saturating_mul(experts) <= num_experts) {
            return None;
        }
        match pairs.div_ceil(num_experts.max(1)) {
            rows if rows <= most_in_short_runs => Some(short),
            _ => Some(long),
        }
    }

    /// Returns the launch of a product with f32 weights; `None` if each row is multiplied separately.
    pub fn matmul_f32(&self, rows: u32, out_rows: u32) -> Option<MatmulPlan> {
        let [fewest, few, many] = MATMUL_F32_ROWS;
        let (n, tiles) = match self.matmul_f32 {
            F32Rows { most_alone, .. } if rows <= most_alone => return None,
            F32Rows { most_in_fewest, .. } if rows <= most_in_fewest => (fewest, args::MATMUL_F32_TILES_FEW),
            F32Rows { most_in_few, .. } if rows <= most_in_few => (few, args::MATMUL_F32_TILES_FEW),
            _ => (many, args::MATMUL_F32_TILES_N64),
        };
        Some(plan(n, tiles, rows, out_rows, 1))
    }

    /// Returns the tiles of 16 outputs that a block computes for an expert's runs of `n` rows.
    fn expert_tiles(&self, n: u32) -> u32 {
        match n {
            16 if !self.matmul.wgmma => args::MATMUL_EXPERTS_TILES_N16,
            _ => self.matmul.tiles(n),
        }
    }

    /// Returns the launch of a product of experts' runs of `n` rows, `rows` in all.
    pub fn expert_matmul(&self, n: u32, rows: u32, out_rows: u32) -> MatmulPlan {
        plan(n, self.expert_tiles(n), rows, out_rows, 1)
    }

    /// Returns the launch of such a product with gate and up. Its blocks have tiles of both, and compute the padding
    /// outputs, too.
    pub fn expert_gated_matmul(&self, n: u32, rows: u32, out_rows: u32) -> MatmulPlan {
        gated_plan(n, self.expert_tiles(n), rows, out_rows)
    }

    /// Returns the launch of the products with gate and up, of `out_rows` outputs each, fused with their activation.
    /// `None` if it is faster to split the columns, or if the larger blocks take longer in turns.
    pub fn gated_matmul(&self, rows: u32, out_rows: u32, cols: u32, multiprocessors: u32) -> Option<MatmulPlan> {
        let apart = self.matmul(rows, out_rows.saturating_mul(2), cols, multiprocessors);
        let tiles = match apart.n {
            64 if self.matmul.wgmma => args::MATMUL_GATED_WGMMA_TILES_N64,
            n => self.matmul.tiles(n),
        };
        let plan = gated_plan(apart.n, tiles, rows, out_rows);
        let time = |[x, y, _]: [u32; 3], tiles: u32| x.saturating_mul(y).div_ceil(multiprocessors.max(1)) * tiles;
        let is_worth =
            apart.grid[2] == 1 && (tiles == apart.tiles || time(plan.grid, tiles) <= time(apart.grid, apart.tiles));
        is_worth.then_some(plan)
    }

    /// Returns the launch of a product on the matrix units.
    pub fn matmul(&self, rows: u32, out_rows: u32, cols: u32, multiprocessors: u32) -> MatmulPlan {
        let [plan] = self.matmuls(rows, [out_rows], cols, multiprocessors);
        plan
    }

    /// Returns the launches of products with several matrices in one launch. Their blocks are counted together, and all
    /// have the same number of column splits. It is the number with the least time (`time_of_splits`), limited by the
    /// shortest split and by the room for partial sums.
    pub fn matmuls<const M: usize>(
        &self,
        rows: u32,
        out_rows: [u32; M],
        cols: u32,
        multiprocessors: u32,
    ) -> [MatmulPlan; M] {
        let shapes = self.matmul.shapes;
        let shape = shapes.iter().find(|shape| rows <= shape.most_rows).or(shapes.last());
        let shape = shape.copied().unwrap_or(MatmulShape::PLAIN);
        let (n, tiles) = (shape.block_rows, self.matmul.tiles(shape.block_rows));
        let plan = |out_rows, splits| plan(n, tiles, rows, out_rows, splits);
        let whole = out_rows.map(|out_rows| plan(out_rows, 1));
        let blocks = whole.iter().fold(0u32, |sum, plan| sum.saturating_add(plan.grid[0].saturating_mul(plan.grid[1])));
        let split_bytes = whole.into_iter().map(partial_bytes).sum::<u64>();
        let room = if blocks as usize > NUM_COUNTERS { 1 } else { PARTIAL_BYTES / split_bytes.max(1) };
        let super_blocks = cols.div_ceil(256);
        let least = self.matmul.column_groups(n) * shape.least_super_blocks;
        let most = (super_blocks / least).min(self.matmul.most_splits).max(1);
        let most = most.min(u32::try_from(room).unwrap_or(u32::MAX).max(1));
        let at_once = multiprocessors * shape.blocks;
        let time = |splits: &u32| time_of_splits(blocks.saturating_mul(*splits), *splits, at_once, shape.split_time);
        let splits = (1..=most).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(1);
        out_rows.map(|out_rows| MatmulPlan { leaves: splits > 1 && shape.leaves, ..plan(out_rows, splits) })
    }

    /// Returns the most splits of the context in attention over single rows, if the longest context is `max_context`.
    /// It is a power of two, so contexts of similar length share a captured step.
    pub fn context_splits(&self, max_context: u32) -> u32 {
        max_context.div_ceil(self.attention.split_tokens).next_power_of_two().min(self.attention.most_splits)
    }

    /// Returns the launch of attention over the single rows of `items` sequences, for query heads, KV heads and
    /// elements per head. A block serves one query head if all blocks run at once and contexts are short enough for L2.
    /// There are no more splits than fill the multiprocessors.
    pub fn attention_decode(
        &self,
        items: u32,
        [num_heads, num_kv_heads, head_dim]: [u32; 3],
        multiprocessors: u32,
        context_splits: u32,
    ) -> DecodePlan {
        let numbers = &self.attention;
        let per_head = items.saturating_mul(num_heads) <= numbers.per_head_blocks * multiprocessors
            && context_splits <= numbers.per_head_splits;
        // With a block per query head, a block takes twice as many keys at a time.
        let (heads, most) =
            if per_head { (num_heads, context_splits.div_ceil(2)) } else { (num_kv_heads, context_splits) };
        let blocks = items.saturating_mul(heads).max(1);
        let partial = 4 * u64::from(items) * u64::from(num_heads) * u64::from(head_dim + 2);
        let room = PARTIAL_BYTES / partial.max(1);
        let room = if blocks as usize > NUM_COUNTERS { 1 } else { u32::try_from(room).unwrap_or(u32::MAX) };
        let most = most.min(numbers.most_splits).max(1);
        let splits = (numbers.blocks * multiprocessors).div_ceil(blocks).clamp(1, most).min(room.max(1));
        DecodePlan { per_head, splits }
    }

    /// Returns the splits of the context for attention of prompt chunks, the longest context being of `context` tokens.
    /// The context is split if the tiles of rows and their heads alone leave multiprocessors idle, into as many as run
    /// at once. A block with shared memory set at launch fills a multiprocessor.
    pub fn attention_prefill_splits(
        &self,
        items: u32,
        [num_heads, head_size]: [u32; 2],
        context: u32,
        multiprocessors: u32,
        block: Block,
    ) -> u32 {
        let numbers = &self.attention;
        let blocks = items.saturating_mul(num_heads).max(1);
        let rows = u64::from(blocks) * numbers.prefill_rows as u64;
        let partial = 4 * rows * u64::from(head_size + PREFILL_EXTRA);
        let room = u32::try_from(PARTIAL_BYTES / partial.max(1)).unwrap_or(u32::MAX);
        let most = (context / numbers.prefill_split_tokens).min(numbers.most_splits).min(room);
        let at_once = if block.shared_bytes > 0 { 1 } else { numbers.blocks };
        (at_once * multiprocessors / blocks).min(most).max(1)
    }

    /// Returns the launch of attention over the single rows of `items` sequences on the matrix units (see `SplitKv`).
    /// The shape is query heads, KV heads and elements per head. `None` if they are not used. Contexts stay whole if
    /// there is no room for the results of their splits.
    pub fn split_kv(
        &self,
        items: u32,
        [num_heads, num_kv_heads, head_dim]: [u32; 3],
        multiprocessors: u32,
    ) -> Option<SplitKvPlan> {
        let SplitKv { few_from, few, some, many_from, many } = self.attention.split_kv?;
        let pairs = items.saturating_mul(num_kv_heads);
        let are_few = pairs.saturating_mul(few_from) <= multiprocessors;
        let are_many = pairs.saturating_mul(2) >= many_from.saturating_mul(multiprocessors);
        let Cut { blocks, tokens } = if are_few {
            few
        } else if are_many {
            many
        } else {
            some
        };
        let splits = blocks.saturating_mul(multiprocessors).div_ceil(num_kv_heads.max(1));
        let partial = 4 * u64::from(num_heads) * u64::from(head_dim + 2);
        let has_room = u64::from(items) + u64::from(splits) <= PARTIAL_BYTES / partial.max(1);
        let splits = if has_room && pairs as usize <= NUM_COUNTERS { splits } else { 0 };
        Some(SplitKvPlan { splits, split_tokens: tokens, in_small_blocks: are_many && !are_few })
    }

    /// Returns the logits of a row that one block of `argmax` takes. Few rows are shared by the multiprocessors, with
    /// at least one load per thread.
    pub fn argmax_share(&self, rows: usize, cols: usize, multiprocessors: u32) -> usize {
        let blocks = (multiprocessors as usize / rows.max(1))
            .clamp(1, self.argmax.most_blocks.clamp(1, args::ARGMAX_BLOCKS) as usize);
        cols.max(1).div_ceil(blocks).next_multiple_of(ARGMAX_STRETCH)
    }

    /// Returns the format in which a product on the matrix units takes its rows. `on_units` is the format of our own
    /// kernels (`None`: the type has none). Few rows go to `gemv`, which takes f32. `library_rows` and more go to the
    /// vendor's library.
    pub fn activation_format(&self, on_units: Option<Format>, rows: usize, library_rows: Option<usize>) -> Format {
        match on_units {
            Some(format) if library_rows.is_some_and(|least| rows >= least) => format.row_major(),
            Some(format) if rows > self.gemv.most_rows => format,
            _ => Format::F32,
        }
    }
}

impl LibraryRows {
    /// Returns the fewest rows for which the library is faster than our own kernels.
    pub fn least(&self, all_16_bit: bool, kept: bool) -> usize {
        match (all_16_bit, kept) {
            (true, true) => self.rows_16_bit,
            (false, true) => self.rows_kept,
            (_, false) => self.rows_dequantised,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{ALL, hopper};

    #[test]
    fn every_row_and_output_is_in_a_block() {
        for rows in [1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 500, 2048] {
            for out_rows in [1, 16, 17, 1000, 4096, 151_936] {
                for tuning in ALL.into_iter().flat_map(|(_, tuning)| [*tuning, tuning.batch_invariant()]) {
                    let plan = tuning.matmul(rows, out_rows, 4096, 132);
                    assert!(plan.grid[1] * plan.n >= rows && (plan.grid[1] - 1) * plan.n < rows);
                    assert!(plan.grid[0] * plan.tiles * 16 >= out_rows);
                    assert!(plan.grid[2] >= 1);
                    for run in EXPERT_RUNS {
                        let plan = tuning.expert_gated_matmul(run, rows.next_multiple_of(run), out_rows);
                        assert!(plan.grid[0] * plan.tiles * 16 >= out_rows.next_multiple_of(256) && plan.grid[2] == 1);
                    }
                    let Some(plan) = tuning.matmul_f32(rows, out_rows) else { continue };
                    let tiles = if plan.n == 64 { args::MATMUL_F32_TILES_N64 } else { args::MATMUL_F32_TILES_FEW };
                    assert!(plan.grid[1] * plan.n >= rows && (plan.grid[1] - 1) * plan.n < rows);
                    assert!(plan.grid[0] * tiles * 16 >= out_rows && plan.grid[2] == 1);
                }
            }
        }
    }

    /// Products with few blocks are split, and those with a small remainder for a last turn; others are not. Partial
    /// sums fit their room.
    #[test]
    fn splits() {
        assert!(hopper::TUNING.matmul(8, 4096, 14_336, 132).grid[2] > 1);
        assert_eq!(hopper::TUNING.matmul(8, 28_672, 4096, 132).grid[2], 1);
        assert_eq!(hopper::TUNING.matmul(32, 28_672, 4096, 132).grid, [224, 1, 1]);
        // 264 blocks run at once: of 272, the last 8 would take a second turn.
        assert_eq!(hopper::TUNING.matmul(32, 34_816, 5120, 132).grid, [272, 1, 5]);
        // 240 blocks run, while 4 splits would be 160 blocks and 8 splits two turns.
        assert_eq!(hopper::TUNING.matmul(32, 5120, 17_408, 132).grid, [40, 1, 6]);
        assert_eq!(hopper::TUNING.matmul(1, 16, 256, 132).grid[2], 1);
        for rows in [1, 64, 2048] {
            let plan = hopper::TUNING.matmul(rows, 64, 65_536, 1000);
            assert!(plan.grid[2] == 1 || partial_bytes(plan) <= PARTIAL_BYTES);
        }
        assert_eq!(hopper::TUNING.context_splits(0), 1);
        assert_eq!(hopper::TUNING.context_splits(129), 2);
        assert_eq!(hopper::TUNING.context_splits(300), 4);
        assert_eq!(hopper::TUNING.context_splits(1 << 20), 32);
        let decode = |items, context_splits| hopper::TUNING.attention_decode(items, [32, 8, 128], 132, context_splits);
        assert_eq!(decode(1, 32), DecodePlan { per_head: false, splits: 32 });
        assert_eq!(decode(1, 4), DecodePlan { per_head: true, splits: 2 });
        assert_eq!(decode(8, 1), DecodePlan { per_head: true, splits: 1 });
        assert_eq!(decode(16, 4), DecodePlan { per_head: false, splits: 3 });
        assert_eq!(decode(256, 32), DecodePlan { per_head: false, splits: 1 });
        assert_eq!(decode(1 << 14, 32), DecodePlan { per_head: false, splits: 1 });
        // The heads are those of Qwen3.6-35B-A3B, then of Llama 3 8B.
        let prefill = |items, heads, context, shared_bytes| {
            let block = Block { threads: 128, shared_bytes };
            hopper::TUNING.attention_prefill_splits(items, heads, context, 132, block)
        };
        assert_eq!([500, 2047, 4095, 12_000].map(|context| prefill(4, [16, 256], context, 0)), [1, 1, 3, 4]);
        assert_eq!([1, 4, 5, 16].map(|items| prefill(items, [32, 128], 1 << 17, 0)), [8, 2, 1, 1]);
        assert_eq!([1, 2, 4, 16].map(|items| prefill(items, [32, 128], 1 << 17, 196_608)), [4, 2, 1, 1]);
        assert_eq!(prefill(u32::MAX, [32, 128], 1 << 17, 0), 1);
        let splits = |items, heads| hopper::TUNING.split_kv(items, heads, 132);
        let plan = |splits, split_tokens, in_small_blocks| Some(SplitKvPlan { splits, split_tokens, in_small_blocks });
        assert_eq!([1, 4].map(|items| splits(items, [32, 8, 128])), [plan(17, 128, false); 2]);
        assert_eq!([5, 24].map(|items| splits(items, [32, 8, 128])), [plan(66, 512, false); 2]);
        assert_eq!([25, 256].map(|items| splits(items, [32, 8, 128])), [plan(132, 256, true); 2]);
        // There is no room for the results of splits, or for their counters.
        assert_eq!(splits(2000, [64, 8, 256]), plan(0, 256, true));
        assert_eq!(splits(1 << 14, [8, 8, 64]), plan(0, 256, true));
    }

    /// Two matrices have one block per multiprocessor, about the same bytes per block, and no block without a tile.
    #[test]
    fn pairs_share_the_multiprocessors() {
        let bytes = [2304, 3360];
        // The shapes are an 8B model's. The first has 320 tiles, at most four per block; the second 64, two per block.
        // With one block less for the second, a block would have three of its larger tiles.
        assert_eq!(hopper::TUNING.gemv_pair_blocks([5120, 1024], bytes, 132), [100, 32]);
        assert_eq!(hopper::TUNING.gemv_pair_blocks([16, 16], bytes, 132), [1, 1]);
        assert_eq!(hopper::TUNING.gemv_pair_blocks([17, 33], bytes, 132), [2, 3]);
        assert_eq!(hopper::TUNING.gemv_pair_blocks([5120, 1], bytes, 4), [3, 1]);
        assert_eq!(hopper::TUNING.gemv_pair_blocks([1, 5120], bytes, 4), [1, 3]);
        assert_eq!(hopper::TUNING.gemv_pair_blocks([5120, 1024], bytes, 1), [1, 1]);

        // Both have the same number of splits, and the partial sums of both fit.
        let [first, second] = hopper::TUNING.matmuls(8, [34, 40], 8192, 132);
        assert_eq!((first.grid, second.grid), ([1, 1, 8], [1, 1, 8]));
        assert_eq!(hopper::TUNING.matmuls(8, [9216, 1024], 8192, 132).map(|plan| plan.grid), [[144, 1, 3], [16, 1, 3]]);
        let plans = hopper::TUNING.matmuls(16, [1 << 17, 1 << 17], 1 << 20, 1 << 16);
        assert!(plans[0].grid[2] == plans[1].grid[2] && plans[0].grid[2] > 1);
        assert!(plans.map(partial_bytes).into_iter().sum::<u64>() <= PARTIAL_BYTES);
    }

    /// Split rows have at most one block per multiprocessor, and their partial results fit.
    #[test]
    fn few_rows_of_logits_are_split() {
        let blocks = |rows, cols: usize, sms| cols.div_ceil(hopper::TUNING.argmax_share(rows, cols, sms));
        assert_eq!(blocks(1, 151_936, 132), 38);
        assert_eq!(blocks(8, 151_936, 132), 13);
        assert_eq!(blocks(66, 151_936, 132), 2);
        assert_eq!(blocks(67, 151_936, 132), 1);
        assert_eq!(blocks(1, 4096, 132), 1);
        assert_eq!(blocks(1, 1 << 24, 1000), args::ARGMAX_BLOCKS as usize);
        for (rows, sms) in [(1, 4), (3, 96), (16, 304), (304, 304)] {
            let blocks = blocks(rows, 1 << 20, sms);
            assert!(blocks == 1 || rows * blocks <= sms as usize && rows <= NUM_COUNTERS, "{rows} {sms}");
        }
    }
}
