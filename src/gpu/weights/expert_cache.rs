//! Copies of the most used experts on the device, for experts that lie in the host's memory.
//!
//! A slot of the cache holds all matrices of one expert. A table on the device has the slot of each expert, so kernels
//! and captured graphs stay the same: they read an expert's tiles from its slot, if it has one. `choose_experts` counts
//! the uses of each expert on the device.
//!
//! Every few steps, the host reads counts that it copied a round earlier. Between two steps, it queues copies of
//! experts on the stream of the steps. A second stream would gain nothing: the bus limits decode steps, and both would
//! share it. A round copies no more than a token reads.
//!
//! The table never names a slot that is being written. It is stored without the experts that leave, and stored again
//! after the copies. So a failed call leaves a valid table.

mod hot;

use std::fmt;

use hot::{Change, Hot};

use crate::backend::ExpertCacheUse;
use crate::buffer::ExpertMatrix;
use crate::buffer::expert_copies::Cached;
use crate::device::arena::aligned;
use crate::error::readable;
use crate::launch::args::NOT_CACHED;
use crate::{Device, DeviceBuffer, Event, HostBuffer, Stream};
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
}

impl CacheSizes {
    /// Returns the bytes on the device; 0 without a slot.
    pub(crate) fn bytes(&self) -> u64 {
        if self.slots == 0 { 0 } else { self.slots as u64 * self.slot_bytes + 2 * self.table_bytes() }
    }

    /// Returns the bytes of one number per expert.
    fn table_bytes(&self) -> u64 {
        aligned(4 * self.experts as u64)
    }

    /// Returns the same cache with as many slots as fit in `bytes`.
    pub(crate) fn within(self, bytes: u64) -> Self {
        let slots = bytes.saturating_sub(2 * self.table_bytes()) / self.slot_bytes.max(1);
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
    /// The next two have a u32 for each expert.
    slots: DeviceBuffer,
    uses: DeviceBuffer,
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
    tiles: DeviceBuffer,
    expert_bytes: u64,
    /// Its place in a slot.
    at: u64,
}

impl CacheMemory {
    /// `memory` has `sizes.bytes()`.
    pub(crate) fn new(memory: &DeviceBuffer, sizes: CacheSizes) -> Result<Self> {
        let (table, region) = (sizes.table_bytes(), sizes.slots as u64 * sizes.slot_bytes);
        Ok(Self {
            sizes,
            region: memory.part(0, region)?,
            slots: memory.part(region, table)?,
            uses: memory.part(region + table, table)?,
            layers: Vec::new(),
            experts: 0,
        })
    }

    /// Adds the matrices of a layer's experts, which lie in the host's memory. Returns the memory of their counts.
    pub(crate) fn add<'a>(
        &mut self,
        num: usize,
        matrices: impl Iterator<Item = &'a mut ExpertMatrix>,
    ) -> Result<DeviceBuffer> {
        let (start, bytes) = (4 * self.experts as u64, 4 * num as u64);
        let (slots, mut at, mut parts) = (self.slots.part(start, bytes)?, 0, Vec::new());
        for matrix in matrices {
            let (expert_bytes, slot_bytes) = (matrix.expert_bytes(), self.sizes.slot_bytes);
            if at + expert_bytes > slot_bytes {
                return Err(Error::internal(format!("an expert of more than a slot's {slot_bytes} bytes")));
            }
            let tiles = self.region.part(at, self.region.bytes() - at)?;
            matrix.cached = Some(Cached { slots: slots.clone(), tiles, slot_bytes });
            parts.push(Part { tiles: matrix.tiles.clone(), expert_bytes, at });
            at += aligned(expert_bytes);
        }
        self.layers.push(CachedLayer { first: self.experts, parts });
        self.experts += num;
        self.uses.part(start, bytes)
    }
}

/// The cache of a backend.
pub(crate) struct ExpertCache {
    memory: CacheMemory,
    hot: Hot,
    /// Page-locked: the counts, the table without the experts that leave, and the table after the copies.
    host: HostBuffer,
    /// Recorded after the last use of `host`.
    passed: Event,
    /// The counts that were looked at last.
    counts: Vec<u32>,
    /// The experts that had a slot while the next counts came.
    cached: Vec<bool>,
    steps: u32,
    uses: ExpertCacheUse,
}

