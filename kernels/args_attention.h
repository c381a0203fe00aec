// The arguments of the kernels of RoPE, the KV cache and attention; a part of args.h.
#pragma once

// How q and k follow from the projected values, and where k and v are stored.
enum RotationFlags : u32 {
  ROTATION_NEOX = 1,        // elements i and i + num_pairs form a pair; else adjacent elements
  ROTATION_NORMS_LAST = 2,  // the norms come after RoPE; else before it
  ROTATION_NORM_V = 4,      // each head of v is divided by its root mean square; only in rope_store
};
constexpr u32 NO_SLOT = 0xffffffffu;    // stores nothing: padding of a captured step
struct RotationArgs {
  const u32* slot_mapping;  // [rows]: block * block_size + offset, or NO_SLOT
  const float* q_norm;      // [head_dim] or null: RMSNorm of each head
  const float* k_norm;
  const float* angles;      // [rows][2 * num_pairs]
  const u32* positions;     // [rows]
  u32 num_pairs;            // 2 * num_pairs elements of a head are rotated
  u32 flags;                // RotationFlags
  float eps;
  float temperature;        // 0: none; else q is multiplied at the end by
                            // 1 + temperature * ln(1 + (position + temperature_offset) / temperature_context),
  u32 temperature_context;  // with an integer division
  u32 temperature_offset;
};

// Rotates q and k in place, and stores K and V in the paged cache. Rows with only q have no KV heads here. Heads of V
// may have fewer elements than heads of K; their place in the cache has the same size.
// rope_store_{f16,f32,int8} (type of the cache): grid (rows, ceil((num_heads + 2 * num_kv_heads) / h)). A block has h =
// ROPE_STORE_THREADS / 32 heads, twice as many with head_dim <= ROPE_STORE_SHORT; head_dim <= 512. The cache is
// [num_blocks][num_kv_heads][block_size][head_dim]; kv_cache.h describes int8.
constexpr u32 ROPE_STORE_THREADS = 256, ROPE_STORE_SHORT = 128;
struct RopeStoreArgs {
  RotationArgs rotation;
  float* qkv;             // [rows][row_cols]: q of num_heads, k and v of num_kv_heads
  void* k_cache;
  void* v_cache;
  u32 rows, num_heads, num_kv_heads, row_cols, head_dim, value_dim, block_size;
};

// Causal attention of q rows over the paged cache. The tokens of sequence s are rows q_start[s] .. q_start[s + 1]; they
// are the last of its context_lens[s] tokens. Its block table is block_tables[block_start[s] ..]. The block size is a
// multiple of 16 tokens. A block that has left the window is never read, and its number may be invalid.
//   attention_decode_{f16,f32,int8}_d<D>: sequences of `items` with ONE row each: grid (items, kv heads, splits). A
//     split is an equal share of the context in whole KV blocks; some splits may be empty. The last split of an item to
//     arrive combines all in order. With a slot_mapping in `rotation` the kernel also does the work of rope_store, but
//     leaves qkv unchanged.
//   attention_decode_head_*: one block per query head instead of one per kv head, for few sequences: grid (items,
//     heads, splits).
//   attention_decode_mma_{f16,int8}_d<D>, on NVIDIA, D up to 256: one block for each piece of an item's context and
//     each kv head: grid (kv heads, num_items + splits). The contexts of all items are cut into about `splits` pieces
//     of equal length. A shorter context stays whole. With 0 splits all contexts stay whole.
//   attention_decode_mma_many_*: half the threads a block, so that twice as many blocks run at once.
//   attention_prefill_{f16,f32,int8}_d<D>: tiles of up to 64 rows (128 on NVIDIA) of one sequence. Items are (sequence,
//     first row within the sequence) pairs: grid (heads, items, splits). Blocks start in grid order. Items that see the
//     most keys come first, so that no long block starts last.
// D = 64, 128, 256, 512: the smallest that is at least head_dim. A sequence with context 0 gives zeros.
//   attention_latent_{decode,decode_head,prefill}_{f16,f32}: over latent rows of up to LATENT_ROW elements. The first
//     value_dim of them, up to LATENT_VALUES, are also V: v_cache is k_cache. There is one KV head, qkv has only q, and
//     nothing is rotated. decode has a block for each ATTENTION_LATENT_HEADS heads: grid (items, ceil(heads /
//     ATTENTION_LATENT_HEADS), splits).
constexpr u32 ATTENTION_THREADS = 128, ATTENTION_DECODE_HEAD_THREADS = 256;
constexpr u32 ATTENTION_DECODE_MMA_THREADS = 256, ATTENTION_DECODE_MMA_MANY_THREADS = 128;
// Threads and shared memory (bytes, by D) of a block of attention_prefill_f16 with wgmma.
constexpr u32 ATTENTION_PREFILL_WGMMA_THREADS = 384, ATTENTION_PREFILL_WGMMA_SHARED_D64 = 98304;
constexpr u32 ATTENTION_PREFILL_WGMMA_SHARED_D128 = 196608, ATTENTION_PREFILL_WGMMA_SHARED_D256 = 229376;
constexpr u32 ALL_BUT_FIRST = 0xffffffffu;  // a window: the first token is visible only to itself
constexpr u32 WINDOW_OF_CHUNK = 1u << 31;   // flag of a window; its lower bits are a power of two: tokens see each
                                            // other within chunks of that many
