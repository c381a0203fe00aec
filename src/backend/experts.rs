//! The parameters and tensors of a mixture of experts.

use super::Activation;
use crate::tensor::TensorView;
use crate::{Error, Result, quant};

/// A layer's experts: feed-forwards of equal shape, of which a router chooses a few for each row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSpec {
    /// The number of experts of a layer, and the number chosen for a row.
    pub num: usize,
    pub used: usize,
    pub hidden_size: usize,
    /// Width of one expert.
    pub ffn_size: usize,
    pub activation: Activation,
    /// True for `down · (act(gate · x) * (up · x))`, false for experts without a gate, `down · act(up · x)`.
    pub gate: bool,
    /// The function that turns router logits into expert weights.
    pub gating: Gating,
    /// The groups of the experts, if a row's experts must come from few groups.
    pub groups: Option<ExpertGroups>,
    /// True if the router's logits get a bias.
    pub router_bias: bool,
    /// True if the scores that choose experts get a bias. The experts' weights ignore it.
    pub choice_bias: bool,
    /// True if gate, up and down of each expert have biases. Experts without a gate have none.
    pub biases: bool,
    /// True if the weights of the chosen experts are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights, applied after `normalize`.
    pub scale: f32,
    /// Factor on the router's weight matrix.
    pub router_scale: f32,
    /// True if the weight of a chosen expert is finally multiplied by a factor of that expert.
    pub output_scales: bool,
    /// True if the weight multiplies the expert's input instead of its output. A row then has only one expert.
    pub weighs_inputs: bool,
}

/// The function that turns router logits into expert weights. The experts with the largest weights are chosen; the
/// lower index wins a tie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over the logits of all experts.
    Softmax,
    /// Sigmoid of each expert's own logit.
    Sigmoid,
}

/// Groups of equally many neighbouring experts (arXiv 2412.19437, section 2.1.2). A group's score is the sum of the
/// scores of its two best experts. A row takes its experts from the best groups; the lower index wins a tie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    pub num: usize,
    /// The number of groups that the experts of a row may come from.
    pub used: usize,
}

impl ExpertSpec {
    /// Returns experts without options, for tests and conformance cases: gated by SiLU, chosen by a softmax whose
    /// weights are normalized.
    pub fn plain(num: usize, used: usize, hidden_size: usize, ffn_size: usize) -> Self {
        Self {
            num,
            used,
            hidden_size,
            ffn_size,
            activation: Activation::Silu,
            gate: true,
            gating: Gating::Softmax,
            groups: None,
            router_bias: false,
            choice_bias: false,
            biases: false,
            normalize: true,
            scale: 1.0,
            router_scale: 1.0,
            output_scales: false,
            weighs_inputs: false,
        }
    }

    /// Returns the matrices of an expert.
    pub fn parts(&self) -> &'static [ExpertPart] {
        const PARTS: [ExpertPart; 3] = [ExpertPart::Gate, ExpertPart::Up, ExpertPart::Down];
        if self.gate { &PARTS } else { &PARTS[1..] }
    }

    /// Returns the columns of the products of gate, if any, and up.
    pub fn product_cols(&self) -> usize {
        if self.gate { self.ffn_size.saturating_mul(2) } else { self.ffn_size }
    }

    /// # Errors
    /// `Error::Internal` if:
    /// - a size is zero, or a row needs more experts than exist,
    /// - a gate uses xIELU, or experts without a gate have biases,
    /// - groups are unequal, smaller than two experts, or too few for a row's experts,
    /// - groups are used without sigmoids, since only sigmoid scores may be added up,
    /// - inputs are weighed although a row has several experts.
    pub fn validate(&self) -> Result<()> {
        let is_empty = self.used == 0 || self.hidden_size == 0 || self.ffn_size == 0;
        let has_no_groups = self.groups.is_some_and(|ExpertGroups { num, used }| {
            let of_group = self.num.checked_div(num).unwrap_or(0);
            let is_whole = self.num.is_multiple_of(num) && (1..=num).contains(&used);
            !is_whole || of_group < 2 || used * of_group < self.used || self.gating != Gating::Sigmoid
        });
        let weighs_sums = self.weighs_inputs && self.used != 1;
        let is_gate = self.gate && matches!(self.activation, Activation::Relu | Activation::Xielu(_));
        match is_gate || is_empty || self.used > self.num || (self.biases && !self.gate) || has_no_groups || weighs_sums
        {
            true => Err(Error::internal(format!("{self:?} is no mixture of experts"))),
            false => Ok(()),
        }
    }

    /// # Errors
    /// `Error::Internal` if `rows` rows of this spec do not fit in buffers for `most` rows of `room`.
    pub fn check_room(&self, rows: usize, room: &Self, most: usize) -> Result<()> {
        match rows > most || self != room {
            true => Err(Error::internal(format!("{rows} rows for {self:?}, room is for {most} of {room:?}"))),
            false => Ok(()),
        }
    }
}

/// A matrix of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertPart {
    Gate,
    Up,
    Down,
}

