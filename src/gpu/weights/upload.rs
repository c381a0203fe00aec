//! Uploads weights in three stages. The host copies from the mapped file into page-locked memory. A transfer brings
//! that to a raw area on the device, and a kernel writes tiles. Two slots alternate, so the host fills one while the
//! device empties the other.

use crate::buffer::{TILE_COLS, TILE_ROWS, count};
use crate::launch::args::RepackArgs;
use crate::{Device, DeviceBuffer, DeviceSlice, Event, Function, HostBuffer, Stream};
use crate::{Error, Result};

/// Maximum bytes of a slot.
const SLOT_BYTES: usize = 64 << 20;
/// The fewest bytes of a slot; it also holds at least 16 rows of a matrix.
const MIN_SLOT_BYTES: usize = 64 << 10;
/// Bytes of a host copy that are worth another thread.
const COPY_PART: usize = 4 << 20;

/// The copy stream and its slots. It is freed, with its memory, after the last upload.
pub(crate) struct Uploader {
    stream: Stream,
    slots: [Slot; 2],
    next: usize,
    slot_bytes: usize,
    /// True if nothing was queued since the stream was last waited for.
    arrived: bool,
}

struct Slot {
    host: HostBuffer,
    raw: DeviceBuffer,
    /// Recorded after the copy from the host memory.
    copied: Event,
}

/// A matrix in blocks of a type that kernels multiply.
#[derive(Clone, Copy)]
pub(crate) struct RawMatrix<'d> {
    pub data: &'d [u8],
    pub row_bytes: usize,
    pub cols: usize,
    /// Factor of all values; 1 except for types with a factor in their tiles.
    pub scale: f32,
}

impl Uploader {
    /// Creates slots for tensors of up to `largest` bytes, whose 16 rows take up to `largest_tile_row` bytes.
    pub(crate) fn new(device: &Device, largest: usize, largest_tile_row: usize) -> Result<Self> {
        let slot_bytes = largest.clamp(MIN_SLOT_BYTES, SLOT_BYTES).max(largest_tile_row);
        let slot = || -> Result<Slot> {
            Ok(Slot {
                host: HostBuffer::new(device, slot_bytes)?,
                raw: DeviceBuffer::new(device, slot_bytes as u64)?,
                copied: Event::new(device)?,
            })
        };
        Ok(Self { stream: Stream::new(device)?, slots: [slot()?, slot()?], next: 0, slot_bytes, arrived: true })
    }

    /// True if a slot holds `largest_tile_row` bytes, the size of 16 rows.
    pub(crate) fn fits(&self, largest_tile_row: usize) -> bool {
        largest_tile_row <= self.slot_bytes
    }

    /// Queues the upload of a matrix, repacked into tiles of `tile_bytes` at `out`. `taken` gets the number of rows in
    /// each queued part, and may stop the rest by an error.
    pub(crate) fn matrix(
        &mut self,
        matrix: RawMatrix<'_>,
        repack: &Function,
        out: DeviceSlice<'_>,
        tile_bytes: u64,
        taken: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let RawMatrix { data, row_bytes, cols, scale } = matrix;
        let super_blocks = cols.div_ceil(TILE_COLS);
        let rows_per_slot = self.slot_bytes / row_bytes / TILE_ROWS * TILE_ROWS;
        if rows_per_slot == 0 {
            return Err(Error::internal(format!("16 rows of {row_bytes} bytes in slots of {}", self.slot_bytes)));
        }
        let mut out = out;
        for rows in data.chunks(rows_per_slot * row_bytes) {
            let out_rows = rows.len() / row_bytes;
            let tiles = out_rows.div_ceil(TILE_ROWS) * super_blocks;
            let raw = self.send(rows)?;
            let rest = out.after(tiles as u64 * tile_bytes)?;
            let sizes = [count(out_rows)?, count(cols)?];
            let args = RepackArgs { raw: raw.ptr(), out: out.ptr(), out_rows: sizes[0], cols: sizes[1], scale };
            // SAFETY: `raw` holds the rows once the copy before has run, and `out` has room for their tiles, which
            // nothing reads before `finish`.
            unsafe { self.stream.launch(repack, [count(tiles.div_ceil(8))?, 1, 1], &args)? };
            out = rest;
            taken(out_rows)?;
        }
        Ok(())
    }

    /// Queues the upload of unchanged bytes.
    pub(crate) fn bytes(&mut self, data: &[u8], out: DeviceSlice<'_>) -> Result<()> {
        for (index, part) in data.chunks(self.slot_bytes).enumerate() {
            let raw = self.send(part)?;
            let out = out.after((index * self.slot_bytes) as u64)?;
            // SAFETY: as in `matrix`; the slot and `out` are different allocations.
            unsafe { self.stream.copy_on_device(out, raw.slice())? };
        }
        Ok(())
    }

    /// Copies at most a slot's bytes into the raw area of the next slot.
    fn send(&mut self, data: &[u8]) -> Result<DeviceBuffer> {
        self.arrived = false;
        let slot = &mut self.slots[self.next];
        self.next = 1 - self.next;
        // The last copy from this memory must have run before it is written again. The raw area needs no such wait,
        // because its readers precede the next copy on the same stream.
        slot.copied.synchronize()?;
        let host = &mut slot.host.as_mut_slice()[..data.len()];
        copy_in_parts(data, host);
        // SAFETY: the memory is written again only after the event; the slot lives until `finish` or drop, which wait.
        unsafe { self.stream.copy_to_device(slot.raw.slice(), host)? };
        slot.copied.record(&self.stream)?;
        slot.raw.part(0, data.len() as u64)
    }

    /// Waits until everything has arrived.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.stream.synchronize()?;
        self.arrived = true;
        Ok(())
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        if !self.arrived {
            // After an error copies may still read the slots. The loader has already reported the first problem, and
            // the device remembers its loss. The stream, which is dropped before the slots, waits again.
            let _ = self.stream.synchronize();
        }
    }
}

/// Copies with several threads. One thread reads a mapped file at a fraction of the link's speed, mostly because of
/// page faults.
fn copy_in_parts(from: &[u8], to: &mut [u8]) {
    if from.len() < 2 * COPY_PART {
        return to.copy_from_slice(from);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let part = from.len().div_ceil(threads).max(COPY_PART);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}
