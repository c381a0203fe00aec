//! The model's tensors: found by name, checked against the spec before any is used, then uploaded one by one.

use std::collections::HashSet;

use super::arch::Presence;
use super::experts::FeedForward;
use super::spec::DecoderSpec;
use crate::backend::{Backend, ExpertSpec, ExpertTensors, LinearPart, Loader, Upload};
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
    feed_forward: FeedForwardTensors<'a>,
}

#[derive(Debug)]
enum FeedForwardTensors<'a> {
    Dense { gate_up: [Linear<'a>; 2], down: Linear<'a> },
    Experts { spec: ExpertSpec, router: Tensor<'a>, gate: Tensor<'a>, up: Tensor<'a>, down: Tensor<'a> },
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
        let hidden = spec.hidden_size;
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
            let feed_forward = match &spec.feed_forward {
                FeedForward::Dense(ffn) => FeedForwardTensors::Dense {
                    gate_up: [
                        linear("ffn_gate", *ffn, hidden, Presence::Absent)?,
                        linear("ffn_up", *ffn, hidden, Presence::Absent)?,
                    ],
                    down: linear("ffn_down", hidden, *ffn, Presence::Absent)?,
                },
                FeedForward::Experts(experts) => find.experts(i, experts)?,
            };
            let mut norm = |name: &str, len| find.vector(&format!("blk.{i}.{name}.weight"), len);
            let qk_norm = match arch.qk_norm {
                Presence::Absent => None,
                Presence::Required | Presence::Optional => {
                    Some([norm("attn_q_norm", head_dim)?, norm("attn_k_norm", head_dim)?])
                }
            };
            let (attn_norm, ffn_norm) = (norm("attn_norm", hidden)?, norm("ffn_norm", hidden)?);
            layers.push(LayerTensors { attn_norm, qkv, qk_norm, attn_output, ffn_norm, feed_forward });
        }
        find.reject_unused(arch.name)?;
        Ok(Self { token_embd, output, output_norm, layers })
    }

    /// Every upload that `upload` will make.
    pub fn uploads(&self) -> Vec<Upload<'a>> {
        let matrix = |parts: &[Linear<'a>]| Upload::Matrix(parts.iter().map(Linear::part).collect());
        let vector = |tensor: &Tensor<'a>| Upload::Vector(tensor.view);
        let tables = [Some(self.token_embd), self.output].into_iter().flatten();
        let mut all: Vec<_> = tables.map(|weight| matrix(&[Linear { weight, bias: None }])).collect();
        all.push(vector(&self.output_norm));
        for layer in &self.layers {
            all.extend([&layer.attn_norm, &layer.ffn_norm].map(vector));
            all.extend(layer.qk_norm.iter().flatten().map(vector));
            all.extend([&layer.qkv[..], &[layer.attn_output]].map(matrix));
            match &layer.feed_forward {
                FeedForwardTensors::Dense { gate_up, down } => all.extend([&gate_up[..], &[*down]].map(matrix)),
                FeedForwardTensors::Experts { spec, router, gate, up, down } => {
                    all.push(Upload::Experts(Box::new(expert_tensors(*spec, [router, gate, up, down]))));
                }
            }
        }
        all
    }

    /// Uploads everything; what only makes steps faster may take `spare` bytes of the device. `progress` is told the
    /// file bytes done, every few megabytes, and may stop the load by an error.
    pub fn upload<L: Loader>(
        &self,
        gguf: &GgufFile,
        loader: &mut L,
        spare: u64,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Weights<L::Backend>> {
        loader.reserve_weights(&self.uploads(), spare)?;
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
                feed_forward: match &layer.feed_forward {
                    FeedForwardTensors::Dense { gate_up, down } => {
                        FeedForwardWeights::Dense { gate_up: up.matrix(gate_up)?, down: up.matrix(&[*down])? }
                    }
                    FeedForwardTensors::Experts { spec, router, gate, up: linear_up, down } => {
                        FeedForwardWeights::Experts(up.experts(*spec, [router, gate, linear_up, down])?)
                    }
                },
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
    pub(super) feed_forward: FeedForwardWeights<B>,
}

pub(super) enum FeedForwardWeights<B: Backend> {
    Dense { gate_up: B::Matrix, down: B::Matrix },
    Experts(B::Experts),
}

/// Router, gate, up and down.
fn expert_tensors<'a>(spec: ExpertSpec, tensors: [&Tensor<'a>; 4]) -> ExpertTensors<'a> {
    let [router, gate, up, down] = tensors.map(|tensor| tensor.view);
    ExpertTensors { spec, router, gate, up, down }
}

struct Finder<'a> {
    gguf: &'a GgufFile,
    used: HashSet<&'a str>,
}

impl<'a> Finder<'a> {
    fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        self.gguf.metadata().error(name, problem)
    }

    /// A tensor of this shape, whose last dimensions a file may leave out where they are one.
    fn optional(&mut self, name: &str, shape: &[usize]) -> Result<Option<Tensor<'a>>> {
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
        self.used.insert(&info.name);
        Ok(Some(Tensor { info, view }))
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Tensor<'a>> {
        self.required(name, &[cols, rows])
    }

    fn required(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<'a>> {
        self.optional(name, shape)?.ok_or_else(|| self.error(name, "tensor is missing; the architecture requires it"))
    }

    /// The experts of layer `layer`.
    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<FeedForwardTensors<'a>> {
        let split = format!("blk.{layer}.ffn_gate.0.weight");
        if self.gguf.tensor(&split).is_some() {
            return Err(self.error(
                &split,
                "is a tensor of a single expert, the layout of old converters, which is not supported; convert the model \
                 again with a current convert_hf_to_gguf.py, or take a newer file",
            ));
        }
        let ExpertSpec { num, hidden_size: hidden, ffn_size: ffn, .. } = *spec;
        let mut find = |name: &str, shape: &[usize]| self.required(&format!("blk.{layer}.{name}.weight"), shape);
        Ok(FeedForwardTensors::Experts {
            spec: *spec,
            router: find("ffn_gate_inp", &[hidden, num])?,
            gate: find("ffn_gate_exps", &[hidden, ffn, num])?,
            up: find("ffn_up_exps", &[hidden, ffn, num])?,
            down: find("ffn_down_exps", &[ffn, hidden, num])?,
        })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Tensor<'a>> {
        self.matrix(name, 1, len)
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize, bias: Presence) -> Result<Linear<'a>> {
        let weight = self.matrix(&format!("{name}.weight"), rows, cols)?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Presence::Absent => None,
            Presence::Optional => self.optional(&bias_name, &[rows, 1])?,
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
        let Self { loader, progress, done, .. } = self;
        let matrix = loader.upload_matrix(&views, &mut |bytes| {
            *done += bytes;
            progress(*done)
        })?;
        for Linear { weight, bias } in parts {
            self.gguf.release_pages(weight.info);
            bias.iter().try_for_each(|bias| self.finished(bias))?;
        }
        Ok(matrix)
    }

    fn experts(&mut self, spec: ExpertSpec, tensors: [&Tensor<'_>; 4]) -> Result<<L::Backend as Backend>::Experts> {
        let Self { loader, progress, done, .. } = self;
        let experts = loader.upload_experts(&expert_tensors(spec, tensors), &mut |bytes| {
            *done += bytes;
            progress(*done)
        })?;
        tensors.iter().for_each(|tensor| self.gguf.release_pages(tensor.info));
        Ok(experts)
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
