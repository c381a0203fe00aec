//! The permutation of a block format's rows into tiles of 16 rows, and back.
//!
//! A tile is a sequence of spans of 512 columns, of which the last may be shorter. Kernels read it from end to end. A
//! span begins with the side bytes (scales) of its GGUF blocks: block by block, unit by unit, with the 16 rows
//! adjacent. Its codes follow.
//!
//! Each block of 32 columns has `LOW + HIGH` lines of codes with 64 bytes each. Byte `4 * row + i` of a line has bits
//! of element `i` of some groups of four. A plane of `bits` bits per code has `bits` lines. Group `g` is in line
//! `g % bits` at shift `bits * (g / bits)`.
//!
//! The side bytes of 512 columns fill whole lines for every type. Packing neither adds nor loses a bit. A format that
//! computes its codes (`codebooks`) has no planes, only side bytes.

use super::by_type::with_format;
use super::formats::{Format, Position, span_blocks};
use super::kernels::side_bytes;
use super::q8::BLOCK;
use rocmforge_quant::GgmlType;

/// Rows in a tile.
pub const TILE: usize = 16;
const LINE: usize = 64;
/// Groups of four elements in a block of 32.
const GROUPS: usize = 8;
/// Bytes of the largest GGUF block.
pub const MAX_BLOCK_BYTES: usize = 256;

/// The places of four elements' codes in a GGUF block and in a tile's block of 32.
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
pub struct Layout {
    block_bytes: usize,
    block_elements: usize,
    low: usize,
    high: usize,
    flip: u32,
    low_adjacent: bool,
    high_adjacent: bool,
    /// The groups of one GGUF block that have codes in planes.
    groups: Vec<Group>,
    side: &'static [(usize, usize, usize)],
}

/// Gathers the lowest `bits` (1 or 2) of each byte side by side. The other bits must be zero.
fn gather(bytes: u32, bits: usize) -> u32 {
    let apart = 8 - bits;
    (bytes | bytes >> apart | bytes >> (2 * apart) | bytes >> (3 * apart)) & ((1 << (4 * bits)) - 1)
}

/// Spreads adjacent codes of `bits` bits to four bytes; the inverse of `gather`.
fn spread(codes: u32, bits: usize) -> u32 {
    let apart = 8 - bits;
    (codes | codes << apart | codes << (2 * apart) | codes << (3 * apart)) & byte_mask(bits)
}

/// Returns `bits` ones in each of four bytes.
fn byte_mask(bits: usize) -> u32 {
    0x0101_0101 * (0xff >> (8 - bits))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The codes of four elements at a place of a GGUF block, as bytes.
fn read(block: &[u8], place: Position, bits: usize, adjacent: bool) -> u32 {
    if adjacent {
        return spread(u32::from(block[place.byte]) >> place.shift & ((1 << (4 * bits)) - 1), bits);
    }
    word(block, place.byte) >> place.shift & byte_mask(bits)
}

/// The inverse of `read`, into a block whose bits there are zero.
fn or_codes(block: &mut [u8], place: Position, codes: u32, bits: usize, adjacent: bool) {
    if adjacent {
        block[place.byte] |= (gather(codes, bits) << place.shift) as u8;
        return;
    }
    for (byte, v) in block[place.byte..place.byte + 4].iter_mut().zip((codes << place.shift).to_le_bytes()) {
        *byte |= v;
    }
}

/// Bits of a byte of a GGUF block, in the tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The byte of the GGUF block.
    pub byte: usize,
    /// The first bit in that byte, and the number of bits.
    pub to: u32,
    pub bits: u32,
    /// True for the block's side bytes, false for its codes.
    pub is_side: bool,
    /// True if the byte's highest bit is flipped.
    pub is_flipped: bool,
    /// The byte of row 0 among the block's codes or side bytes, the distance of the next row's, and the first bit.
    pub at: usize,
    pub stride: usize,
    pub shift: u32,
}

/// The places of the GGUF blocks of a row of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spans {
    /// Bytes of a block's codes, and of its side bytes, for 16 rows.
    pub codes: usize,
    pub side: usize,
    /// Blocks whose side bytes precede the codes of all of them, in whole lines.
    pub blocks: usize,
}

