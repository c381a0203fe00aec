//! `VisionSpec`: an image encoder and its projector, as described by the keys of their file.

use crate::Result;
use crate::backend::{Activation, NormKind};
use crate::gguf::{GgufFile, Metadata, Value};
use crate::model::keys::Keys;
use crate::model::spec::{ModelSpec, NormSpec};
use crate::pixels::{CHANNELS, Filter, Preparation, Sizing};

/// The value of `general.architecture` in these files, and the prefix of their keys.
const ARCHITECTURE: &str = "clip";
const MAX_LAYERS: usize = 512;
/// The largest head that attention supports on all devices.
const MAX_HEAD_DIM: usize = 512;
/// The side, in patches, of the square that becomes one row for the text model, in the Qwen families.
const QWEN_MERGE: usize = 2;
/// Side of that square in Gemma 3, if the file does not state it.
const GEMMA3_MERGE: usize = 4;
/// Side of that square in Pixtral 12B, whose files do not state it.
const PIXTRAL_MERGE: usize = 1;
/// The base of the RoPE frequencies, if the file does not state it.
const ROPE_BASE: f32 = 10_000.0;
/// The side of an attention window of Qwen 2.5 VL in pixels, if the file does not state it.
const WINDOW_PIXELS: usize = 112;
/// The areas of the smallest and the largest picture in pixels, if the file does not state them.
const QWEN25_PIXELS: [usize; 2] = [56 * 56, 3584 * 3584];
const QWEN3_PIXELS: [usize; 2] = [256 * 256, 4096 * 4096];

/// The most rows of an image if the model's processor allows more, since the encoder's memory grows with them.
pub const MOST_IMAGE_ROWS: usize = 2048;

/// Keys that do not affect the computation.
const HARMLESS: [&str; 1] = ["has_text_encoder"];

/// The families of image encoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Gemma3,
    Pixtral,
    Qwen25,
    Qwen3,
}

impl Family {
    pub(super) const ALL: [Self; 4] = [Self::Gemma3, Self::Pixtral, Self::Qwen25, Self::Qwen3];

    /// Returns `clip.projector_type`.
    pub fn projector_type(self) -> &'static str {
        match self {
            Self::Gemma3 => "gemma3",
            Self::Pixtral => "pixtral",
            Self::Qwen25 => "qwen2.5vl_merger",
            Self::Qwen3 => "qwen3vl_merger",
        }
    }

    /// True if the tokens of an image have three RoPE positions (M-RoPE).
    pub fn has_mrope(self) -> bool {
        matches!(self, Self::Qwen25 | Self::Qwen3)
    }

    /// True if a token ends each row of an image but the last.
    pub fn has_row_ends(self) -> bool {
        self == Self::Pixtral
    }

    /// True if the feed-forward has a gate with SiLU, and norms are RMS norms. Others have GELU and layer norms.
    fn is_gated(self) -> bool {
        matches!(self, Self::Pixtral | Self::Qwen25)
    }

    /// True if positions are in a learned table.
    fn has_table(self) -> bool {
        matches!(self, Self::Gemma3 | Self::Qwen3)
    }

    /// True if the tokens of an image attend to each other in both directions.
    pub fn is_bidirectional(self) -> bool {
        self == Self::Gemma3
    }

    /// Returns the architectures of the text models that use such encoders.
    pub fn text_architectures(self) -> &'static [&'static str] {
        match self {
            Self::Gemma3 => &["gemma3"],
            Self::Pixtral => &["llama", "mistral3"],
            Self::Qwen25 => &["qwen2vl"],
            Self::Qwen3 => &["qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe"],
        }
    }
}

/// Everything about an encoder except its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionSpec {
    pub family: Family,
    pub hidden_size: usize,
    pub num_heads: usize,
    pub num_layers: usize,
    pub ffn_size: usize,
    pub activation: Activation,
    /// True if the feed-forward has a gate.
    pub gated: bool,
    /// The norms of the layers, and the one after the last layer.
    pub norm: NormSpec,
    /// The side of a patch in pixels.
    pub patch_size: usize,
    /// The side, in patches, of the square that becomes one row for the text model.
    pub merge: usize,
    /// The side of the learned table of positions; `None` without a table.
    pub table_side: Option<usize>,
    /// The base of the frequencies of RoPE; `None` without RoPE.
    pub rope_base: Option<f32>,
    /// Attention windows, if the encoder has them.
    pub windows: Option<Windows>,
    /// Layers whose outputs become rows for the first layers of the text model (DeepStack).
    pub deepstack: Vec<usize>,
    /// The size of a row for the text model.
    pub output_size: usize,
    pub preparation: Preparation,
}

