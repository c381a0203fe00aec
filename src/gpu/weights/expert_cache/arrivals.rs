//! Copies of experts into their slots beside the steps, from the layout of the CPU's kernels.

use std::sync::Arc;

use super::CacheMemory;
use super::hot::Change;
use crate::weights::unpack::Unpacker;
use crate::{Device, Event, Stream};
use crate::{Error, Result};

/// The copies of one round. Those of the next one begin after they have arrived.
pub(crate) struct Arrivals {
    /// Kernels unpack an expert in its area. This stream alone writes slots, so copies of failed rounds come first.
    copies: Stream,
    unpacker: Arc<Unpacker>,
    /// Recorded on the step's stream once no later kernel reads the slots.
    left: Event,
    arrived: Event,
    expected: Vec<Change>,
}

impl Arrivals {
    pub(crate) fn new(device: &Device, unpacker: Arc<Unpacker>) -> Result<Self> {
        let [left, arrived] = [Event::new(device)?, Event::new(device)?];
        Ok(Self { copies: Stream::new(device)?, unpacker, left, arrived, expected: Vec::new() })
    }

    /// True if there are copies that have not been taken as arrived.
    pub(crate) fn are_expected(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Returns the changes, once all have arrived.
    pub(crate) fn arrived(&mut self) -> Result<Option<Vec<Change>>> {
        Ok(self.arrived.has_passed()?.then(|| std::mem::take(&mut self.expected)))
    }

    /// Queues the copies. The step's stream has a table without these slots. Returns the bytes.
    pub(crate) fn copy(&mut self, stream: &Stream, memory: &CacheMemory, changes: Vec<Change>) -> Result<u64> {
        self.left.record(stream)?;
        self.copies.wait_for(&self.left)?;
        let mut bytes = 0;
        for &Change { slot, expert } in &changes {
            for (part, number) in memory.parts_of(expert)? {
                let packed = part.packed.as_ref().ok_or_else(|| Error::internal("an expert that is not packed"))?;
                let out = memory.landing.slice().after(part.at)?;
                // SAFETY: weights do not change, and only this stream and the unpacker's use the area. All memory lives
                // until this stream was waited for.
                unsafe { self.unpacker.copy(&self.copies, packed, &part.tiles, number..number + 1, out)? };
                bytes += part.stored_bytes;
            }
            // SAFETY: as above; the table names the slot again after `arrived`.
            unsafe { self.copies.copy_on_device(memory.slot(slot, 0)?.slice(), memory.landing.slice())? };
        }
        self.arrived.record(&self.copies)?;
        self.expected = changes;
        Ok(bytes)
    }
}
