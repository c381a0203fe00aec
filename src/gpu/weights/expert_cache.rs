//! Copies of the most used experts on the device, for experts that lie in the host's memory.
//!
//! A slot of the cache holds all matrices of one expert. A table on the device has the slot of each expert, so kernels
//! and captured graphs stay the same: they read an expert's tiles from its slot, if it has one. `choose_experts` counts
//! the uses of each expert on the device, and those of experts with a slot (hits).
//!
//! Every few steps the host looks at counts that it copied a round earlier, and queues copies of experts. They are no
//! more than a token reads. If the device reads the other experts over the bus, copies are on the step's own stream,
//! between two steps: the bus limits such steps, and a second stream would share it. If the CPU computes the others,
//! copies are on a stream of their own (`Arrivals`), and no step waits for them.
//!
//! The table never names a slot that is being written. It is stored without the experts that leave, and stored again
//! after the copies. So a failed call leaves a valid table. A kernel stores it between two steps, since copies by the
//! driver were seen to arrive too late for a graph (`step.hip`). So all kernels of a step read the same table.

mod arrivals;
mod hot;

use std::fmt;
use std::sync::Arc;

use arrivals::Arrivals;
use hot::{Change, Hot};

use super::unpack::Unpacker;
use crate::backend::ExpertCacheUse;
use crate::buffer::ExpertMatrix;
use crate::buffer::expert_copies::{Cached, Uses};
use crate::buffer::packed::Packed;
use crate::device::arena::aligned;
use crate::error::readable;
use crate::launch::args::NOT_CACHED;
use crate::launch::catalog::{COPY_STEP, ONCE};
use crate::step::{COPY_HEADER, TokenIds, counted, launch_copy};
use crate::{DeviceBuffer, Event, Function, HostBuffer, Kernels, MappedBuffer, Stream};
use crate::{Error, Result};

/// Steps from one look at the counts to the next.
const ROUND_STEPS: u32 = 8;

/// The sizes of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheSizes {
    /// Bytes of the matrices of one expert, of the largest layer.
    pub slot_bytes: u64,
    pub slots: usize,
    /// Experts of all layers that lie in the host's memory.
    pub experts: usize,
    /// The most experts that a round copies.
    pub most: usize,
    /// True if they have the layout of the CPU's kernels, and are unpacked in an area of their own.
    pub is_packed: bool,
}

impl CacheSizes {
    /// Returns the bytes on the device; 0 without a slot.
    pub(crate) fn bytes(&self) -> u64 {
        if self.slots == 0 { 0 } else { self.slots as u64 * self.slot_bytes + self.bytes_beside() }
    }

    /// Returns the bytes apart from the slots: the table, the counts, and the area for an expert on its way.
    fn bytes_beside(&self) -> u64 {
        2 * self.table_bytes() + if self.is_packed { self.slot_bytes } else { 0 }
    }

    /// Returns the bytes of one number per expert, and one more.
    fn table_bytes(&self) -> u64 {
        aligned(4 * (self.experts as u64 + 1))
    }

    /// Returns the same cache with as many slots as fit in `bytes`.
    pub(crate) fn within(self, bytes: u64) -> Self {
        let slots = bytes.saturating_sub(self.bytes_beside()) / self.slot_bytes.max(1);
        Self { slots: self.experts.min(usize::try_from(slots).unwrap_or(usize::MAX)), ..self }
    }
}

impl fmt::Display for CacheSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cache of {} of their {} experts takes {}", self.slots, self.experts, readable(self.bytes()))
    }
}

/// Memory of the cache, and the layers whose experts it may hold.
pub(crate) struct CacheMemory {
    sizes: CacheSizes,
    /// All slots.
    region: DeviceBuffer,
    /// The area for an expert on its way; empty if it needs none.
    landing: DeviceBuffer,
    /// A u32 for each expert.
    slots: DeviceBuffer,
    /// The number of hits, and the uses of each expert.
    counts: DeviceBuffer,
    layers: Vec<CachedLayer>,
    /// Experts of the layers so far.
    experts: usize,
}

struct CachedLayer {
    /// The number of its first expert.
    first: usize,
    parts: Vec<Part>,
}

/// A matrix of all experts of a layer.
struct Part {
    /// Experts in the host's memory, and the bytes of each.
    tiles: DeviceBuffer,
    stored_bytes: u64,
    packed: Option<Arc<Packed>>,
    /// Its place in a slot.
    at: u64,
}

