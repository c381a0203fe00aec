//! Tuning tables: the launch parameters of the kernels, one table per GPU family, chosen by the device's properties
//! when it is opened. `plans` computes launches from them. Batch-invariant mode is another table, derived from the
//! family's at load.
//!
//! A number in a family's file is *measured*, with the place of its figures, or *estimated*, with the reason. A new
//! measurement changes the number there, together with its comment.

mod amd;
mod ampere_ada;
mod apu;
mod cdna2;
mod cdna3;
mod cdna4;
pub(super) mod hopper;
mod rdna2;
mod rdna3;
mod rdna4;
#[cfg(test)]
mod tests;
mod trial;

use std::fmt;

use super::DeviceProperties;
use crate::config::Platform;

/// The numbers of a family. A *multiprocessor* is the driver's unit: a streaming multiprocessor (NVIDIA), a compute
/// unit (CDNA), or a workgroup processor of two compute units (RDNA).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// The family's name in reports.
    pub family: &'static str,
    /// The GPU that most of the numbers were measured on; `None`: all are estimated.
    pub measured_on: Option<&'static str>,
    pub gemv: Gemv,
    pub matmul: Matmul,
    pub matmul_f32: F32Rows,
    pub experts: Experts,
    pub attention: Attention,
    pub states: States,
    pub argmax: Argmax,
    /// `None`: the vendor's matrix library never serves.
    pub library: Option<LibraryRows>,
}

/// Products of single rows with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gemv {
    /// The most rows of a product for which `gemv` serves, 1 or 0; more go to the matrix units.
    pub most_rows: usize,
    /// Blocks per multiprocessor. They loop over the tiles of 16 outputs.
    pub blocks: u32,
    /// True if the blocks of several rows, each with an expert's weights, share the multiprocessors.
    pub pairs_share: bool,
}

/// Products on the matrix units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Matmul {
    /// True if the kernels use warpgroup instructions, in blocks of other shapes. The device's code is compiled for
    /// that (`DeviceProperties::has_wgmma`).
    pub wgmma: bool,
    /// Shapes by rows, ascending; the last serves any number.
    pub shapes: &'static [MatmulShape],
    /// The most splits of the columns, a power of two.
    pub most_splits: u32,
    /// The most rows for which a stack of two types is multiplied in one launch, at most the largest of `MATMUL_ROWS`.
    pub most_pair_rows: usize,
}

/// The launch of products of some numbers of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatmulShape {
    /// The most rows that it serves.
    pub most_rows: u32,
    /// Rows per block, one of `MATMUL_ROWS`.
    pub block_rows: u32,
    /// Blocks per multiprocessor that run at once, for counting turns when the columns are split.
    pub blocks: u32,
    /// The fewest columns of each group of lanes in a split, in super-blocks of 256. Shorter splits are not worth their
    /// partial sums.
    pub least_super_blocks: u32,
    /// Time of a further split, relative to a product that fills the device evenly.
    pub split_time: f64,
    /// True if the norm after the product adds the splits' partial sums to the residual.
    pub leaves: bool,
}

impl MatmulShape {
    /// Any number of rows, without a target.
    pub const PLAIN: Self =
        Self { most_rows: u32::MAX, block_rows: 32, blocks: 1, least_super_blocks: 1, split_time: 0.0, leaves: false };
}

/// Products with f32 weights, by rows. No matrix unit multiplies them exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct F32Rows {
    /// The most rows that `gemv` multiplies one by one, at least as many as for other types.
    pub most_alone: u32,
    /// The most rows for which a block takes the fewest of `MATMUL_F32_ROWS`, to have more blocks.
    pub most_in_fewest: u32,
    /// The most rows for which a block takes the second number of `MATMUL_F32_ROWS`; above that, the largest.
    pub most_in_few: u32,
}

