//! The model's tensors: found by name, checked against the spec before any is used, then uploaded one by one.

use std::collections::HashSet;

use super::arch::Presence;
use super::spec::DecoderSpec;
use crate::backend::{Backend, LinearPart, Loader, Upload};
use crate::gguf::{GgufFile, TensorInfo};
use crate::quant;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// Every tensor of the model, checked: all are there, each has the shape that the spec demands and a type that can be
/// computed with, and the file holds none that the architecture does not know (it would be silently ignored).
#[derive(Debug)]
pub struct ModelTensors<'a> {
    token_embd: Tensor<'a>,
    output: Option<Tensor<'a>>,
    output_norm: Tensor<'a>,
    layers: Vec<LayerTensors<'a>>,
}

#[derive(Debug)]
struct LayerTensors<'a> {
    attn_norm: Tensor<'a>,
    qkv: [Linear<'a>; 3],
    qk_norm: Option<[Tensor<'a>; 2]>,
    attn_output: Linear<'a>,
    ffn_norm: Tensor<'a>,
    gate_up: [Linear<'a>; 2],
    ffn_down: Linear<'a>,
}

#[derive(Debug, Clone, Copy)]
struct Tensor<'a> {
    info: &'a TensorInfo,
    view: TensorView<'a>,
}

#[derive(Debug, Clone, Copy)]
struct Linear<'a> {
    weight: Tensor<'a>,
    bias: Option<Tensor<'a>>,
}

impl<'a> Linear<'a> {
    fn part(&self) -> LinearPart<'a> {
        LinearPart { weight: self.weight.view, bias: self.bias.map(|bias| bias.view) }
    }
}

impl<'a> ModelTensors<'a> {
    /// # Errors
    /// `Error::ModelFile` naming the tensor that is missing, unknown, or of the wrong shape or type.
    pub fn collect(gguf: &'a GgufFile, spec: &DecoderSpec) -> Result<Self> {
        let mut find = Finder { gguf, used: HashSet::from(["rope_freqs.weight"]) };
        let (hidden, ffn) = (spec.hidden_size, spec.ffn_size);
        let (q, kv, head_dim) = (spec.qkv.q_cols(), spec.qkv.kv_cols(), spec.qkv.head_dim);
        let arch = spec.arch;
        let token_embd = find.matrix("token_embd.weight", spec.vocab_size, hidden)?;
        let output =
            if spec.tied_output { None } else { Some(find.matrix("output.weight", spec.vocab_size, hidden)?) };
        let output_norm = find.vector("output_norm.weight", hidden)?;
        let mut layers = Vec::with_capacity(spec.num_layers);
        for i in 0..spec.num_layers {
            let mut linear = |name: &str, rows, cols, bias| find.linear(&format!("blk.{i}.{name}"), rows, cols, bias);
            let qkv = [
                linear("attn_q", q, hidden, arch.qkv_bias)?,
                linear("attn_k", kv, hidden, arch.qkv_bias)?,
                linear("attn_v", kv, hidden, arch.qkv_bias)?,
            ];
            let attn_output = linear("attn_output", hidden, q, arch.attn_output_bias)?;
            let gate_up =
                [linear("ffn_gate", ffn, hidden, Presence::Absent)?, linear("ffn_up", ffn, hidden, Presence::Absent)?];
            let ffn_down = linear("ffn_down", hidden, ffn, Presence::Absent)?;
            let mut norm = |name: &str, len| find.vector(&format!("blk.{i}.{name}.weight"), len);
            let qk_norm = match arch.qk_norm {
                Presence::Absent => None,
                Presence::Required | Presence::Optional => {
                    Some([norm("attn_q_norm", head_dim)?, norm("attn_k_norm", head_dim)?])
                }
            };
            let (attn_norm, ffn_norm) = (norm("attn_norm", hidden)?, norm("ffn_norm", hidden)?);
            layers.push(LayerTensors { attn_norm, qkv, qk_norm, attn_output, ffn_norm, gate_up, ffn_down });
        }
        find.reject_unused(arch.name)?;
        Ok(Self { token_embd, output, output_norm, layers })
    }

    /// Every upload that `upload` will make.
    fn uploads(&self) -> Vec<Upload<'a>> {
        let matrix = |parts: &[Linear<'a>]| Upload::Matrix(parts.iter().map(Linear::part).collect());
        let vector = |tensor: &Tensor<'a>| Upload::Vector(tensor.view);
        let tables = [Some(self.token_embd), self.output].into_iter().flatten();
        let mut all: Vec<_> = tables.map(|weight| matrix(&[Linear { weight, bias: None }])).collect();
        all.push(vector(&self.output_norm));
        for layer in &self.layers {
            all.extend([&layer.attn_norm, &layer.ffn_norm].map(vector));
            all.extend(layer.qk_norm.iter().flatten().map(vector));
            all.extend([&layer.qkv[..], &[layer.attn_output], &layer.gate_up, &[layer.ffn_down]].map(matrix));
        }
        all
    }

