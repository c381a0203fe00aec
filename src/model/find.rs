//! Finds the model's tensors in its file and checks them, all before any is used.

use std::collections::HashSet;

use super::layers::{Part, Runs, Tensors, Visitor, Weights, of_layer};
use super::rope::ROPE_TENSORS;
use super::spec::{ModelSpec, OUTPUT_SCALE, Presence, RankSpec};
use crate::backend::{ExpertSpec, ExpertTensors, LinearPart, RopeSpec, Upload};
use crate::gguf::{GgufFile, TensorInfo};
use crate::quant;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// Every tensor of the model, checked: all are there, each has the shape that the spec demands and a type that can be
/// computed with, and the file holds none that the architecture does not know (it would be silently ignored).
#[derive(Debug)]
pub struct ModelTensors<'a> {
    pub(super) finder: Finder<'a>,
    pub(super) spec: &'a ModelSpec,
    /// The tensors of the draft model.
    pub(super) draft: Option<Box<ModelTensors<'a>>>,
    uploads: Vec<Upload<'a>>,
}

impl<'a> ModelTensors<'a> {
    /// # Errors
    /// `Error::ModelFile` naming the tensor that is missing, unknown, or of the wrong shape or type.
    pub fn collect(gguf: &'a GgufFile, spec: &'a ModelSpec) -> Result<Self> {
        let finder = Finder { gguf };
        let head = spec.rank.iter().flat_map(RankSpec::tensors);
        let used = head.chain(ROPE_TENSORS).collect();
        let mut inventory = Inventory { finder, used, uploads: Vec::new() };
        inventory.used.extend(output_scales(gguf, spec));
        Weights::visit(spec, &mut inventory)?;
        inventory.reject_unused(spec)?;
        Ok(Self { finder, spec, draft: None, uploads: inventory.uploads })
    }

    /// Adds the tensors of the draft model, which `gguf` holds.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the tensor that is missing, unknown, or of the wrong shape or type.
    pub fn with_draft_model(mut self, gguf: &'a GgufFile) -> Result<Self> {
        let spec = self.spec.draft_model.as_deref().ok_or_else(|| Error::internal("tensors of no draft model"))?;
        let mut draft = Self::collect(gguf, spec)?;
        self.uploads.append(&mut draft.uploads);
        self.draft = Some(Box::new(draft));
        Ok(self)
    }

    /// Every upload that `upload` will make.
    pub fn uploads(&self) -> &[Upload<'a>] {
        &self.uploads
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor<'a> {
    pub(super) info: &'a TensorInfo,
    pub(super) view: TensorView<'a>,
}

/// A matrix with its bias.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear<'a> {
    pub(super) weight: Tensor<'a>,
    pub(super) bias: Option<Tensor<'a>>,
}

impl<'a> Linear<'a> {
    pub(super) fn part(&self) -> LinearPart<'a> {
        LinearPart { weight: self.weight.view, bias: self.bias.map(|bias| bias.view) }
    }
}

/// The experts of a layer.
pub(super) struct FoundExperts<'a> {
    pub(super) tensors: ExpertTensors<'a>,
    /// Directory entries of all these tensors.
    pub(super) infos: Vec<&'a TensorInfo>,
}

/// Looks tensors up by their names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finder<'a> {
    pub(super) gguf: &'a GgufFile,
}

