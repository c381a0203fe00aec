//! Multi-head latent attention (MLA) in its absorbed form. The matrices of keys are applied to q, so all heads attend
//! to one latent row per token. The matrices of values turn the latent results into the heads' values.

use super::{Input, Ropes, Stream, Work, linear_of};
use crate::backend::{Attention, Backend, CopyBlocks, HeadProducts, Ops, RopeAndStoreLatent, Scoring};
use crate::buffers::LatentWork;
use crate::layers::{LatentQuery, LatentWeights, NormWeights};
use crate::{Error, Result};

pub(super) struct Attend<'a, B: Backend> {
    pub(super) weights: &'a LatentWeights<B>,
    pub(super) norm: Option<&'a NormWeights<B>>,
    pub(super) ropes: &'a Ropes<'a, B>,
}

fn without_buffers() -> Error {
    Error::internal("latent attention without its buffers")
}

impl<B: Backend> Attend<'_, B> {
    /// Computes the queries of all tokens of the step, and stores their latents.
    pub(super) fn store(
        &self,
        step: &mut B::Step<'_>,
        kv: &mut B::KvLayer,
        Stream { residual: x, .. }: &Stream<B>,
        Work { normed, projected, latent, .. }: &mut Work<B>,
    ) -> Result<()> {
        let LatentWeights { spec, query, latent: matrix, latent_norm, eps, keys, .. } = self.weights;
        let LatentWork { queries, rows: latents } = latent.as_mut().ok_or_else(without_buffers)?;
        let (rows, norm, shape, group) = (step.num_tokens(), self.norm, spec.shape, spec.kv_group);
        step.copy_blocks(CopyBlocks { group, kv })?;
        match query {
            LatentQuery::Direct(matrix) => linear_of(step, Input { x, norm, rows }, matrix, normed, projected)?,
            LatentQuery::Latent { down, norm: q_norm, up } => {
                linear_of(step, Input { x, norm, rows }, down, normed, queries)?;
                linear_of(step, Input { x: queries, norm: Some(q_norm), rows }, up, normed, projected)?;
            }
        }
        linear_of(step, Input { x, norm, rows }, matrix, normed, latents)?;
        let (x_head, out_head) = (shape.head_dim(), shape.row_dim());
        step.head_products(HeadProducts { x: projected, x_head, matrices: keys, rows, out: queries, out_head })?;
        let Ropes { ropes, angles } = self.ropes;
        step.rope_and_store_latent(RopeAndStoreLatent {
            q: projected,
            queries,
            latent: latents,
            shape,
            norm: latent_norm,
            eps: *eps,
            rope: &ropes[spec.rope],
            angles: &angles[spec.rope],
            temperature: spec.temperature,
            group,
            kv,
        })
    }

    /// `mixed` = the values that the queries find, before the output projection.
    pub(super) fn find(
        &self,
        step: &mut B::Step<'_>,
        kv: &B::KvLayer,
        Stream { mixed, .. }: &mut Stream<B>,
        Work { projected, latent, .. }: &mut Work<B>,
    ) -> Result<()> {
        let LatentWeights { spec, values: matrices, .. } = self.weights;
        let LatentWork { queries, .. } = latent.as_ref().ok_or_else(without_buffers)?;
        let (rows, shape, group) = (step.num_tokens(), spec.shape, spec.kv_group);
        let scoring = Scoring::scaled(spec.scale);
        let layout = shape.queries();
        step.attention(Attention {
            qkv: queries,
            layout,
            scoring,
            sinks: None,
            biases: None,
            group,
            kv,
            out: projected,
        })?;
        let (x_head, out_head) = (shape.rank, shape.value_dim);
        step.head_products(HeadProducts { x: projected, x_head, matrices, rows, out: mixed, out_head })
    }
}