/// Products with the weights of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// The fewest experts of a layer, per (row, expert) pair, for which each pair is multiplied separately; `None`:
    /// never.
    pub alone_from: Option<usize>,
    /// The most pairs for which half as many experts suffice for that.
    pub few_pairs: usize,
    /// The largest average of rows per expert, rounded up, for runs of 16 rows; above that, runs have 64.
    pub most_in_short_runs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Rows of a sequence that a block of the prefill kernel computes: `ATTENTION_PREFILL_ROWS` of its source.
    pub prefill_rows: usize,
    /// True if attention treats each row as a separate sequence.
    pub by_token: bool,
    /// True if the kernel of single rows rotates q and k and stores K and V itself.
    pub rotates: bool,
    /// The fewest tokens of a split of the context.
    pub split_tokens: u32,
    /// The fewest tokens of a split in attention of prompt chunks.
    pub prefill_split_tokens: u32,
    /// The most splits of a context, a power of two up to 32.
    pub most_splits: u32,
    /// Target for the splits of contexts: blocks per multiprocessor.
    pub blocks: u32,
    /// A block serves one query head instead of a whole KV head up to this many blocks per multiprocessor ...
    pub per_head_blocks: u32,
    /// ... and this many splits of the longest context.
    pub per_head_splits: u32,
    /// Decode attention on the matrix units, for heads and caches that have such a kernel. `None`: there is no such
    /// kernel, and the numbers above serve for all heads.
    pub split_kv: Option<SplitKv>,
}

/// Split-KV: all contexts of a step are cut into splits of similar length, with a block for each split and KV head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitKv {
    /// The fewest multiprocessors per (sequence, KV head) pair for `few`; below that, `some` serves.
    pub few_from: u32,
    pub few: Cut,
    pub some: Cut,
    /// The fewest pairs per two multiprocessors for `many`, whose blocks have half the threads.
    pub many_from: u32,
    pub many: Cut,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// Target for cutting: blocks per multiprocessor. 0: every context stays whole.
    pub blocks: u32,
    /// The approximate minimum number of tokens of a split.
    pub tokens: u32,
}

/// Layers with recurrent states.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct States {
    /// The fewest tokens of a sequence in a step for which gated delta nets and Mamba-2 compute tiles on the matrix
    /// units. `None`: they always go token by token.
    pub chunked_from: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Argmax {
    /// The most blocks that share a row of logits, up to `ARGMAX_BLOCKS`. All rows together have at most one block per
    /// multiprocessor.
    pub most_blocks: u32,
}

/// The fewest rows of a product for the vendor's matrix library.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LibraryRows {
    /// For models whose weights already have 16 bits.
    pub rows_16_bit: usize,
    /// For dequantised weights that are kept.
    pub rows_kept: usize,
    /// For weights that are dequantised for each product.
    pub rows_dequantised: usize,
}

/// Returns block shapes for kernels whose waves multiply independently, with these blocks per multiprocessor. The rest
/// was measured on an H200, which used `mma.sync` then: fitted to products of an 8B model's shapes in Q4_K. It is
/// estimated to serve on every GPU without `wgmma`, and so are the time of a split and `leaves`. If kernels do not
/// overlap, a norm blocks no other kernel.
const fn shapes_of_waves([n8, n16, n32, n64]: [u32; 4]) -> [MatmulShape; 4] {
    const fn shape(most_rows: u32, block_rows: u32, blocks: u32, least_super_blocks: u32) -> MatmulShape {
        MatmulShape { most_rows, block_rows, blocks, least_super_blocks, split_time: 0.04, leaves: true }
    }
    [shape(8, 8, n8, 4), shape(16, 16, n16, 4), shape(32, 32, n32, 2), shape(u32::MAX, 64, n64, 2)]
}

/// NVIDIA's GPUs without a table, among them Turing and Blackwell. Every number is Hopper's, estimated to serve there
/// too, except for products on matrix units that others lack, including those of experts. These are Ampere's and Ada's.
const OTHER_NVIDIA: Tuning = Tuning {
    family: "other GPUs of NVIDIA",
    measured_on: None,
    matmul: ampere_ada::TUNING.matmul,
    experts: ampere_ada::TUNING.experts,
    ..hopper::TUNING
};

