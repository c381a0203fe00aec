//! NVIDIA's Ampere and Ada (`sm_80` to `sm_89`).
//!
//! Nothing was measured on such a GPU. Every number is Hopper's, estimated to serve here too. Warps, registers per
//! multiprocessor and `mma.sync` are the same, and these GPUs have about as many multiprocessors (A100 108, RTX 4090
//! 128). They have no programmatic dependent launch, so saving launches is worth more.

use super::{Argmax, Attention, Experts, F32Rows, Gemv, LibraryRows, Matmul, States, Tuning, hopper, shapes_of_waves};

pub(super) const TUNING: Tuning = Tuning {
    family: "Ampere and Ada",
    measured_on: None,
    gemv: Gemv {
        // Estimated: Hopper's number, since the matrix units multiply 8 rows in about the time of one.
        most_rows: 1,
        // Estimated: Hopper's number, since one block of 512 threads has enough loads in flight.
        blocks: 1,
        // Estimated: Hopper's number.
        pairs_share: true,
    },
    matmul: Matmul {
        wgmma: false,
        // Estimated: the shapes that a Hopper used with `mma.sync`.
        shapes: &shapes_of_waves([2, 2, 4, 2]),
        // Estimated: Hopper's number.
        most_splits: 8,
        // Estimated: Hopper's number, since saving a launch is worth more here.
        most_pair_rows: 16,
    },
    // Estimated: Hopper's number.
    matmul_f32: F32Rows {
        // Estimated: Hopper's.
        most_alone: 1,
        most_in_fewest: 64,
        most_in_few: 512,
    },
    experts: Experts { alone_from: Some(8), few_pairs: 0, most_in_short_runs: 32 },
    attention: Attention {
        // The kernel has 128 rows per block on all NVIDIA GPUs.
        prefill_rows: 128,
        by_token: false,
        // Estimated: Hopper's number, since it saves a launch.
        rotates: true,
        // Estimated: Hopper's number.
        split_tokens: 128,
        prefill_split_tokens: 1024,
        most_splits: 32,
        // Estimated: Hopper's number.
        blocks: 2,
        // Estimated: Hopper's number. The L2 of an RTX 4090 (72 MB) holds at least as much, that of an A100 (40 MB)
        // less.
        per_head_blocks: 2,
        per_head_splits: 8,
        // Estimated: Hopper's numbers, since registers leave room for as many blocks of the kernel.
        split_kv: hopper::TUNING.attention.split_kv,
    },
    // Estimated: Hopper's number.
    states: States { chunked_from: Some(48) },
    // Estimated: Hopper's number.
    argmax: Argmax { most_blocks: 64 },
    library: Some(LibraryRows {
        // Estimated: Hopper's number, since cuBLASLt competes with the same kernels.
        rows_16_bit: 9,
        rows_kept: 65,
        rows_dequantised: 176,
    }),
};
