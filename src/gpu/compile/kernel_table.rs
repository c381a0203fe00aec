//! The only table of kernels and of tensor types. It defines the units to compile (`plan`, shared with the build
//! script) and the kernels' names and block sizes (`catalog`). It also defines what an engine loads
//! (`engine_functions`) and what `doctor` prints (`report`). A new kernel is its code in kernels/, a line here, and the
//! op that launches it. A new tensor type is its files in kernels/ and a line here.
//!
//! The tables are macros that pass their rows to another macro, because each reader needs other parts of a row.

/// The types whose kernels work on the file's own quantised blocks. A row contains our name, ggml's name (which
/// kernels/ also uses), and the numbers in which the matrix units multiply the type. F32 has none, since no matrix unit
/// multiplies f32 exactly. Products of several f32 rows have separate kernels (`matmul_f32.hip`).
macro_rules! with_kernel_types {
    ($then:ident) => {
        $then! {
            F32 F32 Nothing
            F16 F16 F16
            Bf16 BF16 Bf16
            Q4_0 Q4_0 F16
            Q4_1 Q4_1 F16
            Q5_0 Q5_0 F16
            Q5_1 Q5_1 F16
            Q8_0 Q8_0 F16
            Q2K Q2_K F16
            Q3K Q3_K F16
            Q4K Q4_K F16
            Q5K Q5_K F16
            Q6K Q6_K F16
            Iq4Nl IQ4_NL F16
            Iq4Xs IQ4_XS F16
            Mxfp4 MXFP4 F16
            Nvfp4 NVFP4 F16
            Q1_0 Q1_0 F16
            Q2_0 Q2_0 F16
            Tq1_0 TQ1_0 F16
            Tq2_0 TQ2_0 F16
            Iq2Xxs IQ2_XXS F16
            Iq3Xxs IQ3_XXS F16
            Iq2Xs IQ2_XS F16
            Iq2S IQ2_S F16
            Iq3S IQ3_S F16
            Iq1S IQ1_S F16
            Iq1M IQ1_M F16
        }
    };
}
pub(crate) use with_kernel_types;

