// The argument structs of all kernels, passed by value. `src/gpu/launch/args.rs` mirrors this file field by field and
// constant by constant; a test compares sizes, offsets and values. Pointers are device pointers. Counts are 32-bit,
// offsets are computed in 64 bits. `rows` counts activation rows (tokens), `out_rows` the outputs of a matrix, `cols`
// its inputs.
#pragma once

// The memory layout of an activation buffer. All formats but F32 pad the columns with zeros to a multiple of 256
// (`padded_cols`), because weights are stored in tiles of 256 columns.
enum ActivationFormat : u32 {
  FORMAT_F32 = 0,         // row-major f32, stride = cols
  FORMAT_F16 = 1,         // row-major f16, stride = padded_cols
  FORMAT_BF16 = 2,        // row-major bf16, stride = padded_cols
  FORMAT_F16_TILED = 3,   // f16 in the order that the matrix units read (activation_index in activation.h)
  FORMAT_BF16_TILED = 4,  // bf16 in that order
  // row-major 8-bit floats, stride = padded_cols, with one f32 scale per row in a separate array. e4m3: a sign, 4 bits
  // of exponent (bias 7), 3 of mantissa, up to 448. A scale is a power of two, or NaN for a row with a NaN or infinity.
  FORMAT_FP8 = 5,
};

enum LinearFlags : u32 {
  LINEAR_ADD = 1,         // out += instead of out =
  LINEAR_LEAVE = 2,       // `matmul` with splits: out is not written, the next kernel adds the partial sums
};

// How a feed-forward layer combines a gate with `up`: act(gate) * up, except for gpt-oss (elementary.h).
enum Activation : u32 {
  ACTIVATION_SILU = 0,
  ACTIVATION_GELU = 1,            // tanh approximation
  ACTIVATION_CLAMPED_SWIGLU = 2,  // (clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g), g = min(gate, 7)
  ACTIVATION_SQUARED_RELU = 3,    // max(gate, 0)^2 * up
  ACTIVATION_GELU_ERF = 4,        // error function
  ACTIVATION_XIELU = 5,           // only in `activation`, which has no gate
  ACTIVATION_CLAMPED_SILU = 6,    // min(silu(gate), l) * clamp(up, -l, l); l: the f32 in the bits above ACTIVATION_KIND
  ACTIVATION_RELU = 7,            // max(x, 0), only in `activation`
  ACTIVATION_KIND = 0xFF,
};

// The number by which a norm divides a row.
enum NormKind : u32 {
  NORM_RMS = 0,           // its root mean square
  NORM_LAYER = 1,         // its standard deviation, after its mean was subtracted
  NORM_WEIGHTS = 2,       // 1: it only has weights
};

// Copies the step's inputs from the host's page-locked memory to the device. copy_step, COPY_STEP_BLOCKS blocks
constexpr u32 COPY_STEP_BLOCKS = 32, COPY_STEP_THREADS = 256;
constexpr u32 COPY_STEP_LINE = 16, COPY_STEP_HEADER = COPY_STEP_BLOCKS * COPY_STEP_LINE;      // words
constexpr u32 CHOSEN_TOKEN = 1u << 31;      // flag of a token id whose lower bits are an index into `chosen`
struct CopyStepArgs {
  const u64* from;        // in the device's address space; a line for each block (the count first), then the words
  u64* out;               // [count]
  const u32* chosen;      // tokens chosen by the previous step; the token of a row with a NaN becomes 0
  u32 least;              // a lower bound of the count: this many words are loaded before the count is known
  u32 token_ids;          // the number of leading 32-bit halves that are token ids
};

// A link of the chain that tests whether a replayed graph reads stale numbers. It adds the step's number to the result
// of the previous link: once with plain loads, once with the loads of the engine's kernels. link_steps, grid
// LINK_BLOCKS
constexpr u32 LINK_BLOCKS = 4, LINK_THREADS = 64;
struct LinkStepsArgs {
  const u32* step;        // one number
  const u32* before;      // [LINK_BLOCKS][2], or null for the first link
  u32* out;               // [LINK_BLOCKS][2]: number + that of the next block in `before`, for each kind of load
};

