//! Finds and checks all tensors of the model in its file before any of them is used.

use std::borrow::Cow;
use std::collections::HashSet;

use super::keys::rope::{ROPE_TENSORS, warn_of_missing_base};
use super::layers::{HeadRows, Part, Runs, Tensors, Visitor, Weights, of_layer};
use super::roles;
use super::spec::{CHOICE_BIAS, DistanceBiases, ModelSpec, OUTPUT_SCALE, Presence, RankSpec};
use super::tensor_names;
use crate::backend::{ExpertSpec, ExpertTensors, LinearPart, Role, RopeSpec, Upload};
use crate::gguf::{GgufFile, TensorInfo};
use crate::quant::{self, GgmlType};
use crate::tensor::TensorView;
use crate::{Error, Result};

/// Every tensor of the model, checked. Each exists, and has the shape in the spec and a type that can be computed with.
/// The file holds no tensor that the architecture would silently ignore. Tensors of image and audio encoders are left
/// out with a warning.
#[derive(Debug)]
pub struct ModelTensors<'a> {
    pub(super) finder: Finder<'a>,
    pub(super) spec: &'a ModelSpec,
    /// The tensors of the draft model.
    pub(super) draft: Option<Box<ModelTensors<'a>>>,
    uploads: Vec<Upload<'a>>,
    /// The role of each upload.
    roles: Vec<Role>,
}

impl<'a> ModelTensors<'a> {
    /// # Errors
    /// `Error::ModelFile` naming the tensor that is missing, unknown, or of the wrong shape or type.
    pub fn collect(gguf: &'a GgufFile, spec: &'a ModelSpec) -> Result<Self> {
        let finder = Finder { gguf };
        let ranks = spec.rank.iter().flat_map(RankSpec::tensors);
        let embeds = spec.embed.iter().flat_map(|matrix| [matrix.weight, matrix.bias]);
        let used = ranks.chain(embeds).chain(ROPE_TENSORS).collect();
        let mut inventory = Inventory { finder, spec, used, uploads: Vec::new(), roles: Vec::new() };
        inventory.used.extend(output_scales(gguf, spec));
        Weights::visit(spec, &mut inventory)?;
        inventory.reject_unused(spec)?;
        warn_of_missing_base(gguf, spec);
        Ok(Self { finder, spec, draft: None, uploads: inventory.uploads, roles: inventory.roles })
    }

    /// Adds the tensors of the draft model from its file `gguf`.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the tensor that is missing, unknown, or of the wrong shape or type.
    pub fn with_draft_model(mut self, gguf: &'a GgufFile) -> Result<Self> {
        let spec = self.spec.draft_model.as_deref().ok_or_else(|| Error::internal("tensors of no draft model"))?;
        let mut draft = Self::collect(gguf, spec)?;
        // A draft model is read once for each draft token, so none of it may be slow.
        self.roles.extend(draft.roles.iter().map(|_| Role::Fixed));
        self.uploads.append(&mut draft.uploads);
        self.draft = Some(Box::new(draft));
        Ok(self)
    }

    /// Returns every upload that `upload` will make.
    pub fn uploads(&self) -> &[Upload<'a>] {
        &self.uploads
    }

    /// Returns the role of each upload.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Tensor<'a> {
    pub(super) info: &'a TensorInfo,
    pub(super) view: TensorView<'a>,
}

/// A matrix with its bias, and the tensor of its scale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear<'a> {
    pub(super) weight: Tensor<'a>,
    pub(super) bias: Option<Tensor<'a>>,
    pub(super) scale: Option<Tensor<'a>>,
}

impl<'a> Linear<'a> {
    pub(super) fn part(&self) -> LinearPart<'a> {
        LinearPart { weight: self.weight.view, bias: self.bias.map(|bias| bias.view) }
    }
}

/// The tensor of the experts' second matrices.
const DOWN: &str = "ffn_down_exps.weight";

/// The experts of a layer.
pub(super) struct FoundExperts<'a> {
    pub(super) tensors: ExpertTensors<'a>,
    /// Directory entries of all these tensors.
    pub(super) infos: Vec<&'a TensorInfo>,
}

/// Looks up tensors by name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finder<'a> {
    pub(super) gguf: &'a GgufFile,
}

