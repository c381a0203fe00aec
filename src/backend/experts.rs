//! A mixture of experts: its parameters and its tensors.

use super::Activation;
use crate::tensor::TensorView;
use crate::{Error, Result, quant};

/// A layer's experts: feed-forwards of one shape, of which a router chooses some for each row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSpec {
    /// Experts of a layer, and how many of them serve a row.
    pub num: usize,
    pub used: usize,
    pub hidden_size: usize,
    /// Width of one expert.
    pub ffn_size: usize,
    pub activation: Activation,
    /// Whether an expert is `down · (act(gate · x) * (up · x))`, or without a gate `down · act(up · x)`.
    pub gate: bool,
    /// How the router's logits become the experts' weights.
    pub gating: Gating,
    /// Groups of the experts, where a row's experts are of few of them.
    pub groups: Option<ExpertGroups>,
    /// Whether a bias is added to the router's logits.
    pub router_bias: bool,
    /// Whether a bias is added to what is compared when experts are chosen; their weights do not see it.
    pub choice_bias: bool,
    /// Whether gate, up and down of each expert have a bias; only experts with a gate may.
    pub biases: bool,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights after that.
    pub scale: f32,
    /// Factor on the router's own weights.
    pub router_scale: f32,
    /// Whether the weight of a chosen expert is at last multiplied by a factor of that expert.
    pub output_scales: bool,
}

/// How the router's logits become weights of experts. The experts with the largest weights are chosen; of equal ones
/// those of lower index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over the logits of all experts.
    Softmax,
    /// Sigmoid of each expert's logit by itself.
    Sigmoid,
}

/// Experts in groups of as many neighbours (arXiv 2412.19437, section 2.1.2). The groups with the largest sums of their
/// two best experts, by what experts are compared by, give a row its experts; of equal ones those of lower index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    pub num: usize,
    /// Groups of which the experts of a row are.
    pub used: usize,
}

impl ExpertSpec {
    /// The matrices of an expert.
    pub fn parts(&self) -> &'static [ExpertPart] {
        const PARTS: [ExpertPart; 3] = [ExpertPart::Gate, ExpertPart::Up, ExpertPart::Down];
        if self.gate { &PARTS } else { &PARTS[1..] }
    }

    /// Columns of the products of gate, where there is one, and up.
    pub fn product_cols(&self) -> usize {
        if self.gate { self.ffn_size.saturating_mul(2) } else { self.ffn_size }
    }

    /// # Errors
    /// `Error::Internal` unless each row has its experts, nothing is empty, what biases ask for is there, and groups
    /// are whole, of two experts at least, and compared by numbers that may be added up.
    pub fn validate(&self) -> Result<()> {
        let is_empty = self.used == 0 || self.hidden_size == 0 || self.ffn_size == 0;
        let has_no_groups = self.groups.is_some_and(|ExpertGroups { num, used }| {
            let of_group = self.num.checked_div(num).unwrap_or(0);
            let is_whole = self.num.is_multiple_of(num) && (1..=num).contains(&used);
            !is_whole || of_group < 2 || used * of_group < self.used || self.gating != Gating::Sigmoid
        });
        match is_empty || self.used > self.num || (self.biases && !self.gate) || has_no_groups {
            true => Err(Error::internal(format!("{self:?} is no mixture of experts"))),
            false => Ok(()),
        }
    }

    /// # Errors
    /// `Error::Internal` when `rows` rows of this do not fit where there is room for `most` rows of `room`.
    pub fn check_room(&self, rows: usize, room: &Self, most: usize) -> Result<()> {
        match rows > most || self != room {
            true => Err(Error::internal(format!("{rows} rows for {self:?}, room is for {most} of {room:?}"))),
            false => Ok(()),
        }
    }
}

/// The matrices of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertPart {
    Gate,
    Up,
    Down,
}

/// The experts of one layer in the file: in a tensor, the rows of each expert follow those of the expert before.
#[derive(Debug, Clone, Copy)]
pub struct ExpertTensors<'a> {
    pub spec: ExpertSpec,
    /// A row per expert.
    pub router: TensorView<'a>,
    /// Where the spec has it.
    pub gate: Option<TensorView<'a>>,
    pub up: TensorView<'a>,
    pub down: TensorView<'a>,
    /// Whether gate and up are both the one tensor that has, of each expert, the rows of gate and then those of up.
    pub fused: bool,
    /// `[num]`, where the spec has them.
    pub router_bias: Option<TensorView<'a>>,
    pub choice_bias: Option<TensorView<'a>>,
    pub output_scales: Option<TensorView<'a>>,
    /// Biases of gate, up and down, a row per expert, where the spec has them.
    pub biases: Option<[TensorView<'a>; 3]>,
}

impl<'a> ExpertTensors<'a> {
    /// # Errors
    /// `Error::Internal` unless the tensors have the shapes that the spec demands, and as many bytes.
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

    /// The part of a tensor of biases that is expert `expert`'s.
    pub fn of_expert(&self, tensor: TensorView<'a>, expert: usize) -> TensorView<'a> {
        share(tensor, self.spec.num, expert)
    }

    /// One of the matrices that the spec has of expert `expert`.
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

    /// The router as f32, for every backend to keep it so: it is small, and rounding that turns a choice costs more
    /// than its bytes. In the bytes of a file.
    pub fn router_bytes(&self) -> Result<Vec<u8>> {
        let mut values = vec![0.0; self.router.rows * self.router.cols];
        quant::dequantize(self.router.ggml_type, self.router.data, &mut values)?;
        Ok(values.iter().flat_map(|x| (x * self.spec.router_scale).to_le_bytes()).collect())
    }
}

/// Part `index` of `parts` equal ones, each of whole rows.
pub(super) fn share(tensor: TensorView<'_>, parts: usize, index: usize) -> TensorView<'_> {
    let bytes = tensor.data.len() / parts;
    TensorView { rows: tensor.rows / parts, data: &tensor.data[index * bytes..(index + 1) * bytes], ..tensor }
}
