//! The tensors of multi-head latent attention.

use super::{NormWeights, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::model::spec::{LatentSpec, ModelSpec, Presence};

pub(in crate::model) struct LatentWeights<T: Tensors> {
    pub(in crate::model) spec: LatentSpec,
    pub(in crate::model) query: LatentQuery<T>,
    /// Makes the latent of keys and values, and behind it the key that RoPE rotates.
    pub(in crate::model) latent: T::Matrix,
    pub(in crate::model) latent_norm: T::Vector,
    pub(in crate::model) eps: f32,
    /// Matrices of each head, from what q knows without positions to a query of latents, and from a latent to values.
    pub(in crate::model) keys: T::HeadMatrices,
    pub(in crate::model) values: T::HeadMatrices,
    pub(in crate::model) output: T::Matrix,
}

/// How q is made of a row.
pub(in crate::model) enum LatentQuery<T: Tensors> {
    Direct(T::Matrix),
    /// By way of a latent of its own, which is normed.
    Latent {
        down: T::Matrix,
        norm: NormWeights<T>,
        up: T::Matrix,
    },
}

impl<T: Tensors> LatentWeights<T> {
    pub(in crate::model) fn visit<V: Visitor<Made = T>>(
        index: usize,
        spec: &LatentSpec,
        model: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let (shape, hidden) = (spec.shape, model.hidden_size);
        let name = |name: &str| of_layer(index, name);
        let part_of = |tensor: &str, rows: usize, cols: usize| [part(name(tensor), rows, cols, Presence::Absent)];
        let query = match spec.q_rank {
            None => LatentQuery::Direct(visitor.matrix(&part_of("attn_q", shape.q_cols(), hidden))?),
            Some(rank) => LatentQuery::Latent {
                down: visitor.matrix(&part_of("attn_q_a", rank, hidden))?,
                norm: NormWeights::visit_of(&name("attn_q_a_norm"), rank, model, visitor)?,
                up: visitor.matrix(&part_of("attn_q_b", shape.q_cols(), rank))?,
            },
        };
        let (keys, values) = ([shape.rank, shape.plain_dim], [shape.value_dim, shape.rank]);
        Ok(Self {
            spec: *spec,
            query,
            latent: visitor.matrix(&part_of("attn_kv_a_mqa", shape.row_dim(), hidden))?,
            latent_norm: visitor.vector(&name("attn_kv_a_norm.weight"), shape.rank)?,
            eps: model.norm.eps,
            keys: visitor.heads(&name("attn_k_b.weight"), keys, shape.num_heads)?,
            values: visitor.heads(&name("attn_v_b.weight"), values, shape.num_heads)?,
            output: visitor.matrix(&part_of("attn_output", hidden, shape.value_cols()))?,
        })
    }
}
