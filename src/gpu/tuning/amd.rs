//! The numbers that the tables of all AMD families share. Nothing was measured on such a GPU. Except for the rows of
//! prefill, which are the kernels', these are Hopper's numbers, estimated to serve there too. A family's file has the
//! numbers that depend on its multiprocessors, and those that differ.

use super::{Argmax, Attention, Experts, F32Rows, Gemv, LibraryRows, Matmul, MatmulShape, States, Tuning};

/// A family's blocks per multiprocessor, where they depend on its registers and LDS.
pub(super) struct Room {
    /// The shapes that a Hopper used with `mma.sync`. More blocks at once mean more loads in flight.
    pub(super) shapes: &'static [MatmulShape],
    /// See `Attention::blocks`.
    pub(super) attention: u32,
}

/// Returns the estimated table of a family.
pub(super) const fn estimated(family: &'static str, Room { shapes, attention }: Room) -> Tuning {
    Tuning {
        family,
        measured_on: None,
        gemv: Gemv {
            // 8 rows on the matrix units cost little more than one. Without them they cost more: measure this first.
            most_rows: 1,
            // One block of 512 threads is 16 waves of 32 on four SIMDs. It has 35 KB of LDS, of which a compute unit of
            // 64 KB holds one block. Where more would fit, each would repeat the prologue.
            blocks: 1,
            pairs_share: true,
        },
        matmul: Matmul {
            wgmma: false,
            shapes,
            most_splits: 8,
            // A launch costs more here, so saving one is worth more.
            most_pair_rows: 64,
        },
        matmul_f32: F32Rows { most_alone: 1, most_in_fewest: 64, most_in_few: 512 },
        experts: Experts { alone_from: Some(8), few_pairs: 0, most_in_short_runs: 32 },
        attention: Attention {
            // The kernel has 64 rows per block on all AMD GPUs.
            prefill_rows: 64,
            by_token: false,
            // It saves a launch, which costs more here.
            rotates: true,
            split_tokens: 128,
            prefill_split_tokens: 1024,
            most_splits: 32,
            blocks: attention,
            per_head_blocks: 2,
            per_head_splits: 8,
            // AMD has no decode attention kernel on the matrix units yet.
            split_kv: None,
        },
        states: States { chunked_from: Some(48) },
        // A thread makes one load of 16 bytes.
        argmax: Argmax { most_blocks: 64 },
        // hipBLASLt has not been compared with our kernels.
        library: Some(LibraryRows { rows_16_bit: 9, rows_kept: 65, rows_dequantised: 176 }),
    }
}
