//! The KV groups of a model, and the layers that store keys and values.

use super::{LayerSpec, ModelSpec};
use crate::backend::{KvLayerSpec, QkvLayout};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::{Error, Result};

/// Layers that attend to the same tokens. They share block tables, even if they store rows of different shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvGroupSpec {
    pub kind: GroupKind,
    /// Keys and values of each layer.
    pub layers: Vec<KvLayout>,
}

/// The keys and values that a layer stores for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// See `KvLayerSpec::latent`.
    pub latent: Option<usize>,
}

impl KvLayout {
    pub(super) fn of(QkvLayout { num_kv_heads, head_dim, .. }: QkvLayout, latent: Option<usize>) -> Self {
        Self { num_kv_heads, head_dim, latent }
    }
}

impl KvGroupSpec {
    /// Returns a layer of the group, in a pool of `num_blocks` blocks of `block_size` tokens.
    fn layer(&self, layout: KvLayout, num_blocks: usize, block_size: usize, dtype: KvCacheDtype) -> KvLayerSpec {
        let (kind, KvLayout { num_kv_heads, head_dim, latent }) = (self.kind, layout);
        KvLayerSpec { kind, skips_first: false, num_blocks, block_size, num_kv_heads, head_dim, latent, dtype }
    }

    /// Returns the bytes of one block over all layers of the group.
    ///
    /// # Errors
    /// `InvalidRequest` for a block size whose bytes overflow, and for a data type that the layers' rows cannot have.
    pub fn block_bytes(&self, block_size: usize, dtype: KvCacheDtype) -> Result<u64> {
        self.layers.iter().try_fold(0u64, |sum, layout| {
            let layer = self.layer(*layout, 0, block_size, dtype);
            layer.validate()?;
            let sum = layer.block_bytes().and_then(|bytes| sum.checked_add(bytes));
            sum.ok_or_else(|| Error::invalid("block_size", block_size, "a block whose bytes can be counted"))
        })
    }
}

impl ModelSpec {
    /// Returns the number of layers that store their own keys and values.
    pub(crate) fn num_kv_layers(&self) -> usize {
        self.kv_groups.iter().map(|group| group.layers.len()).sum()
    }

    /// Adds a layer to the group of layers that attend to these tokens. Returns the index of the group.
    pub(crate) fn join_kv_group(&mut self, kind: GroupKind, qkv: QkvLayout, latent: Option<usize>) -> usize {
        self.join_kv_layers(kind, &[KvLayout::of(qkv, latent)])
    }

    /// Adds layers to the group of layers that attend to these tokens. Returns the index of the group.
    fn join_kv_layers(&mut self, kind: GroupKind, layers: &[KvLayout]) -> usize {
        let known = self.kv_groups.iter().position(|group| group.kind == kind);
        let index = known.unwrap_or(self.kv_groups.len());
        if index == self.kv_groups.len() {
            self.kv_groups.push(KvGroupSpec { kind, layers: Vec::new() });
        }
        self.kv_groups[index].layers.extend_from_slice(layers);
        index
    }

    /// Moves the layers of a draft model into the KV groups of this model. A block of such a group then also holds
    /// their keys and values.
    pub(crate) fn join_kv_groups_of(&mut self, draft: &mut Self) {
        let groups = std::mem::take(&mut draft.kv_groups);
        let joined: Vec<usize> = groups.iter().map(|group| self.join_kv_layers(group.kind, &group.layers)).collect();
        for layer in &mut draft.layers {
            if let Some(group) = layer.mixer.kv_group_mut() {
                *group = joined[*group];
            }
        }
    }

    /// Returns the KV layers of all groups in layer order, first the model's, then the MTP block's and the draft
    /// model's. `num_blocks` has the number of blocks of each group.
    pub fn kv_layers(&self, num_blocks: &[usize], block_size: usize, dtype: KvCacheDtype) -> Vec<KvLayerSpec> {
        let of_layer = |layer: &LayerSpec, skips_first: bool| {
            let (group, layout) = layer.mixer.kv()?;
            let layer = self.kv_groups[group].layer(layout, num_blocks[group], block_size, dtype);
            Some(KvLayerSpec { skips_first, ..layer })
        };
        let of_model = self.layers.iter().filter_map(|layer| of_layer(layer, false));
        // A row of the MTP block combines a token with the hidden state of the previous token. The first token has
        // none.
        let of_drafter = self.drafter.iter().filter_map(|layer| of_layer(layer, true));
        let of_draft_model = self.draft_layers().filter_map(|layer| of_layer(layer, false));
        of_model.chain(of_drafter).chain(of_draft_model).collect()
    }

    /// Returns the group of each KV layer, in the order of `kv_layers`.
    pub(crate) fn groups_of_kv_layers(&self) -> Vec<usize> {
        let all = self.layers.iter().chain(&self.drafter).chain(self.draft_layers());
        all.filter_map(|layer| layer.mixer.kv()).map(|(group, _)| group).collect()
    }

    /// True if the draft model is computed only when it drafts, not in the model's steps. It first has to compute the
    /// tokens that it lacks. Their blocks must still exist, so it must not use a sliding window.
    pub fn draft_lags(&self) -> bool {
        let mut groups = self.draft_layers().filter_map(|layer| layer.mixer.kv()).peekable();
        groups.peek().is_some() && groups.all(|(group, _)| self.kv_groups[group].kind == GroupKind::Full)
    }

    /// Returns the number of draft model layers that store their own keys and values.
    pub(crate) fn num_draft_kv_layers(&self) -> usize {
        self.draft_layers().filter(|layer| layer.mixer.kv().is_some()).count()
    }
}
