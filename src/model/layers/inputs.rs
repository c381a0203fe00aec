//! The tensors of the per-layer inputs.

use super::streams::visit_factors;
use super::{NormWeights, Tensors, Visitor, of_layer, part, table};
use crate::Result;
use crate::spec::{LayerInputsSpec, ModelSpec, NormSpec, Presence};

/// The weights that compute the inputs of all layers from a token and its embedding.
pub(crate) struct InputsWeights<T: Tensors> {
    pub(crate) spec: LayerInputsSpec,
    /// A row for each token, with the columns of all layers.
    pub(crate) table: T::Matrix,
    pub(crate) projection: T::Matrix,
    /// The norm over one layer's part of the projection.
    pub(crate) norm: NormWeights<T>,
    pub(crate) num_layers: usize,
}

impl<T: Tensors> InputsWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(
        inputs: LayerInputsSpec,
        spec: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let cols = spec.input_cols();
        let matrix = |name: &str, rows, cols| part(name.to_owned(), rows, cols, Presence::Absent);
        let table = visitor.matrix(&table("per_layer_token_embd", cols, spec))?;
        let projection = visitor.matrix(&[matrix("per_layer_model_proj", cols, spec.hidden_size)])?;
        let weight = visitor.vector("per_layer_proj_norm.weight", inputs.size)?;
        let norm = NormSpec { eps: inputs.projection_eps, ..spec.norm };
        let norm = NormWeights { spec: norm, weight, bias: None, sum_factor: 1.0 };
        Ok(Self { spec: inputs, table, projection, norm, num_layers: spec.layers.len() })
    }
}

/// The weights with which a layer adds its input.
pub(crate) struct InputWeights<T: Tensors> {
    pub(crate) spec: LayerInputsSpec,
    /// Factors on the residual before the gate, in models with several streams.
    pub(crate) factors: Option<NormWeights<T>>,
    pub(crate) gate: T::Matrix,
    pub(crate) projection: T::Matrix,
    pub(crate) norm: NormWeights<T>,
    /// Offset of the layer's columns in a row of inputs, and the number of columns in such a row.
    pub(crate) first: usize,
    pub(crate) row_cols: usize,
}

impl<T: Tensors> InputWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(
        index: usize,
        inputs: LayerInputsSpec,
        spec: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let (hidden, size) = (spec.hidden_size, inputs.size);
        let matrix = |name: &str, rows, cols| part(of_layer(index, name), rows, cols, Presence::Absent);
        let factors = spec.streams.map(|_| visit_factors(index, spec, visitor)).transpose()?;
        let gate = visitor.matrix(&[matrix("inp_gate", size, hidden)])?;
        let projection = visitor.matrix(&[matrix("proj", hidden, size)])?;
        let norm = NormSpec { eps: inputs.output_eps, ..spec.norm };
        let norm = NormWeights { spec: norm, ..NormWeights::visit(&of_layer(index, "post_norm"), spec, visitor)? };
        Ok(Self { spec: inputs, factors, gate, projection, norm, first: index * size, row_cols: spec.input_cols() })
    }
}
