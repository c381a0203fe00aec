//! Copies of contents between the pools and the host: a block of a KV group, or a slot of states, over all layers. A
//! draft model's layers are part of it.

use super::Decoder;
use crate::Result;
use crate::backend::{Backend, Content, KvShape, Part, StateShape};

impl<B: Backend> Decoder<B> {
    /// Returns the bytes of a block of each KV group, then those of a slot of states if the model has any.
    pub fn content_bytes(&self) -> Vec<u64> {
        let models = &self.models;
        let mut bytes = vec![0; models.main.spec.kv_groups.len()];
        let kv_layers = models.main.kv_layers.iter().chain(models.draft.iter().flat_map(|draft| &draft.kv_layers));
        for (layer, group) in kv_layers.zip(models.main.spec.groups_of_kv_layers()) {
            bytes[group] += layer.spec().block_bytes().unwrap_or(0);
        }
        let states: u64 = models.main.state_layers.iter().map(|layer| layer.spec().slot_bytes()).sum();
        bytes.extend((!models.main.state_layers.is_empty()).then_some(states));
        bytes
    }

    /// Begins to copy a content to the host; see `Backend::copy_out`.
    pub fn copy_out(&mut self, backend: &mut B, number: u64, pool: usize, index: u32) -> Result<bool> {
        backend.copy_out(number, &mut self.parts(pool, index))
    }

    /// Begins to copy a content back; see `Backend::copy_in`.
    pub fn copy_in(
        &mut self,
        backend: &mut B,
        number: u64,
        pool: usize,
        index: u32,
        content: &Content,
    ) -> Result<bool> {
        backend.copy_in(number, &mut self.parts(pool, index), content)
    }

    /// Returns the parts of block `index` of a group, or of a slot for the pool after the groups.
    fn parts(&mut self, pool: usize, index: u32) -> Vec<Part<'_, B>> {
        let models = &mut self.models;
        if pool == models.main.spec.kv_groups.len() {
            return models.main.state_layers.iter_mut().map(|layer| Part::Slot(layer, index)).collect();
        }
        let groups = models.main.spec.groups_of_kv_layers();
        let of_draft = models.draft.iter_mut().flat_map(|draft| &mut draft.kv_layers);
        let layers = models.main.kv_layers.iter_mut().chain(of_draft).zip(groups);
        layers.filter(|(_, group)| *group == pool).map(|(layer, _)| Part::Block(layer, index)).collect()
    }
}
