//! Copies of experts from the host to the device: from the layout of the CPU's kernels to that of the device's.
//!
//! A piece of the bytes is copied as it is. `unpack_tiles` restores the file's rows from it, and `repack_<type>` makes
//! tiles, as in an upload. Both run at the rate of the device's memory, and the bus limits the copy.

use crate::buffer::packed::Packed;
use crate::buffer::{TILE_ROWS, count};
use crate::cpu::simd::linear::{Layout, Place, Spans, TILE, element_bytes};
use crate::device::arena::{ALIGN, aligned};
use crate::launch::args::{
    PLACE_CODES, PLACE_FLIPPED, PLACE_SIDE, PLACES_OF_BYTE, RepackArgs, UNPACK_THREADS, UnpackArgs,
};
use crate::launch::catalog::{ONCE, REPACK, UNPACK_TILES};
use crate::quant::GgmlType;
use crate::{Device, DeviceBuffer, DeviceSlice, Event, Function, KernelType, Kernels, Stream};
use crate::{Error, Result};

/// Maximum bytes of a piece, unless a matrix of one expert has more.
const PIECE: u64 = 16 << 20;

/// True if the tiles of all matrices are those of one matrix.
fn are_one(matrices: &Packed) -> bool {
    matrices.rows.is_multiple_of(TILE_ROWS) && matrices.scales.iter().all(|scale| *scale == matrices.scales[0])
}

/// Returns the bytes of the areas on the device. A matrix of one expert takes up to `of_one` bytes, in either
/// layout, and those of all experts of a layer `of_all`.
pub(crate) fn scratch_bytes(of_one: u64, of_all: u64) -> u64 {
    2 * LANES as u64 * aligned(PIECE.min(of_all).max(of_one))
}

/// Returns the bytes of the tables of a type's places, one for each lane.
pub(crate) fn tables_bytes(ty: GgmlType) -> u64 {
    LANES as u64 * table_bytes(ty)
}

fn table_bytes(ty: GgmlType) -> u64 {
    aligned(8 * (ty.block_bytes() * PLACES_OF_BYTE as usize) as u64)
}

/// Returns the tables of a type's places.
///
/// # Errors
/// `Error::Internal` for a type whose places the kernel cannot name.
pub(crate) fn tables(ty: GgmlType) -> Result<Vec<u8>> {
    let mut table: Vec<u8> = table(ty)?.iter().flat_map(|word| word.to_ne_bytes()).collect();
    table.resize(table_bytes(ty) as usize, 0);
    Ok(table.repeat(LANES))
}

/// Returns the places of a block's bits, and those of blocks.
fn places(ty: GgmlType) -> Result<(Vec<Place>, Spans)> {
    if let Some(layout) = Layout::of(ty) {
        return Ok((layout.block_places(), layout.spans()));
    }
    // Elements of 16 rows are adjacent, column by column.
    let bytes = element_bytes(ty).ok_or_else(|| Error::internal(format!("the CPU has no layout of {}", ty.name())))?;
    let place = |byte: usize| Place {
        byte,
        to: 0,
        bits: 8,
        is_side: true,
        is_flipped: false,
        at: byte,
        stride: bytes,
        shift: 0,
    };
    Ok(((0..bytes).map(place).collect(), Spans { codes: 0, side: TILE * bytes, blocks: 1 }))
}

/// Returns the table that `unpack_tiles` reads.
fn table(ty: GgmlType) -> Result<Vec<u32>> {
    let (places, _) = places(ty)?;
    let of_byte = PLACES_OF_BYTE as usize;
    let mut table = vec![0; 2 * of_byte * ty.block_bytes()];
    for place in &places {
        let kind = match (place.is_side, place.is_flipped) {
            (true, _) => PLACE_SIDE,
            (false, true) => PLACE_FLIPPED,
            (false, false) => PLACE_CODES,
        };
        let entries = table[2 * of_byte * place.byte..][..2 * of_byte].as_chunks_mut::<2>().0;
        let free = entries.iter_mut().find(|entry| entry[1] == 0);
        let entry =
            free.ok_or_else(|| Error::internal(format!("byte {} of {} is scattered", place.byte, ty.name())))?;
        let (at, stride) = (count(place.at)?, count(place.stride)?);
        if at.max(stride) > 0xffff {
            return Err(Error::internal(format!("a block of {} has places at {at}", ty.name())));
        }
        *entry = [at | stride << 16, place.bits | place.shift << 8 | place.to << 16 | kind << 24];
    }
    Ok(table)
}

