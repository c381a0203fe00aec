//! The tensors of an image encoder, defined once. They are checked in the file, counted, and copied to a device.

mod products;
mod projector;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

pub(super) use products::Product;
pub(super) use projector::{GatedProjector, Merger, Projector};

use super::family::Family;
use super::spec::{FRAMES, POSITIONS, Positions, VisionSpec};
use crate::backend::{Backend, LinearPart, Loader, NormKind, Upload};
use crate::find::Finder;
use crate::gguf::GgufFile;
use crate::pixels::CHANNELS;
use crate::quant::{self, GgmlType};
use crate::spec::{NormSpec, Presence};
use crate::tensor::TensorView;
use crate::{Error, Result};

/// A use of the tensors: an upload to a device, or a list of all uploads.
pub(super) trait Take<'a> {
    type Matrix;
    type Vector;

    /// Takes matrices with the same inputs and stacks their outputs.
    fn matrix(&mut self, parts: Vec<LinearPart<'a>>) -> Result<Self::Matrix>;

    fn vector(&mut self, tensor: TensorView<'a>) -> Result<Self::Vector>;
}

/// The weights of an encoder.
pub(super) struct VisionWeights<M, V> {
    /// One matrix per frame. A picture stands for all frames that are encoded together.
    pub(super) patches: Vec<M>,
    /// The norm before the first layer.
    pub(super) first_norm: Option<Norm<V>>,
    pub(super) layers: Vec<LayerWeights<M, V>>,
    /// The norm after the last layer.
    pub(super) last_norm: Option<Norm<V>>,
    pub(super) projector: Projector<M, V>,
    /// The projectors of the layers in `VisionSpec::deepstack`.
    pub(super) deepstack: Vec<Merger<M, V>>,
}

pub(super) struct Norm<V> {
    pub(super) spec: NormSpec,
    pub(super) weight: V,
    pub(super) bias: Option<V>,
}

pub(super) struct LayerWeights<M, V> {
    pub(super) mixer_norm: Norm<V>,
    pub(super) qkv: Product<M>,
    /// The weights of the norms of each head of q and of k.
    pub(super) head_norms: Option<[V; 2]>,
    pub(super) output: Product<M>,
    pub(super) mixer_post_norm: Option<Norm<V>>,
    pub(super) ffn_norm: Norm<V>,
    /// The up projection, with the gate stacked before it if there is one.
    pub(super) gate_up: Product<M>,
    pub(super) down: Product<M>,
    pub(super) ffn_post_norm: Option<Norm<V>>,
}

/// Values that the host uses.
pub(super) struct HostValues {
    /// The learned table of positions; empty for an encoder without one.
    pub(super) table: Vec<f32>,
    /// The input of the first layer for the class token.
    pub(super) class: Option<Vec<f32>>,
    /// The row of the token that ends a row of an image.
    pub(super) row_end: Option<Vec<f32>>,
    /// Means of patches have the first subtracted, and are multiplied by the second then.
    pub(super) standard: Option<[Vec<f32>; 2]>,
}

/// All tensors of an encoder. Each exists and has the shape that the spec requires, and the file has no others.
pub struct VisionTensors<'a> {
    finder: Finder<'a>,
    spec: &'a VisionSpec,
    /// The f32 values of tensors whose files have them in another order, by name.
    ordered: HashMap<String, Vec<u8>>,
    /// Enough zeros for a part of a matrix.
    zeros: Vec<u8>,
}

const FRAME_NAMES: [&str; FRAMES] = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
const PROJECTION: &str = "mm.input_projection";
const PATCH_MERGER: &str = "mm.patch_merger.weight";
const PATCH_BIAS: &str = "v.patch_embd.bias";
const CLASS: &str = "v.class_embd";
const ROW_END: &str = "v.token_embd.img_break";
const STANDARD: [&str; 2] = ["v.std_bias", "v.std_scale"];
/// Prefixes of the tensors of encoders of audio.
const OF_AUDIO: [&str; 2] = ["a.", "mm.a."];

