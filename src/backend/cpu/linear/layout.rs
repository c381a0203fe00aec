//! How a block format's rows are permuted into tiles of 16 rows, and back.
//!
//! A tile is a run of spans of 512 columns (the last may be shorter), read from end to end: first the side bytes
//! (scales) of a span's GGUF blocks, of each unit by unit, the 16 rows' side by side; then its codes. These are, for
//! each block of 32 columns, `LOW + HIGH` lines of 64 bytes: byte `4 * row + i` of a line is about element `i` of some
//! groups of four. A plane of `bits` bits per code has `bits` lines; group `g` lies in line `g % bits` at shift `bits *
//! (g / bits)`. In 512 columns the side bytes of every type are whole lines. No bit is added or lost. A format that
//! computes its codes (`codebooks`) has no planes: all its bytes are side bytes.

use super::by_type::with_format;
use super::formats::{Format, Position, span_blocks};
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
    block_elements: usize,
    low: usize,
    high: usize,
    flip: u32,
    adjacent: bool,
    /// The groups of one GGUF block whose codes lie in planes.
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
        let groups = if low > 0 { F::TYPE.block_elements() / 4 } else { 0 };
        Self {
            block_bytes: F::TYPE.block_bytes(),
            block_elements: F::TYPE.block_elements(),
            low,
            high,
            flip: if F::SIGNED { 0x8080_8080 } else { 0 },
            adjacent: F::HIGH_BITS_ADJACENT,
            groups: (0..groups).map(group).collect(),
            side: F::SIDE,
        }
    }

    /// Bytes of the planes of a block of 32 columns.
    fn planes(&self) -> usize {
        (self.low + self.high) * LINE
    }

    /// Bytes of the codes and of the side bytes of a GGUF block's 16 rows.
    fn parts(&self) -> [usize; 2] {
        [self.block_elements / BLOCK * self.planes(), side_bytes(self.side) * TILE]
    }

    /// Bytes of a tile, a multiple of 64.
    pub(super) fn tile_bytes(&self, cols: usize) -> usize {
        let blocks = cols / self.block_elements;
        self.places(blocks, blocks)[0].next_multiple_of(LINE)
    }

    /// Bytes at which the codes and the side bytes of GGUF block `index` of `blocks` begin.
    fn places(&self, index: usize, blocks: usize) -> [usize; 2] {
        let [codes, side] = self.parts();
        let per_span = span_blocks(self.block_elements);
        let first = index - index % per_span;
        let span = first * (codes + side);
        let side_of_span = (per_span.min(blocks - first) * side).next_multiple_of(LINE);
        [span + side_of_span + (index - first) * codes, span + (index - first) * side]
    }

    /// Writes GGUF row `data` as row `row` of `tile`.
    pub(super) fn pack_row(&self, data: &[u8], row: usize, cols: usize, tile: &mut [u8]) {
        let blocks = cols / self.block_elements;
        for (index, block) in data.chunks_exact(self.block_bytes).enumerate() {
            let [codes, side] = self.places(index, blocks);
            let mut planes = &mut tile[codes..];
            for groups in self.groups.chunks_exact(GROUPS) {
                let lines;
                (lines, planes) = planes.split_at_mut(self.planes());
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
            let mut at = side;
            for (first, width, source) in self.side_units() {
                tile[at + row * width..][..width].copy_from_slice(&block[first + source..][..width]);
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
        let [codes, side] = self.places(index, cols / self.block_elements);
        let block = &mut block[..self.block_bytes];
        block.fill(0);
        for (b, groups) in self.groups.chunks_exact(GROUPS).enumerate() {
            let lines = &tile[codes + b * self.planes()..];
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
        let mut at = side;
        for (first, width, source) in self.side_units() {
            block[first + source..][..width].copy_from_slice(&tile[at + row * width..][..width]);
            at += TILE * width;
        }
        block
    }

    /// `(first byte of the run, bytes of the unit, its offset in the run)`.
    fn side_units(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.side.iter().flat_map(|&(first, width, units)| (0..units).map(move |i| (first, width, i * width)))
    }
}
