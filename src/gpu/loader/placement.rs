//! The places of weights on a GPU: what each upload takes, and the room that the device has. `backend::placement` has
//! the plan.

use super::budget::{most_cols, upload_bytes};
use super::host_experts::{CpuSettings, unpacking_bytes};
use super::matrix_library::LIBRARY_BYTES;
use super::on_host::is_staged;
use super::{GpuLoader, experts};
use crate::backend::{ByHand, Place, Placement, Reserve, Role, Upload, Weight};
use crate::config::ComputeDtype;
use crate::error::readable;
use crate::vendor;
use crate::weights::expert_cache::CacheSizes;
use crate::weights::stacks::Layout;
use crate::weights::staging::BUFFERS;
use crate::{Error, Result};

/// The most of the room that staging buffers take: a quarter.
const STAGING_SHARE: u64 = 4;

/// Returns an upload as the plan sees it. Only tiles move: norms, biases and routers are small and read by every token.
fn weight(upload: &Upload<'_>, role: Role) -> Result<Weight> {
    let total = upload_bytes(upload)?;
    let (bytes, row_bytes) = match upload {
        Upload::Matrix(parts) => {
            let (bytes, rows) = (Layout::of(parts)?.bytes, parts.iter().map(|part| part.weight.rows).sum::<usize>());
            (bytes, bytes / rows.max(1) as u64)
        }
        Upload::Experts(tensors) => (experts::tiles_bytes(tensors)?, 0),
        Upload::Heads(..) | Upload::Vector(_) | Upload::Constant(_) | Upload::Taps(_) | Upload::Rope(_) => (0, 0),
    };
    let reads = match (role, upload) {
        (Role::Fixed, _) => return Ok(Weight { role, bytes: 0, reads: 0, fixed: total }),
        (Role::Table, _) => row_bytes,
        (_, Upload::Experts(tensors)) => bytes / tensors.spec.num.max(1) as u64 * tensors.spec.used as u64,
        _ => bytes,
    };
    Ok(Weight { role, bytes, reads, fixed: total - bytes })
}

