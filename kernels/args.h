// The arguments of every kernel: one struct each, passed by value. `src/backend/gpu/args.rs` mirrors this file field by
// field and constant by constant (a test compares sizes, offsets and values). Pointers are device pointers; counts are
// 32-bit, offsets are computed in 64 bits. `rows` counts activation rows (tokens), `out_rows` the outputs of a matrix,
// `cols` its inputs.
#pragma once

// How the rows of an activation buffer lie in memory. All but F32 pad the columns with zeros to a multiple of 256
// (`padded_cols`), because weights are stored in tiles of 256 columns.
enum ActivationFormat : u32 {
  FORMAT_F32 = 0,         // row-major f32, stride = cols
  FORMAT_F16 = 1,         // row-major f16, stride = padded_cols
  FORMAT_BF16 = 2,        // row-major bf16, stride = padded_cols
  FORMAT_F16_TILED = 3,   // f16 in the order that the matrix units want (activation_index in activation.h)
  FORMAT_BF16_TILED = 4,  // bf16, the same order
  // row-major 8-bit floats, stride = padded_cols, with a scale (f32) for each row elsewhere: e4m3, a sign, 4 bits of
  // exponent (bias 7) and 3 of mantissa, up to 448. A scale is a power of two, or a NaN where the row holds a NaN or an
  // infinity.
  FORMAT_FP8 = 5,
};

enum LinearFlags : u32 {
  LINEAR_ADD = 1,         // out += instead of out =
  LINEAR_LEAVE = 2,       // of `matmul` with splits: out stays as it is, the kernel behind adds their sums
};

// How a feed-forward combines a gate with `up`: act(gate) * up, except for gpt-oss (elementary.h).
enum Activation : u32 {
  ACTIVATION_SILU = 0,
  ACTIVATION_GELU = 1,            // by the tanh
  ACTIVATION_CLAMPED_SWIGLU = 2,  // (clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g), g = min(gate, 7)
  ACTIVATION_SQUARED_RELU = 3,    // max(gate, 0)^2 * up
  ACTIVATION_GELU_ERF = 4,        // by the error function
};

// The number that a norm divides a row by.
enum NormKind : u32 {
  NORM_RMS = 0,           // its root mean square
  NORM_LAYER = 1,         // its standard deviation, after its mean was subtracted
};

// Copies the step's numbers from the host's page-locked memory to the device's. copy_step, COPY_STEP_BLOCKS blocks
constexpr u32 COPY_STEP_BLOCKS = 32, COPY_STEP_THREADS = 256;
constexpr u32 COPY_STEP_LINE = 16, COPY_STEP_HEADER = COPY_STEP_BLOCKS * COPY_STEP_LINE;      // words
constexpr u32 CHOSEN_TOKEN = 1u << 31;      // mark of a token id whose lower bits say where in `chosen` the token is
struct CopyStepArgs {
  const u64* from;        // as the device sees it; a line for each block, which begins with the count, then the words
  u64* out;               // [count]
  const u32* chosen;      // tokens that the step before has chosen; that of a row with a NaN becomes 0
  u32 least;              // the count is this at least: so many are asked for without waiting for it
  u32 token_ids;          // so many 32-bit halves, the first ones, are token ids
};

// A link of the chain that tests whether a repeated graph reads old numbers. It adds the step's number to what the link
// before it has stored, once with plain loads as a compiler would read and once as the engine's kernels read.
// link_steps, grid LINK_BLOCKS
constexpr u32 LINK_BLOCKS = 4, LINK_THREADS = 64;
struct LinkStepsArgs {
  const u32* step;        // one number
  const u32* before;      // [LINK_BLOCKS][2], or null for the first link
  u32* out;               // [LINK_BLOCKS][2]: number + that of the next block in `before`, either way
};

// Repacks weights from the file's layout into tiles of 16 rows x 256 columns (quant.h). repack_<type>
struct RepackArgs {
  const u8* raw;          // [out_rows][cols] blocks of the file, row after row; 2-byte aligned at least
  u8* out;                // [ceil(out_rows/16)][ceil(cols/256)] tiles; rows and columns beyond the matrix become 0
  u32 out_rows, cols;
};

// out[r][:] = scale * table[token_ids[r]][:]. embed_<type>, grid (rows, super-blocks of 256 columns)
struct EmbedArgs {
  const u8* table;        // tiles
  const u32* token_ids;
  float* out;             // [rows][cols] f32
  u32 rows, cols;
  float scale;
};

