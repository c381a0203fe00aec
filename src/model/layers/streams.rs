//! The tensors of models with several hidden streams per token.

use super::{NormWeights, Part, Runs, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::backend::{NormKind, STREAMS};
use crate::spec::{ModelSpec, NormSpec, Presence, StreamsSpec};

/// A matrix for each stream but the active one.
type OfOthers<T> = [<T as Tensors>::Matrix; STREAMS - 1];

/// The weights that create the streams from the embeddings, and unite them after the last layer.
pub(crate) struct StreamsWeights<T: Tensors> {
    pub(crate) created: OfOthers<T>,
    pub(crate) united: OfOthers<T>,
    /// Adds rows unchanged.
    pub(crate) sum: NormWeights<T>,
}

impl<T: Tensors> StreamsWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let hidden = spec.hidden_size;
        let period = hidden.saturating_mul(STREAMS - 1);
        let mut of_other = |name: &str, index: usize| {
            let runs = Some(Runs { period, first: index * hidden, len: hidden, count: 1 });
            visitor.matrix(&[Part { runs, ..part(name.to_owned(), period, hidden, Presence::Absent) }])
        };
        let mut of_others =
            |name: &str| -> Result<OfOthers<T>> { Ok([of_other(name, 0)?, of_other(name, 1)?, of_other(name, 2)?]) };
        let (created, united) = (of_others("altup_proj")?, of_others("altup_unembd_proj")?);
        Ok(Self { created, united, sum: weights_alone(NormWeights::plain(spec, visitor)?) })
    }
}

/// The weights with which a layer predicts and corrects the streams, and the low-rank addition to its residual.
pub(crate) struct StreamWeights<T: Tensors> {
    pub(crate) router_norm: NormWeights<T>,
    pub(crate) router: T::Matrix,
    pub(crate) prediction: T::Vector,
    pub(crate) correction: T::Vector,
    pub(crate) laurel: [T::Matrix; 2],
    pub(crate) laurel_norm: NormWeights<T>,
}

impl<T: Tensors> StreamWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(
        index: usize,
        StreamsSpec { laurel_rank: rank }: StreamsSpec,
        spec: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let hidden = spec.hidden_size;
        let matrix = |name: &str, rows, cols| [part(of_layer(index, name), rows, cols, Presence::Absent)];
        Ok(Self {
            router_norm: NormWeights::visit(&of_layer(index, "altup_router_norm"), spec, visitor)?,
            router: visitor.matrix(&matrix("altup_router", STREAMS, hidden))?,
            prediction: visitor
                .vector_of(&of_layer(index, "altup_predict_coef.weight"), [STREAMS, STREAMS * STREAMS])?,
            correction: visitor.vector_of(&of_layer(index, "altup_correct_coef.weight"), [STREAMS, STREAMS])?,
            laurel: [
                visitor.matrix(&matrix("laurel_l", rank, hidden))?,
                visitor.matrix(&matrix("laurel_r", hidden, rank))?,
            ],
            laurel_norm: NormWeights::visit(&of_layer(index, "laurel_post_norm"), spec, visitor)?,
        })
    }
}

/// Returns the factors on the columns of the corrected active stream, where a layer adds its input.
pub(super) fn visit_factors<V: Visitor>(
    index: usize,
    spec: &ModelSpec,
    visitor: &mut V,
) -> Result<NormWeights<V::Made>> {
    Ok(weights_alone(NormWeights::visit(&of_layer(index, "altup_correct_scale"), spec, visitor)?))
}

/// Returns a norm that only multiplies by its weights.
fn weights_alone<T: Tensors>(norm: NormWeights<T>) -> NormWeights<T> {
    NormWeights { spec: NormSpec { kind: NormKind::Weights, ..norm.spec }, ..norm }
}