// Repacks weights from the file's layout to tiles of 16 rows x 256 columns (quant.h). repack_<type>
struct RepackArgs {
  const u8* raw;          // [out_rows][cols] blocks of the file, row after row; at least 2-byte aligned
  u8* out;                // [ceil(out_rows/16)][ceil(cols/256)] tiles; rows and columns outside the matrix become 0
  u32 out_rows, cols;
  float scale;            // of all values, for types whose tiles have one
};

// out[r][:] = scale * table[token_ids[r]][:]. embed_<type>, grid (rows, super-blocks of 256 columns)
struct EmbedArgs {
  const u8* table;        // tiles
  const u32* token_ids;
  float* out;             // [rows][cols] f32
  u32 rows, cols;
  float scale;
};

// out[r][:] += table[positions[r]][:]. Without positions: += table[0][:]. With token ids: += table[1][:] for rows after
// the first `separator` of the row's sequence, else table[0][:]; the sequence begins at row r - positions[r]. add_rows,
// grid (rows, columns / ADD_ROWS_COLS rounded up)
constexpr u32 ADD_ROWS_COLS = 1024;
struct AddRowsArgs {
  const float* table;     // [][cols]
  const u32* positions;   // [rows] or null
  const u32* token_ids;   // [rows] or null
  float* out;             // [rows][cols]
  u32 cols, separator;
};

// Decodes tiles to rows of f16 (bf16 for BF16 weights) for a vendor's matrix library. dequantize_<type>,
// DEQUANTIZE_TILES a block
constexpr u32 DEQUANTIZE_TILES = 4;
struct DequantizeArgs {
  const u8* weights;
  u16* out;               // [16 * num_tiles][padded_cols]
  u32 num_tiles, cols;    // num_tiles: tiles of 16 rows
};

// Copies of experts in slots on the device. An expert with a slot has its tiles there, at `tiles` (of a second matrix:
// at `tiles_up`) + slot * slot_bytes.
constexpr u32 NOT_CACHED = 0xffffffffu;
struct CachedExperts {
  const u32* slots;       // [experts]: a slot, or NOT_CACHED; null: no expert has one
  const u8* tiles;
  const u8* tiles_up;
  u64 slot_bytes;
  u32 alone;              // 1: rows of an expert without a slot are left unchanged
};

// out[r][o] (+)= bias[o] + sum_c W[o][c] * n(x[r])[c]; n is RMSNorm with weights `norm`, if given. Kernels of quantised
// types quantise the input to int8 in blocks of 16 values. With `weights_up`, out[r][o] (+)= the activation of this
// product (the gate) and of the product with `weights_up`. gemv_<type>
constexpr u32 GEMV_THREADS = 512;
struct GemvArgs {
  const u8* weights;      // tiles
  const u8* weights_up;   // tiles of the same shape and type, or null
  const float* x;         // [rows][x_stride] f32
  const float* norm;      // [cols] or null
  const float* bias;      // [out_rows] or null; with `experts` [experts][out_rows]
  const float* bias_up;   // as bias, for weights_up
  float* out;             // [rows][out_stride] f32
  const u32* experts;     // [rows], or null: output row r uses row r / share of x and the matrix
  u64 expert_bytes;       // at `weights` (and `weights_up`) + experts[r] * expert_bytes
  u32 out_rows, cols, rows, x_stride, out_stride;
  u32 flags;              // LinearFlags
  u32 activation;         // with weights_up
  u32 grid_x;             // blocks along x, which walk the tiles; grid y = rows
  float eps;
  u32 share;
  CachedExperts cached;   // with `experts`
};

// Two matrices of one stack that differ in type. The first first.grid_x blocks along x compute the first matrix, the
// others the second. gemv_<type>_<type>
struct GemvPairArgs {
  GemvArgs first;
  GemvArgs second;
};