/// AMD's GPUs without a table. Every number is RDNA4's, the newest family's, estimated to serve there too.
const OTHER_AMD: Tuning = Tuning { family: "other GPUs of AMD", ..rdna4::TUNING };

/// Every table, with the platform of its GPUs.
#[cfg(test)]
pub(super) const ALL: [(Platform, &Tuning); 11] = [
    (Platform::Nvidia, &hopper::TUNING),
    (Platform::Nvidia, &ampere_ada::TUNING),
    (Platform::Nvidia, &OTHER_NVIDIA),
    (Platform::Amd, &cdna2::TUNING),
    (Platform::Amd, &cdna3::TUNING),
    (Platform::Amd, &cdna4::TUNING),
    (Platform::Amd, &rdna2::TUNING),
    (Platform::Amd, &rdna3::TUNING),
    (Platform::Amd, &rdna4::TUNING),
    (Platform::Amd, &apu::TUNING),
    (Platform::Amd, &OTHER_AMD),
];

impl Tuning {
    /// Chooses the table of a device by its architecture, and by whether it is part of a processor.
    pub fn of(properties: &DeviceProperties) -> &'static Self {
        let arch = properties.arch.as_str();
        match properties.platform {
            // The compute capability without its point.
            Platform::Nvidia => match arch.strip_prefix("sm_").map(str::parse::<u32>) {
                Some(Ok(80..=89)) => &ampere_ada::TUNING,
                Some(Ok(90)) => &hopper::TUNING,
                _ => &OTHER_NVIDIA,
            },
            // An MI300A is part of a processor, too, with CDNA3's compute units and memory.
            Platform::Amd => match arch {
                "gfx950" => &cdna4::TUNING,
                _ if arch.starts_with("gfx94") => &cdna3::TUNING,
                _ if properties.integrated => &apu::TUNING,
                // CDNA2, and older GPUs with waves of 64: CDNA1 and Vega.
                _ if arch.starts_with("gfx90") => &cdna2::TUNING,
                _ if arch.starts_with("gfx10") => &rdna2::TUNING,
                _ if arch.starts_with("gfx11") => &rdna3::TUNING,
                _ if arch.starts_with("gfx120") => &rdna4::TUNING,
                _ => &OTHER_AMD,
            },
        }
    }

    /// Returns the table in which no number depends on the number of rows. Each row is then computed in one order of
    /// operations, whatever its batch.
    pub const fn batch_invariant(self) -> Self {
        const WHOLE: Cut = Cut { blocks: 0, tokens: 0 };
        const SHAPES: &[MatmulShape] = &[MatmulShape::PLAIN];
        Self {
            gemv: Gemv { most_rows: 0, pairs_share: false, ..self.gemv },
            matmul: Matmul { shapes: SHAPES, most_splits: 1, most_pair_rows: 0, ..self.matmul },
            matmul_f32: F32Rows { most_alone: u32::MAX, most_in_fewest: u32::MAX, most_in_few: u32::MAX },
            experts: Experts { alone_from: None, few_pairs: 0, most_in_short_runs: usize::MAX },
            attention: Attention {
                by_token: true,
                rotates: false,
                most_splits: 1,
                per_head_splits: 0,
                // Constant functions have no `map`.
                split_kv: match self.attention.split_kv {
                    Some(split_kv) => Some(SplitKv { few: WHOLE, some: WHOLE, many_from: u32::MAX, ..split_kv }),
                    None => None,
                },
                ..self.attention
            },
            // A tile's sums depend on the number of its tokens in the step.
            states: States { chunked_from: None },
            argmax: Argmax { most_blocks: 1 },
            // The library sums in unknown orders.
            library: None,
            ..self
        }
    }

    /// True if this is a table of batch-invariant mode.
    pub fn is_batch_invariant(&self) -> bool {
        *self == self.batch_invariant()
    }
}

/// Shows the table in reports: `Hopper (measured on an NVIDIA H200)`.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.measured_on {
            Some(device) => write!(f, "{} (measured on an {device})", self.family),
            None => write!(f, "{} (estimated, not measured)", self.family),
        }
    }
}
