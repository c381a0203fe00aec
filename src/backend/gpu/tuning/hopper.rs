//! NVIDIA's Hopper (`sm_90`).
//!
//! Measured on one H200: 132 multiprocessors, 60 MB of L2, 4.42 TB/s. Figures that are called docs are in
//! docs/benchmarks.md, with their dates and commands; tokens per second there are of an 8B model in Q4_K_M.

use super::{Argmax, Attention, Cut, Experts, F32Rows, Gemv, LibraryRows, Matmul, MatmulShape, Pieces, States, Tuning};

pub(crate) const TUNING: Tuning = Tuning {
    family: "Hopper",
    measured_on: Some("NVIDIA H200"),
    gemv: Gemv {
        // Measured with probes of the same products: 8 rows on the matrix units cost 1.3 times what one row does, and
        // dot products win for no more than 2.
        most_rows: 1,
        // Measured (docs): 478 tokens per second with one block of 512 threads, 405 with two or three of 256. It keeps
        // enough loads in flight to reach the memory's speed; more blocks would only repeat the prologue.
        blocks: 1,
        // Estimated: blocks beyond those of one row would wait for a multiprocessor, then repeat the prologue.
        pairs_share: true,
    },
    matmul: Matmul {
        wgmma: true,
        // Measured on an H100, products of the shapes of an 8B model in Q4_K, one after the other, each in 1 to 8
        // splits: these numbers choose a number of splits that takes at most 7 % longer than the best of them.
        // Leaving sums to the norm was measured there with the layers of that model, but for attention, in one graph,
        // microseconds a layer: of 8 rows 73.5 to 72.3, of 24 88.7 to 81.6, of 32 92.3 to 82.7, of 64 119.0 to 106.1.
        // Of 12 and 16 it took longer while a block of that norm filled a multiprocessor. In four small blocks a row it
        // does not: on an H200 12 sequences made 4,790 tokens per second in place of 4,570, and 16 of them 6,360 in
        // place of 6,070.
        shapes: &[
            MatmulShape {
                most_rows: 8,
                block_rows: 8,
                blocks: 4,
                least_super_blocks: 2,
                split_time: 0.04,
                leaves: true,
            },
            MatmulShape {
                most_rows: 16,
                block_rows: 16,
                blocks: 4,
                least_super_blocks: 2,
                split_time: 0.04,
                leaves: true,
            },
            MatmulShape {
                most_rows: 32,
                block_rows: 32,
                blocks: 2,
                least_super_blocks: 2,
                split_time: 0.04,
                leaves: true,
            },
            MatmulShape {
                most_rows: u32::MAX,
                block_rows: 64,
                blocks: 1,
                least_super_blocks: 2,
                split_time: 0.12,
                leaves: true,
            },
        ],
        // Measured: part of the same fit.
        most_splits: 8,
        // Measured (docs) with 8 sequences: 2,790 to 3,045 tokens per second, together with attention per query head.
        // Of 32 and 64 rows q, k and v took 17 and 21 microseconds in two launches on an H100, 13 and 15 in one.
        most_pair_rows: 64,
    },
    matmul_f32: F32Rows {
        // Measured on an H100: `gemv_f32` takes 7 microseconds for a row of 2,048 columns and 256 outputs, 20 for 31
        // rows, since it reads the matrix for each.
        most_alone: 1,
        // Measured: by fours 32 such rows take 9.4 microseconds on an H200, by eights 26 took 13.6 on an H100.
        most_in_fewest: 64,
        // Measured on an H100 with 2,048 columns and 128 outputs: 512 rows take 45 microseconds by eights and 48 by 64,
        // as do up to 2,048 rows, which take 170 by eights.
        most_in_few: 512,
    },
    experts: Experts {
        // Measured on an H100 with 256 experts of 2048 x 512 in Q4_K_M, 8 for each row, tokens per second: 8 rows
        // 1,546 in pairs by themselves and 1,620 in runs, 4 rows 980 and 873.
        alone_from: Some(8),
        // Measured on an H100 with 128 experts of 2048 x 768: 4 rows 1,070 in pairs by themselves and 1,037 in runs.
        few_pairs: 32,
        // Measured on an H100, tokens per second of a prompt of 512, in runs of 16 and of 64: 20,883 and 24,500 with
        // 32 rows an expert (128 of 2048 x 768), 17,760 and 16,600 with 16 (256 of 2048 x 512).
        most_in_short_runs: 16,
    },
    attention: Attention {
        // Measured (docs): 279 to 145 microseconds a layer for 2,048 rows, from blocks of 64 rows to these, together
        // with other changes of the kernel.
        prefill_rows: 128,
        by_token: false,
        // Measured (docs): together with a block for each query head, 12 to 5.6 microseconds a layer for RoPE, store
        // and attention.
        rotates: true,
        // Measured with a probe of a whole step at 256 tokens of context: 4, 8 and 16 splits gave 550, 549 and 542
        // tokens per second, so short contexts need no more.
        split_tokens: 128,
        // Estimated: results of 128 rows of a head of 256 elements are 135 KB for each split, written and read in L2,
        // beside some 30 microseconds of products with a thousand keys.
        prefill_split_tokens: 1024,
        // Estimated: with 8 kv heads 32 splits of one context fill the multiprocessors almost twice.
        most_splits: 32,
        // Estimated: registers leave room for two and more blocks, which hide each other's latency. (A block of
        // prefill in which warpgroups multiply fills a multiprocessor.)
        blocks: 2,
        // Estimated: so many blocks run at once. Each reads the keys of its kv head again, which must come from L2.
        per_head_blocks: 2,
        // Estimated: contexts of up to about a thousand tokens lie in L2 (docs have the times of longer ones).
        per_head_splits: 8,
        // Measured on an H100, with 8 kv heads of 128 and 4 query heads each, microseconds of a layer. The kernels of
        // the vector units were slower at every shape: 13.4 and 8.6 for one sequence of 500 tokens, 128 and 99 for 8 of
        // 7,900, 310 and 190 for 32 of 4,000, 390 and 170 for 64 of 60 to 7,900.
        pieces: Some(Pieces {
            // Four sequences of 4,000 tokens are served alike by both.
            few_from: 4,
            // One sequence of 7,900 takes 20 with one block, 22 and 29 with two and four: more results are added up.
            few: Cut { blocks: 1, tokens: 128 },
            // 64 sequences of 60 to 7,900 take 182 in whole, 174 with two blocks, 170 with four; 8 of 7,900 take 99 and
            // 101. Of 8 of 1,000, pieces of 128 tokens take 25, those of 500 20.
            some: Cut { blocks: 4, tokens: 512 },
            // In blocks of 256 threads and of 128: 16 of 500 take 21 and 23, 32 of 100 13 and 12, 64 of 300 42 and 37,
            // 256 of 150 94 and 76, 256 of 600 244 and 235 (159 and 143 in int8), each whole.
            many_from: 3,
            // In blocks of 128 threads 64 of 60 to 7,900 take 418 with four of them and 386 with eight (397 as above).
            many: Cut { blocks: 8, tokens: 256 },
        }),
    },
    states: States {
        // Estimated: two tiles of 64 take as long as some 16 tokens one by one, where half of the tiles may be empty.
        chunked_from: Some(48),
    },
    argmax: Argmax {
        // Measured (docs): one row of 151,936 logits 24 to 9 microseconds, with 38 blocks of one load a thread.
        most_blocks: 64,
    },
    library: Some(LibraryRows {
        // Measured: from these rows on cuBLASLt was faster than our kernels in an 8B model. The gain of keeping
        // dequantised weights is in docs; the sweep itself was not kept.
        rows_16_bit: 9,
        rows_kept: 65,
        rows_dequantised: 176,
    }),
};