impl<'a> Finder<'a> {
    pub(super) fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        self.gguf.metadata().error(name, problem)
    }

    /// Returns the tensor of this name and shape. A file may leave out trailing dimensions of 1. It may also leave out
    /// `.weight`, as the converter of `falcon-h1` does for `ffn_norm`.
    pub(super) fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<Tensor<'a>>> {
        let name = &*self.in_file(name);
        let without_end = || self.gguf.tensor(name.strip_suffix(".weight")?);
        let Some(info) = self.gguf.tensor(name).or_else(without_end) else { return Ok(None) };
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
        let missing = || self.error(&self.in_file(name), "tensor is missing; the architecture requires it");
        self.optional(name, shape)?.ok_or_else(missing)
    }

    /// Returns the name of a tensor in this file, by its usual name.
    fn in_file<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let architecture = self.gguf.metadata().opt_str("general.architecture");
        tensor_names::in_file(architecture.ok().flatten().unwrap_or_default(), name)
    }

    /// Returns the matrix of a part, or several matrices if the part consists of ranges of a tensor's outputs.
    fn linears(&self, part: &Part) -> Result<Vec<Linear<'a>>> {
        let whole = self.linear(part)?;
        let Some(Runs { period, first, len, count }) = part.runs else { return Ok(vec![whole]) };
        let view = whole.weight.view;
        let row_bytes = view.data.len() / view.rows;
        let run = |period: &'a [u8]| {
            let data = &period[first * row_bytes..][..len * row_bytes];
            let view = TensorView { rows: len, data, ..view };
            Linear { weight: Tensor { view, ..whole.weight }, bias: None, scale: None }
        };
        let mut runs: Vec<_> = view.data.chunks_exact(period * row_bytes).take(count).map(run).collect();
        // The tensor of the scale is that of all, and counts once.
        runs.iter_mut().take(1).for_each(|first| first.scale = whole.scale);
        Ok(runs)
    }

    fn linear(&self, part: &Part) -> Result<Linear<'a>> {
        let name = format!("{}.weight", part.name);
        let weight = match (part.runs, self.gguf.tensor(&name).map(|info| info.shape.len())) {
            // Matrices of one size may be stacked in a third dimension.
            (Some(Runs { len, .. }), Some(3)) => self.required(&name, &[part.cols, len, part.rows / len])?,
            _ => self.required(&name, &[part.cols, part.rows])?,
        };
        let (weight, scale) = self.scaled(weight, 1)?;
        let bias_name = format!("{}.bias", part.name);
        let bias = match part.bias {
            Presence::Absent => None,
            Presence::Optional => self.optional(&bias_name, &[part.rows, 1])?,
            Presence::Required => Some(self.required(&bias_name, &[part.rows, 1])?),
        };
        Ok(Linear { weight, bias, scale })
    }

    /// Returns a tensor with its factors, and the tensor with these: `num` factors, each for an equal number of rows.
    /// Files have them for NVFP4 only, whose block scales range from 2^-9 to 448.
    fn scaled(&self, tensor: Tensor<'a>, num: usize) -> Result<(Tensor<'a>, Option<Tensor<'a>>)> {
        let Some(name) = beside(tensor, SCALE) else { return Ok((tensor, None)) };
        let Some(scale) = self.optional(&name, &[num])? else { return Ok((tensor, None)) };
        if scale.view.ggml_type != GgmlType::F32 {
            return Err(self.error(&name, format!("is of type {}, expected F32", scale.view.ggml_type.name())));
        }
        let view = TensorView { scales: scale.view.data, ..tensor.view };
        Ok((Tensor { view, ..tensor }, Some(scale)))
    }

    /// Returns the tensor with these matrices of heads.
    pub(super) fn heads(&self, HeadRows { name, heads, period, cols, .. }: &HeadRows) -> Result<Tensor<'a>> {
        match self.gguf.tensor(name).is_some_and(|info| info.shape.len() == 2) {
            true => self.required(name, &[*cols, period * heads]),
            false => self.required(name, &[*cols, *period, *heads]),
        }
    }

    /// Returns the tensor of a layer's biases by distance: a value for each head of each bucket.
    pub(super) fn biases(&self, biases: DistanceBiases, heads: usize) -> Result<Tensor<'a>> {
        self.required(&of_layer(biases.layer, DistanceBiases::TENSOR), &[heads, biases.buckets])
    }

    pub(super) fn matrix(&self, parts: &[Part]) -> Result<Vec<Linear<'a>>> {
        Ok(parts.iter().map(|part| self.linears(part)).collect::<Result<Vec<_>>>()?.concat())
    }

    pub(super) fn experts(&self, layer: usize, spec: &ExpertSpec) -> Result<FoundExperts<'a>> {
        let split = of_layer(layer, "ffn_gate.0.weight");
        if self.gguf.tensor(&split).is_some() {
            return Err(self.error(
                &split,
                "is a tensor of a single expert from an old converter, which is not supported. Convert the model again \
                 with a current convert_hf_to_gguf.py, or take a newer file",
            ));
        }
        let ExpertSpec { num, hidden_size: hidden, ffn_size: ffn, .. } = *spec;
        let mut infos = Vec::new();
        let mut find = |name: &str, shape: &[usize]| -> Result<TensorView<'a>> {
            let tensor = self.required(&of_layer(layer, name), shape)?;
            infos.push(tensor.info);
            // Factors of the outputs of experts are those of `down`, where the spec has them.
            if shape.len() < 3 || (spec.output_scales && name == DOWN) {
                return Ok(tensor.view);
            }
            let (tensor, scale) = self.scaled(tensor, num)?;
            infos.extend(scale.map(|scale| scale.info));
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
            down: find(DOWN, &[ffn, hidden, num])?,
            router_bias: match spec.router_bias {
                true => Some(find("ffn_gate_inp.bias", &[num, 1])?),
                false => None,
            },
            choice_bias: match spec.choice_bias {
                true => {
                    let is_there = |name: &&str| self.gguf.tensor(&of_layer(layer, name)).is_some();
                    Some(find(CHOICE_BIAS.into_iter().find(is_there).unwrap_or(CHOICE_BIAS[0]), &[num, 1])?)
                }
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

/// Suffixes of the tensors beside an NVFP4 tensor. The first has the factors of its values. The second has those that
/// quantise activations to 4 bits; rocmforge quantises them to 8 bits with other scales, so it ignores them.
const SCALE: &str = "scale";
const INPUT_SCALE: &str = "input_scale";

/// Returns the name of a tensor beside an NVFP4 tensor; `None` for another type.
fn beside(tensor: Tensor<'_>, end: &str) -> Option<String> {
    let stem = tensor.info.name.strip_suffix("weight")?;
    (tensor.view.ggml_type == GgmlType::NVFP4).then(|| format!("{stem}{end}"))
}

/// Type of head matrices that are built from a tensor's rows.
pub(super) const MADE_HEADS: GgmlType = GgmlType::F16;

/// Name prefixes of the tensors of image and audio encoders. Text does not use them.
const OF_ENCODERS: [&str; 4] = ["v.", "mm.", "a.", "model.vision_tower."];

/// Returns the names of the tensors with the layers' output scales. The spec already has their values.
fn output_scales<'a>(gguf: &'a GgufFile, spec: &ModelSpec) -> impl Iterator<Item = &'a str> {
    let layers = spec.layers.iter().enumerate().filter(|(_, layer)| layer.output_scale.is_some());
    layers.filter_map(|(index, _)| Some(gguf.tensor(&of_layer(index, OUTPUT_SCALE))?.name.as_str()))
}

