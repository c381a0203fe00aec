//! Attention over per-head keys and values.

use super::{Input, Ropes, Stream, Work, linear_of};
use crate::Result;
use crate::backend::{
    Backend, Cap, CopyBlocks, Fusions, GateHeads, Ops, QkNorms, RopeAndStore, RopeAttention, Rotation, ScaleRows,
};
use crate::layers::{AttentionWeights, NormWeights, QkNormWeights};
use crate::spec::{AttentionSpec, QkNorm};

/// The attention of a layer.
pub(super) struct Attend<'a, B: Backend> {
    pub(super) attention: &'a AttentionWeights<B>,
    pub(super) norm: Option<&'a NormWeights<B>>,
    pub(super) ropes: &'a Ropes<'a, B>,
}

impl<B: Backend> Attend<'_, B> {
    fn rotation(&self) -> Rotation<'_, B> {
        let AttentionWeights { spec, qk_norm, .. } = self.attention;
        let after_rope = matches!(spec.qk_norm, Some(QkNorm::HeadsAfterRope | QkNorm::PlainHeadsAfterRope));
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

    /// `qkv = clamp(W · norm(x))` for all tokens of the step. Most layers have no clamp.
    fn project(&self, step: &mut B::Step<'_>, kv: &mut B::KvLayer, x: &B::Buffer, work: &mut Work<B>) -> Result<()> {
        let rows = step.num_tokens();
        let AttentionSpec { qkv, kv_group: group, .. } = self.attention.spec;
        // A layer that shares keys and values relies on their owner, which has already copied its blocks.
        if qkv.has_kv {
            step.copy_blocks(CopyBlocks { group, kv })?;
        }
        let (matrix, out) = (&self.attention.qkv, &mut work.projected);
        linear_of(step, Input { x, norm: self.norm, rows }, matrix, &mut work.normed, out)?;
        match self.attention.spec.clamp {
            None => Ok(()),
            Some(limit) => {
                let cap = Some(Cap::Hard([-limit, limit]));
                step.scale_rows(ScaleRows { x: out, rows, cols: qkv.cols(), columns: 0..qkv.cols(), scale: 1.0, cap })
            }
        }
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
        let biases = self.attention.biases.as_ref();
        let (qkv, out) = (&mut work.projected, &mut stream.mixed);
        step.rope_attention(RopeAttention { qkv, layout, rotation, scoring, sinks, biases, group, kv, out })?;
        self.gate_heads(step, stream, work)
    }

    /// Multiplies the results of the heads by their gates. The gates overwrite q, k and v.
    fn gate_heads(
        &self,
        step: &mut B::Step<'_>,
        Stream { residual: x, mixed: out, .. }: &mut Stream<B>,
        Work { normed, projected, .. }: &mut Work<B>,
    ) -> Result<()> {
        let AttentionWeights { spec, head_gates, .. } = self.attention;
        let (Some(matrix), Some(function)) = (head_gates, spec.head_gates) else { return Ok(()) };
        let (rows, heads) = (step.num_tokens(), spec.qkv.num_heads);
        linear_of(step, Input { x, norm: self.norm, rows }, matrix, normed, projected)?;
        step.gate_heads(GateHeads { gate: projected, function, rows, heads, cols: spec.qkv.value_dim, out })
    }

    /// Stores keys and values only, for a step without requested logits.
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