impl CacheMemory {
    /// `memory` has `sizes.bytes()`.
    pub(crate) fn new(memory: &DeviceBuffer, sizes: CacheSizes) -> Result<Self> {
        let (table, region) = (sizes.table_bytes(), sizes.slots as u64 * sizes.slot_bytes);
        let rest = region + 2 * table;
        Ok(Self {
            sizes,
            region: memory.part(0, region)?,
            slots: memory.part(region, table)?,
            counts: memory.part(region + table, table)?,
            landing: memory.part(rest, sizes.bytes() - rest)?,
            layers: Vec::new(),
            experts: 0,
        })
    }

    /// Adds the matrices of a layer's experts, which lie in the host's memory. Returns what counts their uses.
    pub(crate) fn add<'a>(&mut self, num: usize, matrices: impl Iterator<Item = &'a mut ExpertMatrix>) -> Result<Uses> {
        let (start, bytes) = (4 * self.experts as u64, 4 * num as u64);
        let (slots, mut at, mut parts) = (self.slots.part(start, bytes)?, 0, Vec::new());
        for matrix in matrices {
            let (expert_bytes, slot_bytes) = (matrix.expert_bytes(), self.sizes.slot_bytes);
            let (stored_bytes, packed) = (matrix.stored_bytes(), matrix.packed.clone());
            if at + expert_bytes > slot_bytes {
                return Err(Error::internal(format!("an expert of more than a slot's {slot_bytes} bytes")));
            }
            let tiles = self.region.part(at, self.region.bytes() - at)?;
            matrix.cached = Some(Cached { slots: slots.clone(), tiles, slot_bytes, is_alone: packed.is_some() });
            parts.push(Part { tiles: matrix.tiles.clone(), stored_bytes, packed, at });
            at += aligned(expert_bytes);
        }
        self.layers.push(CachedLayer { first: self.experts, parts });
        self.experts += num;
        Ok(Uses { counts: self.counts.part(4 + start, bytes)?, hits: self.counts.part(0, 4)?, slots })
    }

    /// Yields the matrices of an expert, each with its number in its layer.
    fn parts_of(&self, expert: usize) -> Result<impl Iterator<Item = (&Part, usize)>> {
        let layer = self.layers.partition_point(|layer| layer.first <= expert);
        let layer = layer.checked_sub(1).map(|index| &self.layers[index]);
        let layer = layer.ok_or_else(|| Error::internal(format!("expert {expert} of no layer")))?;
        Ok(layer.parts.iter().map(move |part| (part, expert - layer.first)))
    }

    /// Returns the memory of a slot, from a place in it on.
    fn slot(&self, slot: usize, at: u64) -> Result<DeviceBuffer> {
        let bytes = self.sizes.slot_bytes;
        self.region.part(slot as u64 * bytes + at, bytes - at)
    }
}

/// The cache of a backend.
pub(crate) struct ExpertCache {
    /// First: its drop waits for copies. `None` if copies are on the step's stream.
    arrivals: Option<Arrivals>,
    memory: CacheMemory,
    hot: Hot,
    /// Copies a table to the device.
    copy_step: Function,
    /// The table without the experts that leave, and the one after the copies.
    tables: [MappedBuffer; 2],
    counts: HostBuffer,
    /// Recorded after the last use of these.
    passed: Event,
    /// The counts that were looked at last.
    seen: Vec<u32>,
    steps: u32,
    uses: ExpertCacheUse,
}

impl ExpertCache {
    /// Creates an empty cache, with its first work on the steps' stream. `unpacker` is for packed experts.
    pub(crate) fn new(
        kernels: &Kernels,
        stream: &Stream,
        memory: CacheMemory,
        unpacker: Option<Arc<Unpacker>>,
    ) -> Result<Self> {
        let (device, experts) = (stream.device(), memory.experts);
        // `copy_step` reads pairs of words.
        let table = || MappedBuffer::new(device, COPY_HEADER + 4 * experts.next_multiple_of(2));
        // SAFETY: kernels that use the memory come after, on the same stream.
        unsafe {
            stream.fill(memory.slots.slice(), NOT_CACHED as u8)?;
            stream.fill(memory.counts.slice(), 0)?;
        }
        Ok(Self {
            arrivals: match (memory.sizes.is_packed, unpacker) {
                (false, _) => None,
                (true, Some(unpacker)) => Some(Arrivals::new(device, unpacker)?),
                (true, None) => return Err(Error::internal("a cache of packed experts without an unpacker")),
            },
            hot: Hot::new(experts, memory.sizes.slots),
            copy_step: kernels.function(&COPY_STEP.id(ONCE))?,
            tables: [table()?, table()?],
            counts: HostBuffer::new(device, 4 * (experts + 1))?,
            passed: Event::new(device)?,
            seen: vec![0; experts + 1],
            steps: 0,
            uses: ExpertCacheUse::default(),
            memory,
        })
    }

