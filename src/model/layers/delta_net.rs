//! The tensors of gated delta nets.

use super::{Part, Runs, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::spec::{DeltaNetSpec, ModelSpec, Presence, Projections};

pub(crate) struct DeltaNetWeights<T: Tensors> {
    pub(crate) spec: DeltaNetSpec,
    pub(crate) eps: f32,
    /// Rows as `DeltaNetShape` describes them.
    pub(crate) projections: T::Matrix,
    pub(crate) taps: T::Vector,
    pub(crate) decay: T::Vector,
    pub(crate) decay_bias: T::Vector,
    pub(crate) norm: T::Vector,
    pub(crate) output: T::Matrix,
}

impl<T: Tensors> DeltaNetWeights<T> {
    pub(crate) fn visit<V: Visitor<Made = T>>(
        index: usize,
        spec: &DeltaNetSpec,
        model: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let (shape, hidden) = (spec.shape, model.hidden_size);
        let name = |name: &str| of_layer(index, name);
        let projections = visitor.matrix(&projections(index, spec, hidden))?;
        Ok(Self {
            spec: *spec,
            eps: model.norm.eps,
            projections,
            taps: visitor.taps(&name("ssm_conv1d.weight"), shape.taps, shape.channels())?,
            decay: visitor.vector(&name("ssm_a"), shape.value_heads)?,
            decay_bias: visitor.vector(&name("ssm_dt.bias"), shape.value_heads)?,
            norm: visitor.vector(&name("ssm_norm.weight"), shape.value_size)?,
            output: visitor.matrix(&[part(name("ssm_out"), hidden, shape.value_cols(), Presence::Absent)])?,
        })
    }
}

/// Returns the stack of matrices with the rows `[q | k | v | z | gates]`.
fn projections(index: usize, spec: &DeltaNetSpec, hidden: usize) -> Vec<Part> {
    let shape = spec.shape;
    let part_of = |name: &str, rows: usize| part(of_layer(index, name), rows, hidden, Presence::Absent);
    let (heads, values) = (shape.value_heads, shape.value_cols());
    let apart = || [part_of("attn_qkv", shape.channels()), part_of("attn_gate", values)].into_iter();
    match spec.projections {
        Projections::Apart => apart().chain([part_of("ssm_beta", heads), part_of("ssm_alpha", heads)]).collect(),
        Projections::GatesTogether => apart().chain([part_of("ssm_ba", 2 * heads)]).collect(),
        Projections::HeadsTogether => {
            let (key, value) = (shape.key_size, values / shape.key_heads);
            let period = 2 * (key + value);
            let of_heads = |first, len| {
                let runs = Some(Runs { period, first, len, count: shape.key_heads });
                Part { runs, ..part_of("ssm_in", period * shape.key_heads) }
            };
            let (q, k) = (of_heads(0, key), of_heads(key, key));
            let (v, z) = (of_heads(2 * key, value), of_heads(2 * key + value, value));
            vec![q, k, v, z, part_of("ssm_ba", 2 * heads)]
        }
    }
}