/// The table and the kernel of a type.
struct OfType {
    ty: KernelType,
    spans: Spans,
    /// The tables on the device.
    places: [DeviceBuffer; LANES],
    repack: Function,
}

/// Copies packed experts. Pieces take turns on two streams, so one is copied while the other is unpacked.
pub(crate) struct Unpacker {
    unpack: Function,
    types: Vec<OfType>,
    lanes: [Lane; LANES],
    /// Recorded on the caller's stream before the first piece.
    begun: Event,
}

const LANES: usize = 2;

struct Lane {
    stream: Stream,
    /// Areas for a piece in the CPU's layout, and in the file's.
    packed: DeviceBuffer,
    rows: DeviceBuffer,
    /// Recorded after the last piece.
    done: Event,
}

impl Unpacker {
    /// `scratch` has `scratch_bytes`, and `tables` the uploaded tables of each type.
    ///
    /// # Errors
    /// Errors of `Kernels::function`, `Error::Device`.
    pub(crate) fn new(
        device: &Device,
        kernels: &Kernels,
        scratch: &DeviceBuffer,
        tables: Vec<(KernelType, GgmlType, DeviceBuffer)>,
    ) -> Result<Self> {
        let area = scratch.bytes() / (2 * LANES as u64) / ALIGN * ALIGN;
        let lane = |number: u64| -> Result<Lane> {
            Ok(Lane {
                stream: Stream::new(device)?,
                packed: scratch.part(2 * number * area, area)?,
                rows: scratch.part((2 * number + 1) * area, area)?,
                done: Event::new(device)?,
            })
        };
        let mut types = Vec::new();
        for (ty, file, tables) in tables {
            let (_, spans) = places(file)?;
            let bytes = table_bytes(file);
            let places = [tables.part(0, bytes)?, tables.part(bytes, bytes)?];
            types.push(OfType { ty, spans, places, repack: kernels.function(&REPACK.id(ty))? });
        }
        Ok(Self {
            unpack: kernels.function(&UNPACK_TILES.id(ONCE))?,
            types,
            lanes: [lane(0)?, lane(1)?],
            begun: Event::new(device)?,
        })
    }

    /// Queues the copy of matrices from number `first` on, from `from`, the bytes of all of them, to tiles at `out`.
    ///
    /// # Errors
    /// `Error::Internal` for more than there are.
    ///
    /// # Safety
    /// As for `Stream::copy_to_device`, for `from` and `out`. After an error, `synchronize` must come before the memory
    /// is used.
    pub(crate) unsafe fn copy(
        &self,
        stream: &Stream,
        matrices: &Packed,
        from: &DeviceBuffer,
        mut numbers: std::ops::Range<usize>,
        out: DeviceSlice<'_>,
    ) -> Result<()> {
        let Packed { ty, file, rows, cols, matrix_bytes, scales } = matrices;
        let of_type = self.types.iter().find(|of_type| of_type.ty == *ty);
        let of_type = of_type.ok_or_else(|| Error::internal(format!("no table of {}", file.name())))?;
        let tiles_bytes = ty.matrix_bytes(*rows, *cols);
        let blocks = cols / file.block_elements();
        let row_bytes = matrices.row_bytes();
        let mut out = out;
        self.begun.record(stream)?;
        self.lanes.iter().try_for_each(|lane| lane.stream.wait_for(&self.begun))?;
        for (Lane { stream, packed, rows: area, .. }, places) in self.lanes.iter().zip(&of_type.places).cycle() {
            if numbers.is_empty() {
                break;
            }
            let piece = ((packed.bytes() / matrices.longer_bytes()) as usize).min(numbers.len());
            if piece == 0 {
                return Err(Error::internal(format!("no room for a matrix of {} bytes", matrices.longer_bytes())));
            }
            let bytes = piece as u64 * matrix_bytes;
            let source = from.part(numbers.start as u64 * matrix_bytes, bytes)?;
            // SAFETY: the caller's promise; the area was read by the launches of the last piece, before on this stream.
            unsafe { stream.copy_to_device(packed.part(0, bytes)?.slice(), source.host_bytes()?)? };
            let all_rows = piece * rows;
            let restored = area.part(0, all_rows as u64 * row_bytes)?;
            let args = UnpackArgs {
                tiles: packed.ptr(),
                places: places.ptr(),
                out: restored.ptr(),
                rows: count(*rows)?,
                blocks: count(blocks)?,
                block_bytes: count(file.block_bytes())?,
                tile_bytes: count((*matrix_bytes as usize) / rows.div_ceil(TILE))?,
                codes_bytes: count(of_type.spans.codes)?,
                side_bytes: count(of_type.spans.side)?,
                span_blocks: count(of_type.spans.blocks)?,
            };
            let columns = count((row_bytes as usize).div_ceil(UNPACK_THREADS as usize))?;
            // SAFETY: the area holds whole matrices, and there is room for their rows.
            unsafe { stream.launch(&self.unpack, [count(all_rows)?, columns, 1], &args)? };
            // Matrices whose last tile is not full are repacked one by one.
            let at_once = if are_one(matrices) { piece } else { 1 };
            for first in (0..piece).step_by(at_once) {
                let out_rows = at_once * rows;
                let tiles = out_rows.div_ceil(TILE_ROWS) as u64 * cols.div_ceil(256) as u64;
                let args = RepackArgs {
                    raw: restored.slice().after((first * rows) as u64 * row_bytes)?.ptr(),
                    out: out.ptr(),
                    out_rows: count(out_rows)?,
                    cols: count(*cols)?,
                    scale: scales[numbers.start + first],
                };
                let rest = out.after(at_once as u64 * tiles_bytes)?;
                // SAFETY: as above, and `out` has room for the tiles.
                unsafe { stream.launch(&of_type.repack, [count(tiles.div_ceil(8) as usize)?, 1, 1], &args)? };
                out = rest;
            }
            numbers.start += piece;
        }
        self.lanes.iter().try_for_each(|lane| {
            lane.done.record(&lane.stream)?;
            stream.wait_for(&lane.done)
        })
    }

