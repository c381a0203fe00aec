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
