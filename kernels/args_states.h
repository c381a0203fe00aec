// The arguments of the kernels of layers with recurrent states; a part of args.h.
#pragma once

// The sequences of a step, and a layer's states before and after them.
constexpr u32 NO_SEQUENCE = 0xffffffffu;  // padding of a captured step
constexpr u32 NO_STATE = 0xffffffffu;   // the state before a sequence's first token: zeros
struct StatesArgs {
  float* windows;         // [slots][num_taps - 1][channels]: the last inputs of a convolution
  float* matrices;        // [slots][heads][key_size][value_size]
  const u32* sequences;   // [rows]: the sequence of each row, or NO_SEQUENCE
  const u32* starts;      // [sequences + 1]: the first row of each sequence
  const u32* reads;       // [sequences]: the slot of each initial state, or NO_STATE
  const u32* write_starts;  // [sequences + 1]: the first entry of each sequence in `writes`
  const u32* writes;      // [][2]: a number of tokens, and the slot that gets the sequence's state after them
};

// Columns of a head's matrix that a block carries along a sequence, and threads of that block.
constexpr u32 STATE_COLUMNS = 32, STATE_WALK_THREADS = 128;
// Rows of a tile of the chunked forms.
constexpr u32 STATE_TILE = 64;

// A gated delta net over the sequences of a step (`Ops::delta_net`):
//   delta_net_convolve: convolution and SiLU of q, k and v; q and k get unit length, q is multiplied by 1 /
//     sqrt(key_size): grid (rows, ceil((2 * key_heads + value_heads) / DELTA_NET_HEADS)).
//   delta_net_walk_d<D>: each head along the tokens of its sequence; outputs replace v: grid (ceil(value_size /
//     STATE_COLUMNS), value_heads, sequences). D = 32, 128: the smaller one that is at least key_size.
//   delta_net_pairs, delta_net_scan: the chunked form, for sequences of at least `chunked_from` tokens, STATE_TILE
//     rows at a time: grids (ceil(rows / STATE_TILE), value_heads), and that of the walk. key_size is
//     DELTA_NET_KEY_SIZE, value_size a multiple of STATE_COLUMNS.
//   delta_net_gate: norm of each head of the output, times silu(z): grid (rows, ceil(value_heads / DELTA_NET_HEADS)).
// key_size and value_size are at most 128. Rows of NO_SEQUENCE give zeros.
constexpr u32 DELTA_NET_HEADS = 8, DELTA_NET_KEY_SIZE = 128;
// For each tile and head: two matrices of token pairs, each as high and low 16-bit halves, and two numbers per token.
constexpr u32 DELTA_NET_PAIRS_BYTES = 33280;
struct DeltaNetArgs {
  StatesArgs states;      // of value_heads matrices; channels are q | k | v
  const float* x;         // [rows]: q | k | v | z | gates (one of beta and one of the decay for each value head)
  float* convolved;       // [rows]: q | k | v, then q | k | outputs
  u16* pairs;             // [ceil(rows / STATE_TILE)][value_heads] of DELTA_NET_PAIRS_BYTES; only of chunks
  void* out;              // [rows] of value_heads * value_size in format_out
  const float* taps;      // [num_taps][q | k | v]
  const float* decay;     // [value_heads]
  const float* decay_bias;
  const float* norm;      // [value_size]
  u32 key_heads, value_heads, key_size, value_size, num_taps;
  u32 is_tiled;           // value head j has key head j % key_heads, else j / (value_heads / key_heads)
  u32 gate_run;           // gates alternate in runs: this many of beta, then as many of the decay
  u32 rows;
  u32 chunked_from;       // the fewest tokens of a sequence that is computed in chunks; at least 1
  u32 format_out;
  float eps;
};

