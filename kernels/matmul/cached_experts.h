// Copies of experts that lie in the host's memory (`CachedExperts`).
#pragma once
#include "gpu.h"
#include "args.h"

// Returns the slot of an expert, or NOT_CACHED.
DEV u32 slot_of(const CachedExperts& cached, u32 expert) {
  return cached.slots ? ld_step(cached.slots + expert) : NOT_CACHED;
}
// True if rows of an expert with this slot are computed here.
DEV bool is_here(const CachedExperts& cached, u32 slot) { return slot != NOT_CACHED || !cached.alone; }
// Returns the tiles of an expert: in its slot after `copies`, or among `tiles` of all experts.
DEV const u8* tiles_of(const CachedExperts& cached, u32 slot, const u8* copies, const u8* tiles, u64 offset) {
  return slot == NOT_CACHED ? tiles + offset : copies + slot * cached.slot_bytes;
}
