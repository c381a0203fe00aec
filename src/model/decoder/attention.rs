//! Attention of heads with keys and values of their own.

use super::{Input, Ropes, Stream, Work, linear_of};
use crate::Result;
use crate::backend::{Backend, CopyBlocks, Fusions, Ops, QkNorms, RopeAndStore, RopeAttention, Rotation};
use crate::model::layers::{AttentionWeights, NormWeights, QkNormWeights};
use crate::model::spec::{AttentionSpec, QkNorm};

/// The attention of a layer.
pub(super) struct Attend<'a, B: Backend> {
    pub(super) attention: &'a AttentionWeights<B>,
    pub(super) norm: Option<&'a NormWeights<B>>,
    pub(super) ropes: &'a Ropes<'a, B>,
}

impl<B: Backend> Attend<'_, B> {
    fn rotation(&self) -> Rotation<'_, B> {
        let AttentionWeights { spec, qk_norm, .. } = self.attention;
        let after_rope = spec.qk_norm == Some(QkNorm::HeadsAfterRope);
        let norms = qk_norm.as_ref().map(|QkNormWeights { q, k, eps }| QkNorms {
            q,
            k: k.as_ref(),
            v: spec.v_norm && spec.qkv.has_kv,
            eps: *eps,
            after_rope,
        });
        let Ropes { ropes, angles } = self.ropes;
        Rotation { norms, rope: &ropes[spec.rope], angles: &angles[spec.rope], temperature: spec.temperature }
    }

    /// `qkv = W · norm(x)` for all tokens of the step.
    fn project(&self, step: &mut B::Step<'_>, kv: &mut B::KvLayer, x: &B::Buffer, work: &mut Work<B>) -> Result<()> {
        let rows = step.num_tokens();
        let AttentionSpec { qkv, kv_group: group, .. } = self.attention.spec;
        // The layer whose keys and values these are has copied its blocks.
        if qkv.has_kv {
            step.copy_blocks(CopyBlocks { group, kv })?;
        }
        linear_of(step, Input { x, norm: self.norm, rows }, &self.attention.qkv, &mut work.normed, &mut work.projected)
    }

    /// `mixed = attention(norm(residual))`, before its output projection.
    pub(super) fn mix(
        &self,
        step: &mut B::Step<'_>,
        kv: &mut B::KvLayer,
        stream: &mut Stream<B>,
        work: &mut Work<B>,
    ) -> Result<()> {
        self.project(step, kv, &stream.residual, work)?;
        let AttentionSpec { qkv: layout, kv_group: group, scoring, .. } = self.attention.spec;
        let (rotation, sinks) = (self.rotation(), self.attention.sinks.as_ref());
        let (qkv, out) = (&mut work.projected, &mut stream.mixed);
        step.rope_attention(RopeAttention { qkv, layout, rotation, scoring, sinks, group, kv, out })
    }

    /// Keys and values alone, for a step of which no logits are wanted.
    pub(super) fn store(
        &self,
        step: &mut B::Step<'_>,
        kv: &mut B::KvLayer,
        stream: &mut Stream<B>,
        work: &mut Work<B>,
    ) -> Result<()> {
        self.project(step, kv, &stream.residual, work)?;
        let AttentionSpec { qkv: layout, kv_group: group, .. } = self.attention.spec;
        step.rope_and_store_kv(RopeAndStore { qkv: &mut work.projected, layout, rotation: self.rotation(), group, kv })
    }
}