constexpr u32 LATENT_ROW = 576, LATENT_VALUES = 512, ATTENTION_LATENT_HEADS = 8;
struct AttentionArgs {
  RotationArgs rotation;  // decode; slot_mapping null: q, k and v are already rotated and stored
  const float* qkv;       // [n][row_cols]: q of num_heads, k and v of num_kv_heads, or q alone
  const float* gate;      // null, or [n][num_heads * head_dim], with the row stride of qkv: the sigmoid of a gate
                          // multiplies the output of its element of q
  void* k_cache;
  void* v_cache;
  void* out;              // [n] rows of num_heads * value_dim in format_out
  float* partial;         // decode: [items][splits][num_heads][value_dim + 2] (values, max, sum), mma: [grid y][..;
                          // prefill: see add_splits
  u32* counters;          // decode: [items][grid y], mma: [items][num_kv_heads], prefill: [items][num_heads][rounds];
                          // zero before and after
  const u32* items;       // decode: sequence numbers; prefill: pairs
  const u32* q_start;
  const u32* context_lens;
  const u32* block_start;
  const u32* block_tables;
  const float* sinks;     // [num_heads] or null: an additional score of each head in the softmax, without a value
  const float* biases;    // [num_heads][2 * bias_reach + 1] or null: added to scores, by key - position; keys beyond
                          // the reach take the outermost value
  u32 num_heads, num_kv_heads, row_cols, head_dim;
  u32 value_dim;          // elements of V: head_dim or fewer
  u32 block_size;
  u32 splits;
  u32 split_tokens;       // mma: the least number of tokens of a piece, about; an item with one piece may have fewer
  u32 num_items;          // mma
  u32 window;             // 0: none; else a token sees itself and window - 1 tokens before; ALL_BUT_FIRST;
                          // WINDOW_OF_CHUNK
  u32 ahead;              // prefill: the number of later tokens that a token sees too
  u32 format_out;
  float scale;
  float softcap;          // 0: none; else cap * tanh(score / cap)
  u32 bias_reach;         // see `biases`
  float alibi;            // 0: no biases; not 0, with `biases`: those; else head h adds slope * (key - position) to a
  u32 alibi_heads;        // score: 2^-(alibi * (h + 1)) below alibi_heads, else 2^-(alibi * (h - alibi_heads + 1/2))
};

// Multiplies each head by its own matrix: out[r][h] = weights[h] * x[r][h], on the matrix units, x rounded to f16.
// head_products, grid (ceil(out_cols / HEAD_PRODUCTS_TILE), ceil(rows / HEAD_PRODUCTS_TILE), heads)
constexpr u32 HEAD_PRODUCTS_TILE = 64, HEAD_PRODUCTS_THREADS = 256;
struct HeadProductsArgs {
  const u16* weights;     // [heads][out_cols][cols], f16
  const float* x;         // [rows][heads * x_head]: the first `cols` of each head are used
  void* out;              // [rows] rows of heads * out_head in format_out: the first out_cols of each head are written
  u32 rows, heads, out_cols, cols, x_head, out_head;
  u32 format_out;         // F32 if out_head is not out_cols
};

// For latent attention: rotates the last elements of each head of q and stores them after the absorbed ones. Norms a
// token's latent, rotates the key after it, and stores both as a row of the cache. Rotated pairs are stored adjacent,
// in either order of q's pairs. A temperature (see RotationArgs) multiplies the whole query. latent_store_{f16,f32}
// (type of the cache), grid (rows)
constexpr u32 LATENT_STORE_THREADS = 256;
struct LatentStoreArgs {
  const float* q;         // [rows][num_heads * (plain_dim + rope_dim)]
  float* queries;         // [rows][num_heads * (rank + rope_dim)]
  const float* latent;    // [rows][rank + rope_dim]
  const float* norm;      // [rank]
  const float* angles;    // [rows][rope_dim]
  const u32* slot_mapping;
  const u32* positions;
  void* cache;            // rows of rank + rope_dim, one per slot
  u32 num_heads, plain_dim, rope_dim, rank;
  u32 flags;              // ROTATION_NEOX or 0
  float eps;
  float temperature;
  u32 temperature_context;
  u32 temperature_offset;
};