/// Finds all tensors, and records their uploads.
struct Inventory<'a> {
    finder: Finder<'a>,
    spec: &'a ModelSpec,
    used: HashSet<&'a str>,
    uploads: Vec<Upload<'a>>,
    roles: Vec<Role>,
}

/// Visitor types that hold nothing, for tensors that are only looked up.
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
        let tensors = found.iter().flat_map(|linear| [Some(linear.weight), linear.bias, linear.scale]).flatten();
        self.used.extend(tensors.map(name));
        let role = roles::of_matrix(parts, self.spec);
        self.push(Upload::Matrix(found.iter().map(Linear::part).collect()), role);
        Ok(())
    }

    fn heads(&mut self, rows: &HeadRows) -> Result<()> {
        let tensor = self.finder.heads(rows)?;
        self.used.insert(name(tensor));
        let [of_head, cols] = rows.shape();
        let view = match rows.is_whole() {
            true => tensor.view,
            // Built at the upload; until then only its size counts.
            false => TensorView { ggml_type: MADE_HEADS, rows: rows.heads * of_head, cols, data: &[], ..tensor.view },
        };
        self.push(Upload::Heads(view, rows.heads), Role::Fixed);
        Ok(())
    }

    fn vector_of(&mut self, tensor: &str, shape: [usize; 2]) -> Result<()> {
        let tensor = self.finder.required(tensor, &shape)?;
        self.used.insert(name(tensor));
        self.push(Upload::Vector(tensor.view), Role::Fixed);
        Ok(())
    }

    fn scaled(&mut self, name: &str, len: usize, _scale: f32) -> Result<()> {
        self.vector(name, len)
    }

    fn constant(&mut self, _: f32, len: usize) -> Result<()> {
        self.push(Upload::Constant(len), Role::Fixed);
        Ok(())
    }

    fn taps(&mut self, tensor: &str, taps: usize, channels: usize) -> Result<()> {
        let tensor = self.finder.required(tensor, &[taps, channels])?;
        self.used.insert(name(tensor));
        self.push(Upload::Taps(tensor.view), Role::Fixed);
        Ok(())
    }

    fn biases(&mut self, _: usize, biases: DistanceBiases, heads: usize) -> Result<()> {
        let tensor = self.finder.biases(biases, heads)?;
        self.used.insert(name(tensor));
        // Built at the upload; until then only its size counts.
        let (rows, cols) = (1, DistanceBiases::table_len(heads));
        let view = TensorView { ggml_type: GgmlType::F32, rows, cols, data: &[], ..tensor.view };
        self.push(Upload::Vector(view), Role::Fixed);
        Ok(())
    }

    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<()> {
        let found = self.finder.experts(layer, spec)?;
        self.used.extend(found.infos.iter().map(|info| info.name.as_str()));
        self.push(Upload::Experts(Box::new(found.tensors)), roles::of_experts(layer, self.spec));
        Ok(())
    }

    fn rope(&mut self, spec: &RopeSpec) -> Result<()> {
        self.push(Upload::Rope(spec.clone()), Role::Fixed);
        Ok(())
    }
}

