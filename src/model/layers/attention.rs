//! The tensors of attention.

use super::{Part, Runs, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::spec::{AttentionSpec, ModelSpec, QkNorm};

pub(crate) struct AttentionWeights<T: Tensors> {
    pub(crate) spec: AttentionSpec,
    pub(crate) qkv: T::Matrix,
    pub(crate) qk_norm: Option<QkNormWeights<T>>,
    /// See `AttentionSpec::head_gates`.
    pub(crate) head_gates: Option<T::Matrix>,
    pub(crate) sinks: Option<T::Vector>,
    /// See `AttentionSpec::biases`.
    pub(crate) biases: Option<T::Vector>,
    pub(crate) output: T::Matrix,
}

/// Norms of q and of k.
pub(crate) struct QkNormWeights<T: Tensors> {
    pub(crate) q: T::Vector,
    /// `None` if the rows hold only q.
    pub(crate) k: Option<T::Vector>,
    pub(crate) eps: f32,
}

impl<T: Tensors> AttentionWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(
        index: usize,
        spec: &AttentionSpec,
        model: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let hidden = model.hidden_size;
        let (q, k, head_dim) = (spec.qkv.q_cols(), spec.qkv.k_cols(), spec.qkv.head_dim);
        let part_of = |name: &str, rows: usize| part(of_layer(index, name), rows, hidden, spec.qkv_bias);
        // A device expects V beside Q and K. Without V in the file, K is used twice.
        let v = if spec.v_is_k { "attn_k" } else { "attn_v" };
        let of_kv = || [part_of("attn_k", k), part_of(v, spec.qkv.v_cols())].into_iter().filter(|_| spec.qkv.has_kv);
        let without_gates = || match spec.fused_qkv {
            true => vec![part_of("attn_qkv", spec.qkv.cols() - spec.qkv.gate_cols())],
            false => std::iter::once(part_of("attn_q", q)).chain(of_kv()).collect(),
        };
        let qkv = match (spec.fused_qkv, spec.qkv.gated) {
            (_, false) => without_gates(),
            (_, true) if spec.own_gates => [vec![part_of("attn_gate", q)], without_gates()].concat(),
            (is_fused, true) => {
                let (name, rows) = if is_fused { ("attn_qkv", spec.qkv.cols()) } else { ("attn_q", 2 * q) };
                let count = spec.qkv.num_heads;
                let runs = |first| Some(Runs { period: 2 * head_dim, first, len: head_dim, count });
                let of_heads = |first| Part { runs: runs(first), ..part_of(name, rows) };
                let behind = Runs { period: rows, first: 2 * q, len: rows - 2 * q, count: 1 };
                let of_kv = match is_fused {
                    true => vec![Part { runs: Some(behind), ..part_of(name, rows) }],
                    false => of_kv().collect(),
                };
                [of_heads(head_dim), of_heads(0)].into_iter().chain(of_kv).collect()
            }
        };
        let norm_lens = spec.qk_norm.map(|norm| match norm {
            QkNorm::Heads | QkNorm::HeadsAfterRope | QkNorm::PlainHeadsAfterRope => [head_dim; 2],
            QkNorm::Rows => [q, k],
        });
        let mut norm = |name: &str, len: usize| match spec.qk_norm {
            Some(QkNorm::PlainHeadsAfterRope) => visitor.constant(1.0, len),
            _ => visitor.vector(&of_layer(index, name), len),
        };
        let qk_norm = match norm_lens {
            None => None,
            Some([q, k]) => Some(QkNormWeights {
                q: norm("attn_q_norm.weight", q)?,
                k: spec.qkv.has_kv.then(|| norm("attn_k_norm.weight", k)).transpose()?,
                eps: model.norm.eps,
            }),
        };
        let sinks = match spec.sinks {
            false => None,
            true => Some(visitor.vector(&of_layer(index, "attn_sinks.weight"), spec.qkv.num_heads)?),
        };
        let biases = spec.biases.map(|biases| visitor.biases(index, biases, spec.qkv.num_heads)).transpose()?;
        let head_gates = spec.head_gates.map(|_| visitor.matrix(&[part_of("attn_gate", spec.qkv.num_heads)]));
        Ok(Self {
            spec: spec.clone(),
            qkv: visitor.matrix(&qkv)?,
            qk_norm,
            head_gates: head_gates.transpose()?,
            sinks,
            biases,
            output: visitor.matrix(&[part(
                of_layer(index, "attn_output"),
                hidden,
                spec.qkv.out_cols(),
                spec.output_bias,
            )])?,
        })
    }
}
