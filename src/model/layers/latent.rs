//! The tensors of multi-head latent attention (MLA).

use super::{HeadRows, NormWeights, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::spec::{LatentSpec, ModelSpec, NormSpec, Presence};

pub(crate) struct LatentWeights<T: Tensors> {
    pub(crate) spec: LatentSpec,
    pub(crate) query: LatentQuery<T>,
    /// Computes the latent of keys and values, followed by the key part that RoPE rotates.
    pub(crate) latent: T::Matrix,
    pub(crate) latent_norm: T::Vector,
    pub(crate) eps: f32,
    /// Matrices of each head. `keys` turn the unrotated part of q into a query of latents, `values` turn a latent into
    /// values.
    pub(crate) keys: T::HeadMatrices,
    pub(crate) values: T::HeadMatrices,
    pub(crate) output: T::Matrix,
}

/// The computation of q from a row.
pub(crate) enum LatentQuery<T: Tensors> {
    Direct(T::Matrix),
    /// q is computed from its own latent, which is normed.
    Latent {
        down: T::Matrix,
        norm: NormWeights<T>,
        up: T::Matrix,
    },
}

impl<T: Tensors> LatentWeights<T> {
    pub(crate) fn visit<V: Visitor<Made = T>>(
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
                norm: {
                    let norm = NormWeights::visit_of(&name("attn_q_a_norm"), rank, 1.0, model, visitor)?;
                    NormWeights { spec: NormSpec { eps: spec.eps, ..norm.spec }, ..norm }
                },
                up: visitor.matrix(&part_of("attn_q_b", shape.q_cols(), rank))?,
            },
        };
        let (heads, plain, values) = (shape.num_heads, shape.plain_dim, shape.value_dim);
        let (keys, values) = match spec.fused_kv {
            false => (
                HeadRows::whole(name("attn_k_b.weight"), heads, [shape.rank, plain]),
                HeadRows::whole(name("attn_v_b.weight"), heads, [values, shape.rank]),
            ),
            true => {
                let rows = |first, len, is_transposed| {
                    let (name, period, cols) = (name("attn_kv_b.weight"), plain + values, shape.rank);
                    HeadRows { name, heads, period, first, len, cols, is_transposed }
                };
                (rows(0, plain, true), rows(plain, values, false))
            }
        };
        Ok(Self {
            spec: *spec,
            query,
            latent: visitor.matrix(&part_of("attn_kv_a_mqa", shape.row_dim(), hidden))?,
            latent_norm: visitor.vector(&name("attn_kv_a_norm.weight"), shape.rank)?,
            eps: spec.eps,
            keys: visitor.heads(&keys)?,
            values: visitor.heads(&values)?,
            output: visitor.matrix(&part_of("attn_output", hidden, shape.value_cols()))?,
        })
    }
}
