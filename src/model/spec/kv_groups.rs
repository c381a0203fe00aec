//! The KV groups of a model, and the layers that keep keys and values.

use super::{LayerSpec, ModelSpec};
use crate::backend::{KvLayerSpec, QkvLayout};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::{Error, Result};

/// Layers that attend to the same tokens: they share block tables, whatever each of them keeps in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvGroupSpec {
    pub kind: GroupKind,
    /// Keys and values of each layer.
    pub layers: Vec<KvLayout>,
}

/// The keys and values that a layer keeps of a token.
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
    /// A layer of the group, in a pool of `num_blocks` blocks of `block_size` tokens.
    fn layer(&self, layout: KvLayout, num_blocks: usize, block_size: usize, dtype: KvCacheDtype) -> KvLayerSpec {
        let (kind, KvLayout { num_kv_heads, head_dim, latent }) = (self.kind, layout);
        KvLayerSpec { kind, skips_first: false, num_blocks, block_size, num_kv_heads, head_dim, latent, dtype }
    }

    /// Bytes of one block in all layers of the group.
    ///
    /// # Errors
    /// `InvalidRequest` for a block size whose bytes cannot be counted, and for a type that the layers' rows cannot
    /// have.
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
    /// Layers that keep keys and values of their own.
    pub(in crate::model) fn num_kv_layers(&self) -> usize {
        self.kv_groups.iter().map(|group| group.layers.len()).sum()
    }

    /// The group of layers that attend to these tokens, to which one more layer belongs now.
    pub(in crate::model) fn join_kv_group(&mut self, kind: GroupKind, qkv: QkvLayout, latent: Option<usize>) -> usize {
        self.join_kv_layers(kind, &[KvLayout::of(qkv, latent)])
    }

    /// The group of layers that attend to these tokens, to which these layers belong now.
    fn join_kv_layers(&mut self, kind: GroupKind, layers: &[KvLayout]) -> usize {
        let known = self.kv_groups.iter().position(|group| group.kind == kind);
        let index = known.unwrap_or(self.kv_groups.len());
        if index == self.kv_groups.len() {
            self.kv_groups.push(KvGroupSpec { kind, layers: Vec::new() });
        }
        self.kv_groups[index].layers.extend_from_slice(layers);
        index
    }

    /// Lets the layers of a model that guesses for this one name groups of this one: a block of these then holds its
    /// keys and values too.
    pub(in crate::model) fn join_kv_groups_of(&mut self, draft: &mut Self) {
        let groups = std::mem::take(&mut draft.kv_groups);
        let joined: Vec<usize> = groups.iter().map(|group| self.join_kv_layers(group.kind, &group.layers)).collect();
        for layer in &mut draft.layers {
            if let Some(group) = layer.mixer.kv_group_mut() {
                *group = joined[*group];
            }
        }
    }

    /// The KV layers of all groups, in the order of the layers that have their own; those of the draft model are the
    /// last ones. `num_blocks`: those of each group.
    pub fn kv_layers(&self, num_blocks: &[usize], block_size: usize, dtype: KvCacheDtype) -> Vec<KvLayerSpec> {
        let of_layer = |layer: &LayerSpec, skips_first: bool| {
            let (group, layout) = layer.mixer.kv()?;
            let layer = self.kv_groups[group].layer(layout, num_blocks[group], block_size, dtype);
            Some(KvLayerSpec { skips_first, ..layer })
        };
        let of_model = self.layers.iter().filter_map(|layer| of_layer(layer, false));
        // The drafter's rows are made of a token and of what was before it: the first one is none.
        let of_drafter = self.drafter.iter().filter_map(|layer| of_layer(layer, true));
        let of_draft_model = self.draft_layers().filter_map(|layer| of_layer(layer, false));
        of_model.chain(of_drafter).chain(of_draft_model).collect()
    }

    /// Whether the draft model is computed when it guesses, and by no step of the model: then it lacks tokens, and
    /// computes them first. For that they all have to be in blocks still, so the draft model has no window.
    pub fn draft_lags(&self) -> bool {
        let mut groups = self.draft_layers().filter_map(|layer| layer.mixer.kv()).peekable();
        groups.peek().is_some() && groups.all(|(group, _)| self.kv_groups[group].kind == GroupKind::Full)
    }

    /// Layers of the draft model that keep keys and values of their own.
    pub(in crate::model) fn num_draft_kv_layers(&self) -> usize {
        self.draft_layers().filter(|layer| layer.mixer.kv().is_some()).count()
    }
}
