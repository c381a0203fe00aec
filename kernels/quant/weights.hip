// Weights in the device's order: from the blocks of the file, to single rows, and to f16 for a vendor's matrix library.
#include "quant.h"
#include "args.h"

// A group of 32 lanes makes one tile. Blocks of the file may have any alignment (GGUF guarantees 2 bytes at most; MXFP4
// has 17-byte blocks), so they are read byte by byte. This runs once, at upload.
TYPED_KERNEL(256, repack_, RepackArgs) {
  pdl_wait();
  const u32 super_blocks = (a.cols + 255) >> 8, tiles = (a.out_rows + 15) >> 4;
  const u64 unit = (u64)bid_x() * 8 + (tid_x() >> 5);
  if (unit >= (u64)tiles * super_blocks) return;
  const int lane = tid_x() & 31;
  const u32 row = (u32)(unit / super_blocks) * 16 + (lane >> 2);
  const u64 row_bytes = (u64)(a.cols / Tile::BLOCK) * Tile::BLOCK_BYTES;
  RawRows<Tile> raw;
  raw.raw = a.raw + row * row_bytes;
  raw.row_bytes = row_bytes;
  raw.row = row;
  raw.rows = a.out_rows;
  raw.first = (u32)(unit % super_blocks) * 256 + 64 * (lane & 3);
  raw.cols = a.cols;
  raw.scale = a.scale;
  Tile::pack(a.out + unit * Tile::BYTES, lane, raw);
}

TYPED_KERNEL(256, embed_, EmbedArgs) {
  pdl_launch(); pdl_wait();
  const u32 token = ld_step(a.token_ids + bid_x());
  const u64 super_blocks = (a.cols + 255) >> 8;
  const u8* tiles = a.table + (token >> 4) * super_blocks * Tile::BYTES;
  const u32 c = bid_y() * 256 + tid_x();
  if (c >= a.cols) return;
  const float value = Tile::value(tiles + (u64)(c >> 8) * Tile::BYTES, token & 15, c & 255);
  a.out[(u64)bid_x() * a.cols + c] = mul_rn(a.scale, value);
}

// A group of 32 lanes per tile. The values go through LDS, so that the stores are whole rows of 512 bytes. Direct
// stores in the order of the fragments reached a fifth of the rate.
constexpr int LDS_ROW = 264;           // halves; the 8 extra elements keep the 16-byte stores off the same banks
struct Rows { alignas(16) u16 of_group[4][16 * LDS_ROW]; };
TYPED_KERNEL(32 * DEQUANTIZE_TILES, dequantize_, DequantizeArgs) {
  pdl_launch(); pdl_wait();             // a library's kernel may still read the memory that is overwritten here
  SHARED Rows lds;
  const u32 super_blocks = (a.cols + 255) >> 8;
  const u64 unit = (u64)bid_x() * DEQUANTIZE_TILES + (tid_x() >> 5);
  const int lane = tid_x() & 31, g = lane >> 2, t = lane & 3;
  u16* const tile = lds.of_group[tid_x() >> 5];
  const bool inside = unit < (u64)a.num_tiles * super_blocks;
  if (inside) {
    Tile w;
    w.load(a.weights + unit * Tile::BYTES, lane);
    w.prepare();
    #pragma unroll
    for (int j = 0; j < 4; j++)
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 f[4];
        w.fragment(j, i, f);
        for (int half = 0; half < 2; half++) {
          v2 four;                                                       // (k0, k2) (k1, k3) -> (k0, k1) (k2, k3)
          four.x = (f[half] & 0xffffu) | f[2 + half] << 16;
          four.y = f[half] >> 16 | (f[2 + half] & 0xffff0000u);
          *(v2*)(tile + (g + 8 * half) * LDS_ROW + 64 * t + 16 * j + 4 * i) = four;
        }
      }
  }
  warp_sync();
  if (!inside) return;
  const u64 stride = (u64)super_blocks * 256;
  u16* out = a.out + unit / super_blocks * 16 * stride + unit % super_blocks * 256 + lane * 8;
  #pragma unroll
  for (int r = 0; r < 16; r++) *(v4*)(out + r * stride) = *(const v4*)(tile + r * LDS_ROW + lane * 8);
}