impl<'a> VisionTensors<'a> {
    /// # Errors
    /// `Error::ModelFile` naming the tensor that is missing, unknown, or of the wrong shape or type.
    pub fn collect(gguf: &'a GgufFile, spec: &'a VisionSpec) -> Result<Self> {
        let finder = Finder { gguf };
        let (hidden, joined) = (spec.hidden_size, spec.joined_cols());
        let mut ordered = HashMap::new();
        match spec.family {
            Family::Gemma3 => {
                let name = format!("{PROJECTION}.weight");
                let values = turned(finder.required(&name, &[spec.output_size, hidden])?.view)?;
                ordered.insert(name, values);
            }
            Family::Pixtral if spec.merge > 1 => {
                let view = finder.required(PATCH_MERGER, &[joined, hidden])?.view;
                ordered.insert(PATCH_MERGER.to_owned(), patch_by_patch(view, spec.patches_per_row())?);
            }
            Family::Glm4 => {
                let view = finder.required(PATCH_MERGER, &[spec.merge, spec.merge, hidden, spec.output_size])?.view;
                let view = TensorView { rows: spec.output_size, cols: joined, ..view };
                ordered.insert(PATCH_MERGER.to_owned(), patch_by_patch(view, spec.patches_per_row())?);
            }
            Family::Gemma4 => {
                for name in (0..spec.num_layers).flat_map(|layer| HEAD_NORMS.map(|part| of_layer(layer, part))) {
                    let values = values(finder.required(&name, &[spec.head_dim()])?.view)?;
                    let [a, b, c, d] = quarters(spec.head_dim()).map(|quarter| &values[quarter]);
                    ordered.insert(name, [a, b, c, d].concat().into_iter().flat_map(f32::to_le_bytes).collect());
                }
            }
            Family::Idefics3 | Family::InternVl | Family::Lfm2 | Family::Pixtral | Family::Qwen25 | Family::Qwen3 => {}
        }
        // A layer's largest part is a matrix of f32 at most.
        let zeros =
            if spec.clips { vec![0; size_of::<f32>() * hidden * hidden.max(spec.ffn_size)] } else { Vec::new() };
        let tensors = Self { finder, spec, ordered, zeros };
        tensors.reject_unused()?;
        Ok(tensors)
    }

    fn reject_unused(&self) -> Result<()> {
        let mut listed = Listed::default();
        self.weights(&mut listed)?;
        let mut used: HashSet<&str> = listed.names.into_iter().collect();
        let HostValues { table, class, row_end, standard } = self.host_values()?;
        used.extend([POSITIONS].iter().filter(|_| !table.is_empty()));
        used.extend([CLASS].iter().filter(|_| class.is_some()));
        used.extend([ROW_END].iter().filter(|_| row_end.is_some()));
        used.extend(STANDARD.iter().filter(|_| standard.is_some()));
        let has_audio = self.spec.family.values().has_audio;
        let is_of_audio = |name: &str| has_audio && OF_AUDIO.iter().any(|prefix| name.starts_with(prefix));
        let is_used = |name: &str| used.contains(name) || is_of_audio(name) || self.is_range(name);
        match self.finder.gguf.tensors().iter().find(|tensor| !is_used(&tensor.name)) {
            None => Ok(()),
            Some(tensor) => {
                let kind = self.spec.family.values().projector_type;
                let problem = format!("nothing in {kind} encoders is computed with this tensor");
                Err(self.finder.error(&tensor.name, problem))
            }
        }
    }

    pub(super) fn spec(&self) -> &VisionSpec {
        self.spec
    }

