//! The head of a reranking model, which computes a relevance score from a prompt's hidden state.

use super::find::{ModelTensors, Tensor};
use super::spec::{HeadActivation, RankSpec, Score};
use crate::config::Pooling;
use crate::quant;
use crate::{Error, Result};

/// No real model has a number of labels near this.
const MAX_LABELS: usize = 1 << 10;

/// The head of a reranking model.
#[derive(Debug)]
pub struct RankHead {
    spec: RankSpec,
    dense: Option<Dense>,
    labels: Matrix,
}

/// Rows of weights in row-major order, and a bias per row.
#[derive(Debug)]
pub struct Matrix {
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Matrix {
    pub(super) fn apply(&self, x: &[f64]) -> Vec<f64> {
        let rows = self.weights.chunks(x.len().max(1)).zip(&self.bias);
        rows.map(|(row, &bias)| dot(row, x) + f64::from(bias)).collect()
    }
}

/// Returns the dot product. It is summed in as many parts as the compiler needs for vector instructions.
fn dot(row: &[f32], x: &[f64]) -> f64 {
    let (rows, xs) = (row.as_chunks::<8>(), x.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (row, x) in rows.0.iter().zip(xs.0) {
        for ((sum, &weight), x) in sums.iter_mut().zip(row).zip(x) {
            *sum += f64::from(weight) * x;
        }
    }
    let rest = rows.1.iter().zip(xs.1).map(|(&weight, x)| f64::from(weight) * x);
    sums.into_iter().chain(rest).sum()
}

/// The part of a head before its labels: `norm(act(matrix · x))`.
#[derive(Debug)]
struct Dense {
    matrix: Matrix,
    activation: HeadActivation,
    norm: Option<LayerNorm>,
}

#[derive(Debug)]
struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    eps: f64,
}

impl Dense {
    fn apply(&self, x: &[f64]) -> Vec<f64> {
        let activation: fn(f64) -> f64 = match self.activation {
            HeadActivation::Tanh => f64::tanh,
            HeadActivation::GeluErf => gelu,
        };
        let mut y = self.matrix.apply(x);
        y.iter_mut().for_each(|y| *y = activation(*y));
        if let Some(norm) = &self.norm {
            norm.apply(&mut y);
        }
        y
    }
}

impl LayerNorm {
    fn apply(&self, x: &mut [f64]) {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (variance + self.eps).sqrt();
        for ((x, &weight), &bias) in x.iter_mut().zip(&self.weight).zip(&self.bias) {
            *x = (*x - mean) * scale * f64::from(weight) + f64::from(bias);
        }
    }
}

/// `x * Φ(x)`, where Φ is the cumulative normal distribution.
fn gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

impl RankHead {
    /// Returns the pooled hidden state that the head reads: one token's, or the mean.
    pub fn input(&self) -> Pooling {
        self.spec.input
    }

    /// Returns the relevance of a text with this hidden state, from 0 to 1.
    pub fn relevance(&self, hidden: &[f64]) -> f64 {
        let logits = match &self.dense {
            Some(dense) => self.labels.apply(&dense.apply(hidden)),
            None => self.labels.apply(hidden),
        };
        let first = logits.first().copied().unwrap_or(f64::NAN);
        match self.spec.score {
            // Relative to the first logit. Only terms of other labels can overflow, and then the probability is
            // correctly 0.
            Score::Softmax => 1.0 / logits.iter().map(|logit| (logit - first).exp()).sum::<f64>(),
            Score::Sigmoid => 1.0 / (1.0 + (-first).exp()),
        }
    }
}

/// Names of the tensors that a head may have.
const LABELS: [&str; 2] = ["cls.output.weight", "cls.output.bias"];
const DENSE: [&str; 2] = ["cls.weight", "cls.bias"];
const NORM: [&str; 2] = ["cls.norm.weight", "cls.norm.bias"];

impl RankSpec {
    /// Returns the names of all tensors that such a head may have.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &'static str> {
        let dense = DENSE.into_iter().filter(|_| self.dense.is_some());
        let norm = NORM.into_iter().filter(|_| self.dense.is_some_and(|dense| dense.may_norm));
        LABELS.into_iter().chain(dense).chain(norm)
    }
}