// out[r][o] (+)= bias[o] + sum_c W[o][c] * x[r][c] on the matrix units. matmul_<type>_n<N>, N = 8, 16, 32, 64 rows a
// block. Not for F32 weights.
// Shape of a block: threads, tiles of 16 weight rows, and groups of 32 lanes (KW) that share a tile, each with every
// KW-th super-block of 256 columns. Grid: (ceil(tiles / tiles of a block), ceil(rows / N), splits).
constexpr u32 MATMUL_THREADS_N8 = 256, MATMUL_TILES_N8 = 2, MATMUL_KW_N8 = 4;
constexpr u32 MATMUL_THREADS_N16 = 256, MATMUL_TILES_N16 = 2, MATMUL_KW_N16 = 4;
constexpr u32 MATMUL_THREADS_N32 = 128, MATMUL_TILES_N32 = 4, MATMUL_KW_N32 = 1;
constexpr u32 MATMUL_THREADS_N64 = 128, MATMUL_TILES_N64 = 8, MATMUL_KW_N64 = 1;
// With wgmma (NVIDIA's Hopper): tiles, one warp each, and bytes of shared memory, into which the copy engine prefetches
// weights and activations.
constexpr u32 MATMUL_WGMMA_TILES_N8 = 4, MATMUL_WGMMA_SHARED_N8 = 56832;
constexpr u32 MATMUL_WGMMA_TILES_N16 = 4, MATMUL_WGMMA_SHARED_N16 = 56832;
constexpr u32 MATMUL_WGMMA_TILES_N32 = 8, MATMUL_WGMMA_SHARED_N32 = 115200;
constexpr u32 MATMUL_WGMMA_TILES_N64 = 8, MATMUL_WGMMA_SHARED_N64 = 231424;
// Blocks of 64 rows of experts use fewer bytes, so that two of them fit a multiprocessor.
constexpr u32 MATMUL_EXPERTS_WGMMA_SHARED_N64 = 115200;
struct MatmulArgs {
  const u8* weights;      // tiles
  const u16* x;           // FORMAT_F16_TILED (BF16_TILED for BF16 weights), rows padded to a multiple of 64 (any
                          // values)
  const float* bias;      // [out_rows] or null
  float* out;             // [rows][out_stride] f32
  float* partial;         // splits > 1: [splits][16 * its tiles * max(N, 16)] for each block of the grid, in the matrix
                          // unit's order, private to the kernel. With LINEAR_LEAVE [splits][rows][out_stride]
  u32* counters;          // splits > 1: one per (row block, column block) of the grid; zero before and after
  u32 out_rows, cols, rows, out_stride;
  u32 splits;             // of the columns, grid z; summed in order by the last block to arrive, or left
  u32 flags;              // LinearFlags
};

// Stores the gated activation of the products with gate and up, two matrices of one shape. matmul_gated_<type>_n<N>.
// Half of a block's tiles are of gate, half of up. Grid x covers the outputs with padding. No splits.
constexpr u32 MATMUL_GATED_WGMMA_TILES_N64 = 16;
struct MatmulGatedArgs {
  MatmulArgs product;     // with gate; `out`: [rows] of out_rows in `format_out`, FORMAT_F16_TILED or FORMAT_BF16_TILED
  const u8* weights_up;
  const float* bias_up;   // or null
  u32 activation;
  u32 format_out;
};

// Two matrices of one stack that differ in type: the first blocks along x compute the first, the rest the second. Both
// have the same rows and splits; partial sums and counters are separate. matmul_<type>_<type>_n<N>, N as above
struct MatmulPairArgs {
  MatmulArgs first;
  MatmulArgs second;
};

// `matmul` with a matrix for each block of N rows: at `product.weights` + experts[block] * expert_bytes, its bias (if
// any) at `product.bias` + experts[block] * product.out_rows. A block with NO_EXPERT leaves its rows unchanged. No
// splits. matmul_experts_<type>_n<N>, N = 16, 64. Each block reads its activations from L2. For that reason blocks of
// 16 rows have more tiles than those of `matmul`, with as many threads. With wgmma their shapes are the same.
constexpr u32 MATMUL_EXPERTS_TILES_N16 = 4;
constexpr u32 NO_EXPERT = 0xffffffffu;
struct MatmulExpertsArgs {
  MatmulArgs product;
  const u32* experts;     // [ceil(rows / N)]
  u64 expert_bytes;
  CachedExperts cached;
};

