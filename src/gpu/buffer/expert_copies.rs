//! Where kernels find the copies of a matrix of experts.

use crate::DeviceBuffer;
use crate::launch::args::CachedExperts;

/// The copies of a matrix of a layer's experts.
#[derive(Debug, Clone)]
pub(crate) struct Cached {
    /// Slots of the layer's experts, u32 each.
    pub slots: DeviceBuffer,
    /// The matrix in the first slot.
    pub tiles: DeviceBuffer,
    pub slot_bytes: u64,
    /// True if the CPU computes experts without a slot.
    pub is_alone: bool,
}

/// Counts of the uses of a layer's experts.
#[derive(Debug)]
pub(crate) struct Uses {
    /// u32 per expert.
    pub counts: DeviceBuffer,
    /// A u32 for all layers: the uses of experts that had a slot.
    pub hits: DeviceBuffer,
    /// Slots of the layer's experts, u32 each.
    pub slots: DeviceBuffer,
}

impl Cached {
    /// Returns the arguments of kernels for a matrix, and for a second one of the same experts.
    pub(crate) fn args(matrix: Option<&Self>, up: Option<&Self>) -> CachedExperts {
        CachedExperts {
            slots: matrix.map(|cached| cached.slots.slice()).into(),
            tiles: matrix.map(|cached| cached.tiles.slice()).into(),
            tiles_up: up.map(|up| up.tiles.slice()).into(),
            slot_bytes: matrix.map_or(0, |cached| cached.slot_bytes),
            alone: matrix.map_or(0, |cached| u32::from(cached.is_alone)),
        }
    }
}