    /// Returns all uploads of a load.
    ///
    /// # Errors
    /// Errors of `collect`.
    pub fn uploads(&self) -> Result<Vec<Upload<'_>>> {
        let mut listed = Listed::default();
        self.weights(&mut listed)?;
        Ok(listed.uploads)
    }

    /// Returns the values that the host uses.
    ///
    /// # Errors
    /// Errors of `collect`.
    pub(super) fn host_values(&self) -> Result<HostValues> {
        let hidden = self.spec.hidden_size;
        let required = |name: &str, shape: &[usize]| values(self.finder.required(name, shape)?.view);
        let mut table = match self.spec.positions {
            None => Vec::new(),
            Some(Positions::Corners { side } | Positions::Antialiased { side } | Positions::Bicubic { side }) => {
                required(POSITIONS, &[hidden, self.spec.tokens(side * side)])?
            }
            Some(Positions::Axes { len }) => required(POSITIONS, &[hidden, len, 2])?,
        };
        let row_end =
            self.spec.family.has_row_ends().then(|| required(ROW_END, &[self.spec.output_size])).transpose()?;
        let is_standard = self.spec.family == Family::Gemma4 && self.finder.gguf.tensor(STANDARD[0]).is_some();
        let standard = match is_standard {
            true => Some([required(STANDARD[0], &[hidden])?, required(STANDARD[1], &[hidden])?]),
            false => None,
        };
        let class = self.spec.has_class.then(|| self.class(&mut table)).transpose()?;
        Ok(HostValues { table, class, row_end, standard })
    }

    /// Returns the input of the class token, and takes its position, the first one, from the table. The product of
    /// patches adds its bias to all tokens.
    fn class(&self, table: &mut Vec<f32>) -> Result<Vec<f32>> {
        let hidden = self.spec.hidden_size;
        let [class, bias] = [CLASS, PATCH_BIAS].map(|name| values(self.finder.required(name, &[hidden])?.view));
        let position = table.drain(..hidden).zip(class?).zip(bias?);
        Ok(position.map(|((position, class), bias)| position + class - bias).collect())
    }

    /// Visits each tensor that is copied to a device.
    pub(super) fn weights<'s, T: Take<'s>>(&'s self, take: &mut T) -> Result<VisionWeights<T::Matrix, T::Vector>> {
        let spec = self.spec;
        let patches = self.patches(take)?;
        let (norm, hidden, joined) = (spec.norm, spec.hidden_size, spec.joined_cols());
        let first_norm = spec.first_norm.map(|name| self.norm(name, hidden, norm, take)).transpose()?;
        let layers = (0..spec.num_layers).map(|index| self.layer(index, &mut *take)).collect::<Result<_>>()?;
        let last_norm = spec.last_norm.map(|name| self.norm(name, hidden, norm, take)).transpose()?;
        let projector = self.projector(take)?;
        let deepstack = spec.deepstack.iter().map(|layer| {
            let name = |part: &str| format!("v.deepstack.{layer}.{part}");
            self.merger(
                [&name("fc1"), &name("fc2")],
                [joined, spec.inner_size],
                Some((&name("norm"), spec.norm)),
                &mut *take,
            )
        });
        let deepstack = deepstack.collect::<Result<_>>()?;
        Ok(VisionWeights { patches, first_norm, layers, last_norm, projector, deepstack })
    }

    fn layer<'s, T: Take<'s>>(&'s self, index: usize, take: &mut T) -> Result<LayerWeights<T::Matrix, T::Vector>> {
        let spec = self.spec;
        let name = |part: &str| of_layer(index, part);
        let (hidden, ffn) = (spec.hidden_size, spec.ffn_size);
        let norm = |part: &str, take: &mut T| self.norm(&name(part), hidden, spec.norm, take);
        let post_norm = |which: usize, take: &mut T| {
            let of_kind = |norm: NormSpec| match norm.kind {
                NormKind::Weights => self.norm(&name(LAYER_SCALES[which]), hidden, norm, take),
                NormKind::Rms | NormKind::Layer => self.norm(&name(POST_NORMS[which]), hidden, norm, take),
            };
            spec.post_norms.map(of_kind).transpose()
        };
        let qkv = match self.finder.gguf.tensor(&name("attn_qkv.weight")) {
            Some(_) => vec![name("attn_qkv")],
            None => ["attn_q", "attn_k", "attn_v"].map(name).to_vec(),
        };
        let gate_up = ["ffn_gate", "ffn_up"].into_iter().skip(usize::from(!spec.feed_forward.is_gated()));
        let gate_up: Vec<String> = gate_up.map(name).collect();
        let head_norms = || -> Result<_> {
            let [q, k] = HEAD_NORMS.map(|part| self.ordered_vector(&name(part)));
            Ok([take.vector(q?)?, take.vector(k?)?])
        };
        let head_norms = spec.head_norms.then(head_norms).transpose()?;
        Ok(LayerWeights {
            mixer_norm: norm("ln1", take)?,
            qkv: self.product(&qkv, [3 * hidden / qkv.len(), hidden], take)?,
            head_norms,
            output: self.product(&[name("attn_out")], [hidden, hidden], take)?,
            mixer_post_norm: post_norm(0, take)?,
            ffn_norm: norm("ln2", take)?,
            gate_up: self.product(&gate_up, [ffn, hidden], take)?,
            down: self.product(&[name("ffn_down")], [hidden, ffn], take)?,
            ffn_post_norm: post_norm(1, take)?,
        })
    }

    fn ordered_vector(&self, name: &str) -> Result<TensorView<'_>> {
        let view = self.finder.required(name, &[self.spec.head_dim()])?.view;
        Ok(self.in_order(name, view))
    }

    /// Returns the tensor with its values in the order that the encoder has them.
    fn in_order<'s>(&'s self, name: &str, view: TensorView<'s>) -> TensorView<'s> {
        match self.ordered.get(name) {
            Some(data) => TensorView { ggml_type: GgmlType::F32, data, ..view },
            None => view,
        }
    }

    /// The convolution over non-overlapping patches, as a matrix per frame. The first has the bias.
    fn patches<'s, T: Take<'s>>(&'s self, take: &mut T) -> Result<Vec<T::Matrix>> {
        let VisionSpec { hidden_size: rows, patch_size: side, .. } = *self.spec;
        let bias = || Ok::<_, Error>(self.finder.required(PATCH_BIAS, &[rows])?.view);
        let bias = self.spec.patch_bias.then(bias).transpose()?;
        let of_frame = |(frame, name): (usize, &&str)| {
            let view = self.finder.required(name, &[side, side, CHANNELS, rows])?.view;
            if !matches!(view.ggml_type, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
                let problem = format!("is of type {}, expected F32, F16 or BF16", view.ggml_type.name());
                return Err(self.finder.error(name, problem));
            }
            let weight = TensorView { rows, cols: self.spec.patch_cols(), ..view };
            take.matrix(vec![LinearPart { weight, bias: bias.filter(|_| frame == 0) }])
        };
        FRAME_NAMES[..self.spec.frames].iter().enumerate().map(of_frame).collect()
    }

    /// A matrix with its bias, if matrices of a layer and of a projector have one.
    fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<LinearPart<'a>> {
        let weight = self.finder.required(&format!("{name}.weight"), &[cols, rows])?.view;
        let bias = format!("{name}.bias");
        let bias = match self.spec.biases {
            Presence::Absent => None,
            Presence::Optional => self.finder.optional(&bias, &[rows])?,
            Presence::Required => Some(self.finder.required(&bias, &[rows])?),
        };
        Ok(LinearPart { weight, bias: bias.map(|bias| bias.view) })
    }

    fn norm<'s, T: Take<'s>>(
        &'s self,
        name: &str,
        len: usize,
        spec: NormSpec,
        take: &mut T,
    ) -> Result<Norm<T::Vector>> {
        let weight = take.vector(self.finder.required(&format!("{name}.weight"), &[len])?.view)?;
        let bias = match spec.bias {
            true => Some(take.vector(self.finder.required(&format!("{name}.bias"), &[len])?.view)?),
            false => None,
        };
        Ok(Norm { spec, weight, bias })
    }
}

