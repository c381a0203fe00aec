//! Memory of the host for weights, and the buffers on the device for copies of them.

use super::{GpuLoader, WEIGHTS_ADVICE};
use crate::DeviceBuffer;
use crate::Result;
use crate::backend::{Place, Placement, Role, Upload};
use crate::buffer::Staged;
use crate::device::arena::Arena;
use crate::weights::expert_cache::CacheMemory;
use crate::weights::staging::BUFFERS;

/// The host's memory for the tiles of one upload; empty if they lie on the device.
#[derive(Default)]
pub(super) struct OnHost {
    memory: Arena,
    /// True if steps of many rows copy the weights.
    is_staged: bool,
}

/// True if steps of many rows read the whole weight with all of their rows.
pub(super) fn is_staged(role: Role) -> bool {
    matches!(role, Role::Experts { .. } | Role::Layer { .. })
}

impl OnHost {
    /// Takes room for tiles; `None` if they do not lie on the host.
    pub(super) fn take(&mut self, bytes: u64) -> Option<DeviceBuffer> {
        self.memory.take(bytes)
    }

    /// True if the tiles lie in the host's memory.
    pub(super) fn is_there(&self) -> bool {
        self.memory.bytes() > 0
    }
}

impl GpuLoader {
    /// Returns the bytes of weights that do not lie on the device.
    pub(super) fn host_bytes(&self) -> u64 {
        self.placement.as_ref().map_or(0, Placement::host_bytes)
    }

    /// Allocates the host's memory of all uploads that lie there, before the first one.
    pub(super) fn reserve_on_host(&mut self, uploads: &[Upload<'_>]) -> Result<()> {
        let Some(placement) = &self.placement else { return Ok(()) };
        for (upload, (place, weight)) in uploads.iter().zip(placement.places()) {
            match (upload, place) {
                (Upload::Matrix(_) | Upload::Experts(_), Place::Device) => self.on_host.push_back(OnHost::default()),
                (_, Place::Device) => {}
                (_, Place::Host) => {
                    let memory = DeviceBuffer::on_host(&self.device, self.bytes_on_host(upload, weight.bytes)?)?;
                    self.allocations.push(memory.clone());
                    self.on_host.push_back(OnHost { memory: Arena::new(memory), is_staged: is_staged(weight.role) });
                }
            }
        }
        Ok(())
    }

    /// Allocates the buffers for copies of weights that steps of many rows use.
    pub(super) fn reserve_staging(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.staging_buffer);
        let buffers = if bytes > 0 { BUFFERS } else { 0 };
        for _ in 0..buffers {
            let buffer = self.allocate(bytes, "copies of weights in host memory", WEIGHTS_ADVICE)?;
            self.staged.buffers.push(buffer);
            self.ledger.scratch += bytes;
        }
        self.reserve_unpacking()
    }

    /// Allocates the cache of experts.
    pub(super) fn reserve_cache(&mut self) -> Result<()> {
        let sizes = std::mem::take(&mut self.cache_sizes);
        if sizes.slots > 0 {
            let memory = self.allocate(sizes.bytes(), "the cache of experts", "lower expert_cache")?;
            self.ledger.scratch += sizes.bytes();
            self.cache_memory = Some(CacheMemory::new(&memory, sizes)?);
        }
        Ok(())
    }

    /// Returns the bytes of staging buffers that are not allocated yet.
    pub(super) fn staging_bytes(&self) -> u64 {
        self.staging_buffer * BUFFERS as u64 + self.cpu.unpacking_bytes
    }

    /// Returns the host's memory for the tiles of the next upload of a matrix or of experts; empty if they lie on the
    /// device.
    pub(super) fn next_on_host(&mut self) -> OnHost {
        self.on_host.pop_front().unwrap_or_default()
    }

    /// Takes room for tiles from the host's memory of their upload, else from the device. Returns it with its number
    /// among the weights that are copied in steps of many rows.
    pub(super) fn tiles(&mut self, on_host: &mut OnHost, bytes: u64) -> Result<(DeviceBuffer, Option<Staged>)> {
        let Some(memory) = on_host.take(bytes) else { return Ok((self.weights(bytes)?, None)) };
        self.ledger.host_weights += bytes;
        let staged = if on_host.is_staged { self.staged.add(&memory) } else { None };
        Ok((memory, staged))
    }
}
