//! The numbers of `kernels/args.h`.

use crate::backend::Activation;
use crate::batch;

/// Declares the numbers that kernels and launches share, in the order of `args.h`, and for the test their names there.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: u32 = $value;)*

        #[cfg(test)]
        pub(crate) fn constants() -> Vec<(&'static str, u32)> {
            vec![$((stringify!($name), $name)),*]
        }
    };
}

constants! {
    /// `ActivationFormat`.
    FORMAT_F32 = 0;
    FORMAT_F16 = 1;
    FORMAT_BF16 = 2;
    FORMAT_F16_TILED = 3;
    FORMAT_BF16_TILED = 4;
    FORMAT_FP8 = 5;
    /// `LinearFlags`: add to the output instead of writing it; leave the splits' partial sums to the next kernel.
    LINEAR_ADD = 1;
    LINEAR_LEAVE = 2;
    /// `Activation`.
    ACTIVATION_SILU = 0;
    ACTIVATION_GELU = 1;
    ACTIVATION_CLAMPED_SWIGLU = 2;
    ACTIVATION_SQUARED_RELU = 3;
    ACTIVATION_GELU_ERF = 4;
    ACTIVATION_XIELU = 5;
    ACTIVATION_CLAMPED_SILU = 6;
    ACTIVATION_RELU = 7;
    /// Bits of an activation's number; the other bits are its limit.
    ACTIVATION_KIND = Activation::LIMIT_SPARES;
    /// `NormKind`.
    NORM_RMS = 0;
    NORM_LAYER = 1;
    NORM_WEIGHTS = 2;
    /// Blocks of `copy_step`, each with a line of this many words before the words that it copies.
    COPY_STEP_BLOCKS = 32;
    COPY_STEP_THREADS = 256;
    /// Words of 64 bits.
    COPY_STEP_LINE = 16;
    COPY_STEP_HEADER = COPY_STEP_BLOCKS * COPY_STEP_LINE;
    /// Marks a token id whose lower bits are the index of the token among the chosen tokens.
    CHOSEN_TOKEN = 1 << 31;
    /// Blocks of a link in the test of captured graphs. Each reads what another one has stored.
    LINK_BLOCKS = 4;
    LINK_THREADS = 64;
    /// Columns that a block of `add_rows` adds.
    ADD_ROWS_COLS = 1024;
    /// Tiles (of 16 rows x 256 columns) that a block of `dequantize_<type>` decodes.
    DEQUANTIZE_TILES = 4;
    /// Marks an expert without a slot.
    NOT_CACHED = u32::MAX;
    GEMV_THREADS = 512;
    /// For a block of `matmul_<type>_n<N>`: its threads, its tiles of 16 outputs, and its groups of 32 lanes that share
    /// the columns of a tile.
    MATMUL_THREADS_N8 = 256;
    MATMUL_TILES_N8 = 2;
    MATMUL_KW_N8 = 4;
    MATMUL_THREADS_N16 = 256;
    MATMUL_TILES_N16 = 2;
    MATMUL_KW_N16 = 4;
    MATMUL_THREADS_N32 = 128;
    MATMUL_TILES_N32 = 4;
    MATMUL_KW_N32 = 1;
    MATMUL_THREADS_N64 = 128;
    MATMUL_TILES_N64 = 8;
    MATMUL_KW_N64 = 1;
    /// Tiles of a block with `wgmma`, which have a warp each, and the bytes of its shared memory.
    MATMUL_WGMMA_TILES_N8 = 4;
    MATMUL_WGMMA_SHARED_N8 = 56_832;
    MATMUL_WGMMA_TILES_N16 = 4;
    MATMUL_WGMMA_SHARED_N16 = 56_832;
    MATMUL_WGMMA_TILES_N32 = 8;
    MATMUL_WGMMA_SHARED_N32 = 115_200;
    MATMUL_WGMMA_TILES_N64 = 8;
    MATMUL_WGMMA_SHARED_N64 = 231_424;
    /// Blocks of experts have fewer bytes there: two of them fit in a multiprocessor.
    MATMUL_EXPERTS_WGMMA_SHARED_N64 = 115_200;
    /// Blocks of gate and up have more tiles there.
    MATMUL_GATED_WGMMA_TILES_N64 = 16;
    MATMUL_EXPERTS_TILES_N16 = 4;
    /// Marks a pair that the CPU leaves out, and runs without an expert.
    NO_EXPERT = u32::MAX;
    /// Threads of a block of `matmul_f32_n<N>`, and tiles of 16 outputs that it computes.
    MATMUL_F32_THREADS_N4 = 256;
    MATMUL_F32_THREADS_N8 = 256;
    MATMUL_F32_TILES_FEW = 1;
    MATMUL_F32_THREADS_N64 = 256;
    MATMUL_F32_TILES_N64 = 4;
    /// Threads of a block of `norm_rows`, and of `norm_rows_of_parts`.
    NORM_THREADS = 512;
    NORM_PARTS_THREADS = 1024;
    /// Blocks per row of `norm_rows_of_parts`, and their threads, on devices with `wgmma`.
    NORM_PARTS_BLOCKS = 4;
    NORM_PARTS_BLOCK_THREADS = 256;
    /// Columns of a block of `gated_activation`.
    GATED_COLS = 2048;
    GATED_FP8_THREADS = 512;
    /// Columns of a block of `activation`, and of `scale_rows`.
    ACTIVATION_COLS = 1024;
    SCALE_COLS = 1024;
    /// `GateFunction`.
    GATE_SIGMOID = 0;
    GATE_SOFTPLUS = 1;
    /// Columns of a block of `gate_heads`.
    GATE_HEADS_COLS = 1024;
    /// Columns of a block of `predict_streams` and `correct_streams`.
    STREAM_COLS = 1024;
    /// Limits of the routing kernel: experts of a layer, experts per token, and groups of experts.
    MAX_EXPERTS = 512;
    MAX_USED_EXPERTS = 32;
    MAX_EXPERT_GROUPS = 32;
    /// `Gating`.
    GATING_SOFTMAX = 0;
    GATING_SIGMOID = 1;
    /// Rows of a block of `choose_experts`.
    CHOOSE_EXPERTS_ROWS = 8;
    PLACE_THREADS = MAX_EXPERTS;
    GATHER_PAIRS_THREADS = 256;
    /// Columns of a block of `add_experts`.
    ADD_EXPERTS_COLS = 1024;
    SEND_EXPERTS_THREADS = 256;
    /// `PlaceKind`.
    PLACE_CODES = 0;
    PLACE_SIDE = 1;
    PLACE_FLIPPED = 2;
    UNPACK_THREADS = 256;
    /// The most places of a tile that have bits of one byte of the file.
    PLACES_OF_BYTE = 8;
    /// `RotationFlags`: elements `i` and `i + num_pairs` are a pair; the norms come after RoPE; v has norms, too.
    ROTATION_NEOX = 1;
    ROTATION_NORMS_LAST = 2;
    ROTATION_NORM_V = 4;
    /// A slot that stores nothing: padding of a captured step.
    NO_SLOT = u32::MAX;
    /// Threads of a block of `rope_store`: 32 per head, or 16 per head of up to this many elements.
    ROPE_STORE_THREADS = 256;
    ROPE_STORE_SHORT = 128;
    ATTENTION_THREADS = 128;
    ATTENTION_DECODE_HEAD_THREADS = 256;
    ATTENTION_DECODE_MMA_THREADS = 256;
    ATTENTION_DECODE_MMA_MANY_THREADS = 128;
    /// Threads and bytes of shared memory of a block of `attention_prefill_f16` with warpgroup instructions.
    ATTENTION_PREFILL_WGMMA_THREADS = 384;
    ATTENTION_PREFILL_WGMMA_SHARED_D64 = 98_304;
    ATTENTION_PREFILL_WGMMA_SHARED_D128 = 196_608;
    ATTENTION_PREFILL_WGMMA_SHARED_D256 = 229_376;
    ALL_BUT_FIRST = u32::MAX;
    WINDOW_OF_CHUNK = 1 << 31;
    LATENT_ROW = 576;
    LATENT_VALUES = 512;
    ATTENTION_LATENT_HEADS = 8;
    HEAD_PRODUCTS_TILE = 64;
    HEAD_PRODUCTS_THREADS = 256;
    LATENT_STORE_THREADS = 256;
    /// A row without a sequence: padding of a captured step.
    NO_SEQUENCE = u32::MAX;
    NO_STATE = batch::NO_STATE;
    /// Columns of a head's matrix that a block keeps along a sequence.
    STATE_COLUMNS = 32;
    STATE_WALK_THREADS = 128;
    /// Rows of a tile of the chunked forms of recurrent layers.
    STATE_TILE = 64;
    /// Heads of a block of `delta_net_convolve` and `delta_net_gate`.
    DELTA_NET_HEADS = 8;
    /// The size of a head of keys of `delta_net_pairs` and `delta_net_scan`.
    DELTA_NET_KEY_SIZE = 128;
    DELTA_NET_PAIRS_BYTES = 33280;
    /// Columns of a block of `mamba_convolve`, `mamba2_convolve`, `short_convolution` and `join_rows`.
    CONVOLUTION_THREADS = 256;
    MAMBA2_GATE_THREADS = 512;
    /// Columns of a block of `mamba2_scan`.
    MAMBA2_SCAN_COLUMNS = 16;
    /// The mark of a row without a mask, and the most blocks per row of `argmax`.
    NO_MASK = u32::MAX;
    ARGMAX_BLOCKS = 64;
    DRAW_FRACTION_BITS = 42;
}