    /// Uploads everything; `progress` is told the file bytes done after each part and may stop the load by an error.
    pub fn upload<L: Loader>(
        &self,
        gguf: &GgufFile,
        loader: &mut L,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Weights<L::Backend>> {
        loader.reserve_weights(&self.uploads())?;
        let mut up = Uploader { gguf, loader, progress, done: 0 };
        let token_embd = up.matrix(&[Linear { weight: self.token_embd, bias: None }])?;
        let output = self.output.map(|weight| up.matrix(&[Linear { weight, bias: None }])).transpose()?;
        let output_norm = up.vector(&self.output_norm)?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            layers.push(LayerWeights {
                attn_norm: up.vector(&layer.attn_norm)?,
                qkv: up.matrix(&layer.qkv)?,
                qk_norm: match &layer.qk_norm {
                    Some([q, k]) => Some([up.vector(q)?, up.vector(k)?]),
                    None => None,
                },
                attn_output: up.matrix(&[layer.attn_output])?,
                ffn_norm: up.vector(&layer.ffn_norm)?,
                gate_up: up.matrix(&layer.gate_up)?,
                ffn_down: up.matrix(&[layer.ffn_down])?,
            });
        }
        Ok(Weights { token_embd, output, output_norm, layers })
    }
}

/// The model's weights on a device.
pub struct Weights<B: Backend> {
    pub(super) token_embd: B::Matrix,
    /// `None`: the embedding table serves as output projection too.
    pub(super) output: Option<B::Matrix>,
    pub(super) output_norm: B::Vector,
    pub(super) layers: Vec<LayerWeights<B>>,
}

pub(super) struct LayerWeights<B: Backend> {
    pub(super) attn_norm: B::Vector,
    pub(super) qkv: B::Matrix,
    pub(super) qk_norm: Option<[B::Vector; 2]>,
    pub(super) attn_output: B::Matrix,
    pub(super) ffn_norm: B::Vector,
    pub(super) gate_up: B::Matrix,
    pub(super) ffn_down: B::Matrix,
}

struct Finder<'a> {
    gguf: &'a GgufFile,
    used: HashSet<&'a str>,
}

impl<'a> Finder<'a> {
    fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        self.gguf.metadata().error(name, problem)
    }

    fn optional(&mut self, name: &str, rows: usize, cols: usize) -> Result<Option<Tensor<'a>>> {
        let Some(info) = self.gguf.tensor(name) else { return Ok(None) };
        let view = self.gguf.view(info);
        if (view.rows, view.cols) != (rows, cols) || info.shape.len() > 2 {
            let expected = if rows == 1 { format!("[{cols}]") } else { format!("[{cols}, {rows}]") };
            return Err(self.error(name, format!("has shape {:?}, expected {expected}", info.shape)));
        }
        if !quant::can_dequantize(view.ggml_type) {
            return Err(
                self.error(name, format!("is of type {}, which cannot be computed with", view.ggml_type.name()))
            );
        }
        self.used.insert(&info.name);
        Ok(Some(Tensor { info, view }))
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Tensor<'a>> {
        self.optional(name, rows, cols)?
            .ok_or_else(|| self.error(name, "tensor is missing; the architecture requires it"))
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Tensor<'a>> {
        self.matrix(name, 1, len)
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize, bias: Presence) -> Result<Linear<'a>> {
        let weight = self.matrix(&format!("{name}.weight"), rows, cols)?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Presence::Absent => None,
            Presence::Optional => self.optional(&bias_name, 1, rows)?,
            Presence::Required => Some(self.vector(&bias_name, rows)?),
        };
        Ok(Linear { weight, bias })
    }

    fn reject_unused(&self, architecture: &str) -> Result<()> {
        match self.gguf.tensors().iter().find(|t| !self.used.contains(t.name.as_str())) {
            Some(t) => Err(self.error(
                &t.name,
                format!(
                    "is not a tensor of a {architecture} model with these keys; ignoring it would change the results"
                ),
            )),
            None => Ok(()),
        }
    }
}

struct Uploader<'u, L: Loader> {
    gguf: &'u GgufFile,
    loader: &'u mut L,
    progress: &'u mut dyn FnMut(u64) -> Result<()>,
    done: u64,
}

impl<L: Loader> Uploader<'_, L> {
    fn matrix(&mut self, parts: &[Linear<'_>]) -> Result<<L::Backend as Backend>::Matrix> {
        let views: Vec<LinearPart<'_>> = parts.iter().map(Linear::part).collect();
        let matrix = self.loader.upload_matrix(&views)?;
        for part in parts {
            self.finished(&part.weight)?;
        }
        Ok(matrix)
    }

    fn vector(&mut self, tensor: &Tensor<'_>) -> Result<<L::Backend as Backend>::Vector> {
        let vector = self.loader.upload_vector(tensor.view)?;
        self.finished(tensor)?;
        Ok(vector)
    }

    /// The device has its copy: the file's pages need not stay in memory.
    fn finished(&mut self, tensor: &Tensor<'_>) -> Result<()> {
        self.gguf.release_pages(tensor.info);
        self.done += tensor.info.num_bytes as u64;
        (self.progress)(self.done)
    }
}
