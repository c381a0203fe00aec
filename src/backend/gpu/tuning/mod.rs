//! Tuned numbers, as data: a table for each family of GPUs, chosen by what the device says of itself when it is opened.
//! `plans` makes launches of them. Batch-invariant mode is one more table, made from the family's at the load.
//!
//! A number in a family's file is *measured*, with the place of its figures, or *estimated*, with the reason. Who has
//! measured one changes it there, and the comment with it.

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

use std::fmt;

use super::DeviceProperties;
use crate::config::Platform;

/// No family's `Attention::prefill_rows` is less.
pub(super) const LEAST_PREFILL_ROWS: usize = 64;

/// The numbers of a family. A *multiprocessor* is what the driver counts: a streaming multiprocessor (NVIDIA), a
/// compute unit (CDNA), a workgroup processor of two compute units (RDNA).
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
    /// Rows of a product up to which `gemv` serves, 1 or 0; more go to the matrix units.
    pub most_rows: usize,
    /// Blocks for each multiprocessor. They walk the tiles of 16 outputs.
    pub blocks: u32,
    /// Whether the blocks of several rows, each with an expert's weights, share the multiprocessors.
    pub pairs_share: bool,
}

/// Products on the matrix units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Matmul {
    /// Whether warpgroups multiply, in blocks of other shapes: what the device's kernels are compiled to
    /// (`DeviceProperties::has_wgmma`).
    pub wgmma: bool,
    /// Shapes by rows, ascending; the last serves any number.
    pub shapes: &'static [MatmulShape],
    /// Pieces into which the columns are split at most, a power of two.
    pub most_splits: u32,
    /// Rows up to which a stack of two types is multiplied in one launch, no more than the largest of
    /// `MATMUL_ROWS`.
    pub most_pair_rows: usize,
}

/// How products of some numbers of rows are launched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatmulShape {
    /// It serves up to so many rows.
    pub most_rows: u32,
    /// Rows of a block, one of `MATMUL_ROWS`.
    pub block_rows: u32,
    /// Blocks of each multiprocessor that run at once, by which turns are counted for splits of the columns.
    pub blocks: u32,
    /// Columns at least of each group of lanes that shares a piece, in super-blocks of 256: shorter pieces are not
    /// worth their partial sums.
    pub least_super_blocks: u32,
    /// Time of a further split, in that of a product whose blocks are shared out without a rest.
    pub split_time: f64,
    /// Whether the sums of splits that are added to a residual are left to the norm behind.
    pub leaves: bool,
}

impl MatmulShape {
    /// Any number of rows, without an aim.
    pub const PLAIN: Self =
        Self { most_rows: u32::MAX, block_rows: 32, blocks: 1, least_super_blocks: 1, split_time: 0.0, leaves: false };
}

/// Products with f32 weights, by rows. No matrix unit multiplies them exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct F32Rows {
    /// Rows up to which `gemv` multiplies each by itself, no fewer than it does of other types.
    pub most_alone: u32,
    /// Rows up to which a block takes the fewest of `MATMUL_F32_ROWS`, so that there are more blocks.
    pub most_in_fewest: u32,
    /// Rows up to which a block takes the few of `MATMUL_F32_ROWS`; of more, the many.
    pub most_in_few: u32,
}

/// Products with the weights of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Experts of a layer for each pair of a row and an expert from which on each pair is multiplied by itself; `None`:
    /// none is.
    pub alone_from: Option<usize>,
    /// Pairs up to which half as many experts are enough for that.
    pub few_pairs: usize,
    /// Rows that an expert has on average, rounded up, up to which they are brought together in runs of 16; more go in
    /// runs of 64.
    pub most_in_short_runs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Rows of a sequence that a block of the prefill kernel computes: `ATTENTION_PREFILL_ROWS` of its source.
    pub prefill_rows: usize,
    /// Whether each row is a sequence of its own to attention.
    pub by_token: bool,
    /// Whether the kernel of single rows rotates q and k and stores K and V itself.
    pub rotates: bool,
    /// Tokens of a split of the context, at least.
    pub split_tokens: u32,
    /// Tokens that a split has at least where chunks of prompts attend to the context.
    pub prefill_split_tokens: u32,
    /// Pieces into which a context is split at most, a power of two up to 32.
    pub most_splits: u32,
    /// Blocks for each multiprocessor that splitting the contexts aims at.
    pub blocks: u32,
    /// A block serves one query head, not all of a kv head, up to so many blocks for each multiprocessor ...
    pub per_head_blocks: u32,
    /// ... and so many splits of the longest context.
    pub per_head_splits: u32,
    /// How single rows are attended with on the matrix units, where heads and cache are such that a kernel does it;
    /// `None`: no kernel does, and the numbers above serve for all heads.
    pub pieces: Option<Pieces>,
}