/// Attention windows: square parts of a picture whose patches attend only to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// The side of a window in merged squares.
    pub side: usize,
    /// True for each layer whose attention stays within windows.
    pub layers: Vec<bool>,
}

impl VisionSpec {
    /// Reads the spec from an mmproj file's keys.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
    pub fn from_gguf(gguf: &GgufFile) -> Result<Self> {
        let metadata = gguf.metadata();
        let architecture = metadata.str("general.architecture")?;
        if architecture != ARCHITECTURE {
            let problem = format!("is '{architecture}', expected '{ARCHITECTURE}': the file is not an image encoder");
            return Err(metadata.error("general.architecture", problem));
        }
        let keys = Keys::new(gguf, ARCHITECTURE, None, false);
        let spec = Self::read(&keys)?;
        keys.check_read_or(|key, _: &Value| HARMLESS.contains(&key))?;
        Ok(spec)
    }

    fn read(keys: &Keys<'_>) -> Result<Self> {
        let family = family(keys)?;
        let (layer_norm, gelu) = (!family.is_gated(), !family.is_gated());
        for (key, expected) in [("use_gelu", gelu), ("use_silu", !gelu)] {
            if let Some(value) = keys.opt_bool(key)?.filter(|&value| value != expected) {
                let problem = format!("is {value}, expected {expected} in {} files", family.projector_type());
                return Err(keys.error(key, problem));
            }
        }
        let hidden_size = keys.size("vision.embedding_length")?;
        let num_heads = keys.size("vision.attention.head_count")?;
        let num_layers = keys.size("vision.block_count")?;
        if num_layers > MAX_LAYERS {
            return Err(keys.error("vision.block_count", format!("is {num_layers}, expected 1 to {MAX_LAYERS}")));
        }
        // Half of a head's RoPE pairs rotate with the row, and half with the column.
        let parts = if family == Family::Gemma3 { 1 } else { 4 };
        if !hidden_size.is_multiple_of(num_heads * parts) || hidden_size / num_heads > MAX_HEAD_DIM {
            let problem = format!(
                "is {num_heads} for embedding_length {hidden_size}, expected heads of a multiple of {parts} elements, \
                 and at most {MAX_HEAD_DIM}"
            );
            return Err(keys.error("vision.attention.head_count", problem));
        }
        let kind = if layer_norm { NormKind::Layer } else { NormKind::Rms };
        let eps = keys.eps("vision.attention.layer_norm_epsilon")?;
        let patch_size = keys.size("vision.patch_size")?;
        let merge = merge(keys, family)?;
        let image_side = image_side(keys, patch_size)?;
        let table_side = family.has_table().then_some(image_side);
        Ok(Self {
            family,
            hidden_size,
            num_heads,
            num_layers,
            ffn_size: keys.size("vision.feed_forward_length")?,
            activation: if gelu { Activation::Gelu } else { Activation::Silu },
            gated: !gelu,
            norm: NormSpec { kind, eps, weight: true, bias: layer_norm },
            patch_size,
            merge,
            table_side,
            rope_base: rope_base(keys, family)?,
            windows: windows(keys, family, num_layers, patch_size * merge)?,
            deepstack: deepstack(keys, family, num_layers)?,
            output_size: keys.size("vision.projection_dim")?,
            preparation: preparation(keys, family, [image_side * patch_size, patch_size * merge])?,
        })
    }

    /// Returns the size of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Returns the number of values of a patch.
    pub fn patch_cols(&self) -> usize {
        CHANNELS * self.patch_size * self.patch_size
    }

    /// Returns the size of a square's concatenated patches.
    pub fn joined_cols(&self) -> usize {
        self.hidden_size * self.patches_per_row()
    }

    /// Returns the size of the larger of the rows within the projector.
    pub fn projector_cols(&self) -> usize {
        match self.family {
            Family::Pixtral => self.joined_cols().max(self.output_size),
            Family::Gemma3 | Family::Qwen25 | Family::Qwen3 => self.joined_cols(),
        }
    }

