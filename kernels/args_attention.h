// The arguments of the kernels of RoPE, of the KV cache and of attention over it; a part of args.h.
#pragma once

// How q and k are made from the projected values, and where k and v are stored.
enum RotationFlags : u32 {
  ROTATION_NEOX = 1,        // elements i and i + num_pairs are a pair, else adjacent ones
  ROTATION_NORMS_LAST = 2,  // the norms come after RoPE, else before it
  ROTATION_NORM_V = 4,      // each head of v is divided by its root mean square; for rope_store alone
};
constexpr u32 NO_SLOT = 0xffffffffu;    // stores nothing: padding of a recorded step
struct RotationArgs {
  const u32* slot_mapping;  // [rows]: block * block_size + offset, or NO_SLOT
  const float* q_norm;      // [head_dim] or null: RMSNorm of each head
  const float* k_norm;
  const float* angles;      // [rows][2 * num_pairs]
  const u32* positions;     // [rows]
  u32 num_pairs;            // 2 * num_pairs elements of a head are rotated
  u32 flags;                // RotationFlags
  float eps;
  float temperature;        // 0: none; else q is at last multiplied by
  u32 temperature_context;  // 1 + temperature * ln(1 + position / temperature_context), the quotient a whole number
};

// Rotates q and k in place, and stores K and V into the paged cache; rows of q alone have no KV heads here.
// rope_store_{f16,f32,int8} (type of the cache): grid (rows, ceil((num_heads + 2 * num_kv_heads) / h)), where a block
// has h = ROPE_STORE_THREADS / 32 heads, twice as many with head_dim <= ROPE_STORE_SHORT; head_dim <= 512. The cache is
// [num_blocks][num_kv_heads][block_size][head_dim]; of int8 see kv_cache.h.
constexpr u32 ROPE_STORE_THREADS = 256, ROPE_STORE_SHORT = 128;
struct RopeStoreArgs {
  RotationArgs rotation;
  float* qkv;             // [rows][row_heads * head_dim]: q of num_heads, k and v of num_kv_heads
  void* k_cache;
  void* v_cache;
  u32 rows, num_heads, num_kv_heads, row_heads, head_dim, block_size;
};