// out[r][:] += table[positions[r]][:], or without positions the first row of the table, or with token ids the second
// row behind the first `separator` of the row's sequence, which begins at r - positions[r], and the first row up to
// there. add_rows, grid (rows, columns / ADD_ROWS_COLS rounded up)
constexpr u32 ADD_ROWS_COLS = 1024;
struct AddRowsArgs {
  const float* table;     // [][cols]
  const u32* positions;   // [rows] or null
  const u32* token_ids;   // [rows] or null
  float* out;             // [rows][cols]
  u32 cols, separator;
};

// Decodes tiles into f16 (for BF16 weights bf16) rows for a vendor's matrix library. dequantize_<type>,
// DEQUANTIZE_TILES a block
constexpr u32 DEQUANTIZE_TILES = 4;
struct DequantizeArgs {
  const u8* weights;
  u16* out;               // [16 * num_tiles][padded_cols]
  u32 num_tiles, cols;    // num_tiles: tiles of 16 rows
};

// out[r][o] (+)= bias[o] + sum_c W[o][c] * n(x[r])[c]; n is RMSNorm with weights `norm` where given. Kernels of
// quantised types quantise the input to int8 in blocks of 16 values. With `weights_up`, the activation combines this
// product with the one of `weights_up`, and out[r][o] (+)= the result. gemv_<type>
constexpr u32 GEMV_THREADS = 512;
struct GemvArgs {
  const u8* weights;      // tiles
  const u8* weights_up;   // tiles of the same shape and type, or null
  const float* x;         // [rows][x_stride] f32
  const float* norm;      // [cols] or null
  const float* bias;      // [out_rows] or null; with `experts` that of each expert, one behind the other
  const float* bias_up;   // the same of weights_up
  float* out;             // [rows][out_stride] f32
  const u32* experts;     // [rows], or null: row r of the output is of row r / share of x and of the matrix that lies
  u64 expert_bytes;       // experts[r] * expert_bytes behind `weights` (and behind `weights_up`)
  u32 out_rows, cols, rows, x_stride, out_stride;
  u32 flags;              // LinearFlags
  u32 activation;         // with weights_up
  u32 grid_x;             // blocks along x: they walk the tiles; grid y = rows
  float eps;
  u32 share;
};

// Two matrices of one stack that differ in type: the first first.grid_x blocks along x compute the first one, the
// others the second one. gemv_<type>_<type>
struct GemvPairArgs {
  GemvArgs first;
  GemvArgs second;
};

// out[r][o] (+)= bias[o] + sum_c W[o][c] * x[r][c] on the matrix units. matmul_<type>_n<N>, N = 8, 16, 32, 64 rows a
// block. Not for F32 weights.
// Shape of a block of matmul_*_n<N>: threads, tiles of 16 weight rows, and groups of 32 lanes (KW) that share a tile,
// each with every KW-th super-block of 256 columns. Grid: (ceil(tiles / tiles of a block), ceil(rows / N), splits).
constexpr u32 MATMUL_THREADS_N8 = 256, MATMUL_TILES_N8 = 2, MATMUL_KW_N8 = 4;
constexpr u32 MATMUL_THREADS_N16 = 256, MATMUL_TILES_N16 = 2, MATMUL_KW_N16 = 4;
constexpr u32 MATMUL_THREADS_N32 = 128, MATMUL_TILES_N32 = 4, MATMUL_KW_N32 = 1;
constexpr u32 MATMUL_THREADS_N64 = 128, MATMUL_TILES_N64 = 8, MATMUL_KW_N64 = 1;
// Where wgmma multiplies (NVIDIA's Hopper): tiles, which have a warp each, and bytes of shared memory, into which the
// copy engine brings weights and activations ahead.
constexpr u32 MATMUL_WGMMA_TILES_N8 = 4, MATMUL_WGMMA_SHARED_N8 = 56832;
constexpr u32 MATMUL_WGMMA_TILES_N16 = 4, MATMUL_WGMMA_SHARED_N16 = 56832;
constexpr u32 MATMUL_WGMMA_TILES_N32 = 8, MATMUL_WGMMA_SHARED_N32 = 115200;
constexpr u32 MATMUL_WGMMA_TILES_N64 = 8, MATMUL_WGMMA_SHARED_N64 = 231424;
// Blocks of 64 rows of experts have fewer bytes: two of them find room in a multiprocessor.
constexpr u32 MATMUL_EXPERTS_WGMMA_SHARED_N64 = 115200;
struct MatmulArgs {
  const u8* weights;      // tiles
  const u16* x;           // FORMAT_F16_TILED (BF16_TILED for BF16 weights), rows padded to a multiple of 64 with anything
  const float* bias;      // [out_rows] or null
  float* out;             // [rows][out_stride] f32
  float* partial;         // splits > 1: a block of the grid has [splits][16 * its tiles * max(N, 16)]; in the order of
                          // the matrix unit, for the kernel alone. With LINEAR_LEAVE [splits][rows][out_stride]
  u32* counters;          // splits > 1: one per (row block, column block) of the grid; zero before and after
  u32 out_rows, cols, rows, out_stride;
  u32 splits;             // of the columns, grid z; summed in order by the last block to arrive, or left
  u32 flags;              // LinearFlags
};

