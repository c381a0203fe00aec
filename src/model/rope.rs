//! RoPE frequencies: every kind of context scaling reduces to an angle per position for each rotated pair, and one
//! magnitude for all of them.
//!
//! Sources: RoFormer (arXiv 2104.09864); linear scaling (arXiv 2306.15595); YaRN (arXiv 2309.00071, section 3);
//! Llama 3.1's factors, which its converter stores as the tensor `rope_freqs.weight`.

use super::keys::Keys;
use super::spec::ModelSpec;
use crate::Result;
use crate::backend::{RopeKind, RopeSpec};
use crate::quant;

/// The GGUF specification's default for `rope.freq_base`.
const DEFAULT_BASE: f32 = 10_000.0;
/// YaRN's published bounds of the rotations per context between which it blends.
const YARN_BETA_FAST: f64 = 32.0;
const YARN_BETA_SLOW: f64 = 1.0;

impl Keys<'_> {
    /// The RoPE of heads of `head_dim` elements, of a model whose layers differ in nothing else: its index.
    pub(super) fn common_rope(&self, model: &mut ModelSpec, kind: RopeKind, head_dim: usize) -> Result<usize> {
        let dims = self.opt_size("rope.dimension_count")?.unwrap_or(head_dim);
        if dims > head_dim || !dims.is_multiple_of(2) {
            return Err(self.error(
                "rope.dimension_count",
                format!("is {dims}, expected an even number up to the head size ({head_dim})"),
            ));
        }
        let is_it = |rope: &RopeSpec| rope.kind == kind && 2 * rope.inv_freq.len() == dims;
        if let Some(index) = model.ropes.iter().position(is_it) {
            return Ok(index);
        }
        model.ropes.push(self.rope(kind, dims)?);
        Ok(model.ropes.len() - 1)
    }

    /// The RoPE of the first `dims` elements of each head.
    fn rope(&self, kind: RopeKind, dims: usize) -> Result<RopeSpec> {
        let base = self.opt_f32("rope.freq_base")?.unwrap_or(DEFAULT_BASE);
        if base <= 1.0 {
            return Err(self.error("rope.freq_base", format!("is {base}, expected a number above 1")));
        }
        let factors = freq_factors(self, dims / 2)?;
        let plain: Vec<f64> = (0..dims / 2)
            .map(|i| f64::from(base).powf(-2.0 * i as f64 / dims as f64) / f64::from(factors[i]))
            .collect();
        let (frequencies, magnitude) = match Scaling::read(self)? {
            Scaling::None => (plain, 1.0),
            Scaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Yarn { factor, original_context, attention_factor } => {
                let ramp = yarn_ramp(dims, f64::from(base), original_context);
                let blended =
                    plain.iter().enumerate().map(|(i, f)| f / factor * ramp(i) + f * (1.0 - ramp(i))).collect();
                (blended, attention_factor * (1.0 + 0.1 * factor.ln()))
            }
        };
        Ok(RopeSpec {
            kind,
            inv_freq: frequencies.into_iter().map(|f| f as f32).collect(),
            magnitude: magnitude as f32,
        })
    }
}

enum Scaling {
    None,
    Linear { factor: f64 },
    Yarn { factor: f64, original_context: f64, attention_factor: f64 },
}

impl Scaling {
    fn read(keys: &Keys<'_>) -> Result<Self> {
        let factor = match keys.opt_f32("rope.scaling.factor")? {
            Some(f) => Some(f),
            // The name of files made before 2023-11.
            None => keys.opt_f32("rope.scale_linear")?,
        };
        if let Some(f) = factor
            && f <= 0.0
        {
            return Err(keys.error("rope.scaling.factor", format!("is {f}, expected a positive number")));
        }
        let kind = keys.opt_str("rope.scaling.type")?;
        let factor = match (kind, factor) {
            (None | Some("none"), None) => return Ok(Self::None),
            (Some("none"), Some(_)) => return Ok(Self::None),
            (_, Some(f)) => f64::from(f),
            (Some(_), None) => {
                return Err(keys.error("rope.scaling.factor", "is missing though rope.scaling.type asks for scaling"));
            }
        };
        match kind {
            None | Some("linear") => Ok(Self::Linear { factor }),
            Some("yarn") => {
                let original = keys
                    .opt_size("rope.scaling.original_context_length")?
                    .ok_or_else(|| keys.error("rope.scaling.original_context_length", "is missing; YaRN needs it"))?;
                Ok(Self::Yarn {
                    factor,
                    original_context: original as f64,
                    attention_factor: f64::from(keys.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0)),
                })
            }
            Some(other) => {
                Err(keys.error("rope.scaling.type", format!("'{other}' is not supported; none, linear and yarn are")))
            }
        }
    }
}

/// How far pair `i` is interpolated: 0 where it turns fast (kept), 1 where it turns slowly (scaled), linear between.
fn yarn_ramp(dims: usize, base: f64, original_context: f64) -> impl Fn(usize) -> f64 {
    let pair_of = |rotations: f64| {
        dims as f64 * (original_context / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
    };
    let low = pair_of(YARN_BETA_FAST).floor().max(0.0);
    let high = pair_of(YARN_BETA_SLOW).ceil().min(dims as f64 - 1.0);
    move |i| ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}

fn freq_factors(keys: &Keys<'_>, pairs: usize) -> Result<Vec<f32>> {
    let Some(info) = keys.gguf.tensor("rope_freqs.weight") else {
        return Ok(vec![1.0; pairs]);
    };
    let view = keys.gguf.view(info);
    if view.rows != 1 || view.cols != pairs {
        return Err(keys.metadata.error(&info.name, format!("has shape {:?}, expected [{pairs}]", info.shape)));
    }
    let mut factors = vec![0.0; pairs];
    quant::dequantize(view.ggml_type, view.data, &mut factors)?;
    match factors.iter().find(|f| !f.is_finite() || **f <= 0.0) {
        Some(f) => Err(keys.metadata.error(&info.name, format!("holds {f}, expected positive numbers"))),
        None => Ok(factors),
    }
}
