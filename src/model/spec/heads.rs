//! Heads, which turn a pooled hidden state into the answer to a request.

use crate::config::Pooling;

/// A matrix that is applied to pooled hidden states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedSpec {
    /// Names of its tensors.
    pub weight: &'static str,
    pub bias: &'static str,
    /// Rows and columns.
    pub shape: [usize; 2],
}

/// The head of a reranking model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankSpec {
    /// The pooled hidden state that the head reads: the last token's, the first token's or the mean.
    pub input: Pooling,
    /// The activation and norm of an optional matrix before the labels; `None` if the architecture never has that
    /// matrix.
    pub dense: Option<HeadDense>,
    pub score: Score,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadDense {
    pub activation: HeadActivation,
    /// True if the file may have a norm after the activation.
    pub may_norm: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadActivation {
    Tanh,
    GeluErf,
}

/// The conversion of label logits to a relevance score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// The probability of the first label in the softmax over all labels.
    Softmax,
    /// The sigmoid of the first label's logit.
    Sigmoid,
}