/// Returns the bytes of a staging buffer; 0 without one. It holds the largest weight on the host for which all buffers
/// together take at most a quarter of the room.
fn staging_buffer(uploads: &[Upload<'_>], placement: &Placement, room: u64) -> Result<u64> {
    let mut largest = 0;
    for (upload, (place, weight)) in uploads.iter().zip(placement.places()) {
        let bytes = match (place, upload) {
            (Place::Host, Upload::Experts(tensors)) => experts::largest_matrix_bytes(tensors)?,
            (Place::Host, Upload::Matrix(_)) if is_staged(weight.role) => weight.bytes,
            _ => 0,
        };
        if bytes.saturating_mul(BUFFERS as u64) <= room / STAGING_SHARE {
            largest = largest.max(bytes);
        }
    }
    Ok(largest)
}

/// Returns the sizes of a cache without slots, for the experts among the uploads whose index `is_meant`. `is_packed`:
/// they are unpacked on their way.
fn cache_sizes(uploads: &[Upload<'_>], is_packed: bool, is_meant: impl Fn(usize) -> bool) -> Result<CacheSizes> {
    let mut sizes = CacheSizes { is_packed, ..CacheSizes::default() };
    for (index, upload) in uploads.iter().enumerate() {
        if let Upload::Experts(tensors) = upload
            && is_meant(index)
        {
            sizes.slot_bytes = sizes.slot_bytes.max(experts::slot_bytes(tensors)?);
            sizes.experts += tensors.spec.num;
        }
    }
    Ok(sizes)
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
        let total = uploads.iter().map(upload_bytes).sum::<Result<u64>>()?;
        if by_hand.is_empty() && total.saturating_add(least) <= room {
            return Ok(());
        }
        // The matrix library reads each weight once for a prompt, and our own kernels read it for every few rows.
        let library = match vendor::wanted(&self.options, self.device.properties(), &self.tuning) {
            Ok(_) => LIBRARY_BYTES,
            Err(_) => 0,
        };
        let weights: Vec<Weight> =
            uploads.iter().zip(roles).map(|(upload, &role)| weight(upload, role)).collect::<Result<_>>()?;
        let on_cpu = self.cpu.settings.is_some();
        let cache = cache_sizes(uploads, on_cpu, |_| true)?;
        let unpacking = if on_cpu { unpacking_bytes(uploads)? } else { 0 };
        let asked = cache.within(self.options.expert_cache.unwrap_or(0)).bytes();
        let beside = wanted.saturating_add(library).saturating_add(asked);
        let place = |staging: u64| {
            let placement =
                Placement::new(weights.clone(), room.saturating_sub(beside.saturating_add(staging)), by_hand);
            let needed = placement.device_bytes().saturating_add(least).saturating_add(staging);
            (placement, needed)
        };
        let (mut placement, mut needed) = place(0);
        // Staging buffers take the room of weights, so they are given up if what must lie on the device needs it.
        let buffer = staging_buffer(uploads, &placement, room)?;
        let (staged, needed_with) = place(buffer * BUFFERS as u64 + unpacking);
        if buffer > 0 && needed_with <= room {
            (placement, needed, self.staging_buffer, self.cpu.unpacking_bytes) =
                (staged, needed_with, buffer, unpacking);
        }
        let places: Vec<_> = placement.places().map(|(place, _)| place).collect();
        let mut on_host = self.exchange_bytes(uploads, &places)?;
        for (upload, (_, weight)) in
            uploads.iter().zip(placement.places()).filter(|(_, (place, _))| *place == Place::Host)
        {
            on_host += self.bytes_on_host(upload, weight.bytes)?;
        }
        if on_host == 0 || needed > room {
            // If moving weights does not help, the load is refused as on a device without a host. But if the weights
            // alone are too large, the error is about those that must stay.
            return match total > room && (on_host > 0 || !by_hand.is_empty()) {
                true => Err(self.no_room_beside(needed.saturating_add(workspace), free, by_hand)),
                false => Ok(()),
            };
        }
        if self.options.compute_dtype == ComputeDtype::Fp8 {
            let expected = "'auto' if weights are in host memory, since FP8 needs all weights on the device";
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
                advice: "use a smaller model, a lower max_num_batched_tokens, or a machine with more memory",
            });
        }
        // A size that the user sets may shrink the KV cache to the least. Otherwise the cache takes half of what the
        // wanted KV cache leaves.
        let bytes = match self.options.expert_cache {
            Some(bytes) => bytes.min(room - needed),
            None => (room - needed + least).saturating_sub(beside) / 2,
        };
        // Without staging buffers, only the cache needs room to unpack experts.
        let unpacking = if self.cpu.unpacking_bytes == 0 { unpacking } else { 0 };
        let sizes = cache_sizes(uploads, on_cpu, |index| places[index] == Place::Host)?;
        let most = (placement.host_reads() / sizes.slot_bytes.max(1)).max(1) as usize;
        self.cache_sizes = CacheSizes { most, ..sizes }.within(bytes.saturating_sub(unpacking));
        if self.cache_sizes.slots > 0 {
            self.cpu.unpacking_bytes += unpacking;
            needed += unpacking;
        }
        self.library_reserve = library.min(room - needed - self.cache_sizes.bytes());
        self.start_cpu(uploads, &placement)?;
        let device = self.device.label();
        let mut summary = placement.summary();
        if self.staging_buffer > 0 {
            summary += &format!(
                "; long steps read copies of these weights, through {BUFFERS} buffers of {}",
                readable(self.staging_buffer)
            );
        }
        if self.cache_sizes.slots > 0 {
            summary += &format!("; {}", self.cache_sizes);
        }
        if let Some(CpuSettings { num_threads, .. }) = self.cpu.settings.filter(|_| self.cpu.host.is_some()) {
            summary += &format!("; {num_threads} CPU threads compute the experts among them");
        }
        tracing::info!("{device}: {summary}");
        placement.to_string().lines().for_each(|line| tracing::info!("{line}"));
        self.placed = Some(summary);
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
}