// Stores what an activation makes of the products with two matrices of one shape, gate and up. On NVIDIA alone:
// matmul_gated_<type>_n<N>, in blocks with half of their tiles for each; grid x: for the outputs with padding. The
// columns are not split.
constexpr u32 MATMUL_GATED_WGMMA_TILES_N64 = 16;
struct MatmulGatedArgs {
  MatmulArgs product;     // with gate; `out`: [rows] of out_rows in `format_out`, which is FORMAT_F16_TILED or BF16_TILED
  const u8* weights_up;
  const float* bias_up;   // or null
  u32 activation;
  u32 format_out;
};

// Two matrices of one stack that differ in type: blocks along x compute the first one, then the second one. Both have
// the same rows and splits; they share neither partial sums nor counters. matmul_<type>_<type>_n<N>, N as above
struct MatmulPairArgs {
  MatmulArgs first;
  MatmulArgs second;
};

// `matmul` with a matrix for each block of N rows: the matrix lies experts[block] * expert_bytes behind
// `product.weights`, its bias (where there is one) experts[block] * product.out_rows behind `product.bias`. A block
// with NO_EXPERT leaves its rows as they are. There are no splits. matmul_experts_<type>_n<N>, N = 16, 64. Activations
// come from L2 for each block: but where wgmma multiplies, those of runs of 16 have more tiles than the blocks of
// `matmul`, and as many threads.
constexpr u32 MATMUL_EXPERTS_TILES_N16 = 4;
constexpr u32 NO_EXPERT = 0xffffffffu;
struct MatmulExpertsArgs {
  MatmulArgs product;
  const u32* experts;     // [ceil(rows / N)]
  u64 expert_bytes;
};