// The gated activation of the products with gate and up, two matrices of one shape for each block of N rows.
// matmul_gated_experts_<type>_n<N>. Half of a block's tiles are of gate, half of up. Grid x covers the padding.
struct MatmulGatedExpertsArgs {
  MatmulExpertsArgs gate; // `out`: [rows] of out_rows in `format_out`, FORMAT_F16_TILED or FORMAT_BF16_TILED
  const u8* weights_up;
  const float* bias_up;   // or null
  u32 activation;
  u32 format_out;
};

// out[r][o] (+)= bias[o] + sum_c W[o][c] * x[r][c] with f32 weights. matmul_f32_n<N>, N = 4, 8, 64 rows a block: grid
// (ceil(tiles of 16 outputs / tiles of a block), ceil(rows / N))
constexpr u32 MATMUL_F32_THREADS_N4 = 256, MATMUL_F32_THREADS_N8 = 256, MATMUL_F32_TILES_FEW = 1;
constexpr u32 MATMUL_F32_THREADS_N64 = 256, MATMUL_F32_TILES_N64 = 4;
struct MatmulF32Args {
  const u8* weights;      // tiles
  const float* x;         // [rows][x_stride]
  const float* bias;      // [out_rows] or null
  float* out;             // [rows][out_stride]
  u32 out_rows, cols, rows, x_stride, out_stride;
  u32 flags;              // LinearFlags
};

// Converts rows from one format to another, through a norm if `norm` is given. One block per row.
//   norm_rows: only NORM_RMS without biases.
//   norm_rows_other: all norms; it alone reads FORMAT_FP8.
//   norm_rows_of_parts: norm_rows after adding to x (f32) the partial sums that a product with LINEAR_LEAVE has left.
//     With wgmma, a row has a cluster of NORM_PARTS_BLOCKS smaller blocks.
//   norm_rows_fp8: norm_rows into FORMAT_FP8.
constexpr u32 NORM_THREADS = 512, NORM_PARTS_THREADS = 1024;
constexpr u32 NORM_PARTS_BLOCKS = 4, NORM_PARTS_BLOCK_THREADS = 256;
struct NormRowsArgs {
  const void* x;          // rows in `format_in`
  const float* norm;      // [cols] or null: weights
  const float* bias;      // [cols] or null: added after the weights
  void* out;              // rows in `format_out`; x itself if both are f32 of one stride, else no overlap with it
  u32 rows, cols;
  u32 x_stride, out_stride;     // of f32; rows of other formats are contiguous
  u32 format_in, format_out;
  u32 kind;               // NormKind
  u32 flags;              // LinearFlags: LINEAR_ADD for an output in f32
  float eps;
  float factor;           // with LINEAR_ADD: multiplies the sum
  u32 num_parts;
  const float* parts;     // [num_parts][rows][x_stride]; only norm_rows_of_parts
  float* scales;          // [rows], if the output is in FORMAT_FP8, or else the input
};

// out[r][i] = activation(gate_up[r][i], gate_up[r][cols + i]): gate, then up. gated_activation, grid (rows,
// ceil(columns to store / GATED_COLS)). gated_activation_fp8 stores FORMAT_FP8, columns a multiple of eight, grid
// (rows).
constexpr u32 GATED_COLS = 2048, GATED_FP8_THREADS = 512;
struct GatedArgs {
  const void* gate_up;    // [rows][2 * cols], FORMAT_F32, or FORMAT_F16 / FORMAT_BF16 (stride then 2 * cols, unpadded)
  void* out;              // [rows] of `cols` in format_out
  float* scales;          // [rows], with FORMAT_FP8
  u32 rows, cols;
  u32 format_in, format_out;
  u32 activation;
};

// out[r][i] = act(x[r][i]), for activations without a gate. activation, grid (rows, ceil(columns to store /
// ACTIVATION_COLS))
constexpr u32 ACTIVATION_COLS = 1024;
struct ActivationArgs {
  const float* x;         // [rows][cols]
  void* out;              // [rows] of `cols` in format_out
  u32 cols;
  u32 format_out;
  u32 activation;
  // xIELU: positive x^2 + slope x above zero, else negative (e^min(x, eps) - 1 - x) + slope x.
  float positive, negative, slope, eps;
};

