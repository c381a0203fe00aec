//! RoPE frequencies. Every kind of context scaling reduces to an angle per position for each rotated pair, and to one
//! magnitude for all pairs.
//!
//! Sources: RoFormer (arXiv 2104.09864); linear scaling (arXiv 2306.15595); YaRN (arXiv 2309.00071, section 3);
//! Llama 3.1's factors, which its converter stores as the tensor `rope_freqs.weight`.

use super::Keys;
use super::key_names::other_names;
use crate::Result;
use crate::backend::{RopeKind, RopeSpec};
use crate::gguf::GgufFile;
use crate::quant;
use crate::spec::ModelSpec;

/// The key of the base of the frequencies.
const BASE: &str = "rope.freq_base";
/// The default of the base in the GGUF specification.
const DEFAULT_BASE: f32 = 10_000.0;
/// YaRN's published bounds, in rotations per context, between which it blends.
const YARN_BETA_FAST: f64 = 32.0;
const YARN_BETA_SLOW: f64 = 1.0;

/// Tensors with divisors of the frequencies. They are only read here.
pub(crate) const ROPE_TENSORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// The RoPE of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LayerRope {
    /// RoPE according to the file's keys.
    OfFile(RopeKind),
    /// RoPE according to the file's keys, without YaRN's derived attention factor. The model applies that factor to the
    /// scores.
    Unscaled(RopeKind),
    /// RoPE with this base, without the file's scaling for long contexts.
    OfBase(RopeKind, f32),
    /// No RoPE: attention knows only the order of the tokens.
    None,
}