// Stores what the activation makes of the products with gate and up, two matrices of one shape for each block of N
// rows. matmul_gated_experts_<type>_n<N>, in blocks with half of their tiles for each; grid x: for the outputs
// with padding
struct MatmulGatedExpertsArgs {
  MatmulExpertsArgs gate; // `out`: [rows] of out_rows in `format_out`, which is FORMAT_F16_TILED or BF16_TILED
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

// Converts rows from one format to another, through a norm where `norm` is given. norm_rows, which knows NORM_RMS
// without biases alone, and norm_rows_other; norm_rows_of_parts, which does what norm_rows does once it has added to x,
// rows of f32, what a product with LINEAR_LEAVE has left; norm_rows_fp8, which does what norm_rows does, into
// FORMAT_FP8, which norm_rows_other alone reads. One block per row, but for norm_rows_of_parts where there is wgmma: a
// cluster of NORM_PARTS_BLOCKS smaller ones
constexpr u32 NORM_THREADS = 512, NORM_PARTS_THREADS = 1024;
constexpr u32 NORM_PARTS_BLOCKS = 4, NORM_PARTS_BLOCK_THREADS = 256;
struct NormRowsArgs {
  const void* x;          // rows in `format_in`
  const float* norm;      // [cols] or null: weights
  const float* bias;      // [cols] or null: added behind the weights
  void* out;              // rows in `format_out`; the same as x, where both are f32 of one stride, or apart from it
  u32 rows, cols;
  u32 x_stride, out_stride;     // of f32; rows of other formats follow each other
  u32 format_in, format_out;
  u32 kind;               // NormKind
  u32 flags;              // LinearFlags: LINEAR_ADD for an output in f32
  float eps;
  float factor;           // with LINEAR_ADD: on the sum
  u32 num_parts;
  const float* parts;     // [num_parts][rows][x_stride]; norm_rows_of_parts alone
  float* scales;          // [rows], where the output is in FORMAT_FP8, or else the input
};

// out[r][i] = the activation of the gate gate_up[r][i] and the up gate_up[r][cols + i]. gated_activation, grid (rows,
// ceil(columns to store / GATED_COLS)); gated_activation_fp8 into FORMAT_FP8, for columns that are a multiple of eight,
// grid (rows)
constexpr u32 GATED_COLS = 2048, GATED_FP8_THREADS = 512;
struct GatedArgs {
  const void* gate_up;    // [rows][2 * cols], FORMAT_F32, or FORMAT_F16 / FORMAT_BF16 (stride then 2 * cols, unpadded)
  void* out;              // [rows] of `cols` in format_out
  float* scales;          // [rows], with FORMAT_FP8
  u32 rows, cols;
  u32 format_in, format_out;
  u32 activation;
};

// out[r][i] = act(x[r][i]), for activations that need no gate. activation, grid (rows, ceil(columns to store /
// ACTIVATION_COLS))
constexpr u32 ACTIVATION_COLS = 1024;
struct ActivationArgs {
  const float* x;         // [rows][cols]
  void* out;              // [rows] of `cols` in format_out
  u32 cols;
  u32 format_out;
  u32 activation;
};

// out[r][i] = the activation of the gate gate[r][i] and the up x[r][i]. gate_columns, grid (rows, ceil(columns to store
// / ACTIVATION_COLS))
struct GateColumnsArgs {
  const float* gate;      // [rows][cols]
  const float* x;         // [rows][x_stride], from the first column that is taken on
  void* out;              // [rows] of `cols` in format_out
  u32 cols, x_stride;
  u32 format_out;
  u32 activation;
};

// x = scale * x, and then, with a cap, cap * tanh(x / cap). scale_logits, grid (rows, ceil(cols / SCALE_COLS))
constexpr u32 SCALE_COLS = 1024;
struct ScaleLogitsArgs {
  float* logits;          // [rows][cols]
  u32 cols;
  float scale;
  float softcap;          // 0: none
};

// out[r] *= sigmoid(weight . n(x[r])); n is RMSNorm with weights `norm` where given. gate_rows, one block per row
struct GateRowsArgs {
  const void* x;          // [rows] of `hidden` in format_in
  const float* norm;      // [hidden] or null
  const float* weight;    // [hidden]
  void* out;              // [rows] of `cols` in format_out
  u32 hidden, cols;
  u32 format_in, format_out;
  float eps;
};

// out[i] = x[indices[i]]. gather_rows, one block per row
struct GatherArgs {
  const void* x;          // rows of `cols` in format_in
  const u32* indices;
  float* out;             // [rows][cols] f32
  u32 rows, cols;
  u32 format_in;
};

// A row and one of its experts are a pair; pairs are numbered row * used + rank.
constexpr u32 MAX_EXPERTS = 512, MAX_USED_EXPERTS = 32, MAX_EXPERT_GROUPS = 32;

// How logits become weights of experts.
enum Gating : u32 {
  GATING_SOFTMAX = 0,     // of the logits of all experts
  GATING_SIGMOID = 1,     // of each expert's logit
};

// The experts of each row: those of its largest weights, best first, among equals the lower index; of groups of as many
// neighbours those alone that have the largest sums of their two best, two experts at least each. Their weights are
// then divided by their sum where `normalize` is not 0, and multiplied by `scale` and by a factor of the expert where
// there are such. choose_experts, CHOOSE_EXPERTS_ROWS a block
constexpr u32 CHOOSE_EXPERTS_ROWS = 8;
struct ChooseExpertsArgs {
  const float* logits;    // [rows][num]
  const float* bias;      // [num] or null: added to the weights where they are compared, and nowhere else
  const float* factors;   // [num] or null
  u32* experts;           // [rows][used]
  float* weights;         // [rows][used]
  u32 rows, num, used;    // num <= MAX_EXPERTS, used <= MAX_USED_EXPERTS and <= num
  u32 gating;
  u32 groups, used_groups;  // 0: none; else the experts of a row are of used_groups of up to MAX_EXPERT_GROUPS groups
  u32 normalize;
  float scale;
};

// Brings pairs together by expert: each expert has a whole number of runs of `run` places. place_experts, one block
constexpr u32 PLACE_THREADS = MAX_EXPERTS;
constexpr u32 NO_ROW = 0xffffffffu;
struct PlaceExpertsArgs {
  const u32* experts;     // [pairs]
  u32* places;            // [pairs]; which place of its expert a pair has is not determined
  u32* rows;              // [runs * run]: the row whose pair has the place, NO_ROW where none has it
  u32* run_experts;       // [runs]: NO_EXPERT behind the last run that is needed
  u32 pairs, used;        // pair / used is the row
  u32 runs, run;          // run: a power of two, 8 and more
};

// Brings rows to the places of their pairs; places that no pair has stay as they are. gather_pairs, 8 places a block
constexpr u32 GATHER_PAIRS_THREADS = 256;
struct GatherPairsArgs {
  const float* x;         // [][cols]
  const u32* rows;        // [places]: a row of x, or NO_ROW
  u16* out;               // [places] of `cols` in `format_out`, which is FORMAT_F16_TILED or BF16_TILED
  u32 cols;
  u32 format_out;
};

// out[r] = sum of weights[pair] * values[places[pair]] over the pairs of the row, in their order, or that added to what
// out[r] holds. add_experts, grid (rows, ceil(cols / ADD_EXPERTS_COLS))
constexpr u32 ADD_EXPERTS_COLS = 1024;
struct AddExpertsArgs {
  const float* values;    // [places][cols]
  const float* weights;   // [rows][used]
  const u32* places;      // [rows][used], or null: each pair has the place of its number
  float* out;             // [rows][cols]
  u32 cols, used;
  u32 add;                // whether to add
};

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

// Changes the logits of a row's tokens in place: bias, masks and penalties. alter_logits, grid x = altered rows. A
// logit that is not a number stays one. What a logit was is left in its token's bias.
struct AlteredRow {
  u32 row;
  u32 first, count;       // of its tokens; none has an id twice
  float repetition;       // of tokens seen: logits above 0 are divided by it, others multiplied
  float frequency;        // subtracted once for each time that the token was generated
  float presence;         // subtracted if the token was generated
};
struct AlteredToken {
  u32 id;
  float bias;             // added first; -infinity: the token is impossible
  u32 seen;               // 0: the token has not come yet; else one more than how often it was generated
};
struct AlterLogitsArgs {
  float* logits;          // [rows][cols]
  const AlteredRow* rows;
  AlteredToken* tokens;
  u32 cols;
};

// The tokens that may be chosen of a row; the others count as -infinity.
constexpr u32 NO_MASK = ~0u;
struct MaskArgs {
  const u32* places;      // [rows]: which mask the row has, or NO_MASK; null: no row has one
  const u32* words;       // [masks][ceil(cols / 32)]: bit i % 32 of word i / 32 is 1 if token i may be chosen
};

// Per row: the largest logit (first among equals) and log(sum(exp)). argmax, grid (rows, ceil(cols / share)): the last
// block of a row to arrive puts together what its blocks have found, in their order.
// With a NaN in the row, token = 0xffffffff.
constexpr u32 ARGMAX_BLOCKS = 64;       // of a row, at most
struct ArgmaxArgs {
  const float* logits;    // [rows][cols]
  u32* tokens;            // [rows]
  float* values;          // [rows][2]: largest logit, log-sum-exp
  u32* partial;           // several blocks a row: [rows][blocks][4], 16-byte aligned; for the kernel alone
  u32* counters;          // several blocks a row: [rows], zero before and after
  MaskArgs masks;
  u32 rows, cols;
  u32 share;              // logits of a block; a multiple of 4 where a row has several
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

// One random token of each of some rows. draw, one block per row
constexpr u32 DRAW_FRACTION_BITS = 42;           // `FRACTION_BITS` of the Rust side
struct DrawRow {
  double top_p;           // of the tokens in play, the best that reach this share of all weights are kept; 1: all
  double uniform;         // the share of their weights at which the token is found, in 0 .. 1
  float per_logit;        // a token weighs exp((logit - largest) * per_logit)
  float min_p;            // a token is in play if it weighs as much
  u32 top_k;              // of these, the best so many are; 0: all
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

// A token's place among all of its row as the model left it. rank_tokens, one block per row
struct RankRow {
  u32 row;
  u32 token_at;           // word of `tokens` that holds the token's id
  u32 first, count;       // of `altered`: the row's tokens, which hold their own logits (alter_logits)
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

// Reads 16-byte pieces so that the time can be measured: `out` gets the exclusive or of what each thread has read.
// probe_read and probe_nothing, grid (blocks)
struct ProbeArgs {
  const u8* data;         // [pieces][16], 16-byte aligned
  u32* out;               // [blocks][256]
  u64 pieces;
  u32 blocks;
};