    /// Returns the number of patches that become one row for the text model.
    pub fn patches_per_row(&self) -> usize {
        self.merge * self.merge
    }

    /// Returns the side, in pixels, of the square that becomes one row for the text model.
    pub fn row_side(&self) -> usize {
        self.patch_size * self.merge
    }

    /// Returns the number of patches of the largest picture.
    pub fn most_patches(&self) -> usize {
        self.preparation.sizing.most_pixels() / (self.patch_size * self.patch_size)
    }

    /// Checks that the encoder was made for this text model: its architecture, its hidden size, and its DeepStack
    /// layers.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key of the encoder's file, with both values.
    pub fn check_fits(&self, projector: &Metadata, model: &ModelSpec, text: &Metadata) -> Result<()> {
        let (name, file) = (model.architecture, text.path().display());
        let known = self.family.text_architectures();
        if !known.contains(&name) {
            let kind = self.family.projector_type();
            let problem = format!("is '{kind}', which goes with {}; {file} is '{name}'", known.join(", "));
            return Err(projector.error(PROJECTOR_TYPE, problem));
        }
        if self.output_size != model.hidden_size {
            let (here, there) = (self.output_size, model.hidden_size);
            let problem = format!(
                "is {here}: image rows of {here} columns do not fit {file}, whose rows have {there} \
                 ({name}.embedding_length); take the mmproj file of this model"
            );
            return Err(projector.error("clip.vision.projection_dim", problem));
        }
        let expected = text.opt_u32(&format!("{name}.n_deepstack_layers"))?.unwrap_or(0) as usize;
        if self.deepstack.len() != expected {
            let problem = format!(
                "names {} layers, while {file} takes the rows of {expected} ({name}.n_deepstack_layers); take the \
                 mmproj file of this model",
                self.deepstack.len()
            );
            return Err(projector.error(DEEPSTACK, problem));
        }
        Ok(())
    }
}

const PROJECTOR_TYPE: &str = "clip.projector_type";
const DEEPSTACK: &str = "clip.vision.is_deepstack_layers";

fn family(keys: &Keys<'_>) -> Result<Family> {
    if keys.opt_bool("has_vision_encoder")? != Some(true) {
        return Err(keys.error("has_vision_encoder", "is not true: the file holds no image encoder"));
    }
    if keys.opt_bool("has_audio_encoder")? == Some(true) {
        return Err(keys.error("has_audio_encoder", "is true: combined encoders of images and audio are not supported"));
    }
    let of_file = keys.opt_str("projector_type")?.or(keys.opt_str("vision.projector_type")?);
    let name = of_file.ok_or_else(|| keys.missing("projector_type"))?;
    Family::ALL.into_iter().find(|family| family.projector_type() == name).ok_or_else(|| {
        let names = Family::ALL.map(Family::projector_type).join(", ");
        keys.error("projector_type", format!("'{name}' is not supported; supported are {names}"))
    })
}

/// Returns the side, in patches, of the pictures that the encoder was made for.
fn image_side(keys: &Keys<'_>, patch_size: usize) -> Result<usize> {
    let image_size = keys.size("vision.image_size")?;
    match image_size.is_multiple_of(patch_size) {
        true => Ok(image_size / patch_size),
        false => {
            Err(keys.error("vision.image_size", format!("is {image_size}, expected a multiple of {patch_size} pixels")))
        }
    }
}

fn merge(keys: &Keys<'_>, family: Family) -> Result<usize> {
    let (key, default) = match family {
        Family::Gemma3 => ("vision.projector.scale_factor", GEMMA3_MERGE),
        Family::Pixtral => ("vision.spatial_merge_size", PIXTRAL_MERGE),
        Family::Qwen25 | Family::Qwen3 => ("vision.spatial_merge_size", QWEN_MERGE),
    };
    keys.opt_size(key).map(|merge| merge.unwrap_or(default))
}

fn rope_base(keys: &Keys<'_>, family: Family) -> Result<Option<f32>> {
    let key = "rope.freq_base";
    let base = match family {
        Family::Gemma3 => return Ok(None),
        Family::Pixtral => keys.opt_f32(key)?.unwrap_or(ROPE_BASE),
        Family::Qwen25 | Family::Qwen3 => ROPE_BASE,
    };
    match base > 0.0 {
        true => Ok(Some(base)),
        false => Err(keys.error(key, format!("is {base}, expected a number above 0"))),
    }
}