// A Mamba-2 mixer over the sequences of a step (`Ops::mamba2`):
//   mamba2_convolve: convolution and SiLU of x, B and C: grid (rows, ceil(channels / CONVOLUTION_THREADS)).
//   mamba2_walk_d<D>: each head along the tokens of its sequence; outputs replace x: grid (ceil(head_size /
//     STATE_COLUMNS), heads, sequences). D = 32, 128, 256: the smallest that is at least state_size.
//   mamba2_pairs, mamba2_scan_d<D>: the chunked form, for sequences of at least `chunked_from` tokens, STATE_TILE rows
//     at a time: grids (ceil(rows / STATE_TILE), groups), and (head_size / MAMBA2_SCAN_COLUMNS, heads, sequences).
//     state_size is D = 128, 256, head_size a multiple of MAMBA2_SCAN_COLUMNS.
//   mamba2_gate: the output times silu(z), then the norm of each group: grid (rows, groups).
// state_size is at most 256. Rows of NO_SEQUENCE give zeros.
constexpr u32 CONVOLUTION_THREADS = 256, MAMBA2_GATE_THREADS = 512, MAMBA2_SCAN_COLUMNS = 16;
struct Mamba2Args {
  StatesArgs states;      // of `heads` matrices [state_size][head_size]; channels are x | B | C
  const float* x;         // [rows]: z | x | B | C | time steps; z and x of each head, B and C of each group
  float* convolved;       // [rows]: x | B | C, then outputs | B | C
  float* pairs;           // [ceil(rows / STATE_TILE)][groups][STATE_TILE][STATE_TILE]: C_i . B_j; only of chunks
  void* out;              // [rows] of heads * head_size in format_out
  const float* taps;      // [num_taps][x | B | C]
  const float* taps_bias;   // [x | B | C] or null
  const float* decay;     // [heads]
  const float* step_bias;   // [heads]
  const float* skip;      // [heads]
  const float* norm;      // [heads * head_size], or null: none
  u32 heads, head_size, groups, state_size, num_taps;
  u32 rows;
  u32 chunked_from;       // the fewest tokens of a sequence that is computed in chunks; at least 1
  u32 format_out;
  float eps;
};

// A Mamba mixer of the first version over the sequences of a step (`Ops::mamba_convolution`, `Ops::mamba`):
//   mamba_convolve: convolution and SiLU of x: grid (rows, ceil(channels / CONVOLUTION_THREADS)).
//   mamba_walk_d<D>: the columns of the matrix, which has at most D rows, along the tokens of a sequence; outputs
//     replace x: grid (ceil(channels / STATE_COLUMNS), 1, sequences).
//   mamba_gate: the output times silu(z): grid (rows, ceil(columns to store / CONVOLUTION_THREADS)).
// Rows of NO_SEQUENCE give zeros.
struct MambaArgs {
  StatesArgs states;      // of one matrix [state_size][channels]
  const float* x;         // [rows]: x | z
  float* convolved;       // [rows][channels]: x, then outputs
  const float* time_steps;  // walk: [rows][channels], before the softplus
  const float* b;         // walk: [rows][state_size]
  const float* c;
  void* out;              // gate: [rows] of `channels` in format_out
  const float* taps;      // convolve: [num_taps][channels]
  const float* taps_bias;   // convolve: [channels] or null
  const float* decay;     // walk: [state_size][channels]
  const float* skip;      // walk: [channels]
  u32 channels, state_size, num_taps;
  u32 format_out;
};

// A short convolution over the sequences of a step (`Ops::short_convolution`): out = C * convolution(B * x).
// short_convolution, grid (rows, ceil(columns to store / CONVOLUTION_THREADS)). Rows of NO_SEQUENCE give zeros.
struct ShortConvolutionArgs {
  StatesArgs states;      // without matrices; windows hold products of B and x
  const float* x;         // [rows]: B | C | x
  void* out;              // [rows] of `channels` in format_out
  const float* taps;      // [num_taps][channels]
  u32 channels, num_taps;
  u32 format_out;
};

// Pairs of rows (`Ops::join_rows`): out[r] = left[r] | right[r]. With states, out[r] = left[r] | right[r - 1], where
// the state holds the previous row of a sequence's first row. join_rows, grid (rows, ceil(cols / CONVOLUTION_THREADS)).
struct JoinRowsArgs {
  StatesArgs states;      // without matrices; each window is one row; null: no shift
  const float* left;      // [rows][cols]
  const float* right;     // [rows][cols]
  void* out;              // [rows][2 * cols] in `format_out`
  u32 cols;
  u32 format_out;
};