impl<'a> Finder<'a> {
    pub(super) fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        self.gguf.metadata().error(name, problem)
    }

    /// A tensor of this shape, whose last dimensions a file may leave out where they are one.
    pub(super) fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<Tensor<'a>>> {
        let Some(info) = self.gguf.tensor(name) else { return Ok(None) };
        let view = self.gguf.view(info);
        let given = info.shape.iter().copied().chain(std::iter::repeat(1));
        if info.shape.len() > shape.len() || given.zip(shape).any(|(given, &n)| given != n as u64) {
            let end = shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
            return Err(self.error(name, format!("has shape {:?}, expected {:?}", info.shape, &shape[..end])));
        }
        if !quant::can_dequantize(view.ggml_type) {
            return Err(
                self.error(name, format!("is of type {}, which cannot be computed with", view.ggml_type.name()))
            );
        }
        Ok(Some(Tensor { info, view }))
    }

    pub(super) fn required(&self, name: &str, shape: &[usize]) -> Result<Tensor<'a>> {
        self.optional(name, shape)?.ok_or_else(|| self.error(name, "tensor is missing; the architecture requires it"))
    }

    /// The matrix of a part; several where it has runs of a tensor's outputs.
    fn linears(&self, part: &Part) -> Result<Vec<Linear<'a>>> {
        let whole = self.linear(part)?;
        let Some(Runs { period, first, len }) = part.runs else { return Ok(vec![whole]) };
        let view = whole.weight.view;
        let row_bytes = view.data.len() / view.rows;
        let run = |period: &'a [u8]| {
            let data = &period[first * row_bytes..][..len * row_bytes];
            let view = TensorView { rows: len, data, ..view };
            Linear { weight: Tensor { view, ..whole.weight }, bias: None }
        };
        Ok(view.data.chunks_exact(period * row_bytes).map(run).collect())
    }

    fn linear(&self, part: &Part) -> Result<Linear<'a>> {
        let weight = self.required(&format!("{}.weight", part.name), &[part.cols, part.rows])?;
        let bias_name = format!("{}.bias", part.name);
        let bias = match part.bias {
            Presence::Absent => None,
            Presence::Optional => self.optional(&bias_name, &[part.rows, 1])?,
            Presence::Required => Some(self.required(&bias_name, &[part.rows, 1])?),
        };
        Ok(Linear { weight, bias })
    }

    pub(super) fn matrix(&self, parts: &[Part]) -> Result<Vec<Linear<'a>>> {
        Ok(parts.iter().map(|part| self.linears(part)).collect::<Result<Vec<_>>>()?.concat())
    }

    pub(super) fn experts(&self, layer: usize, spec: &ExpertSpec) -> Result<FoundExperts<'a>> {
        let split = of_layer(layer, "ffn_gate.0.weight");
        if self.gguf.tensor(&split).is_some() {
            return Err(self.error(
                &split,
                "is a tensor of a single expert, the layout of old converters, which is not supported; convert the model \
                 again with a current convert_hf_to_gguf.py, or take a newer file",
            ));
        }
        let ExpertSpec { num, hidden_size: hidden, ffn_size: ffn, .. } = *spec;
        let mut infos = Vec::new();
        let mut find = |name: &str, shape: &[usize]| {
            let tensor = self.required(&of_layer(layer, name), shape)?;
            infos.push(tensor.info);
            Ok(tensor.view)
        };
        let router = find("ffn_gate_inp.weight", &[hidden, num])?;
        let fused = "ffn_gate_up_exps.weight";
        let (gate, up) = match self.gguf.tensor(&of_layer(layer, fused)) {
            Some(_) if spec.gate => {
                let both = find(fused, &[hidden, ffn.saturating_mul(2), num])?;
                (Some(both), both)
            }
            _ => {
                let gate = spec.gate.then(|| find("ffn_gate_exps.weight", &[hidden, ffn, num]));
                (gate.transpose()?, find("ffn_up_exps.weight", &[hidden, ffn, num])?)
            }
        };
        let tensors = ExpertTensors {
            spec: *spec,
            router,
            gate,
            up,
            fused: spec.gate && self.gguf.tensor(&of_layer(layer, fused)).is_some(),
            down: find("ffn_down_exps.weight", &[ffn, hidden, num])?,
            router_bias: match spec.router_bias {
                true => Some(find("ffn_gate_inp.bias", &[num, 1])?),
                false => None,
            },
            choice_bias: match spec.choice_bias {
                true => Some(find("exp_probs_b.bias", &[num, 1])?),
                false => None,
            },
            output_scales: match spec.output_scales {
                true => Some(find("ffn_down_exps.scale", &[num, 1])?),
                false => None,
            },
            biases: match spec.biases {
                true => Some([
                    find("ffn_gate_exps.bias", &[ffn, num])?,
                    find("ffn_up_exps.bias", &[ffn, num])?,
                    find("ffn_down_exps.bias", &[hidden, num])?,
                ]),
                false => None,
            },
        };
        Ok(FoundExperts { tensors, infos })
    }
}

