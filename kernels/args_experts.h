// The arguments of kernels for mixtures of experts; part of args.h.
#pragma once

// A pair is a row with one of its experts; its number is row * used + rank.
constexpr u32 MAX_EXPERTS = 512, MAX_USED_EXPERTS = 32, MAX_EXPERT_GROUPS = 32;

// How logits become weights of experts.
enum Gating : u32 {
  GATING_SOFTMAX = 0,     // of the logits of all experts
  GATING_SIGMOID = 1,     // of each expert's logit
};

// Chooses the experts of each row: those of the largest weights, best first, ties to the lower index. With groups
// (equal runs of neighbouring experts, two at least), only the groups with the largest sums of their two best experts
// take part. If `normalize`, the weights are divided by their sum. They are multiplied by `scale` and by the expert's
// factor, if given. choose_experts, CHOOSE_EXPERTS_ROWS a block
constexpr u32 CHOOSE_EXPERTS_ROWS = 8;
struct ChooseExpertsArgs {
  const float* logits;    // [rows][num]
  const float* bias;      // [num] or null: added to the weights for the choice only
  const float* factors;   // [num] or null
  u32* experts;           // [rows][used]
  float* weights;         // [rows][used]
  u32 rows, num, used;    // num <= MAX_EXPERTS, used <= MAX_USED_EXPERTS and <= num
  u32 gating;
  u32 groups, used_groups;  // 0: none; else used_groups of up to MAX_EXPERT_GROUPS groups are kept per row
  u32 normalize;
  float scale;
  u32* uses;              // [num] or null: counts the choices of each expert
  u32* hits;              // with `uses`: counts the choices of experts that have a slot
  const u32* slots;       // [num], with `uses`: a slot, or NOT_CACHED
  const u32* slot_mapping;  // [rows] or null: rows with NO_SLOT are padding, and not counted
};

// Groups pairs by expert: each expert gets a whole number of runs of `run` places. place_experts, one block
constexpr u32 PLACE_THREADS = MAX_EXPERTS;
constexpr u32 NO_ROW = 0xffffffffu;
struct PlaceExpertsArgs {
  const u32* experts;     // [pairs]
  u32* places;            // [pairs]; the order of an expert's pairs is not determined
  u32* rows;              // [runs * run]: the row of the pair at a place, or NO_ROW
  u32* run_experts;       // [runs]: NO_EXPERT after the last run in use
  u32 pairs, used;        // pair / used is the row
  u32 runs, run;          // run: a power of two, at least 8
};

// Copies rows to the places of their pairs; places without a pair are not written. gather_pairs, 8 places a block
constexpr u32 GATHER_PAIRS_THREADS = 256;
struct GatherPairsArgs {
  const float* x;         // [][cols]
  const u32* rows;        // [places]: a row of x, or NO_ROW
  u16* out;               // [places] of `cols` in `format_out`, FORMAT_F16_TILED or FORMAT_BF16_TILED
  u32 cols;
  u32 format_out;
};

// out[r] = sum of weights[pair] * values[places[pair]] over the row's pairs in order, plus out[r] if `add`. Pairs whose
// expert has no slot are left out, with `slots`.
// add_experts, grid (rows, ceil(cols / ADD_EXPERTS_COLS))
constexpr u32 ADD_EXPERTS_COLS = 1024;
struct AddExpertsArgs {
  const u32* experts;     // [rows][used], with `slots`
  const u32* slots;       // [experts]: a slot, or NOT_CACHED; null: none is left out
  const float* values;    // [places][cols]
  const float* weights;   // [rows][used], or null: all are 1
  const u32* places;      // [rows][used], or null: the place of a pair is its number
  float* out;             // [rows][cols]
  u32 cols, used;
  u32 add;
};

// Passes the inputs of a layer's experts to the host, which computes them. `call`, `x_out`, `experts_out` and
// `weights_out` are the host's memory. An expert with a slot is passed as NO_EXPERT. send_experts, grid (rows)
constexpr u32 SEND_EXPERTS_THREADS = 256;
struct SendExpertsArgs {
  const float* x;         // [rows][cols]
  const u32* experts;     // [rows][used]
  const float* weights;   // [rows][used]
  const u32* slots;       // [experts] as in AddExpertsArgs, or null
  u32* call;              // layer, rows, turn
  float* x_out;
  u32* experts_out;
  float* weights_out;
  u32 cols, used, rows;   // used <= MAX_USED_EXPERTS
  u32 layer, turn;
};

// The kind of a place: codes, side bytes, or codes whose highest bit is flipped.
enum PlaceKind : u32 {
  PLACE_CODES = 0,
  PLACE_SIDE = 1,
  PLACE_FLIPPED = 2,
};

// Restores matrices of one shape from the tiles of the CPU's kernels (crates/simd, layout.rs) to the file's rows.
// unpack_tiles, grid (rows of all matrices, ceil(bytes of a row / UNPACK_THREADS))
constexpr u32 UNPACK_THREADS = 256, PLACES_OF_BYTE = 8;
struct UnpackArgs {
  const u8* tiles;
  const u32* places;      // [block_bytes][PLACES_OF_BYTE][2]: where the bits of a byte are (Place in unpack.rs)
  u8* out;                // [rows of all matrices][blocks] blocks of the file
  u32 rows;               // of one matrix
  u32 blocks, block_bytes;  // blocks of a row
  u32 tile_bytes;
  u32 codes_bytes, side_bytes;  // of a block, for 16 rows
  u32 span_blocks;        // blocks whose side bytes lie together
};