impl Layout {
    /// Returns where the bits of a GGUF block are.
    pub fn block_places(&self) -> Vec<Place> {
        let mut all = Vec::new();
        for (b, groups) in self.groups.chunks_exact(GROUPS).enumerate() {
            let mut add =
                |position: Position, bits: usize, line: usize, shift: u32, adjacent: bool, is_flipped: bool| {
                    all.extend((0..4).map(|i| Place {
                        byte: position.byte + if adjacent { 0 } else { i },
                        to: position.shift + if adjacent { (i * bits) as u32 } else { 0 },
                        bits: bits as u32,
                        is_side: false,
                        is_flipped,
                        at: b * self.planes() + line * LINE + i,
                        stride: 4,
                        shift,
                    }));
                };
            for group in groups {
                add(group.low, self.low, group.low_line, group.low_shift, self.low_adjacent, self.flip != 0);
                if self.high > 0 {
                    add(group.high, self.high, group.high_line, group.high_shift, self.high_adjacent, false);
                }
            }
        }
        let mut at = 0;
        for (first, width, source) in self.side_units() {
            all.extend((0..width).map(|i| Place {
                byte: first + source + i,
                to: 0,
                bits: 8,
                is_side: true,
                is_flipped: false,
                at: at + i,
                stride: width,
                shift: 0,
            }));
            at += TILE * width;
        }
        all
    }

    pub fn spans(&self) -> Spans {
        let [codes, side] = self.parts();
        Spans { codes, side, blocks: span_blocks(self.block_elements) }
    }

    pub fn of(ggml_type: GgmlType) -> Option<Self> {
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
            low_adjacent: F::LOW_BITS_ADJACENT,
            high_adjacent: F::HIGH_BITS_ADJACENT,
            groups: (0..groups).map(group).collect(),
            side: F::SIDE,
        }
    }

    /// Returns the bytes of the planes of a block of 32 columns.
    fn planes(&self) -> usize {
        (self.low + self.high) * LINE
    }

    /// Returns the bytes of the codes, and of the side bytes, of a GGUF block for 16 rows.
    fn parts(&self) -> [usize; 2] {
        [self.block_elements / BLOCK * self.planes(), side_bytes(self.side) * TILE]
    }

    /// Returns the bytes of a tile, a multiple of 64.
    pub fn tile_bytes(&self, cols: usize) -> usize {
        let blocks = cols / self.block_elements;
        self.places(blocks, blocks)[0].next_multiple_of(LINE)
    }

    /// Returns the offsets of the codes and of the side bytes of GGUF block `index` of `blocks`.
    fn places(&self, index: usize, blocks: usize) -> [usize; 2] {
        let [codes, side] = self.parts();
        let per_span = span_blocks(self.block_elements);
        let first = index - index % per_span;
        let span = first * (codes + side);
        let side_of_span = (per_span.min(blocks - first) * side).next_multiple_of(LINE);
        [span + side_of_span + (index - first) * codes, span + (index - first) * side]
    }

    /// Writes GGUF row `data` as row `row` of `tile`.
    pub fn pack_row(&self, data: &[u8], row: usize, cols: usize, tile: &mut [u8]) {
        let blocks = cols / self.block_elements;
        for (index, block) in data.chunks_exact(self.block_bytes).enumerate() {
            let [codes, side] = self.places(index, blocks);
            let mut planes = &mut tile[codes..];
            for groups in self.groups.chunks_exact(GROUPS) {
                let lines;
                (lines, planes) = planes.split_at_mut(self.planes());
                let mut words = [0u32; 8];
                for group in groups {
                    let code = read(block, group.low, self.low, self.low_adjacent) ^ self.flip;
                    words[group.low_line] |= code << group.low_shift;
                    if self.high > 0 {
                        let code = read(block, group.high, self.high, self.high_adjacent);
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

    /// Restores GGUF block `index` of row `row`, and returns its bytes in `block`.
    pub fn unpack_block<'b>(
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
                or_codes(block, group.low, code ^ self.flip, self.low, self.low_adjacent);
                if self.high > 0 {
                    let code = word(lines, group.high_line * LINE + 4 * row) >> group.high_shift;
                    or_codes(block, group.high, code & byte_mask(self.high), self.high, self.high_adjacent);
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

    /// Returns `(first byte of the range, bytes of the unit, its offset in the range)` of each unit.
    fn side_units(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        self.side.iter().flat_map(|&(first, width, units)| (0..units).map(move |i| (first, width, i * width)))
    }
}