/// The kernels, by source file. After a file's name come the models that need it (`Needed`) and the hardware that its
/// kernels multiply on (`Multiplies`). A row of a file contains:
///
/// - the kernel's constant in Rust. The kernel's own name is the same in lower case, or the name after `as`. A suffix
///   names the things that it is compiled for (`Variant`);
/// - its argument struct in `args.h`;
/// - the things that it is compiled for (`Per`);
/// - the threads of a block (`Threads`);
/// - the op's name in `doctor`. A kernel without one is not listed. Kernels of one file and op share a line.
macro_rules! with_kernels {
    ($then:ident) => {
        $then! {
            "step.hip" Always Plainly {
                COPY_STEP: CopyStepArgs, Once, One(COPY_STEP_THREADS), "numbers of a step";
                LINK_STEPS: LinkStepsArgs, Once, One(LINK_THREADS), "test of captured graphs";
            }
            "rows.hip" Always Plainly {
                NORM_ROWS: NormRowsArgs, Once, One(NORM_THREADS), "norm";
                NORM_ROWS_OTHER: NormRowsArgs, Once, One(NORM_THREADS), "norm";
                NORM_ROWS_OF_PARTS: NormRowsArgs, Once, OneOrWgmma(NORM_PARTS_THREADS, norm_parts_wgmma_block), "norm";
                GATED_ACTIVATION: GatedArgs, Once, One(256), "gated activation";
                ACTIVATION: ActivationArgs, Once, One(256), "activation";
                GATE_COLUMNS: GateColumnsArgs, Once, One(256), "activation";
                ADD_ROWS: AddRowsArgs, Once, One(256), "embedding rows";
                SCALE_ROWS: ScaleRowsArgs, Once, One(256), "scale and cap";
                GATE_ROWS: GateRowsArgs, Once, One(256), "gate of rows";
                GATE_HEADS: GateHeadsArgs, Once, One(256), "gate of heads";
                SPARSIFY: SparsifyArgs, Once, One(256), "sparse gates";
                LEVEL_ROWS: LevelRowsArgs, Once, One(256), "hidden streams";
                PREDICT_STREAMS: StreamsArgs, Once, One(256), "hidden streams";
                CORRECT_STREAMS: StreamsArgs, Once, One(256), "hidden streams";
                GATHER_ROWS: GatherArgs, Once, One(256), "gather rows";
                COPY_BLOCKS: CopyBlocksArgs, Once, One(256), "copy KV blocks";
            }
            "fp8.hip" Fp8 Plainly {
                NORM_ROWS_FP8: NormRowsArgs, Once, One(NORM_THREADS), "8-bit rows";
                GATED_ACTIVATION_FP8: GatedArgs, Once, One(GATED_FP8_THREADS), "8-bit rows";
            }
            "weights.hip" Always Plainly {
                REPACK: RepackArgs, Type, One(256);
                EMBED: EmbedArgs, Type, One(256), "embedding rows";
                DEQUANTIZE: DequantizeArgs, Type, One(32 * DEQUANTIZE_TILES), "dequantise";
            }
            "gemv.hip" Always Plainly {
                GEMV: GemvArgs, Type, One(GEMV_THREADS), "product of 1 row";
                GEMV_PAIR as gemv: GemvPairArgs, Pair, One(GEMV_THREADS), "product of 1 row";
            }
            "matmul.hip" Always OnMatrixUnits {
                MATMUL: MatmulArgs, Type, ByRowsOrWgmma(&MATMUL_ROWS, matmul_threads, matmul_wgmma_block),
                    "product of more rows";
                MATMUL_PAIR as matmul: MatmulPairArgs, Pair,
                    ByRowsOrWgmma(&MATMUL_ROWS, matmul_threads, matmul_wgmma_block), "product of few rows";
            }
            "matmul_gated.hip" Always OnMatrixUnits {
                MATMUL_GATED: MatmulGatedArgs, Type,
                    ByRowsOrWgmma(&MATMUL_ROWS, matmul_threads, gated_wgmma_block), "gate and up of few rows";
            }
            "matmul_f32.hip" Always Plainly {
                MATMUL_F32: MatmulF32Args, Once, ByRows(&MATMUL_F32_ROWS, matmul_f32_threads),
                    "product of more rows in f32";
            }
            "matmul_experts.hip" Experts OnMatrixUnits {
                MATMUL_EXPERTS: MatmulExpertsArgs, Type,
                    ByRowsOrWgmma(&EXPERT_RUNS, matmul_threads, experts_wgmma_block), "products of experts' rows";
                MATMUL_GATED_EXPERTS: MatmulGatedExpertsArgs, Type,
                    ByRowsOrWgmma(&EXPERT_RUNS, matmul_threads, experts_wgmma_block), "gate and up of experts' rows";
            }
            "experts.hip" Experts Plainly {
                CHOOSE_EXPERTS: ChooseExpertsArgs, Once, One(32 * CHOOSE_EXPERTS_ROWS), "experts of a row";
                PLACE_EXPERTS: PlaceExpertsArgs, Once, One(PLACE_THREADS), "rows by expert";
                GATHER_PAIRS: GatherPairsArgs, Once, One(GATHER_PAIRS_THREADS), "rows by expert";
                ADD_EXPERTS: AddExpertsArgs, Once, One(ADD_EXPERTS_COLS / 4), "sum over experts";
            }
            "host_experts.hip" Experts Plainly {
                SEND_EXPERTS: SendExpertsArgs, Once, One(SEND_EXPERTS_THREADS), "experts of the CPU";
                UNPACK_TILES: UnpackArgs, Once, One(UNPACK_THREADS);
            }
            "rope.hip" Always Plainly {
                ROPE_ANGLES: RopeAnglesArgs, Once, One(256), "RoPE angles";
                ROPE_STORE: RopeStoreArgs, Cache, One(ROPE_STORE_THREADS), "RoPE and store in the KV cache";
            }
            "attention_decode.hip" Always OnMatrixUnits {
                ATTENTION_DECODE: AttentionArgs, VectorHead, One(ATTENTION_THREADS), "attention, decode";
                ATTENTION_DECODE_HEAD: AttentionArgs, VectorHead, One(ATTENTION_DECODE_HEAD_THREADS),
                    "attention, decode";
                ATTENTION_DECODE_MMA: AttentionArgs, MatrixHead, One(ATTENTION_DECODE_MMA_THREADS),
                    "attention, decode";
                ATTENTION_DECODE_MMA_MANY: AttentionArgs, MatrixHead, One(ATTENTION_DECODE_MMA_MANY_THREADS),
                    "attention, decode";
            }
            "attention_prefill.hip" Always OnMatrixUnits {
                ATTENTION_PREFILL: AttentionArgs, Head, OneOrWgmma(ATTENTION_THREADS, prefill_wgmma_block),
                    "attention, prefill";
            }
            "latent.hip" Latent OnMatrixUnits {
                HEAD_PRODUCTS: HeadProductsArgs, Once, One(HEAD_PRODUCTS_THREADS), "latent attention";
                LATENT_STORE: LatentStoreArgs, LatentCache, One(LATENT_STORE_THREADS), "latent attention";
            }
            "attention_latent.hip" Latent Plainly {
                ATTENTION_LATENT_DECODE: AttentionArgs, LatentCache, One(ATTENTION_THREADS), "latent attention";
                ATTENTION_LATENT_DECODE_HEAD: AttentionArgs, LatentCache, One(ATTENTION_DECODE_HEAD_THREADS),
                    "latent attention";
                ATTENTION_LATENT_PREFILL: AttentionArgs, LatentCache, One(ATTENTION_THREADS), "latent attention";
            }
            "states.hip" States Plainly {
                DELTA_NET_CONVOLVE: DeltaNetArgs, Once, One(32 * DELTA_NET_HEADS), "gated delta net";
                DELTA_NET_WALK_D32: DeltaNetArgs, Once, One(STATE_WALK_THREADS), "gated delta net";
                DELTA_NET_WALK_D128: DeltaNetArgs, Once, One(STATE_WALK_THREADS), "gated delta net";
                DELTA_NET_GATE: DeltaNetArgs, Once, One(32 * DELTA_NET_HEADS), "gated delta net";
            }
            "delta_chunks.hip" States OnMatrixUnits {
                DELTA_NET_PAIRS: DeltaNetArgs, Once, One(STATE_WALK_THREADS), "gated delta net";
                DELTA_NET_SCAN: DeltaNetArgs, Once, One(STATE_WALK_THREADS), "gated delta net";
            }
            "mamba2.hip" States Plainly {
                MAMBA2_CONVOLVE: Mamba2Args, Once, One(CONVOLUTION_THREADS), "Mamba-2";
                MAMBA2_WALK_D32: Mamba2Args, Once, One(STATE_WALK_THREADS), "Mamba-2";
                MAMBA2_WALK_D128: Mamba2Args, Once, One(STATE_WALK_THREADS), "Mamba-2";
                MAMBA2_WALK_D256: Mamba2Args, Once, One(STATE_WALK_THREADS), "Mamba-2";
                MAMBA2_GATE: Mamba2Args, Once, One(MAMBA2_GATE_THREADS), "Mamba-2";
            }
            "mamba2_chunks.hip" States OnMatrixUnits {
                MAMBA2_PAIRS: Mamba2Args, Once, One(STATE_WALK_THREADS), "Mamba-2";
                MAMBA2_SCAN_D128: Mamba2Args, Once, One(STATE_WALK_THREADS), "Mamba-2";
                MAMBA2_SCAN_D256: Mamba2Args, Once, One(STATE_WALK_THREADS), "Mamba-2";
            }
            "mamba.hip" States Plainly {
                MAMBA_CONVOLVE: MambaArgs, Once, One(CONVOLUTION_THREADS), "Mamba";
                MAMBA_WALK_D16: MambaArgs, Once, One(STATE_WALK_THREADS), "Mamba";
                MAMBA_WALK_D32: MambaArgs, Once, One(STATE_WALK_THREADS), "Mamba";
                MAMBA_GATE: MambaArgs, Once, One(CONVOLUTION_THREADS), "Mamba";
            }
            "short_convolution.hip" States Plainly {
                SHORT_CONVOLUTION: ShortConvolutionArgs, Once, One(CONVOLUTION_THREADS), "short convolution";
            }
            "join_rows.hip" States Plainly {
                JOIN_ROWS: JoinRowsArgs, Once, One(CONVOLUTION_THREADS), "pairs of rows";
            }
            "sampling.hip" Always Plainly {
                ALTER_LOGITS: AlterLogitsArgs, Once, One(1024), "bias and penalties";
                ARGMAX: ArgmaxArgs, Once, One(1024), "argmax";
                TOP_K: TopKArgs, Once, One(1024), "top-k";
                DRAW: DrawArgs, Once, One(1024), "draw";
                RANK_TOKENS: RankArgs, Once, One(1024), "ranks";
            }
            "probe.hip" Measurement Plainly {
                PROBE_NOTHING: ProbeArgs, Once, One(PROBE_THREADS), "measurements of the device";
                PROBE_READ: ProbeArgs, Once, One(PROBE_THREADS), "measurements of the device";
            }
        }
    };
}
pub(crate) use with_kernels;