    pub(crate) fn uses(&self) -> ExpertCacheUse {
        self.uses
    }

    /// Looks at the counts and queues copies every few steps. Call it before a step that is not captured.
    pub(crate) fn step(&mut self, stream: &Stream) -> Result<()> {
        self.steps += 1;
        if let Some(arrivals) = self.arrivals.as_mut().filter(|arrivals| arrivals.are_expected()) {
            let Some(changes) = arrivals.arrived()? else { return Ok(()) };
            // The next round begins as many steps later, so it does not wait for this store.
            self.steps = 0;
            self.fill(stream, &changes)?;
            return self.passed.record(stream);
        }
        if self.steps < ROUND_STEPS {
            return Ok(());
        }
        self.steps = 0;
        self.passed.synchronize()?;
        self.look();
        let changes = self.hot.choose(self.memory.sizes.most);
        // SAFETY: the host looks at the counts after `passed`, or after the stream was waited for.
        unsafe { stream.copy_to_host(self.counts.as_mut_slice(), self.memory.counts.slice())? };
        if !changes.is_empty()
            && let Err(error) = self.copy(stream, changes.clone())
        {
            changes.iter().for_each(|change| self.hot.empty(change.slot));
            return Err(error);
        }
        self.passed.record(stream)
    }

    /// Takes the counts of the last round.
    fn look(&mut self) {
        let counts = self.counts.as_slice().as_chunks().0.iter().map(|&count| u32::from_ne_bytes(count));
        let since = counts.zip(&mut self.seen).map(|(new, seen)| new.wrapping_sub(std::mem::replace(seen, new)));
        let since: Vec<u32> = since.collect();
        if let [hits, uses @ ..] = &since[..] {
            let all: u64 = uses.iter().copied().map(u64::from).sum();
            self.uses.hits += u64::from(*hits);
            self.uses.misses += all.saturating_sub(u64::from(*hits));
            self.hot.count(uses.iter().copied());
        }
    }

    /// Queues the copies of experts into their slots, behind a table without those that leave.
    fn copy(&mut self, stream: &Stream, changes: Vec<Change>) -> Result<()> {
        changes.iter().for_each(|change| self.hot.empty(change.slot));
        self.store(stream, 0)?;
        if let Some(arrivals) = &mut self.arrivals {
            self.uses.copied_bytes += arrivals.copy(stream, &self.memory, changes)?;
            return Ok(());
        }
        for &Change { slot, expert } in &changes {
            for (&Part { ref tiles, stored_bytes, at, .. }, number) in self.memory.parts_of(expert)? {
                let from = tiles.part(number as u64 * stored_bytes, stored_bytes)?;
                let to = self.memory.slot(slot, at)?;
                // SAFETY: weights do not change. No table names the slots that are written, and earlier kernels have
                // read them.
                unsafe { stream.copy_to_device(to.slice(), from.host_bytes()?)? };
                self.uses.copied_bytes += stored_bytes;
            }
        }
        self.fill(stream, &changes)
    }

    /// Stores a table with experts that have arrived.
    fn fill(&mut self, stream: &Stream, changes: &[Change]) -> Result<()> {
        changes.iter().for_each(|&change| self.hot.fill(change));
        self.store(stream, 1)
    }

    /// Stores the present table, through one of the host's.
    fn store(&mut self, stream: &Stream, table: usize) -> Result<()> {
        let (host, out, places) = (&mut self.tables[table], self.memory.slots.slice(), self.hot.places());
        for (entry, place) in counted(host.as_mut_slice(), places.len()).iter_mut().zip(places) {
            *entry = place.map_or(NOT_CACHED, |slot| slot as u32).to_ne_bytes();
        }
        // SAFETY: the host writes this memory again only after `passed`, or after the stream was waited for. The table
        // has room for whole pairs of words, and names no slot of an expert that has not arrived.
        unsafe { launch_copy(stream, &self.copy_step, host.slice(), out, 0, TokenIds { count: 0, chosen: out }) }
    }
}
