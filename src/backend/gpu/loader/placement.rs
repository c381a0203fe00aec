//! The places of weights on a GPU: what each upload takes, the room that the device has, and the host's memory for the
//! rest. `backend::placement` has the plan.

use super::budget::{most_cols, upload_bytes};
use super::matrix_library::LIBRARY_BYTES;
use super::{GpuLoader, experts};
use crate::backend::gpu::DeviceBuffer;
use crate::backend::gpu::arena::Arena;
use crate::backend::gpu::stacks::Layout;
use crate::backend::gpu::vendor;
use crate::backend::{ByHand, Place, Placement, Reserve, Role, Upload, Weight};
use crate::config::ComputeDtype;
use crate::{Error, Result};

/// Returns an upload as the plan sees it. Only tiles move: norms, biases and routers are small and read by every token.
fn weight(upload: &Upload<'_>, role: Role) -> Weight {
    let total = upload_bytes(upload);
    let (bytes, row_bytes) = match upload {
        Upload::Matrix(parts) => {
            let (bytes, rows) = (Layout::of(parts).bytes, parts.iter().map(|part| part.weight.rows).sum::<usize>());
            (bytes, bytes / rows.max(1) as u64)
        }
        Upload::Experts(tensors) => (experts::tiles_bytes(tensors), 0),
        Upload::Heads(..) | Upload::Vector(_) | Upload::Constant(_) | Upload::Taps(_) | Upload::Rope(_) => (0, 0),
    };
    let reads = match (role, upload) {
        (Role::Fixed, _) => return Weight { role, bytes: 0, reads: 0, fixed: total },
        (Role::Table, _) => row_bytes,
        (_, Upload::Experts(tensors)) => bytes / tensors.spec.num.max(1) as u64 * tensors.spec.used as u64,
        _ => bytes,
    };
    Weight { role, bytes, reads, fixed: total - bytes }
}

impl GpuLoader {
    /// Places the weights, if they do not all fit on the device or the user chose layers by hand.
    ///
    /// # Errors
    /// `OutOfMemory` if the device has too little room beside all weights that may move, or the host has too little for
    /// these. `InvalidRequest` for products that need copies of all weights on the device.
    pub(super) fn place_weights(&mut self, uploads: &[Upload<'_>], roles: &[Role], reserve: Reserve) -> Result<()> {
        let Reserve { least, wanted } = reserve;
        let by_hand = ByHand { gpu_layers: self.options.layers, cpu_experts: self.options.cpu_experts };
        let (free, workspace) = (self.available()?, self.workspace_bytes(most_cols(uploads)));
        let room = free.saturating_sub(workspace);
        let total: u64 = uploads.iter().map(upload_bytes).sum();
        if by_hand.is_empty() && total.saturating_add(least) <= room {
            return Ok(());
        }
        // The matrix library reads each weight once for a prompt, and our own kernels read it for every few rows.
        let library = match vendor::wanted(&self.options, self.device.properties(), &self.tuning) {
            Ok(_) => LIBRARY_BYTES,
            Err(_) => 0,
        };
        let weights = uploads.iter().zip(roles).map(|(upload, &role)| weight(upload, role)).collect();
        let placement = Placement::new(weights, room.saturating_sub(wanted.saturating_add(library)), by_hand);
        let (on_device, on_host) = (placement.device_bytes(), placement.host_bytes());
        let needed = on_device.saturating_add(least);
        if on_host == 0 || needed > room {
            // If moving weights does not help, the load is refused as on a device without a host. But if the weights
            // alone are too large, the error is about those that must stay.
            return match total > room && (on_host > 0 || !by_hand.is_empty()) {
                true => Err(self.no_room_beside(needed.saturating_add(workspace), free, by_hand)),
                false => Ok(()),
            };
        }
        if self.options.compute_dtype == ComputeDtype::Fp8 {
            let expected = "'auto' if weights lie in the host's memory: 8-bit copies need all weights on the device";
            return Err(Error::invalid("compute_dtype", self.options.compute_dtype.name(), expected));
        }
        let available = self.device.host_room(needed);
        if on_host > available {
            return Err(Error::OutOfMemory {
                what: format!(
                    "the part of the model beyond {}, in the host's page-locked memory,",
                    self.device.label()
                ),
                requested: on_host,
                available,
                advice: "use a smaller model, or a machine with more memory",
            });
        }
        self.library_reserve = library.min(room - needed);
        let device = self.device.label();
        tracing::info!("{device}: {}", placement.summary());
        placement.to_string().lines().for_each(|line| tracing::info!("{line}"));
        self.placement = Some(placement);
        Ok(())
    }

    /// Returns the error for a device that does not hold what must lie on it.
    fn no_room_beside(&self, requested: u64, available: u64, by_hand: ByHand) -> Error {
        Error::OutOfMemory {
            what: format!("what must lie on {}: activations, the KV cache and some weights", self.device.label()),
            requested,
            available,
            advice: match by_hand.is_empty() {
                true => "lower max_model_len, max_num_batched_tokens or kv_cache_memory, or use a smaller model",
                false => "lower gpu_layers, raise cpu_experts, or leave both out",
            },
        }
    }

    /// Returns the bytes of weights that do not lie on the device.
    pub(super) fn host_bytes(&self) -> u64 {
        self.placement.as_ref().map_or(0, Placement::host_bytes)
    }

    /// Allocates the host's memory of all uploads that lie there, before the first one.
    pub(super) fn reserve_on_host(&mut self, uploads: &[Upload<'_>]) -> Result<()> {
        let Some(placement) = &self.placement else { return Ok(()) };
        for (upload, (place, bytes)) in uploads.iter().zip(placement.places()) {
            match (upload, place) {
                (Upload::Matrix(_) | Upload::Experts(_), Place::Device) => self.on_host.push_back(Arena::default()),
                (_, Place::Device) => {}
                (_, Place::Host) => {
                    let memory = DeviceBuffer::on_host(&self.device, bytes)?;
                    self.allocations.push(memory.clone());
                    self.on_host.push_back(Arena::new(memory));
                }
            }
        }
        Ok(())
    }

    /// Returns the host's memory for the tiles of the next upload of a matrix or of experts; empty if they lie on the
    /// device.
    pub(super) fn next_on_host(&mut self) -> Arena {
        self.on_host.pop_front().unwrap_or_default()
    }

    /// Takes room for tiles from the host's memory of their upload, else from the device.
    pub(super) fn tiles(&mut self, on_host: &mut Arena, bytes: u64) -> Result<DeviceBuffer> {
        let Some(memory) = on_host.take(bytes) else { return self.weights(bytes) };
        self.ledger.host_weights += bytes;
        Ok(memory)
    }
}