// out[r][i] = activation(gate[r][i], x[r][i]). gate_columns, grid (rows, ceil(columns to store / ACTIVATION_COLS))
struct GateColumnsArgs {
  const float* gate;      // [rows][cols]
  const float* x;         // [rows][x_stride], from the first column to take
  void* out;              // [rows] of `cols` in format_out
  u32 cols, x_stride;
  u32 format_out;
  u32 activation;
};

// x = scale * x, then, with a soft cap, cap * tanh(x / cap), and clamp(x, least, most), in the columns from `first` to
// before `end`. scale_rows, grid (rows, ceil(cols / SCALE_COLS))
constexpr u32 SCALE_COLS = 1024;
struct ScaleRowsArgs {
  void* x;                // [rows] of cols in `format`
  u32 cols, first, end;
  u32 format;
  float scale;
  float softcap;          // 0: none
  float least, most;
};

// out[r] *= sigmoid(weight . n(x[r])); n is RMSNorm with weights `norm`, if given. gate_rows, one block per row
struct GateRowsArgs {
  const void* x;          // [rows] of `hidden` in format_in
  const float* norm;      // [hidden] or null
  const float* weight;    // [hidden]
  void* out;              // [rows] of `cols` in format_out
  u32 hidden, cols;
  u32 format_in, format_out;
  float eps;
};

// The function of a gate that multiplies a head's output.
enum GateFunction : u32 {
  GATE_SIGMOID = 0,
  GATE_SOFTPLUS = 1,      // log(1 + e^x)
};

// out[r][h][i] *= f(gate[r][h]). gate_heads, grid (rows, ceil(heads * head_cols / GATE_HEADS_COLS))
constexpr u32 GATE_HEADS_COLS = 1024;
struct GateHeadsArgs {
  const float* gate;      // [rows][heads]
  void* out;              // [rows] of heads * head_cols in `format`
  u32 heads, head_cols;
  u32 function;           // GateFunction
  u32 format;
};

// Clips the first `cols` columns of a row: x[r][c] = max(0, x[r][c] - mean - deviations * standard deviation of these).
// sparsify, one block per row
struct SparsifyArgs {
  float* x;               // [rows][2 * cols]
  u32 cols;
  float deviations;
};

// out[r] = x[r] * rms(like[r]) / sqrt(max(least, mean square of x[r])). level_rows, one block per row
struct LevelRowsArgs {
  const float* x;         // [rows][cols]
  const float* like;      // [rows][cols]
  float* out;             // [rows][cols]
  u32 cols;
  float least;
};

// Hidden streams of a token (AltUp). The coefficients of a row are c = weight . tanh(scale * routed[r]).
// predict_streams: stream k += sum over j of c[4 k + j] * stream j. Stream 0 is `active` and is copied to `predicted`.
// correct_streams: stream k = prediction k + (1 + c[k]) * (active - predicted). Grid (rows, ceil(cols / STREAM_COLS))
constexpr u32 STREAM_COLS = 1024;
struct StreamsArgs {
  const float* routed;    // [rows][4]
  const float* weight;    // [16][4], or [4][4]
  float* active;          // [rows][cols]
  float* predicted;       // [rows][cols]
  float* first;           // [rows][cols]
  float* second;          // [rows][cols]
  float* third;           // [rows][cols]
  u32 cols;
  float scale;
};

// out[i] = x[indices[i]]. gather_rows, one block per row
struct GatherArgs {
  const void* x;          // rows of `cols` in format_in
  const u32* indices;
  float* out;             // [rows][cols] f32
  u32 rows, cols;
  u32 format_in;
};

#include "args_experts.h"

// Copies whole KV blocks. copy_blocks, grid y = pairs
struct CopyBlocksArgs {
  u8* k_cache;
  u8* v_cache;
  const u32* pairs;       // [num_pairs][2]: source, destination
  u32 num_pairs;
  u32 block_bytes;        // of K (and of V), a multiple of 16
};

// out[r] = [cos; pairs] ++ [sin; pairs] of positions[r] * inv_freq, times magnitude. rope_angles, one thread per pair
struct RopeAnglesArgs {
  const u32* positions;
  const float* inv_freq;  // [num_pairs]
  float* out;             // [rows][2 * num_pairs]
  u32 rows, num_pairs;
  float magnitude;
};

