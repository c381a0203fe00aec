//! The tensors of an image encoder, defined once. They are checked in the file, counted, and copied to a device.

use std::collections::HashSet;

use super::spec::{Family, VisionSpec};
use crate::Result;
use crate::backend::{Backend, LinearPart, Loader, Upload};
use crate::gguf::GgufFile;
use crate::model::find::Finder;
use crate::model::spec::NormSpec;
use crate::pixels::CHANNELS;
use crate::quant::{self, GgmlType};
use crate::tensor::TensorView;

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
    pub(super) qkv: M,
    pub(super) output: M,
    pub(super) ffn_norm: Norm<V>,
    /// The up projection, with the gate stacked before it if there is one.
    pub(super) gate_up: M,
    pub(super) down: M,
}

pub(super) enum Projector<M, V> {
    /// The mean of a square of patches, a norm, and one matrix.
    Mean { norm: Norm<V>, matrix: M },
    /// The concatenated patches of a square, through two matrices. `first` makes one patch of them before that.
    Joined { first: Option<M>, merger: Merger<M, V> },
}

pub(super) struct Merger<M, V> {
    /// The norm of the concatenated patches.
    pub(super) norm: Option<Norm<V>>,
    pub(super) first: M,
    pub(super) second: M,
}

/// All tensors of an encoder. Each exists and has the shape that the spec requires, and the file has no others.
pub struct VisionTensors<'a> {
    finder: Finder<'a>,
    spec: &'a VisionSpec,
    /// The f32 values of the projector's first matrix, in families whose files have its values in another order.
    ordered: Vec<u8>,
}

const POSITIONS: &str = "v.position_embd.weight";
const FRAMES: [&str; 2] = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
const PROJECTION: &str = "mm.input_projection.weight";
const PATCH_MERGER: &str = "mm.patch_merger.weight";
const ROW_END: &str = "v.token_embd.img_break";

impl<'a> VisionTensors<'a> {
    /// # Errors
    /// `Error::ModelFile` naming the tensor that is missing, unknown, or of the wrong shape or type.
    pub fn collect(gguf: &'a GgufFile, spec: &'a VisionSpec) -> Result<Self> {
        let finder = Finder { gguf };
        let (hidden, joined) = (spec.hidden_size, spec.joined_cols());
        let ordered = match spec.family {
            Family::Gemma3 => turned(finder.required(PROJECTION, &[spec.output_size, hidden])?.view)?,
            Family::Pixtral if spec.merge > 1 => {
                patch_by_patch(finder.required(PATCH_MERGER, &[joined, hidden])?.view, spec.patches_per_row())?
            }
            Family::Pixtral | Family::Qwen25 | Family::Qwen3 => Vec::new(),
        };
        let tensors = Self { finder, spec, ordered };
        tensors.reject_unused()?;
        Ok(tensors)
    }