impl ExpertCache {
    /// Creates an empty cache, with its first work on the steps' stream.
    pub(crate) fn new(device: &Device, stream: &Stream, memory: CacheMemory) -> Result<Self> {
        let experts = memory.experts;
        // SAFETY: kernels that use the memory come after, on the same stream.
        unsafe {
            stream.fill(memory.slots.slice(), NOT_CACHED as u8)?;
            stream.fill(memory.uses.slice(), 0)?;
        }
        Ok(Self {
            hot: Hot::new(experts, memory.sizes.slots),
            host: HostBuffer::new(device, 3 * 4 * experts)?,
            passed: Event::new(device)?,
            counts: vec![0; experts],
            cached: vec![false; experts],
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
        if self.steps < ROUND_STEPS {
            return Ok(());
        }
        self.steps = 0;
        self.passed.synchronize()?;
        self.look();
        let changes = self.hot.choose(self.memory.sizes.most);
        // Counts from here to the next round belong to the new table. Those that are copied now belong to the last one.
        self.hot.places().iter().zip(&mut self.cached).for_each(|(place, cached)| *cached = place.is_some());
        let [counts, _, _] = parts(&mut self.host);
        // SAFETY: the host looks at the counts after `passed`, or after the stream was waited for.
        unsafe { stream.copy_to_host(counts, self.memory.uses.slice())? };
        if !changes.is_empty()
            && let Err(error) = self.copy(stream, &changes)
        {
            changes.iter().for_each(|change| self.hot.empty(change.slot));
            return Err(error);
        }
        self.passed.record(stream)
    }

    /// Takes the counts of the last round.
    fn look(&mut self) {
        let [counts, ..] = parts(&mut self.host);
        let mut uses = Vec::with_capacity(self.counts.len());
        for ((new, count), &cached) in counts.as_chunks().0.iter().zip(&mut self.counts).zip(&self.cached) {
            let new = u32::from_ne_bytes(*new);
            let since = new.wrapping_sub(std::mem::replace(count, new));
            let sum = if cached { &mut self.uses.hits } else { &mut self.uses.misses };
            *sum += u64::from(since);
            uses.push(since);
        }
        self.hot.count(uses.into_iter());
    }

    /// Queues the copies of experts into their slots, between two tables.
    fn copy(&mut self, stream: &Stream, changes: &[Change]) -> Result<()> {
        let [_, without, with] = parts(&mut self.host);
        changes.iter().for_each(|change| self.hot.empty(change.slot));
        store(without, self.hot.places());
        // SAFETY: the host writes this memory again only after `passed`, or after the stream was waited
        // for. Weights do not change. No table names the slots that are written, and earlier kernels have read them.
        unsafe { stream.copy_to_device(self.memory.slots.slice(), without)? };
        for &Change { slot, expert } in changes {
            let layer = self.memory.layers.partition_point(|layer| layer.first <= expert);
            let layer = layer.checked_sub(1).map(|index| &self.memory.layers[index]);
            let layer = layer.ok_or_else(|| Error::internal(format!("expert {expert} of no layer")))?;
            for &Part { ref tiles, expert_bytes, at } in &layer.parts {
                let from = tiles.part((expert - layer.first) as u64 * expert_bytes, expert_bytes)?;
                let to = self.memory.region.slice().after(slot as u64 * self.memory.sizes.slot_bytes + at)?;
                // SAFETY: see above.
                unsafe { stream.copy_to_device(to, from.host_bytes()?)? };
                self.uses.copied_bytes += expert_bytes;
            }
        }
        changes.iter().for_each(|&change| self.hot.fill(change));
        store(with, self.hot.places());
        // SAFETY: see above.
        unsafe { stream.copy_to_device(self.memory.slots.slice(), with) }
    }
}

/// Returns the thirds of the memory.
fn parts(host: &mut HostBuffer) -> [&mut [u8]; 3] {
    let bytes = host.as_slice().len() / 3;
    let (first, rest) = host.as_mut_slice().split_at_mut(bytes);
    let (second, third) = rest.split_at_mut(bytes);
    [first, second, third]
}

/// Writes the table that kernels read.
fn store(table: &mut [u8], places: &[Option<usize>]) {
    for (entry, place) in table.as_chunks_mut().0.iter_mut().zip(places) {
        *entry = place.map_or(NOT_CACHED, |slot| slot as u32).to_ne_bytes();
    }
}
