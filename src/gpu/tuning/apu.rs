//! GPUs that are part of an AMD processor, as their driver reports: `gfx1103`, `gfx1150` to `gfx1153` (Radeon 700M,
//! 800M, 8000S), `gfx1033`, `gfx1035`, `gfx1036` and Vega's. MI300A is not among them: it has CDNA3's compute units and
//! memory.
//!
//! Nothing was measured on such a GPU. All numbers except those of prefill and of blocks per multiprocessor are
//! Hopper's, estimated to serve here too. A multiprocessor is a workgroup processor, as the driver counts: 6 in
//! `gfx1103`, 20 in `gfx1151`. The memory is the machine's, so a decode step is more memory-bound than on any other
//! family. On `gfx1151` about 0.2 MB of loads in flight reach the memory's speed, and there are 0.7.

use super::{Argmax, Attention, Experts, F32Rows, Gemv, LibraryRows, Matmul, States, Tuning, shapes_of_waves};

pub(super) const TUNING: Tuning = Tuning {
    family: "APU",
    measured_on: None,
    gemv: Gemv {
        // Estimated: Hopper's number, since 8 rows on the matrix units cost little more than one.
        most_rows: 1,
        // Estimated: Hopper's number, since one block of 512 threads is 16 waves of 32 on four SIMDs.
        blocks: 1,
        // Estimated: Hopper's number.
        pairs_share: true,
    },
    matmul: Matmul {
        wgmma: false,
        // Estimated: the shapes that a Hopper used with `mma.sync`. A workgroup processor with the fewest registers has
        // room for 4, 4, 8 and 4 of these blocks, by registers and LDS of the compiled code. More of them at once mean
        // more loads in flight.
        shapes: &shapes_of_waves([4, 4, 6, 3]),
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
        // Estimated: Hopper's two blocks would be one wave per SIMD. By registers and LDS, six of decode and four of
        // prefill fit, for heads of 128.
        blocks: 4,
        // Estimated: by registers, as many fit on every such GPU. With 6 multiprocessors no step of 32 query heads is
        // below it; with 20, steps of one and two sequences are.
        per_head_blocks: 4,
        per_head_splits: 8,
        // AMD has no decode attention kernel on the matrix units yet.
        pieces: None,
    },
    // Estimated: Hopper's number.
    states: States { chunked_from: Some(48) },
    // Estimated: Hopper's number, since a thread makes one load of 16 bytes.
    argmax: Argmax { most_blocks: 64 },
    library: Some(LibraryRows {
        // Estimated: Hopper's number. hipBLASLt has not been compared with our kernels.
        rows_16_bit: 9,
        rows_kept: 65,
        rows_dequantised: 176,
    }),
};
