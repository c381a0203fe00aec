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

/// Tensors that are read here and nowhere else: divisors of the frequencies.
pub(super) const ROPE_TENSORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// The RoPE of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LayerRope {
    /// RoPE as the file's keys describe it.
    OfFile(RopeKind),
    /// RoPE as the keys describe it, in a file whose scores have the factor by which YaRN makes attention sharper.
    Unscaled(RopeKind),
    /// RoPE of this base, without the file's scaling for long contexts.
    OfBase(RopeKind, f32),
    /// No RoPE: tokens know nothing of their positions but their order.
    None,
}

impl Keys<'_> {
    /// The RoPE of a layer with heads of `head_dim` elements, of which it rotates as many as the key `dims_key` says:
    /// its index in the model.
    pub(super) fn rope(
        &self,
        dims_key: &'static str,
        model: &mut ModelSpec,
        rope: LayerRope,
        head_dim: usize,
    ) -> Result<usize> {
        let dims = self.opt_size(dims_key)?.unwrap_or(head_dim);
        if rope != LayerRope::None && (dims > head_dim || !dims.is_multiple_of(2)) {
            return Err(
                self.error(dims_key, format!("is {dims}, expected an even number up to the head size ({head_dim})"))
            );
        }
        let rope = match rope {
            LayerRope::OfFile(kind) => self.rope_of_file(model, kind, dims)?,
            LayerRope::Unscaled(kind) => RopeSpec { magnitude: 1.0, ..self.rope_of_file(model, kind, dims)? },
            LayerRope::OfBase(kind, base) => plain(kind, &frequencies(base, dims)),
            LayerRope::None => plain(RopeKind::Neox, &[]),
        };
        let index = model.ropes.iter().position(|known| *known == rope).unwrap_or(model.ropes.len());
        if index == model.ropes.len() {
            model.ropes.push(rope);
        }
        Ok(index)
    }

    /// `rope.freq_base`, or another key with a base.
    pub(super) fn rope_base(&self, key: &str) -> Result<f32> {
        let base = self.opt_f32(key)?.unwrap_or(DEFAULT_BASE);
        match base > 1.0 {
            true => Ok(base),
            false => Err(self.error(key, format!("is {base}, expected a number above 1"))),
        }
    }

    /// The RoPE of the first `dims` elements of each head.
    fn rope_of_file(&self, model: &ModelSpec, kind: RopeKind, dims: usize) -> Result<RopeSpec> {
        let base = self.rope_base("rope.freq_base")?;
        let factors = self.freq_factors(model, dims / 2)?;
        let plain: Vec<f64> = frequencies(base, dims).iter().zip(&factors).map(|(f, by)| f / f64::from(*by)).collect();
        let (frequencies, magnitude) = match Scaling::read(self)? {
            Scaling::None => (plain, f64::from(self.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0))),
            Scaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Yarn { factor, original_context, betas, attention_factor } => {
                let ramp = yarn_ramp(dims, f64::from(base), original_context, betas);
                let blended =
                    plain.iter().enumerate().map(|(i, f)| f / factor * ramp(i) + f * (1.0 - ramp(i))).collect();
                (blended, attention_factor)
            }
        };
        Ok(RopeSpec {
            kind,
            inv_freq: frequencies.into_iter().map(|f| f as f32).collect(),
            magnitude: magnitude as f32,
        })
    }

    /// Divisors of the frequencies, from the file's one list. Where it has two (longrope, arXiv 2402.13753), they come
    /// from the long one if sequences longer than the model's original context will be served, else from the short one.
    fn freq_factors(&self, model: &ModelSpec, pairs: usize) -> Result<Vec<f32>> {
        let [plain, long, short] = ROPE_TENSORS;
        let name = match self.opt_size("rope.scaling.original_context_length")? {
            Some(original) if self.gguf.tensor(long).is_some() => {
                let longest = self.max_model_len.unwrap_or(usize::MAX).min(model.context_length);
                if longest > original { long } else { short }
            }
            _ => plain,
        };
        let Some(info) = self.gguf.tensor(name) else {
            return Ok(vec![1.0; pairs]);
        };
        let view = self.gguf.view(info);
        if view.rows != 1 || view.cols != pairs {
            return Err(self.metadata.error(&info.name, format!("has shape {:?}, expected [{pairs}]", info.shape)));
        }
        let mut factors = vec![0.0; pairs];
        quant::dequantize(view.ggml_type, view.data, &mut factors)?;
        match factors.iter().find(|f| !f.is_finite() || **f <= 0.0) {
            Some(f) => Err(self.metadata.error(&info.name, format!("holds {f}, expected positive numbers"))),
            None => Ok(factors),
        }
    }
}

/// Angle per position of each rotated pair, without any scaling.
fn frequencies(base: f32, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|i| f64::from(base).powf(-2.0 * i as f64 / dims as f64)).collect()
}

fn plain(kind: RopeKind, frequencies: &[f64]) -> RopeSpec {
    RopeSpec { kind, inv_freq: frequencies.iter().map(|&f| f as f32).collect(), magnitude: 1.0 }
}

enum Scaling {
    None,
    Linear { factor: f64 },
    Yarn { factor: f64, original_context: f64, betas: [f64; 2], attention_factor: f64 },
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
            (None, None) | (Some("none" | "longrope"), _) => return Ok(Self::None),
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
                let number = |key: &str, default| Ok(keys.opt_f32(key)?.map_or(default, f64::from));
                // How much sharper attention becomes: DeepSeek's form tells how much of it cos and sin do not bring.
                let sharper = |part: f64| 1.0 + 0.1 * part * factor.ln();
                let elsewhere = number("rope.scaling.yarn_log_multiplier", 0.0)?;
                Ok(Self::Yarn {
                    factor,
                    original_context: original as f64,
                    betas: [
                        number("rope.scaling.yarn_beta_fast", YARN_BETA_FAST)?,
                        number("rope.scaling.yarn_beta_slow", YARN_BETA_SLOW)?,
                    ],
                    attention_factor: number("rope.scaling.attn_factor", 1.0)? * sharper(1.0) / sharper(elsewhere),
                })
            }
            Some(other) => Err(keys.error(
                "rope.scaling.type",
                format!("'{other}' is not supported; none, linear, yarn and longrope are"),
            )),
        }
    }
}

/// How far pair `i` is interpolated: 0 where it turns fast (kept), 1 where it turns slowly (scaled), linear between.
fn yarn_ramp(dims: usize, base: f64, original_context: f64, [fast, slow]: [f64; 2]) -> impl Fn(usize) -> f64 {
    let pair_of = |rotations: f64| {
        dims as f64 * (original_context / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
    };
    let low = pair_of(fast).floor().max(0.0);
    let high = pair_of(slow).ceil().min(dims as f64 - 1.0);
    move |i| ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}
