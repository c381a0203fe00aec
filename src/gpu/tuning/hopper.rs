//! NVIDIA's Hopper (`sm_90`).
//!
//! Measured on one H200: 132 multiprocessors, 60 MB of L2, 4.42 TB/s. "(docs)" refers to notes/performance, which has
//! dates and commands; its tokens per second are of an 8B model in Q4_K_M.

use super::{
    Argmax, Attention, Cut, Experts, F32Rows, Gemv, LibraryRows, Matmul, MatmulShape, SplitKv, States, Tuning,
};

pub(crate) const TUNING: Tuning = Tuning {
    family: "Hopper",
    measured_on: Some("NVIDIA H200"),
    gemv: Gemv {
        // Measured with probes of the same products: 8 rows on the matrix units cost 1.3 times as much as one row. Dot
        // products are faster for at most 2 rows.
        most_rows: 1,
        // Measured (docs): 478 tokens per second with one block of 512 threads, 405 with two or three of 256. One block
        // has enough loads in flight to reach the memory's speed; more blocks would only repeat the prologue.
        blocks: 1,
        // Estimated: more blocks than one row has would wait for a multiprocessor, then repeat the prologue.
        pairs_share: true,
    },
    matmul: Matmul {
        wgmma: true,
        // Measured on an H100, with products of an 8B model's shapes in Q4_K, one after the other, each in 1 to 8
        // splits. With these numbers the chosen split takes at most 7 % longer than the best.
        //
        // Leaving sums to the norm was measured there with that model's layers without attention, in one graph, in
        // microseconds per layer. 8 rows went from 73.5 to 72.3, 24 from 88.7 to 81.6, 32 from 92.3 to 82.7, 64 from
        // 119.0 to 106.1. 12 and 16 rows took longer while a block of that norm filled a multiprocessor.
        //
        // Four small blocks per row mended that. On an H200 12 sequences then made 4,790 tokens per second instead of
        // 4,570, and 16 made 6,360 instead of 6,070.
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
        // With 32 and 64 rows, q, k and v took 17 and 21 microseconds in two launches on an H100, 13 and 15 in one.
        most_pair_rows: 64,
    },
    matmul_f32: F32Rows {
        // Measured on an H100: `gemv_f32` takes 7 microseconds for a row of 2,048 columns and 256 outputs. It takes 20
        // for 31 rows, since it reads the matrix for each.
        most_alone: 1,
        // Measured: 32 such rows take 9.4 microseconds on an H200 with four per block; 26 took 13.6 on an H100 with
        // eight.
        most_in_fewest: 64,
        // Measured on an H100 with 2,048 columns and 128 outputs. 512 rows take 45 microseconds with 8 rows per block
        // and 48 with 64. Up to 2,048 rows also take 48 with 64, but 170 with 8.
        most_in_few: 512,
    },
    experts: Experts {
        // Measured on an H100 with 256 experts of 2048 x 512 in Q4_K_M, 8 per row, in tokens per second. 8 rows make
        // 1,546 as separate pairs and 1,620 in runs; 4 rows make 980 and 873.
        alone_from: Some(8),
        // Measured on an H100 with 128 experts of 2048 x 768: 4 rows make 1,070 as separate pairs and 1,037 in runs.
        few_pairs: 32,
        // Measured on an H100, in tokens per second of a prompt of 512, in runs of 16 and of 64. With 32 rows per
        // expert (128 experts of 2048 x 768) they are 20,883 and 24,500. With 16 (256 of 2048 x 512) they are 17,760
        // and 16,600.
        most_in_short_runs: 16,
    },
    attention: Attention {
        // Measured (docs): 279 to 145 microseconds per layer for 2,048 rows, from blocks of 64 rows to these, together
        // with other changes of the kernel.
        prefill_rows: 128,
        by_token: false,
        // Measured (docs): 12 to 5.6 microseconds per layer for RoPE, store and attention, together with a block per
        // query head.
        rotates: true,
        // Measured with a probe of a whole step at 256 tokens of context. 4, 8 and 16 splits gave 550, 549 and 542
        // tokens per second, so short contexts need no more.
        split_tokens: 128,
        // Estimated: results of 128 rows of a head of 256 elements are 135 KB per split, written and read in L2. The
        // products with a thousand keys take some 30 microseconds.
        prefill_split_tokens: 1024,
        // Estimated: with 8 KV heads, 32 splits of one context fill the multiprocessors almost twice.
        most_splits: 32,
        // Estimated: registers leave room for at least two blocks, which hide each other's latency. (A prefill block
        // with warpgroup instructions fills a multiprocessor.)
        blocks: 2,
        // Estimated: this many blocks run at once. Each reads the keys of its KV head again, which must come from L2.
        per_head_blocks: 2,
        // Estimated: contexts of up to about a thousand tokens fit in L2 (docs have the times of longer ones).
        per_head_splits: 8,
        // Measured on an H100, with 8 KV heads of 128 and 4 query heads each, in microseconds per layer. The kernels of
        // the vector units were slower at every shape. One sequence of 500 tokens took 13.4 against 8.6, 8 of 7,900
        // took 128 against 99. 32 of 4,000 took 310 against 190, 64 of 60 to 7,900 took 390 against 170.
        split_kv: Some(SplitKv {
            // Four sequences of 4,000 tokens take the same time with `few` and `some`.
            few_from: 4,
            // One sequence of 7,900 takes 20 with one block, 22 and 29 with two and four: more results are added up.
            few: Cut { blocks: 1, tokens: 128 },
            // 64 sequences of 60 to 7,900 take 182 whole, 174 with two blocks, 170 with four; 8 of 7,900 take 99 and
            // 101. 8 of 1,000 take 25 in splits of 128 tokens, and 20 in splits of 500.
            some: Cut { blocks: 4, tokens: 512 },
            // In blocks of 256 threads and of 128, all contexts whole: 16 of 500 take 21 and 23. 32 of 100 take 13 and
            // 12, 64 of 300 take 42 and 37, 256 of 150 take 94 and 76. 256 of 600 take 244 and 235 (159 and 143 in
            // int8).
            many_from: 3,
            // In blocks of 128 threads, 64 of 60 to 7,900 take 418 with four blocks and 386 with eight (397 as above).
            many: Cut { blocks: 8, tokens: 256 },
        }),
    },
    states: States {
        // Estimated: two tiles of 64, half of which may be empty, take as long as some 16 tokens one by one.
        chunked_from: Some(48),
    },
    argmax: Argmax {
        // Measured (docs): one row of 151,936 logits 24 to 9 microseconds, with 38 blocks of one load per thread.
        most_blocks: 64,
    },
    library: Some(LibraryRows {
        // Measured: the fewest rows for which cuBLASLt was faster than our kernels in an 8B model. The gain of keeping
        // dequantised weights is in docs; the sweep itself was not kept.
        rows_16_bit: 9,
        rows_kept: 65,
        rows_dequantised: 176,
    }),
};