impl Keys<'_> {
    /// Adds the RoPE of a layer with heads of `head_dim` elements. It rotates as many elements as the key `dims_key`
    /// says. Returns its index in the model.
    pub(crate) fn rope(
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
            LayerRope::OfFile(kind) => self.rope_of_file(model, kind, dims, true)?,
            LayerRope::Unscaled(kind) => self.rope_of_file(model, kind, dims, false)?,
            LayerRope::OfBase(kind, base) => plain(kind, &frequencies(base, dims)),
            LayerRope::None => plain(RopeKind::Neox, &[]),
        };
        let index = model.ropes.iter().position(|known| *known == rope).unwrap_or(model.ropes.len());
        if index == model.ropes.len() {
            model.ropes.push(rope);
        }
        Ok(index)
    }

    /// Returns `rope.freq_base`, or another key with a base.
    pub(crate) fn rope_base(&self, key: &str) -> Result<f32> {
        Ok(self.opt_rope_base(key)?.unwrap_or(DEFAULT_BASE))
    }

    /// Returns a base, if the file has this key.
    pub(super) fn opt_rope_base(&self, key: &str) -> Result<Option<f32>> {
        match self.opt_f32(key)? {
            Some(base) if base <= 1.0 => Err(self.error(key, format!("is {base}, expected a number above 1"))),
            base => Ok(base),
        }
    }

    /// Returns the base of sliding window layers. Without a key of its own, it is the base of the other layers.
    pub(crate) fn rope_base_of_windows(&self) -> Result<f32> {
        self.opt_rope_base("rope.freq_base_swa")?.map_or_else(|| self.rope_base(BASE), Ok)
    }

    /// Returns the RoPE of the first `dims` elements of each head. With `sharpens`, it includes YaRN's derived
    /// attention factor, unless the file states the factor.
    fn rope_of_file(&self, model: &ModelSpec, kind: RopeKind, dims: usize, sharpens: bool) -> Result<RopeSpec> {
        let base = self.rope_base(BASE)?;
        let factors = self.freq_factors(model, dims / 2)?;
        let plain: Vec<f64> = frequencies(base, dims).iter().zip(&factors).map(|(f, by)| f / f64::from(*by)).collect();
        let (frequencies, sharper) = match Scaling::read(self, model.context_length)? {
            Scaling::None => (plain, 1.0),
            Scaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Yarn(yarn) => {
                let ramp = yarn_ramp(dims, f64::from(base), yarn.original_context, yarn.betas);
                let of_pair = |(i, f): (usize, &f64)| f / yarn.factor * ramp(i) + f * (1.0 - ramp(i));
                let derived = if sharpens { yarn.derived_sharpness } else { 1.0 };
                (plain.iter().enumerate().map(of_pair).collect(), yarn.sharpness.unwrap_or(derived))
            }
        };
        let magnitude = sharper * f64::from(self.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0));
        Ok(RopeSpec {
            kind,
            inv_freq: frequencies.into_iter().map(|f| f as f32).collect(),
            magnitude: magnitude as f32,
        })
    }

    /// Returns the context length before RoPE scaling: the whole context length if the file has no key for it.
    pub(super) fn original_context(&self, context_length: usize) -> Result<usize> {
        Ok(self.opt_size("rope.scaling.original_context_length")?.unwrap_or(context_length))
    }

    /// Returns the divisors of the frequencies, from the file's single list or from one of two (longrope, arXiv
    /// 2402.13753). The long list serves sequences beyond the model's original context, and the short list serves all
    /// others. Without a key, the original context is the whole context.
    fn freq_factors(&self, model: &ModelSpec, pairs: usize) -> Result<Vec<f32>> {
        let [plain, long, short] = ROPE_TENSORS;
        let original = self.original_context(model.context_length)?;
        let name = match self.gguf.tensor(long) {
            Some(_) => {
                let longest = self.max_model_len.unwrap_or(usize::MAX).min(model.context_length);
                if longest > original { long } else { short }
            }
            None => plain,
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

/// Published bases of model families that do not use the format's default.
const PUBLISHED_BASES: [(&str, f32); 26] = [
    ("cohere2", 5e4),
    ("ernie4_5", 5e5),
    ("ernie4_5-moe", 5e5),
    ("eurobert", 2.5e5),
    ("exaone-moe", 1e6),
    ("exaone4", 1e6),
    ("gemma-embedding", 1e6),
    ("gemma3", 1e6),
    ("gemma4", 1e6),
    ("gpt-oss", 1.5e5),
    ("lfm2", 1e6),
    ("lfm2moe", 1e6),
    ("minimax-m2", 5e6),
    ("mistral3", 1e6),
    ("modern-bert", 1.6e5),
    ("olmo2", 5e5),
    ("qwen2", 1e6),
    ("qwen2moe", 1e6),
    ("qwen2vl", 1e6),
    ("qwen3", 1e6),
    ("qwen3moe", 1e6),
    ("qwen35", 1e7),
    ("qwen35moe", 1e7),
    ("qwen3next", 1e7),
    ("qwen3vlmoe", 5e6),
    ("seed_oss", 1e7),
];

/// Warns if a file lacks the base, and its model family is known to use another base than the format's default.
pub(crate) fn warn_of_missing_base(gguf: &GgufFile, model: &ModelSpec) {
    let names = std::iter::once(BASE).chain(other_names(model.architecture, BASE));
    let mut names = names.map(|name| format!("{}.{name}", model.architecture));
    let published = PUBLISHED_BASES.iter().find(|(architecture, _)| *architecture == model.architecture);
    let Some((architecture, base)) = published else { return };
    if names.all(|name| gguf.metadata().get(&name).is_none()) {
        tracing::warn!(
            "{}: {architecture}.{BASE} is missing, so RoPE has the format's base, {DEFAULT_BASE}; published models of \
             {architecture} have {base}",
            gguf.metadata().path().display()
        );
    }
}

/// Returns the angle per position of each rotated pair, without scaling.
fn frequencies(base: f32, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|i| f64::from(base).powf(-2.0 * i as f64 / dims as f64)).collect()
}

fn plain(kind: RopeKind, frequencies: &[f64]) -> RopeSpec {
    RopeSpec { kind, inv_freq: frequencies.iter().map(|&f| f as f32).collect(), magnitude: 1.0 }
}

enum Scaling {
    None,
    Linear { factor: f64 },
    Yarn(Yarn),
}

struct Yarn {
    factor: f64,
    original_context: f64,
    betas: [f64; 2],
    /// Factor on cos and sin, which makes attention sharper: from the file, and derived from the other keys.
    sharpness: Option<f64>,
    derived_sharpness: f64,
}

impl Scaling {
    /// Reads the scaling of a model with this context length. Defaults are llama.cpp's: a missing factor, or 0, means
    /// 1, and a factor without a type means linear scaling.
    fn read(keys: &Keys<'_>, context_length: usize) -> Result<Self> {
        let factor = match keys.opt_f32("rope.scaling.factor")? {
            Some(f) if f < 0.0 => {
                return Err(keys.error("rope.scaling.factor", format!("is {f}, expected a positive number")));
            }
            None | Some(0.0) => 1.0,
            Some(f) => f64::from(f),
        };
        let yarn = Yarn::read(keys, factor, context_length)?;
        match keys.opt_str("rope.scaling.type")? {
            None if factor == 1.0 => Ok(Self::None),
            Some("none" | "longrope") => Ok(Self::None),
            None | Some("linear") => Ok(Self::Linear { factor }),
            Some("yarn") => Ok(Self::Yarn(yarn)),
            Some(other) => Err(keys.error(
                "rope.scaling.type",
                format!("'{other}' is not supported; none, linear, yarn and longrope are"),
            )),
        }
    }
}

impl Yarn {
    fn read(keys: &Keys<'_>, factor: f64, context_length: usize) -> Result<Self> {
        let number = |key: &str, default| Ok::<_, crate::Error>(keys.opt_f32(key)?.map_or(default, f64::from));
        for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.extrapolation_factor"] {
            // llama.cpp treats a negative number as absent.
            if let Some(extrapolation) = keys.opt_f32(key)?.filter(|&share| share >= 0.0 && share != 1.0) {
                return Err(keys.error(key, format!("is {extrapolation}; this version extrapolates in full (1)")));
            }
        }
        let derived = |part: f64| 1.0 + 0.1 * part * factor.ln();
        // DeepSeek's keys also state the part of the factor that is applied elsewhere than to cos and sin.
        let [here, elsewhere] = [number("rope.scaling.mscale", 1.0)?, number("rope.scaling.yarn_log_multiplier", 0.0)?];
        Ok(Self {
            factor,
            original_context: keys.original_context(context_length)? as f64,
            betas: [
                number("rope.scaling.yarn_beta_fast", YARN_BETA_FAST)?,
                number("rope.scaling.yarn_beta_slow", YARN_BETA_SLOW)?,
            ],
            sharpness: keys.opt_positive("rope.scaling.yarn_attn_factor")?.map(f64::from),
            derived_sharpness: derived(here) / derived(elsewhere),
        })
    }
}

/// Returns the share by which pair `i` is interpolated: 0 for fast rotation (kept), 1 for slow rotation (scaled),
/// linear between.
fn yarn_ramp(dims: usize, base: f64, original_context: f64, [fast, slow]: [f64; 2]) -> impl Fn(usize) -> f64 {
    let pair_of = |rotations: f64| {
        dims as f64 * (original_context / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
    };
    let low = pair_of(fast).floor().max(0.0);
    let high = pair_of(slow).ceil().min(dims as f64 - 1.0);
    move |i| ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}