/// Names of the tensors that hold the factors of layers, which the spec has already.
fn output_scales<'a>(gguf: &'a GgufFile, spec: &ModelSpec) -> impl Iterator<Item = &'a str> {
    let layers = spec.layers.iter().enumerate().filter(|(_, layer)| layer.output_scale.is_some());
    layers.filter_map(|(index, _)| Some(gguf.tensor(&of_layer(index, OUTPUT_SCALE))?.name.as_str()))
}

/// Finds all tensors, and notes what will be uploaded of them.
struct Inventory<'a> {
    finder: Finder<'a>,
    used: HashSet<&'a str>,
    uploads: Vec<Upload<'a>>,
}

/// Tensors that are only found, not made into anything.
struct Found;

impl Tensors for Found {
    type Matrix = ();
    type HeadMatrices = ();
    type Vector = ();
    type Experts = ();
    type Rope = ();
}

impl Visitor for Inventory<'_> {
    type Made = Found;

    fn matrix(&mut self, parts: &[Part]) -> Result<()> {
        let found = self.finder.matrix(parts)?;
        self.used.extend(found.iter().flat_map(|linear| [Some(linear.weight), linear.bias]).flatten().map(name));
        self.uploads.push(Upload::Matrix(found.iter().map(Linear::part).collect()));
        Ok(())
    }

    fn heads(&mut self, tensor: &str, [rows, cols]: [usize; 2], heads: usize) -> Result<()> {
        let tensor = self.finder.required(tensor, &[cols, rows, heads])?;
        self.used.insert(name(tensor));
        self.uploads.push(Upload::Heads(tensor.view, heads));
        Ok(())
    }

    fn vector_of(&mut self, tensor: &str, shape: [usize; 2]) -> Result<()> {
        let tensor = self.finder.required(tensor, &shape)?;
        self.used.insert(name(tensor));
        self.uploads.push(Upload::Vector(tensor.view));
        Ok(())
    }

    fn taps(&mut self, tensor: &str, taps: usize, channels: usize) -> Result<()> {
        let tensor = self.finder.required(tensor, &[taps, channels])?;
        self.used.insert(name(tensor));
        self.uploads.push(Upload::Taps(tensor.view));
        Ok(())
    }

    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<()> {
        let found = self.finder.experts(layer, spec)?;
        self.used.extend(found.infos.iter().map(|info| info.name.as_str()));
        self.uploads.push(Upload::Experts(Box::new(found.tensors)));
        Ok(())
    }

    fn rope(&mut self, spec: &RopeSpec) -> Result<()> {
        self.uploads.push(Upload::Rope(spec.clone()));
        Ok(())
    }
}

fn name<'a>(tensor: Tensor<'a>) -> &'a str {
    &tensor.info.name
}

impl Inventory<'_> {
    fn reject_unused(&self, spec: &ModelSpec) -> Result<()> {
        let behind = spec.layers.len()..spec.layers.len() + spec.nextn_layers;
        let is_behind = |name: &str| behind.clone().any(|layer| name.starts_with(&of_layer(layer, "")));
        match self.finder.gguf.tensors().iter().find(|t| !self.used.contains(t.name.as_str()) && !is_behind(&t.name)) {
            Some(t) => Err(self.finder.error(
                &t.name,
                format!(
                    "is not a tensor of a {} model with these keys; ignoring it would change the results",
                    spec.architecture
                ),
            )),
            None => Ok(()),
        }
    }
}