/// The experts of one layer in the file. Each tensor holds the rows of all experts, expert after expert.
#[derive(Debug, Clone, Copy)]
pub struct ExpertTensors<'a> {
    pub spec: ExpertSpec,
    /// A row per expert.
    pub router: TensorView<'a>,
    /// `None` for experts without a gate.
    pub gate: Option<TensorView<'a>>,
    pub up: TensorView<'a>,
    pub down: TensorView<'a>,
    /// True if `gate` and `up` are the same tensor, which holds the gate rows and then the up rows of each expert.
    pub fused: bool,
    /// `[num]` each, if the spec has them.
    pub router_bias: Option<TensorView<'a>>,
    pub choice_bias: Option<TensorView<'a>>,
    pub output_scales: Option<TensorView<'a>>,
    /// Biases of gate, up and down, one row per expert, if the spec has them.
    pub biases: Option<[TensorView<'a>; 3]>,
}

impl<'a> ExpertTensors<'a> {
    /// # Errors
    /// `Error::Internal` unless the tensors have the shapes and byte counts that the spec demands.
    pub fn validate(&self) -> Result<()> {
        self.spec.validate()?;
        let ExpertSpec { num, hidden_size, ffn_size, .. } = self.spec;
        let of_gate = if self.fused { ffn_size.saturating_mul(2) } else { ffn_size };
        if self.gate.is_some() != self.spec.gate || (self.fused && !self.spec.gate) {
            return Err(Error::internal(format!("a gate that is not of {:?}", self.spec)));
        }
        let expected = [
            (Some(&self.router), 1, hidden_size),
            (self.gate.as_ref(), of_gate, hidden_size),
            (Some(&self.up), of_gate, hidden_size),
            (Some(&self.down), hidden_size, ffn_size),
        ];
        for (tensor, rows, cols) in expected.into_iter().filter_map(|(tensor, rows, cols)| Some((tensor?, rows, cols)))
        {
            let rows = num.checked_mul(rows);
            let bytes = rows.and_then(|rows| tensor.ggml_type.row_bytes(cols)?.checked_mul(rows));
            if (Some(tensor.rows), tensor.cols, Some(tensor.data.len())) != (rows, cols, bytes) {
                return Err(Error::internal(format!(
                    "tensor {} of {} rows of {} and {} bytes is not of {:?}",
                    tensor.name,
                    tensor.rows,
                    tensor.cols,
                    tensor.data.len(),
                    self.spec
                )));
            }
        }
        self.validate_biases()
    }

    fn validate_biases(&self) -> Result<()> {
        let ExpertSpec { num, hidden_size, ffn_size, .. } = self.spec;
        let [gate, up, down] = match self.biases {
            Some(biases) => biases.map(Some),
            None => [None; 3],
        };
        let expected = [
            (self.router_bias, self.spec.router_bias, 1, num),
            (self.choice_bias, self.spec.choice_bias, 1, num),
            (self.output_scales, self.spec.output_scales, 1, num),
            (gate, self.spec.biases, num, ffn_size),
            (up, self.spec.biases, num, ffn_size),
            (down, self.spec.biases, num, hidden_size),
        ];
        for (bias, is_there, rows, cols) in expected {
            match bias {
                None if !is_there => {}
                Some(bias) if is_there && (bias.rows, bias.cols) == (rows, cols) => {}
                _ => return Err(Error::internal(format!("biases that are not of {:?}: {bias:?}", self.spec))),
            }
        }
        Ok(())
    }

    /// Returns the part of a bias tensor that belongs to expert `expert`.
    pub fn of_expert(&self, tensor: TensorView<'a>, expert: usize) -> TensorView<'a> {
        share(tensor, self.spec.num, expert)
    }

    /// Returns one of the matrices of expert `expert`.
    pub fn matrix(&self, part: ExpertPart, expert: usize) -> TensorView<'a> {
        let of_half = |tensor, half| match self.fused {
            true => share(tensor, 2 * self.spec.num, 2 * expert + half),
            false => self.of_expert(tensor, expert),
        };
        match part {
            ExpertPart::Gate => of_half(self.gate.unwrap_or(self.up), 0),
            ExpertPart::Up => of_half(self.up, 1),
            ExpertPart::Down => self.of_expert(self.down, expert),
        }
    }

    /// Returns the router as little-endian f32, the form that every backend keeps. The router is small, and a rounding
    /// that changes the choice of experts costs more than its bytes.
    pub fn router_bytes(&self) -> Result<Vec<u8>> {
        let mut values = vec![0.0; self.router.rows * self.router.cols];
        quant::dequantize(self.router.ggml_type, self.router.data, &mut values)?;
        Ok(values.iter().flat_map(|x| (x * self.spec.router_scale).to_le_bytes()).collect())
    }
}

/// Returns part `index` of `parts` equal parts, each of whole rows. A factor belongs to one or more parts.
pub fn share(tensor: TensorView<'_>, parts: usize, index: usize) -> TensorView<'_> {
    let bytes = tensor.data.len() / parts;
    let scales = tensor.scales.as_chunks::<4>().0;
    let scales = scales.get(index * scales.len() / parts).map_or(&[][..], |scale| &scale[..]);
    let data = &tensor.data[index * bytes..(index + 1) * bytes];
    TensorView { rows: tensor.rows / parts, data, scales, ..tensor }
}
