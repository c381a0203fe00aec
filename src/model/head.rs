//! The head of a model, which is applied to a pooled hidden state. In reranking models it computes one number (`rank`),
//! in some embedding models another vector. It runs once per text, on the host.

use super::find::ModelTensors;
use super::rank::{Matrix, RankHead};
use crate::Result;
use crate::config::Pooling;

#[derive(Debug)]
pub enum Head {
    Rank(RankHead),
    /// Matrices, applied in order.
    Embed(Vec<Matrix>),
}

impl Head {
    /// True if a request of this pooling goes through the head.
    pub fn serves(&self, pooling: Pooling) -> bool {
        match self {
            Self::Rank(_) => pooling == Pooling::Rank,
            Self::Embed(_) => pooling != Pooling::Rank,
        }
    }

    /// Returns the pooled hidden state that the head reads for this pooling: one token's, or the mean.
    pub fn input(&self, pooling: Pooling) -> Pooling {
        match self {
            Self::Rank(head) => head.input(),
            Self::Embed(_) => pooling,
        }
    }

    /// True if the head computes vectors, which may be normalized.
    pub fn embeds(&self) -> bool {
        matches!(self, Self::Embed(_))
    }

    /// Computes the head's values from a pooled hidden state.
    pub fn apply(&self, hidden: &[f64]) -> Vec<f64> {
        match self {
            Self::Rank(head) => vec![head.relevance(hidden)],
            Self::Embed(matrices) => matrices.iter().fold(hidden.to_vec(), |x, matrix| matrix.apply(&x)),
        }
    }
}

impl ModelTensors<'_> {
    /// Returns the head of the model, if it has one.
    ///
    /// # Errors
    /// `ModelFile` for a head that is missing or has another shape.
    pub fn head(&self) -> Result<Option<Head>> {
        if let Some(head) = self.rank_head()? {
            return Ok(Some(Head::Rank(head)));
        }
        let matrices = self.spec.embed.iter().map(|spec| self.head_matrix([spec.weight, spec.bias], spec.shape));
        let matrices = matrices.collect::<Result<Vec<_>>>()?;
        Ok((!matrices.is_empty()).then_some(Head::Embed(matrices)))
    }
}