fn windows(keys: &Keys<'_>, family: Family, num_layers: usize, row_pixels: usize) -> Result<Option<Windows>> {
    if family != Family::Qwen25 {
        return Ok(None);
    }
    // The last layer of each period attends to the whole picture.
    let period = keys.size("vision.n_wa_pattern")?;
    let pixels = keys.opt_size("vision.window_size")?.unwrap_or(WINDOW_PIXELS);
    if !pixels.is_multiple_of(row_pixels) {
        let problem = format!("is {pixels} pixels, expected a multiple of {row_pixels}");
        return Err(keys.error("vision.window_size", problem));
    }
    let layers = (1..=num_layers).map(|layer| !layer.is_multiple_of(period)).collect();
    Ok(Some(Windows { side: pixels / row_pixels, layers }))
}

fn deepstack(keys: &Keys<'_>, family: Family, num_layers: usize) -> Result<Vec<usize>> {
    if family != Family::Qwen3 {
        return Ok(Vec::new());
    }
    let key = keys.full("vision.is_deepstack_layers");
    let flags = keys.metadata.opt_bools(&key)?.unwrap_or_default();
    if !flags.is_empty() && flags.len() != num_layers {
        let problem = format!("has {} entries, expected one per layer ({num_layers})", flags.len());
        return Err(keys.metadata.error(key, problem));
    }
    Ok((0..flags.len()).filter(|&layer| flags[layer]).collect())
}

fn preparation(keys: &Keys<'_>, family: Family, [side, row_pixels]: [usize; 2]) -> Result<Preparation> {
    let channels = |key: &str| -> Result<[f32; CHANNELS]> {
        let full = keys.full(key);
        let values = keys.metadata.opt_f32s(&full)?.ok_or_else(|| keys.missing(key))?;
        let are_right = values.iter().all(|value| value.is_finite());
        <[f32; CHANNELS]>::try_from(values)
            .ok()
            .filter(|_| are_right)
            .ok_or_else(|| keys.error(key, format!("holds {values:?}, expected a finite number of each of 3 channels")))
    };
    let (mean, std) = (channels("vision.image_mean")?, channels("vision.image_std")?);
    if std.iter().any(|&std| std <= 0.0) {
        return Err(keys.error("vision.image_std", format!("holds {std:?}, expected numbers above 0")));
    }
    let has_side = matches!(family, Family::Gemma3 | Family::Pixtral);
    if has_side && !side.is_multiple_of(row_pixels) {
        let problem = format!("is {side}, expected a multiple of {row_pixels} pixels, which make a row");
        return Err(keys.error("vision.image_size", problem));
    }
    let (sizing, filter) = match family {
        Family::Gemma3 => (Sizing::Square { side }, Filter::Bilinear),
        Family::Pixtral => {
            let side = side.min(MOST_IMAGE_ROWS.saturating_mul(row_pixels));
            let max_pixels = MOST_IMAGE_ROWS.saturating_mul(row_pixels * row_pixels);
            (Sizing::Within { side, of: row_pixels, max_pixels }, Filter::Bicubic)
        }
        Family::Qwen25 => (multiples(keys, row_pixels, QWEN25_PIXELS)?, Filter::Bicubic),
        Family::Qwen3 => (multiples(keys, row_pixels, QWEN3_PIXELS)?, Filter::Bicubic),
    };
    Ok(Preparation { sizing, filter, mean, std })
}

fn multiples(keys: &Keys<'_>, of: usize, [least, most]: [usize; 2]) -> Result<Sizing> {
    let min_pixels = keys.opt_size("vision.image_min_pixels")?.unwrap_or(least);
    let of_file = keys.opt_size("vision.image_max_pixels")?.unwrap_or(most);
    let max_pixels = of_file.min(MOST_IMAGE_ROWS.saturating_mul(of * of));
    match min_pixels <= max_pixels {
        true => Ok(Sizing::Multiples { of, min_pixels, max_pixels }),
        false => Err(keys.error("vision.image_min_pixels", format!("is {min_pixels}, more than {max_pixels}"))),
    }
}