fn name<'a>(tensor: Tensor<'a>) -> &'a str {
    &tensor.info.name
}

impl<'a> Inventory<'a> {
    fn push(&mut self, upload: Upload<'a>, role: Role) {
        self.uploads.push(upload);
        self.roles.push(role);
    }

    /// Names of the factors of activations that belong to the tensors that are used.
    fn input_scales(&self) -> impl Iterator<Item = String> {
        let tensors = self.used.iter().filter_map(|name| self.finder.gguf.tensor(name));
        tensors.filter_map(|info| beside(Tensor { info, view: self.finder.gguf.view(info) }, INPUT_SCALE))
    }

    fn reject_unused(&self, spec: &ModelSpec) -> Result<()> {
        let behind = spec.layers.len()..spec.layers.len() + spec.nextn_layers;
        let is_behind = |name: &str| behind.clone().any(|layer| name.starts_with(&of_layer(layer, "")));
        let inputs: HashSet<String> = self.input_scales().collect();
        let is_unused = |name: &str| !self.used.contains(name) && !is_behind(name) && !inputs.contains(name);
        let is_of_encoder = |name: &str| OF_ENCODERS.iter().any(|prefix| name.starts_with(prefix));
        let unused = self.finder.gguf.tensors().iter().filter(|t| is_unused(&t.name));
        let (of_encoders, others): (Vec<_>, Vec<_>) = unused.partition(|t| is_of_encoder(&t.name));
        if let [first, ..] = &of_encoders[..] {
            tracing::warn!(
                "{}: {} tensors, the first of which is {}, belong to an encoder of images or sounds and are left out: \
                 this version computes only text",
                self.finder.gguf.metadata().path().display(),
                of_encoders.len(),
                first.name
            );
        }
        match others.first() {
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