/// The norms of the results of attention and of the feed-forward, or what multiplies them.
const POST_NORMS: [&str; 2] = ["attn_post_norm", "ffn_post_norm"];
const LAYER_SCALES: [&str; 2] = ["ls1", "ls2"];
const HEAD_NORMS: [&str; 2] = ["attn_q_norm.weight", "attn_k_norm.weight"];

fn of_layer(layer: usize, part: &str) -> String {
    format!("v.blk.{layer}.{part}")
}

/// Returns the quarters of a head in the order of the encoder: the second and the third change places.
fn quarters(head_dim: usize) -> [Range<usize>; 4] {
    let len = head_dim / 4;
    [0, 2, 1, 3].map(|quarter| quarter * len..(quarter + 1) * len)
}

fn values(view: TensorView<'_>) -> Result<Vec<f32>> {
    let mut values = vec![0.0; view.rows * view.cols];
    quant::dequantize(view.ggml_type, view.data, &mut values)?;
    Ok(values)
}

/// Returns the bytes (f32) of a transposed matrix.
fn turned(view: TensorView<'_>) -> Result<Vec<u8>> {
    let values = values(view)?;
    let columns = (0..view.cols).flat_map(|column| values.iter().skip(column).step_by(view.cols));
    Ok(columns.flat_map(|value| value.to_le_bytes()).collect())
}

/// Returns the bytes (f32) of a matrix over squares of `patches` patches, with its columns reordered: channel by
/// channel in the file, patch by patch in the result.
fn patch_by_patch(view: TensorView<'_>, patches: usize) -> Result<Vec<u8>> {
    let values = values(view)?;
    let channels = view.cols / patches;
    let column = |column: usize| column % channels * patches + column / channels;
    let rows = values.chunks_exact(view.cols);
    Ok(rows.flat_map(|row| (0..view.cols).flat_map(move |index| row[column(index)].to_le_bytes())).collect())
}

/// Lists the uploads, and the names of their tensors.
#[derive(Default)]
struct Listed<'a> {
    names: Vec<&'a str>,
    uploads: Vec<Upload<'a>>,
}

impl<'a> Take<'a> for Listed<'a> {
    type Matrix = ();
    type Vector = ();

    fn matrix(&mut self, parts: Vec<LinearPart<'a>>) -> Result<()> {
        self.names.extend(parts.iter().flat_map(|part| [Some(part.weight), part.bias]).flatten().map(|view| view.name));
        self.uploads.push(Upload::Matrix(parts));
        Ok(())
    }

    fn vector(&mut self, tensor: TensorView<'a>) -> Result<()> {
        self.names.push(tensor.name);
        self.uploads.push(Upload::Vector(tensor));
        Ok(())
    }
}

/// Copies tensors to a device.
pub(super) struct Uploads<'l, L: Loader>(pub(super) &'l mut L);

impl<'a, L: Loader> Take<'a> for Uploads<'_, L> {
    type Matrix = <L::Backend as Backend>::Matrix;
    type Vector = <L::Backend as Backend>::Vector;

    fn matrix(&mut self, parts: Vec<LinearPart<'a>>) -> Result<Self::Matrix> {
        self.0.upload_matrix(&parts, &mut |_| Ok(()))
    }

    fn vector(&mut self, tensor: TensorView<'a>) -> Result<Self::Vector> {
        self.0.upload_vector(tensor)
    }
}
