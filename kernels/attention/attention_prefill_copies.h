// Copies of tiles of the paged cache into shared memory, for prefill on NVIDIA's matrix units.
#pragma once
#include "attention_prefill.h"
#include "attention_nv.h"

// Levels of a tile, eight of a key in a word pair, in the order of the loading threads; and the scales of two tiles.
template <u32 KEYS, u32 D> struct TileLevels {
  v2 of[2][KEYS * D / 8 / ATTENTION_THREADS][ATTENTION_THREADS];     // of K and of V
  alignas(16) float scales[2][2][KEYS];
};

// Copies tiles of K and V into shared memory, one after the other, with ATTENTION_THREADS threads. Stores zeros outside
// of the keys and of the head, since 0 * NaN is NaN. `Tile` defines the layout of K and V in shared memory.
template <class T, class Tile, u32 D> struct TileCopies {
  static constexpr u32 KEYS = Tile::KEYS, RUNS = KEYS / 16, CHUNKS = D / 8;
  static constexpr u32 ROWS = ATTENTION_THREADS / CHUNKS;   // in parallel; the thread's further rows are that far apart
  u32 first_key, end_key;  // the keys to copy; nothing outside is read
  u32 pages[RUNS];         // blocks of the next tile's runs of 16 keys, requested a tile ahead
  const u32* entry;        // in the table, of the next tile, and the slot in its block
  u32 slot;
  u32 row;                 // the thread's first row of a tile; past all keys if its columns are outside the head
  u32 head;                // of the kv head in a block (elements)
  u32 from, to;            // its part of a run (elements), of a tile in shared memory (bytes)

  MEMBER void start(const AttentionArgs& a, const RowTile& tile, u32 key, u32 tiles) {
    const u32 thread = (u32)tid_x() % ATTENTION_THREADS, first = thread / CHUNKS, column = thread % CHUNKS * 8;
    const bool in_head = column < a.head_dim;
    row = in_head ? first : 0x80000000u;
    head = tile.kv_head * head_stride<T>(a.block_size, a.head_dim);
    from = first * a.head_dim + (in_head ? column : 0);
    to = tiles + Tile::place(first, column);
    entry = a.block_tables + ld_step(a.block_start + tile.sequence) + key / a.block_size;
    slot = key % a.block_size;
    ask(a, key);
  }
  // Requests the blocks of a tile's runs. Runs outside of the keys have no block.
  MEMBER void ask(const AttentionArgs& a, u32 key) {
    const u32* e = entry;
    u32 s = slot;
    #pragma unroll
    for (u32 i = 0; i < RUNS; i++, key += 16) {
      pages[i] = key < end_key && key + 16 > first_key ? ld_step(e) : 0;
      next_run(a, e, s);
    }
  }
  MEMBER static void next_run(const AttentionArgs& a, const u32*& e, u32& s) {
    s += 16;
    if (s == a.block_size) { s = 0; e++; }
  }
  // Copies the tile from `key` on: K to offset `k` of the tiles, and V to offset `v` (bytes).
  MEMBER void copy(const AttentionArgs& a, u32 key, u32 k, u32 v) {
    #pragma unroll
    for (u32 i = 0; i < RUNS; i++) {
      const u64 at = (u64)pages[i] * (a.num_kv_heads * head_stride<T>(a.block_size, a.head_dim)) +
                     (head + slot * a.head_dim + from);
      #pragma unroll
      for (u32 r = 0; r < 16; r += ROWS) {
        const u32 there = Tile::behind(to, 16 * i + r);
        const bool valid = is_there(key + row + 16 * i + r);
        copy_async(there + k, (const f16*)a.k_cache + at + r * a.head_dim, valid);
        copy_async(there + v, (const f16*)a.v_cache + at + r * a.head_dim, valid);
      }
      next_run(a, entry, slot);
    }
    ask(a, key + KEYS);
  }

  // Copies the levels of the tile from `key` on, and their scales to place `stage`.
  MEMBER void copy_levels(const AttentionArgs& a, u32 key, u32 stage, TileLevels<KEYS, D>& levels) {
    const i8* caches[2] = {(const i8*)a.k_cache, (const i8*)a.v_cache};
    #pragma unroll
    for (u32 i = 0; i < RUNS; i++) {
      const u64 page = (u64)pages[i] * (a.num_kv_heads * head_stride<i8>(a.block_size, a.head_dim)) + head;
      #pragma unroll
      for (u32 which = 0; which < 2; which++) {
        #pragma unroll
        for (u32 r = 0; r < 16; r += ROWS)
          copy_async8(shared_address(&levels.of[which][(16 * i + r) / ROWS][tid_x()]),
                      caches[which] + (page + (slot + r) * a.head_dim + from), is_there(key + row + 16 * i + r));
        const u32 four = (u32)tid_x() * 4;                             // tokens
        if (four < 16)
          copy_async(shared_address(&levels.scales[stage][which][16 * i + four]),
                     scales_of(caches[which] + page, a.block_size, a.head_dim) + slot + four, true);
      }
      next_run(a, entry, slot);
    }
    ask(a, key + KEYS);
  }
  // Makes the tile from the levels that this thread has copied. The scale of a key outside of the range may be NaN.
  MEMBER void widen(u32 key, u32 stage, const TileLevels<KEYS, D>& levels) const {
    #pragma unroll
    for (u32 which = 0; which < 2; which++)
      #pragma unroll
      for (u32 r = 0; r < KEYS; r += ROWS) {
        const Eight<i8> eight = {levels.of[which][r / ROWS][tid_x()]};
        const bool valid = is_there(key + row + r);
        const float scale = levels.scales[stage][which][(row + r) % KEYS];
        store_shared(Tile::behind(to, which * KEYS + r), halves_of_eight(eight, valid ? scale : 0.f));
      }
  }
  MEMBER bool is_there(u32 key) const { return key >= first_key && key < end_key; }
};