    fn reject_unused(&self) -> Result<()> {
        let mut listed = Listed::default();
        self.weights(&mut listed)?;
        let mut used: HashSet<&str> = listed.names.into_iter().collect();
        if self.spec.table_side.is_some() {
            self.table()?;
            used.insert(POSITIONS);
        }
        if self.row_end()?.is_some() {
            used.insert(ROW_END);
        }
        match self.finder.gguf.tensors().iter().find(|tensor| !used.contains(&tensor.name[..])) {
            None => Ok(()),
            Some(tensor) => {
                let kind = self.spec.family.projector_type();
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

    /// Returns the table of positions; empty for an encoder without one.
    pub(super) fn table(&self) -> Result<Vec<f32>> {
        let Some(side) = self.spec.table_side else { return Ok(Vec::new()) };
        let view = self.finder.required(POSITIONS, &[self.spec.hidden_size, side * side])?.view;
        values(view)
    }

    /// Returns the row of the token that ends a row of an image, in families with such tokens.
    pub(super) fn row_end(&self) -> Result<Option<Vec<f32>>> {
        let required = || values(self.finder.required(ROW_END, &[self.spec.output_size])?.view);
        self.spec.family.has_row_ends().then(required).transpose()
    }

    /// Visits each tensor that is copied to a device.
    pub(super) fn weights<'s, T: Take<'s>>(&'s self, take: &mut T) -> Result<VisionWeights<T::Matrix, T::Vector>> {
        let spec = self.spec;
        let layer = |index: usize, take: &mut T| -> Result<_> {
            let name = |part: &str| format!("v.blk.{index}.{part}");
            let (hidden, ffn) = (spec.hidden_size, spec.ffn_size);
            let qkv = match self.finder.gguf.tensor(&name("attn_qkv.weight")) {
                Some(_) => vec![self.linear(&name("attn_qkv"), 3 * hidden, hidden)?],
                None => ["attn_q", "attn_k", "attn_v"]
                    .map(|part| self.linear(&name(part), hidden, hidden))
                    .into_iter()
                    .collect::<Result<_>>()?,
            };
            let mut gate_up = Vec::new();
            if spec.gated {
                gate_up.push(self.linear(&name("ffn_gate"), ffn, hidden)?);
            }
            gate_up.push(self.linear(&name("ffn_up"), ffn, hidden)?);
            Ok(LayerWeights {
                mixer_norm: self.norm(&name("ln1"), hidden, spec.norm, take)?,
                qkv: take.matrix(qkv)?,
                output: take.matrix(vec![self.linear(&name("attn_out"), hidden, hidden)?])?,
                ffn_norm: self.norm(&name("ln2"), hidden, spec.norm, take)?,
                gate_up: take.matrix(gate_up)?,
                down: take.matrix(vec![self.linear(&name("ffn_down"), hidden, ffn)?])?,
            })
        };
        let patches = self.patches(take)?;
        let (norm, hidden) = (spec.norm, spec.hidden_size);
        let first_norm = match spec.family {
            Family::Pixtral => Some(self.norm("v.pre_ln", hidden, norm, take)?),
            Family::Gemma3 | Family::Qwen25 | Family::Qwen3 => None,
        };
        let layers = (0..spec.num_layers).map(|index| layer(index, &mut *take)).collect::<Result<_>>()?;
        let last_norm = match spec.family {
            Family::Pixtral if spec.merge == 1 => None,
            Family::Pixtral => Some(self.norm("mm.input_norm", hidden, norm, take)?),
            Family::Gemma3 | Family::Qwen25 | Family::Qwen3 => Some(self.norm("v.post_ln", hidden, norm, take)?),
        };
        let ordered = |name, rows, cols| {
            let (ggml_type, data, scales) = (GgmlType::F32, &self.ordered[..], &[][..]);
            vec![LinearPart { weight: TensorView { name, ggml_type, rows, cols, data, scales }, bias: None }]
        };
        let (joined, output) = (spec.joined_cols(), spec.output_size);
        let projector = match spec.family {
            Family::Gemma3 => {
                let norm = self.norm("mm.soft_emb_norm", hidden, NormSpec::rms(norm.eps), take)?;
                Projector::Mean { norm, matrix: take.matrix(ordered(PROJECTION, output, hidden))? }
            }
            Family::Pixtral => {
                let is_merged = spec.merge > 1;
                let first = is_merged.then(|| take.matrix(ordered(PATCH_MERGER, hidden, joined))).transpose()?;
                Projector::Joined { first, merger: self.merger(["mm.1", "mm.2"], [hidden, output], None, take)? }
            }
            Family::Qwen25 | Family::Qwen3 => {
                Projector::Joined { first: None, merger: self.merger(["mm.0", "mm.2"], [joined; 2], None, take)? }
            }
        };
        let deepstack = spec.deepstack.iter().map(|layer| {
            let name = |part: &str| format!("v.deepstack.{layer}.{part}");
            self.merger([&name("fc1"), &name("fc2")], [joined; 2], Some(&name("norm")), &mut *take)
        });
        let deepstack = deepstack.collect::<Result<_>>()?;
        Ok(VisionWeights { patches, first_norm, layers, last_norm, projector, deepstack })
    }

    /// The convolution over non-overlapping patches, as a matrix per frame. The first has the bias.
    fn patches<'s, T: Take<'s>>(&'s self, take: &mut T) -> Result<Vec<T::Matrix>> {
        let VisionSpec { hidden_size: rows, patch_size: side, family, .. } = *self.spec;
        let bias = match family {
            Family::Gemma3 | Family::Qwen3 => Some(self.finder.required("v.patch_embd.bias", &[rows])?.view),
            Family::Pixtral | Family::Qwen25 => None,
        };
        let frames = match family {
            Family::Gemma3 | Family::Pixtral => 1,
            Family::Qwen25 | Family::Qwen3 => FRAMES.len(),
        };
        let of_frame = |(frame, name): (usize, &&str)| {
            let view = self.finder.required(name, &[side, side, CHANNELS, rows])?.view;
            if !matches!(view.ggml_type, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
                let problem = format!("is of type {}, expected F32, F16 or BF16", view.ggml_type.name());
                return Err(self.finder.error(name, problem));
            }
            let weight = TensorView { rows, cols: self.spec.patch_cols(), ..view };
            take.matrix(vec![LinearPart { weight, bias: bias.filter(|_| frame == 0) }])
        };
        FRAMES[..frames].iter().enumerate().map(of_frame).collect()
    }

    /// Takes two matrices. `cols` and `inner` are the sizes of the rows before and between them.
    fn merger<'s, T: Take<'s>>(
        &'s self,
        [first, second]: [&str; 2],
        [cols, inner]: [usize; 2],
        norm: Option<&str>,
        take: &mut T,
    ) -> Result<Merger<T::Matrix, T::Vector>> {
        Ok(Merger {
            norm: norm.map(|name| self.norm(name, cols, self.spec.norm, &mut *take)).transpose()?,
            first: take.matrix(vec![self.linear(first, inner, cols)?])?,
            second: take.matrix(vec![self.linear(second, self.spec.output_size, inner)?])?,
        })
    }

    /// A matrix with its bias. All matrices of a layer and of a projector have one, but in Pixtral only those that the
    /// file gives one.
    fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<LinearPart<'a>> {
        let weight = self.finder.required(&format!("{name}.weight"), &[cols, rows])?.view;
        let bias = format!("{name}.bias");
        let bias = match self.spec.family {
            Family::Pixtral => self.finder.optional(&bias, &[rows])?,
            Family::Gemma3 | Family::Qwen25 | Family::Qwen3 => Some(self.finder.required(&bias, &[rows])?),
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

/// Returns the bytes (f32) of a matrix whose columns go channel by channel over the `patches` of a square in the file,
/// and patch by patch here.
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
