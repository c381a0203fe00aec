//! One layer's states.

use super::storage::Storage;
use crate::backend::StateLayerSpec;

/// One layer's pool of states.
#[derive(Debug)]
pub struct StateLayer {
    pub(super) spec: StateLayerSpec,
    /// `[num_slots, window, channels]`.
    pub(super) windows: Storage<f32>,
    /// `[num_slots, heads, key_size, value_size]`.
    pub(super) matrices: Storage<f32>,
}
