//! The head of a model that ranks: it makes a relevance of the last token's hidden state.

use super::find::{ModelTensors, Tensor};
use super::spec::RANK_TENSORS;
use crate::config::Pooling;
use crate::quant;
use crate::{Error, Result};

/// A row of weights for each label. It is a few rows, applied once to each text: they stay on the host.
#[derive(Debug)]
pub struct RankHead {
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl RankHead {
    /// The probability of the first label, among all: the text is relevant.
    pub fn relevance(&self, hidden: &[f64]) -> f64 {
        let product = |row: &[f32]| row.iter().zip(hidden).map(|(&weight, x)| f64::from(weight) * x).sum::<f64>();
        let rows = self.weights.chunks(hidden.len().max(1)).zip(&self.bias);
        let logits: Vec<f64> = rows.map(|(row, &bias)| product(row) + f64::from(bias)).collect();
        // Against the first label's: no term but its own overflows, and then the probability is 0 as it should be.
        let first = logits.first().copied().unwrap_or(f64::NAN);
        1.0 / logits.iter().map(|logit| (logit - first).exp()).sum::<f64>()
    }
}

impl ModelTensors<'_> {
    /// The head of a model that ranks; `None` for any other.
    ///
    /// # Errors
    /// `ModelFile` for a head that is missing, or has another shape.
    pub fn rank_head(&self) -> Result<Option<RankHead>> {
        if self.spec.pooling != Pooling::Rank {
            return Ok(None);
        }
        let (finder, hidden) = (self.finder, self.spec.hidden_size);
        let [weight, bias] = RANK_TENSORS;
        let labels = finder.gguf.tensor(weight).and_then(|tensor| tensor.shape.get(1).copied()).unwrap_or(2);
        let labels = usize::try_from(labels).ok().filter(|labels| (2..=MAX_LABELS).contains(labels));
        let labels =
            labels.ok_or_else(|| finder.error(weight, format!("expected 2 to {MAX_LABELS} rows, of labels")))?;
        let weights = finder.required(weight, &[hidden, labels])?;
        let bias = finder.optional(bias, &[labels, 1])?;
        let read = |tensor: Tensor<'_>, len: usize| {
            let mut values = vec![0.0; len];
            quant::dequantize(tensor.view.ggml_type, tensor.view.data, &mut values)?;
            match values.iter().all(|value| value.is_finite()) {
                true => Ok(values),
                false => Err::<_, Error>(finder.error(&tensor.info.name, "holds values that are no numbers")),
            }
        };
        let bias = bias.map_or_else(|| Ok(vec![0.0; labels]), |bias| read(bias, labels))?;
        Ok(Some(RankHead { weights: read(weights, hidden * labels)?, bias }))
    }
}

/// Labels of no real model are as many.
const MAX_LABELS: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevance_is_a_softmax() {
        let head = |weights: &[f32], bias: &[f32]| RankHead { weights: weights.into(), bias: bias.into() };
        let two = head(&[1.0, 2.0, -0.5, 0.25], &[0.0, 0.0]);
        let (yes, no) = (1.0 * 0.3 + 2.0 * 0.7f64, -0.5 * 0.3 + 0.25 * 0.7f64);
        assert!((two.relevance(&[0.3, 0.7]) - yes.exp() / (yes.exp() + no.exp())).abs() < 1e-15);
        assert_eq!(head(&[0.0; 6], &[0.0; 3]).relevance(&[5.0, 6.0]), 1.0 / 3.0);
        assert_eq!(head(&[1e30, 0.0], &[0.0, 1.0]).relevance(&[1e30]), 1.0);
        assert_eq!(head(&[-1e30, 0.0], &[0.0, 1.0]).relevance(&[1e30]), 0.0);
    }
}