    /// Waits for all copies.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| lane.stream.synchronize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::can_dequantize;

    /// The table names each bit of a block once, from one bit of the tile. A packed row is restored by it.
    #[test]
    fn tables_restore_the_rows_of_every_type() {
        for &ty in GgmlType::ALL.iter().filter(|&&ty| can_dequantize(ty)) {
            let Some(layout) = Layout::of(ty) else { continue };
            let (_, spans) = places(ty).unwrap();
            let blocks = 2 * spans.blocks + 1;
            let cols = blocks * ty.block_elements();
            let mut state = 7u64;
            let rows: Vec<Vec<u8>> = (0..TILE)
                .map(|_| {
                    let byte = |_| {
                        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                        (state >> 56) as u8
                    };
                    (0..blocks * ty.block_bytes()).map(byte).collect()
                })
                .collect();
            let mut tile = vec![0; layout.tile_bytes(cols)];
            rows.iter().enumerate().for_each(|(row, data)| layout.pack_row(data, row, cols, &mut tile));
            let table = table(ty).unwrap();
            for (row, data) in rows.iter().enumerate() {
                for (at, &expected) in data.iter().enumerate() {
                    let (block, byte) = (at / ty.block_bytes(), at % ty.block_bytes());
                    let first = block - block % spans.blocks;
                    let in_span = spans.blocks.min(blocks - first);
                    let span = first * (spans.codes + spans.side);
                    let side = span + (block - first) * spans.side;
                    let codes = span + (in_span * spans.side).next_multiple_of(64) + (block - first) * spans.codes;
                    let entries = table[2 * 8 * byte..][..16].as_chunks::<2>().0;
                    let value = entries.iter().take_while(|entry| entry[1] != 0).fold(0, |value, &[place, bits]| {
                        let kind = bits >> 24;
                        let from = if kind == PLACE_SIDE { side } else { codes };
                        let from = tile[from + (place & 0xffff) as usize + (place >> 16) as usize * row];
                        let code = u32::from(from) >> (bits >> 8 & 0xff) & ((1 << (bits & 0xff)) - 1);
                        value ^ code << (bits >> 16 & 0xff) ^ if kind == PLACE_FLIPPED { 0x80 } else { 0 }
                    });
                    assert_eq!(value, u32::from(expected), "{} row {row} byte {at}", ty.name());
                }
            }
        }
    }
}