/// Pieces of contexts, with a block for each piece and kv head. All contexts of a step are cut into pieces of about one
/// length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pieces {
    /// From so many multiprocessors for each pair of a sequence and a kv head on, `few` serves, with less `some`.
    pub few_from: u32,
    pub few: Cut,
    pub some: Cut,
    /// From so many pairs for every two multiprocessors on, `many` serves, in blocks of half the threads.
    pub many_from: u32,
    pub many: Cut,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// Blocks for each multiprocessor that cutting aims at; 0: every context stays whole.
    pub blocks: u32,
    /// Tokens of a piece, about, at least.
    pub tokens: u32,
}

/// Layers that carry states.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct States {
    /// Tokens of a sequence in a step from which on a gated delta net computes them a tile at a time on the matrix
    /// units; `None`: it always walks from token to token.
    pub chunked_from: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Argmax {
    /// Blocks that share a row of logits at most, up to `ARGMAX_BLOCKS`. All rows together have no more than one block
    /// for each multiprocessor.
    pub most_blocks: u32,
}

/// Rows of a product from which on the vendor's matrix library serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LibraryRows {
    /// Least rows in models whose weights have 16 bits anyhow.
    pub rows_16_bit: usize,
    /// Least rows where dequantised weights are kept.
    pub rows_kept: usize,
    /// Least rows where weights are dequantised for each product.
    pub rows_dequantised: usize,
}

/// Shapes of blocks whose waves multiply each by itself. Measured on an H200, where `mma.sync` did that then: fitted to
/// products of the shapes of an 8B model in Q4_K. Estimated to serve on every GPU without `wgmma`, as is the time of a
/// split, and that it is worth leaving: where kernels do not overlap, a norm takes nobody's place.
const SHAPES_OF_WAVES: &[MatmulShape] = &[
    MatmulShape { most_rows: 8, block_rows: 8, blocks: 2, least_super_blocks: 4, split_time: 0.04, leaves: true },
    MatmulShape { most_rows: 16, block_rows: 16, blocks: 2, least_super_blocks: 4, split_time: 0.04, leaves: true },
    MatmulShape { most_rows: 32, block_rows: 32, blocks: 4, least_super_blocks: 2, split_time: 0.04, leaves: true },
    MatmulShape {
        most_rows: u32::MAX,
        block_rows: 64,
        blocks: 2,
        least_super_blocks: 2,
        split_time: 0.04,
        leaves: true,
    },
];

/// NVIDIA's GPUs that no table is of, Turing and Blackwell among them. Every number is Hopper's, estimated to serve
/// there too, but for products on matrix units that others have not, those of experts among them: there they are those
/// of Ampere and Ada.
const OTHER_NVIDIA: Tuning = Tuning {
    family: "other GPUs of NVIDIA",
    measured_on: None,
    matmul: ampere_ada::TUNING.matmul,
    experts: ampere_ada::TUNING.experts,
    ..hopper::TUNING
};

/// AMD's GPUs that no table is of. Every number is RDNA4's, estimated to serve there too: the newest family's.
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
            // The compute capability, without the point.
            Platform::Nvidia => match arch.strip_prefix("sm_").map(str::parse::<u32>) {
                Some(Ok(80..=89)) => &ampere_ada::TUNING,
                Some(Ok(90)) => &hopper::TUNING,
                _ => &OTHER_NVIDIA,
            },
            // An MI300A is part of a processor too, with CDNA3's compute units and memory.
            Platform::Amd => match arch {
                "gfx950" => &cdna4::TUNING,
                _ if arch.starts_with("gfx94") => &cdna3::TUNING,
                _ if properties.integrated => &apu::TUNING,
                // CDNA2, and what has its waves of 64: CDNA1 and Vega.
                _ if arch.starts_with("gfx90") => &cdna2::TUNING,
                _ if arch.starts_with("gfx10") => &rdna2::TUNING,
                _ if arch.starts_with("gfx11") => &rdna3::TUNING,
                _ if arch.starts_with("gfx120") => &rdna4::TUNING,
                _ => &OTHER_AMD,
            },
        }
    }

    /// The table in which no number depends on how many rows there are: each row comes about in one order of
    /// operations, whatever it is computed with.
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
                pieces: match self.attention.pieces {
                    Some(pieces) => Some(Pieces { few: WHOLE, some: WHOLE, many_from: u32::MAX, ..pieces }),
                    None => None,
                },
                ..self.attention
            },
            // A tile's sums depend on how many of its tokens the step has.
            states: States { chunked_from: None },
            argmax: Argmax { most_blocks: 1 },
            // The library sums in orders of its own.
            library: None,
            ..self
        }
    }

    /// Whether it is one of batch-invariant mode.
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