#include "args_attention.h"
#include "args_states.h"

// Changes the logits of a row's tokens in place: bias, masks and penalties. A NaN stays NaN. The original logit is left
// in the token's bias. alter_logits, grid x = altered rows
struct AlteredRow {
  u32 row;
  u32 first, count;       // of its tokens, whose ids are distinct
  float repetition;       // tokens seen: logits above 0 are divided by it, others multiplied
  float frequency;        // subtracted once for each time that the token was generated
  float presence;         // subtracted if the token was generated
};
struct AlteredToken {
  u32 id;
  float bias;             // added first; -infinity: the token is impossible
  u32 seen;               // 0: not seen yet; else 1 + how often it was generated
};
struct AlterLogitsArgs {
  float* logits;          // [rows][cols]
  const AlteredRow* rows;
  AlteredToken* tokens;
  u32 cols;
};

// The tokens that may be chosen in a row; the others count as -infinity.
constexpr u32 NO_MASK = ~0u;
struct MaskArgs {
  const u32* places;      // [rows]: the row's mask, or NO_MASK; null: no row has one
  const u32* words;       // [masks][ceil(cols / 32)]: bit i % 32 of word i / 32 is 1 if token i may be chosen
};

// Per row: the largest logit (first among equals) and log(sum(exp)). With a NaN in the row, token = 0xffffffff. argmax,
// grid (rows, ceil(cols / share)): the last block of a row to arrive combines the blocks' results in their order.
constexpr u32 ARGMAX_BLOCKS = 64;       // of a row, at most
struct ArgmaxArgs {
  const float* logits;    // [rows][cols]
  u32* tokens;            // [rows]
  float* values;          // [rows][2]: largest logit, log-sum-exp
  u32* partial;           // several blocks a row: [rows][blocks][4], 16-byte aligned; private to the kernel
  u32* counters;          // several blocks a row: [rows], zero before and after
  MaskArgs masks;
  u32 rows, cols;
  u32 share;              // logits of a block; a multiple of 4 if a row has several blocks
};

// Per row: the k largest logits in order (logit descending, id ascending) and log(sum(exp)). top_k, one block per row
struct TopKArgs {
  const float* logits;
  u32* ids;               // [rows][k]
  float* values;          // [rows][k]
  float* log_sums;        // [rows]; NaN if the row holds one
  MaskArgs masks;
  u32 rows, cols, k;      // k <= 256 and k <= cols
};

// Draws a random token for each of the given rows. draw, one block per row
constexpr u32 DRAW_FRACTION_BITS = 42;           // `FRACTION_BITS` of the Rust side
struct DrawRow {
  double top_p;           // of the tokens in play, the best that reach this share of the total weight are kept; 1: all
  double uniform;         // the cumulative share of the kept weights at which the token is found, in 0 .. 1
  float per_logit;        // a token's weight is exp((logit - largest) * per_logit)
  float min_p;            // a token is in play if its weight is at least this
  u32 top_k;              // and if it is among the best top_k of these; 0: no limit
  u32 row;
};
struct Drawn;             // draw.h
struct DrawArgs {
  const float* logits;
  const DrawRow* rows;
  Drawn* found;           // one for each of `rows`
  MaskArgs masks;
  u32 cols;
};

// Finds a token's rank among all tokens of its row by the model's own logits. rank_tokens, one block per row
struct RankRow {
  u32 row;
  u32 token_at;           // index of the word of `tokens` with the token's id
  u32 first, count;       // of `altered`: the row's tokens with their original logits (alter_logits)
};
struct Rank;              // sampling.hip
struct RankArgs {
  const float* logits;    // after their alteration
  const RankRow* rows;
  const u32* tokens;
  const AlteredToken* altered;
  Rank* found;            // one for each of `rows`
  u32 cols;
};

// Reads memory in pieces of 16 bytes, to measure the time. `out` gets the exclusive or of what each thread has read.
// probe_read and probe_nothing, grid (blocks)
struct ProbeArgs {
  const u8* data;         // [pieces][16], 16-byte aligned
  u32* out;               // [blocks][256]
  u64 pieces;
  u32 blocks;
};
