//! How a block format's rows are permuted into tiles of 16 rows, and back.
//!
//! A tile holds, for each block of 32 columns, `LOW + HIGH` lines of 64 bytes: byte `4 * row + i` of a line is about
//! element `i` of some groups of four. A plane of `bits` bits per code has `bits` lines; group `g` lies in line
//! `g % bits` at shift `bits * (g / bits)`. After all code lines follow the side bytes (scales): per GGUF block, unit
//! by unit, the 16 rows' side by side. No bit is added or lost.

use super::formats::{Format, Position, with_format};
use super::kernels::side_bytes;
use super::q8::BLOCK;
use crate::quant::GgmlType;

/// Rows of a tile.
pub(super) const TILE: usize = 16;
const LINE: usize = 64;
/// Groups of four elements in a block of 32.
const GROUPS: usize = 8;
/// Bytes of the largest GGUF block.
pub(super) const MAX_BLOCK_BYTES: usize = 256;

/// Places of four elements' codes in a GGUF block and in a tile's block of 32.
#[derive(Debug, Clone)]
struct Group {
    low: Position,
    low_line: usize,
    low_shift: u32,
    high: Position,
    high_line: usize,
    high_shift: u32,
}

/// The permutation of one block format.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    block_bytes: usize,
    low: usize,
    high: usize,
    flip: u32,
    adjacent: bool,
    /// The groups of one GGUF block.
    groups: Vec<Group>,
    side: &'static [(usize, usize, usize)],
}

/// One bit of each byte, gathered in the low four bits.
fn gather(bytes: u32) -> u32 {
    bytes.wrapping_mul(0x1020_4080) >> 28
}

/// The inverse of `gather`.
fn spread(bits: u32) -> u32 {
    bits.wrapping_mul(0x0020_4081) & 0x0101_0101
}

/// `bits` ones in each of four bytes.
fn byte_mask(bits: usize) -> u32 {
    0x0101_0101 * (0xff >> (8 - bits))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn or_word(bytes: &mut [u8], at: usize, value: u32) {
    for (byte, v) in bytes[at..at + 4].iter_mut().zip(value.to_le_bytes()) {
        *byte |= v;
    }
}

impl Layout {
    pub(super) fn of(ggml_type: GgmlType) -> Option<Self> {
        with_format!(ggml_type, F => Self::new::<F>())
    }

    fn new<F: Format>() -> Self {
        let (low, high) = (F::LOW as usize, F::HIGH as usize);
        let group = |i: usize| {
            let (b, g) = (i / GROUPS, i % GROUPS);
            Group {
                low: F::low(b, g),
                low_line: g % low,
                low_shift: (low * (g / low)) as u32,
                high: F::high(b, g),
                high_line: low + g % high.max(1),
                high_shift: (high * (g / high.max(1))) as u32,
            }
        };
        Self {
            block_bytes: F::TYPE.block_bytes(),
            low,
            high,
            flip: if F::SIGNED { 0x8080_8080 } else { 0 },
            adjacent: F::HIGH_BITS_ADJACENT,
            groups: (0..F::TYPE.block_elements() / 4).map(group).collect(),
            side: F::SIDE,
        }
    }

    fn lines(&self) -> usize {
        self.low + self.high
    }

    /// Bytes of a tile's code lines, where its side bytes begin.
    pub(super) fn side_offset(&self, cols: usize) -> usize {
        cols / BLOCK * self.lines() * LINE
    }

    /// Bytes of a tile, a multiple of 64.
    pub(super) fn tile_bytes(&self, cols: usize) -> usize {
        let gguf_blocks = cols / BLOCK * GROUPS / self.groups.len();
        (self.side_offset(cols) + gguf_blocks * side_bytes(self.side) * TILE).next_multiple_of(LINE)
    }

    /// Writes GGUF row `data` as row `row` of `tile`.
    pub(super) fn pack_row(&self, data: &[u8], row: usize, cols: usize, tile: &mut [u8]) {
        let (codes, side) = tile.split_at_mut(self.side_offset(cols));
        let side_stride = side_bytes(self.side) * TILE;
        let mut lines = codes.chunks_exact_mut(self.lines() * LINE);
        for (block, side) in data.chunks_exact(self.block_bytes).zip(side.chunks_exact_mut(side_stride)) {
            for (groups, lines) in self.groups.chunks_exact(GROUPS).zip(&mut lines) {
                let mut words = [0u32; 8];
                for group in groups {
                    let code = word(block, group.low.byte) >> group.low.shift & byte_mask(self.low) ^ self.flip;
                    words[group.low_line] |= code << group.low_shift;
                    if self.high > 0 {
                        let high = group.high;
                        let code = if self.adjacent {
                            spread(u32::from(block[high.byte]) >> high.shift & 15)
                        } else {
                            word(block, high.byte) >> high.shift & byte_mask(self.high)
                        };
                        words[group.high_line] |= code << group.high_shift;
                    }
                }
                for (line, word) in lines.chunks_exact_mut(LINE).zip(words) {
                    line[4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
            let mut at = 0;
            for (first, width, source) in self.side_units() {
                side[at + row * width..][..width].copy_from_slice(&block[first + source..][..width]);
                at += TILE * width;
            }
        }
    }

    /// Rebuilds GGUF block `index` of row `row`; returns its bytes in `block`.
    pub(super) fn unpack_block<'b>(
        &self,
        tile: &[u8],
        row: usize,
        cols: usize,
        index: usize,
        block: &'b mut [u8; MAX_BLOCK_BYTES],
    ) -> &'b [u8] {
        let (codes, side) = tile.split_at(self.side_offset(cols));
        let block = &mut block[..self.block_bytes];
        block.fill(0);
        let blocks = self.groups.len() / GROUPS;
        for (b, groups) in self.groups.chunks_exact(GROUPS).enumerate() {
            let lines = &codes[(index * blocks + b) * self.lines() * LINE..];
            for group in groups {
                let code = word(lines, group.low_line * LINE + 4 * row) >> group.low_shift & byte_mask(self.low);
                or_word(block, group.low.byte, (code ^ self.flip) << group.low.shift);
                if self.high > 0 {
                    let high = group.high;
                    let code = word(lines, group.high_line * LINE + 4 * row) >> group.high_shift;
                    let code = code & byte_mask(self.high);
                    if self.adjacent {
                        block[high.byte] |= (gather(code) << high.shift) as u8;
                    } else {
                        or_word(block, high.byte, code << high.shift);
                    }
                }
            }
        }
        let mut at = index * side_bytes(self.side) * TILE;
        for (first, width, source) in self.side_units() {
            block[first + source..][..width].copy_from_slice(&side[at + row * width..][..width]);
            at += TILE * width;
        }
        block
    }

    /// `(first byte of the run, bytes of the unit, its offset in the run)`.
    fn side_units(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.side.iter().flat_map(|&(first, width, units)| (0..units).map(move |i| (first, width, i * width)))
    }
}