impl ModelTensors<'_> {
    /// Returns the head of a reranking model; `None` for any other model.
    ///
    /// # Errors
    /// `ModelFile` for a head that is missing or has another shape.
    pub(super) fn rank_head(&self) -> Result<Option<RankHead>> {
        let Some(spec) = self.spec.rank else { return Ok(None) };
        let least = match spec.score {
            Score::Softmax => 2,
            Score::Sigmoid => 1,
        };
        let [weight, _] = LABELS;
        let labels = match self.finder.gguf.tensor(weight).map(|tensor| &tensor.shape[..]) {
            Some([_, labels, ..]) => usize::try_from(*labels).unwrap_or(usize::MAX),
            _ => least,
        };
        if !(least..=MAX_LABELS).contains(&labels) {
            return Err(self.finder.error(weight, format!("expected {least} to {MAX_LABELS} rows, of labels")));
        }
        let head = RankHead {
            spec,
            dense: self.head_dense(&spec)?,
            labels: self.head_matrix(LABELS, [labels, self.spec.hidden_size])?,
        };
        if spec.dense.is_some() && head.dense.is_none() {
            // The file may be intended this way. Nothing distinguishes such a head from one that lost its first matrix.
            tracing::warn!(
                "the head has no {}: llama.cpp's converter leaves out the pooler of BertForSequenceClassification, \
                 without which scores are not those of the original model",
                DENSE[0]
            );
        }
        Ok(Some(head))
    }

    fn head_dense(&self, spec: &RankSpec) -> Result<Option<Dense>> {
        let has = |name: &&str| self.finder.gguf.tensor(name).is_some();
        let Some(dense) = spec.dense.filter(|_| DENSE.iter().chain(&NORM).any(has)) else { return Ok(None) };
        let hidden = self.spec.hidden_size;
        let norm = if NORM.iter().any(has) {
            let [weight, bias] = NORM;
            let weight = self.head_values(self.finder.required(weight, &[hidden, 1])?, hidden)?;
            let bias = self.finder.optional(bias, &[hidden, 1])?;
            let bias = bias.map_or_else(|| Ok(vec![0.0; hidden]), |bias| self.head_values(bias, hidden))?;
            Some(LayerNorm { weight, bias, eps: f64::from(self.spec.norm.eps) })
        } else {
            None
        };
        Ok(Some(Dense { matrix: self.head_matrix(DENSE, [hidden; 2])?, activation: dense.activation, norm }))
    }

    /// Returns a matrix of this shape, with its bias if the file has one.
    pub(super) fn head_matrix(&self, [weight, bias]: [&str; 2], [rows, cols]: [usize; 2]) -> Result<Matrix> {
        let weight = self.finder.required(weight, &[cols, rows])?;
        let bias = self.finder.optional(bias, &[rows, 1])?;
        let bias = bias.map_or_else(|| Ok(vec![0.0; rows]), |bias| self.head_values(bias, rows))?;
        Ok(Matrix { weights: self.head_values(weight, rows * cols)?, bias })
    }

    fn head_values(&self, tensor: Tensor<'_>, len: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; len];
        quant::dequantize(tensor.view.ggml_type, tensor.view.data, &mut values)?;
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err::<_, Error>(self.finder.error(&tensor.info.name, "holds values that are no numbers")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::HeadDense;

    const QWEN3: RankSpec = RankSpec { input: Pooling::Last, dense: None, score: Score::Softmax };

    fn matrix(weights: &[f32], bias: &[f32]) -> Matrix {
        Matrix { weights: weights.into(), bias: bias.into() }
    }

    #[test]
    fn relevance_is_a_softmax() {
        let head = |weights, bias| RankHead { spec: QWEN3, dense: None, labels: matrix(weights, bias) };
        let two = head(&[1.0, 2.0, -0.5, 0.25], &[0.0, 0.0]);
        let (yes, no) = (1.0 * 0.3 + 2.0 * 0.7f64, -0.5 * 0.3 + 0.25 * 0.7f64);
        assert!((two.relevance(&[0.3, 0.7]) - yes.exp() / (yes.exp() + no.exp())).abs() < 1e-15);
        assert_eq!(head(&[0.0; 6], &[0.0; 3]).relevance(&[5.0, 6.0]), 1.0 / 3.0);
        assert_eq!(head(&[1e30, 0.0], &[0.0, 1.0]).relevance(&[1e30]), 1.0);
        assert_eq!(head(&[-1e30, 0.0], &[0.0, 1.0]).relevance(&[1e30]), 0.0);
    }

    #[test]
    fn relevance_is_a_sigmoid() {
        let spec = RankSpec { input: Pooling::Cls, score: Score::Sigmoid, ..QWEN3 };
        let head = |dense, weights, bias| RankHead { spec, dense, labels: matrix(weights, bias) };
        let plain = head(None, &[1.0, 2.0, 7.0, 7.0], &[0.5, 9.0]);
        assert!((plain.relevance(&[0.3, -0.7]) - 1.0 / (1.0 + 0.6f64.exp())).abs() < 1e-12);
        let dense =
            |activation, norm| Some(Dense { matrix: matrix(&[1.0, 1.0, 0.5, -1.0], &[0.0, 0.25]), activation, norm });
        let (a, b) = (0.3 - 0.7f64, 0.15 + 0.7 + 0.25f64);
        let tanh = head(dense(HeadActivation::Tanh, None), &[2.0, -1.0], &[0.0]);
        let expected = 1.0 / (1.0 + (-(2.0 * a.tanh() - b.tanh())).exp());
        assert!((tanh.relevance(&[0.3, -0.7]) - expected).abs() < 1e-12);
        // The norm of two values gives -1 and 1.
        let norm = LayerNorm { weight: vec![0.5, 2.0], bias: vec![0.0, 0.25], eps: 0.0 };
        let normed = head(dense(HeadActivation::GeluErf, Some(norm)), &[1.0, 1.0], &[0.0]);
        assert!((normed.relevance(&[0.3, -0.7]) - 1.0 / (1.0 + (-(-0.5 + 2.25f64)).exp())).abs() < 1e-12);
        assert_eq!(head(None, &[1e30], &[0.0]).relevance(&[1e30]), 1.0);
        assert_eq!(head(None, &[-1e30], &[0.0]).relevance(&[1e30]), 0.0);
    }

    /// Values from the table of the normal distribution.
    #[test]
    fn gelu_is_that_of_the_error_function() {
        for (x, phi) in
            [(0.0, 0.5), (1.0, 0.841_344_746_068_543), (-2.0, 0.022_750_131_948_179_2), (3.5, 0.999_767_370_920_964)]
        {
            assert!((gelu(x) - x * phi).abs() < 1e-14, "{x}");
        }
        assert_eq!((gelu(40.0), gelu(-40.0)), (40.0, 0.0));
        assert!(gelu(f64::NAN).is_nan() && gelu(8.4) < 8.4 + 1e-12 && gelu(-8.4).abs() < 1e-12);
    }

    #[test]
    fn long_rows_are_summed_whole() {
        let x: Vec<f64> = (0..37).map(f64::from).collect();
        let row: Vec<f32> = (0..37).map(|i| (i % 5) as f32 - 1.5).collect();
        let expected: f64 = row.iter().zip(&x).map(|(&w, x)| f64::from(w) * x).sum();
        assert_eq!(dot(&row, &x), expected);
    }

    #[test]
    fn tensors_are_those_of_the_architecture() {
        let names = |spec: RankSpec| spec.tensors().count();
        let dense = |may_norm| Some(HeadDense { activation: HeadActivation::Tanh, may_norm });
        assert_eq!([None, dense(false), dense(true)].map(|dense| names(RankSpec { dense, ..QWEN3 })), [2, 4, 6]);
    }
}
