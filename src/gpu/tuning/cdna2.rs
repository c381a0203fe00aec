//! AMD's CDNA2 (`gfx90a`: MI210, MI250), and older GPUs with waves of 64 lanes: CDNA1 (`gfx908`) and Vega (`gfx906`).
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, estimated to serve here too; known facts about these GPUs are next to them. A multiprocessor is a compute
//! unit (104 on each die of an MI250): four SIMDs, 64 KB of LDS. Matrix units exist since CDNA1.

use super::{Argmax, Attention, Experts, F32Rows, Gemv, LibraryRows, Matmul, States, Tuning, shapes_of_waves};

pub(super) const TUNING: Tuning = Tuning {
    family: "CDNA2",
    measured_on: None,
    gemv: Gemv {
        // Estimated: Hopper's number, since 8 rows on the matrix units cost little more than one.
        most_rows: 1,
        // Estimated: Hopper's number, since a block has 35 KB of LDS and a compute unit of 64 KB holds one.
        blocks: 1,
        // Estimated: Hopper's number.
        pairs_share: true,
    },
    matmul: Matmul {
        wgmma: false,
        // Estimated: the shapes that a Hopper used with `mma.sync`. A compute unit has room for 2, 2, 7 and 3 of these
        // blocks, by registers and LDS of the compiled code. More of them at once mean more loads in flight.
        shapes: &shapes_of_waves([2, 2, 4, 3]),
        // Estimated: Hopper's number.
        most_splits: 8,
        // Estimated: Hopper's number. A launch costs more here, so saving one is worth more.
        most_pair_rows: 64,
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
        // The kernel has 64 rows per block on all AMD GPUs.
        prefill_rows: 64,
        by_token: false,
        // Estimated: Hopper's number, since it saves a launch, which costs more here.
        rotates: true,
        // Estimated: Hopper's number.
        split_tokens: 128,
        prefill_split_tokens: 1024,
        most_splits: 32,
        // Estimated: Hopper's number.
        blocks: 2,
        // Estimated: Hopper's number.
        per_head_blocks: 2,
        per_head_splits: 8,
        // AMD has no decode attention kernel on the matrix units yet.
        pieces: None,
    },
    // CDNA2's matrix units treat subnormal halves as zero, and many low halves of tiles are subnormal.
    states: States { chunked_from: None },
    // Estimated: Hopper's number, since a thread makes one load of 16 bytes.
    argmax: Argmax { most_blocks: 64 },
    library: Some(LibraryRows {
        // Estimated: Hopper's number. hipBLASLt has not been compared with our kernels.
        rows_16_bit: 9,
        rows_kept: 65,
        rows_dequantised: 176,
    }),
};