// Attention of q rows over the paged cache, causal. Sequence s has its tokens in rows q_start[s] .. q_start[s + 1],
// which are the last ones of its context_lens[s] tokens; its block table is block_tables[block_start[s] ..]. Blocks
// hold a multiple of 16 tokens; a block that the window has left behind is never read, whatever its number.
//   attention_decode_{f16,f32,int8}_d<D>: sequences of `items` with ONE row each: grid (items, kv heads, splits); a
//     split is an equal share of the context in whole KV blocks (some may get none); the last split of an item to
//     arrive combines them in order. With a slot_mapping of the rotation it does what rope_store does as well, but
//     leaves qkv as it is.
//   attention_decode_head_*: the same with a block for each query head instead of each kv head, for few sequences: grid
//     (items, heads, splits).
//   attention_decode_mma_{f16,int8}_d<D>, on NVIDIA, D up to 256: the same with a block for a piece of an item's
//     context and a kv head: grid (kv heads, num_items + splits). The contexts of all items together are cut into
//     about `splits` pieces of one length; what is shorter stays whole. With 0 splits everything does.
//   attention_decode_mma_many_*: the same in blocks of half the threads, of which twice as many run at once.
//   attention_prefill_{f16,f32,int8}_d<D>: tiles of up to 64 rows (128 on NVIDIA) of one sequence: items are (sequence,
//     first row within the sequence) pairs: grid (heads, items, splits). Blocks start in the order of the grid: with
//     the items that see the most keys first, none with much work starts when the others are done.
// D = 64, 128, 256, 512: the smallest not below head_dim. A sequence with context 0 gives zeros.
//   attention_latent_{decode,decode_head,prefill}_{f16,f32}: the same over latent rows of up to LATENT_ROW elements, of
//     which the first value_dim, up to LATENT_VALUES, are V: v_cache is k_cache, there is one KV head, qkv has q alone,
//     and nothing is rotated. decode has a block for each ATTENTION_LATENT_HEADS heads: grid (items, ceil(heads /
//     ATTENTION_LATENT_HEADS), splits).
constexpr u32 ATTENTION_THREADS = 128, ATTENTION_DECODE_HEAD_THREADS = 256;
constexpr u32 ATTENTION_DECODE_MMA_THREADS = 256, ATTENTION_DECODE_MMA_MANY_THREADS = 128;
// A block of attention_prefill_f16 has so many threads and bytes of shared memory, by D, where warpgroups multiply.
constexpr u32 ATTENTION_PREFILL_WGMMA_THREADS = 384, ATTENTION_PREFILL_WGMMA_SHARED_D64 = 98304;
constexpr u32 ATTENTION_PREFILL_WGMMA_SHARED_D128 = 196608, ATTENTION_PREFILL_WGMMA_SHARED_D256 = 229376;
constexpr u32 ALL_BUT_FIRST = 0xffffffffu;  // a window: none but the first token itself sees the first token
constexpr u32 LATENT_ROW = 576, LATENT_VALUES = 512, ATTENTION_LATENT_HEADS = 8;
struct AttentionArgs {
  RotationArgs rotation;  // decode; the slot_mapping null: q, k and v are rotated and stored already
  const float* qkv;       // [n][row_heads * head_dim]: q of num_heads, k and v of num_kv_heads or no more
  const float* gate;      // null, or of each row and element of q a number whose sigmoid is a factor on the output:
                          // [n][num_heads * head_dim], rows as far apart as those of qkv
  void* k_cache;
  void* v_cache;
  void* out;              // [n] rows of num_heads * value_dim in format_out
  float* partial;         // decode: [items][splits][num_heads][value_dim + 2] (values, max, sum), mma: [grid y][..;
                          // prefill: see add_splits
  u32* counters;          // decode: [items][grid y], mma: [items][num_kv_heads]; prefill: [items][num_heads][rounds];
                          // zero before and after
  const u32* items;       // decode: sequence numbers; prefill: pairs
  const u32* q_start;
  const u32* context_lens;
  const u32* block_start;
  const u32* block_tables;
  const float* sinks;     // [num_heads] or null: a score of each head that takes part in the softmax, without a value
  u32 num_heads, num_kv_heads, row_heads, head_dim;
  u32 value_dim;          // elements of V: head_dim, or less in latent rows
  u32 block_size;
  u32 splits;
  u32 split_tokens;       // mma: about so many tokens has a piece at least, but for an item's only one
  u32 num_items;          // mma
  u32 window;             // 0: none; else a token sees itself and the window - 1 before it, or ALL_BUT_FIRST
  u32 ahead;              // prefill: a token sees so many behind it too, of those that are there
  u32 format_out;
  float scale;
  float softcap;          // 0: none; else cap * tanh(score / cap)
};

// Products of heads, each with a matrix of its own: out[r][h] = weights[h] * x[r][h], on the matrix units, x rounded to
// f16. head_products, grid (ceil(out_cols / HEAD_PRODUCTS_TILE), ceil(rows / HEAD_PRODUCTS_TILE), heads)
constexpr u32 HEAD_PRODUCTS_TILE = 64, HEAD_PRODUCTS_THREADS = 256;
struct HeadProductsArgs {
  const u16* weights;     // [heads][out_cols][cols], f16
  const float* x;         // [rows][heads * x_head]: of each head the first `cols` are taken
  void* out;              // [rows] rows of heads * out_head in format_out: of each head the first out_cols are written
  u32 rows, heads, out_cols, cols, x_head, out_head;
  u32 format_out;         // F32 where out_head is not out_cols
};

// Rotates, for latent attention, the last elements of each head of q to behind the absorbed ones, norms a token's
// latent, rotates the key behind it, and stores both as a row of the cache. Pairs are adjacent elements. A temperature
// (see RotationArgs) multiplies the whole of each query. latent_store_{f16,f32} (type of the cache), grid (rows)
constexpr u32 LATENT_STORE_THREADS = 256;
struct LatentStoreArgs {
  const float* q;         // [rows][num_heads * (plain_dim + rope_dim)]
  float* queries;         // [rows][num_heads * (rank + rope_dim)]
  const float* latent;    // [rows][rank + rope_dim]
  const float* norm;      // [rank]
  const float* angles;    // [rows][rope_dim]
  const u32* slot_mapping;
  const u32* positions;
  void* cache;            // rows of rank + rope_dim, slot after slot
  u32 num_heads, plain_dim, rope_dim, rank;
  float eps;
  float temperature;
  u32 temperature_context;
};
