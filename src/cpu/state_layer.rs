//! The recurrent states of one layer.

use super::storage::Storage;
use crate::backend::StateLayerSpec;

/// The state pool of one layer.
#[derive(Debug)]
pub struct StateLayer {
    pub(super) spec: StateLayerSpec,
    /// `[num_slots, window, channels]`.
    pub(super) windows: Storage<f32>,
    /// `[num_slots, heads, key_size, value_size]`.
    pub(super) matrices: Storage<f32>,
}

impl StateLayer {
    /// Returns the bytes of a slot, in parts. Parts outside the pool are `None`.
    pub(super) fn parts(&self, slot: u32) -> [Option<&[u8]>; 2] {
        let slot = slot as usize;
        [self.windows.part(slot, self.spec.window_len()), self.matrices.part(slot, self.spec.matrices_len())]
    }

    /// Like `parts`, to be written.
    pub(super) fn parts_mut(&mut self, slot: u32) -> [Option<&mut [u8]>; 2] {
        let slot = slot as usize;
        [self.windows.part_mut(slot, self.spec.window_len()), self.matrices.part_mut(slot, self.spec.matrices_len())]
    }
}
