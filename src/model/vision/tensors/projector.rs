//! The matrices and norms that make rows for the text model of the patches after the last layer.

use super::{Norm, PATCH_MERGER, PROJECTION, Take, VisionTensors};
use crate::Result;
use crate::backend::{LinearPart, NormKind};
use crate::spec::NormSpec;
use crate::tensor::TensorView;
use crate::vision::family::Family;
use crate::vision::spec::VisionSpec;

const JOINED_PROJECTION: &str = "mm.model.fc.weight";
/// The norm of the joined patches, whose epsilon differs from that of the layers.
const JOINED_NORM: NormSpec = NormSpec { kind: NormKind::Layer, eps: 1e-5, weight: true, bias: true };
/// This norm in LFM2-VL. LFM2.5-VL has none.
const INPUT_NORM: &str = "mm.input_norm";

pub(in crate::vision) enum Projector<M, V> {
    /// The mean of a square of patches, a norm, and one matrix. Without weights, the host computes the norm.
    Mean {
        norm: Option<Norm<V>>,
        matrix: M,
    },
    /// The concatenated patches of a square, through one matrix.
    Matrix(M),
    Gated(GatedProjector<M, V>),
    /// The concatenated patches of a square, through two matrices. `first` makes one patch of them before that.
    Joined {
        first: Option<M>,
        merger: Merger<M, V>,
    },
}

/// Matrices for the concatenated patches of a square, and a gated feed-forward.
pub(in crate::vision) struct GatedProjector<M, V> {
    /// Makes one row of the patches.
    pub(in crate::vision) square: M,
    pub(in crate::vision) first: M,
    pub(in crate::vision) norm: Norm<V>,
    pub(in crate::vision) gate_up: M,
    pub(in crate::vision) down: M,
}

pub(in crate::vision) struct Merger<M, V> {
    /// The norm of the concatenated patches.
    pub(in crate::vision) norm: Option<Norm<V>>,
    pub(in crate::vision) first: M,
    pub(in crate::vision) second: M,
}

impl VisionTensors<'_> {
    pub(super) fn projector<'s, T: Take<'s>>(&'s self, take: &mut T) -> Result<Projector<T::Matrix, T::Vector>> {
        let (spec, hidden) = (self.spec, self.spec.hidden_size);
        let (joined, inner, output) = (spec.joined_cols(), spec.inner_size, spec.output_size);
        Ok(match spec.family {
            Family::Gemma3 => {
                let norm = self.norm("mm.soft_emb_norm", hidden, NormSpec::rms(spec.norm.eps), take)?;
                let name = format!("{PROJECTION}.weight");
                let view = self.finder.required(&name, &[output, hidden])?.view;
                let weight = TensorView { rows: output, cols: hidden, ..self.in_order(&name, view) };
                Projector::Mean { norm: Some(norm), matrix: take.matrix(vec![LinearPart { weight, bias: None }])? }
            }
            Family::Gemma4 => {
                let matrix = take.matrix(vec![self.linear(PROJECTION, output, hidden)?])?;
                Projector::Mean { norm: None, matrix }
            }
            Family::Glm4 => Projector::Gated(self.gated_projector(take)?),
            Family::Idefics3 => {
                let weight = self.finder.required(JOINED_PROJECTION, &[joined, output])?.view;
                Projector::Matrix(take.matrix(vec![LinearPart { weight, bias: None }])?)
            }
            Family::InternVl => {
                let matrices = ["mm.model.mlp.1", "mm.model.mlp.3"];
                Projector::Joined {
                    first: None,
                    merger: self.merger(matrices, [joined, inner], Some(("mm.model.mlp.0", JOINED_NORM)), take)?,
                }
            }
            Family::Lfm2 => {
                let norm = self.finder.gguf.tensor(&format!("{INPUT_NORM}.weight")).map(|_| (INPUT_NORM, JOINED_NORM));
                Projector::Joined { first: None, merger: self.merger(["mm.1", "mm.2"], [joined, inner], norm, take)? }
            }
            Family::Pixtral => {
                let first = || {
                    let view = self.finder.required(PATCH_MERGER, &[joined, hidden])?.view;
                    take.matrix(vec![LinearPart { weight: self.in_order(PATCH_MERGER, view), bias: None }])
                };
                let first = (spec.merge > 1).then(first).transpose()?;
                Projector::Joined { first, merger: self.merger(["mm.1", "mm.2"], [hidden, inner], None, take)? }
            }
            Family::Qwen25 | Family::Qwen3 => {
                Projector::Joined { first: None, merger: self.merger(["mm.0", "mm.2"], [joined, inner], None, take)? }
            }
        })
    }

    fn gated_projector<'s, T: Take<'s>>(&'s self, take: &mut T) -> Result<GatedProjector<T::Matrix, T::Vector>> {
        let VisionSpec { merge, hidden_size, inner_size: inner, output_size: output, .. } = *self.spec;
        let view = self.finder.required(PATCH_MERGER, &[merge, merge, hidden_size, output])?.view;
        let weight = self.in_order(PATCH_MERGER, TensorView { rows: output, cols: self.spec.joined_cols(), ..view });
        let bias = Some(self.finder.required("mm.patch_merger.bias", &[output])?.view);
        Ok(GatedProjector {
            square: take.matrix(vec![LinearPart { weight, bias }])?,
            first: take.matrix(vec![self.linear("mm.model.fc", output, output)?])?,
            norm: self.norm("mm.post_norm", output, JOINED_NORM, take)?,
            gate_up: take.matrix(vec![self.linear("mm.gate", inner, output)?, self.linear("mm.up", inner, output)?])?,
            down: take.matrix(vec![self.linear("mm.down", output, inner)?])?,
        })
    }

    /// Takes two matrices. `cols` and `inner` are the sizes of the rows before and between them.
    pub(super) fn merger<'s, T: Take<'s>>(
        &'s self,
        [first, second]: [&str; 2],
        [cols, inner]: [usize; 2],
        norm: Option<(&str, NormSpec)>,
        take: &mut T,
    ) -> Result<Merger<T::Matrix, T::Vector>> {
        Ok(Merger {
            norm: norm.map(|(name, norm)| self.norm(name, cols, norm, &mut *take)).transpose()?,
            first: take.matrix(vec![self.linear(first, inner, cols)?])?,
            second: take.matrix(vec![self.linear(second, self.spec.output_size, inner)?])?,
        })
    }
}
