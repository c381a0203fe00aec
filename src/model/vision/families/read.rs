//! Reads the keys that several families have in common.

use crate::Result;
use crate::backend::NormKind;
use crate::images::Sight;
use crate::keys::Keys;
use crate::pixels::{CHANNELS, Filter, Preparation, Sizing};
use crate::spec::{NormSpec, Presence};
use crate::vision::family::Family;
use crate::vision::spec::{FeedForward, MOST_IMAGE_ROWS, PROJECTOR_TYPES, ROPE_BASE, VisionSpec};

const MAX_LAYERS: usize = 512;
/// The largest head that attention supports on all devices.
const MAX_HEAD_DIM: usize = 512;
/// The side, in patches, of the square that becomes one row for the text model, if the file does not state it.
const MERGE: usize = 2;
/// A bound far above any real model.
const MOST_TILES: usize = 64;

pub(super) fn family(keys: &Keys<'_>) -> Result<Family> {
    if keys.opt_bool("has_vision_encoder")? != Some(true) {
        return Err(keys.error("has_vision_encoder", "is not true: the file holds no image encoder"));
    }
    let [first, second] = PROJECTOR_TYPES;
    let (key, name) = match (keys.opt_str(first)?, keys.opt_str(second)?) {
        (Some(name), _) => (first, name),
        (None, Some(name)) => (second, name),
        (None, None) => return Err(keys.missing(first)),
    };
    let family = Family::ALL.into_iter().find(|family| family.values().projector_type == name);
    let family = family.ok_or_else(|| {
        let names = Family::ALL.map(|family| family.values().projector_type).join(", ");
        keys.error(key, format!("'{name}' is not supported; supported are {names}"))
    })?;
    if keys.opt_bool("has_audio_encoder")? == Some(true) && !family.values().has_audio {
        let problem = format!("is true: encoders of images and audio in one file are not supported in {name} files");
        return Err(keys.error("has_audio_encoder", problem));
    }
    Ok(family)
}

/// Reads the sizes that all encoders have. The rest is that of a plain encoder: without a table of positions, without
/// RoPE, and one row for each patch.
pub(super) fn spec(keys: &Keys<'_>, family: Family, feed_forward: FeedForward) -> Result<VisionSpec> {
    let is_silu = feed_forward == FeedForward::GatedSilu;
    for (key, expected) in [("use_gelu", !is_silu), ("use_silu", is_silu)] {
        if let Some(value) = keys.opt_bool(key)?.filter(|&value| value != expected) {
            let name = family.values().projector_type;
            return Err(keys.error(key, format!("is {value}, expected {expected} in {name} files")));
        }
    }
    let hidden_size = keys.size("vision.embedding_length")?;
    let num_heads = keys.size("vision.attention.head_count")?;
    let num_layers = keys.size("vision.block_count")?;
    if num_layers > MAX_LAYERS {
        return Err(keys.error("vision.block_count", format!("is {num_layers}, expected 1 to {MAX_LAYERS}")));
    }
    let is_gated = feed_forward.is_gated();
    let kind = if is_gated { NormKind::Rms } else { NormKind::Layer };
    let eps = keys.eps("vision.attention.layer_norm_epsilon")?;
    let output_size = keys.size("vision.projection_dim")?;
    Ok(VisionSpec {
        family,
        hidden_size,
        num_heads,
        num_layers,
        ffn_size: keys.size("vision.feed_forward_length")?,
        feed_forward,
        norm: NormSpec { kind, eps, weight: true, bias: !is_gated },
        post_norms: None,
        head_norms: false,
        clips: false,
        scale: 1.0 / ((hidden_size / num_heads) as f32).sqrt(),
        biases: Presence::Required,
        patch_bias: false,
        has_class: false,
        frames: 1,
        first_norm: None,
        last_norm: None,
        patch_size: keys.size("vision.patch_size")?,
        merge: 1,
        positions: None,
        rope: None,
        windows: None,
        deepstack: Vec::new(),
        inner_size: output_size,
        output_size,
        sight: Sight::Causal,
        preparation: preparation(keys)?,
    })
}

/// Checks what attention needs of the heads.
pub(super) fn check_heads(keys: &Keys<'_>, spec: &VisionSpec) -> Result<()> {
    let VisionSpec { hidden_size, num_heads, .. } = *spec;
    // Half of a head's RoPE pairs rotate with the row, and half with the column.
    let parts = if spec.rope.is_some() { 4 } else { 1 };
    if !hidden_size.is_multiple_of(num_heads * parts) || hidden_size / num_heads > MAX_HEAD_DIM {
        let problem = format!(
            "is {num_heads} for embedding_length {hidden_size}, expected heads of a multiple of {parts} elements, and \
             at most {MAX_HEAD_DIM}"
        );
        return Err(keys.error("vision.attention.head_count", problem));
    }
    Ok(())
}

/// Returns the side, in patches, of the pictures that the encoder was made for.
pub(super) fn image_side(keys: &Keys<'_>, patch_size: usize) -> Result<usize> {
    let image_size = keys.size("vision.image_size")?;
    match image_size.is_multiple_of(patch_size) {
        true => Ok(image_size / patch_size),
        false => {
            Err(keys.error("vision.image_size", format!("is {image_size}, expected a multiple of {patch_size} pixels")))
        }
    }
}

/// Returns the side, in pixels, of the pictures that the encoder was made for. Its squares of patches fill them.
pub(super) fn filled_side(keys: &Keys<'_>, spec: &VisionSpec) -> Result<usize> {
    let (side, row_pixels) = (image_side(keys, spec.patch_size)? * spec.patch_size, spec.row_side());
    match side.is_multiple_of(row_pixels) {
        true => Ok(side),
        false => {
            let problem = format!("is {side}, expected a multiple of {row_pixels} pixels, which make a row");
            Err(keys.error("vision.image_size", problem))
        }
    }
}

/// Returns the fewest and the most tiles of a picture: those of the file, or else these.
pub(super) fn tiles(keys: &Keys<'_>, [least, most]: [usize; 2]) -> Result<[usize; 2]> {
    let least = keys.opt_size("vision.preproc_min_tiles")?.unwrap_or(least);
    let most = keys.opt_size("vision.preproc_max_tiles")?.unwrap_or(most);
    match least <= most && most <= MOST_TILES {
        true => Ok([least, most]),
        false => {
            let problem = format!("is {most}, expected {least} (clip.vision.preproc_min_tiles) to {MOST_TILES}");
            Err(keys.error("vision.preproc_max_tiles", problem))
        }
    }
}

/// Returns the number of rows of a matrix.
pub(super) fn rows_of(keys: &Keys<'_>, name: &str) -> Result<usize> {
    let matrix = keys.gguf.tensor(name).and_then(|matrix| matrix.shape.get(1).copied());
    Ok(matrix.ok_or_else(|| keys.metadata.error(name, "is missing, expected a matrix"))? as usize)
}

pub(super) fn merge(keys: &Keys<'_>) -> Result<usize> {
    Ok(keys.opt_size("vision.spatial_merge_size")?.unwrap_or(MERGE))
}

pub(super) fn rope_base(keys: &Keys<'_>) -> Result<f32> {
    let key = "rope.freq_base";
    let base = keys.opt_f32(key)?.unwrap_or(ROPE_BASE);
    match base > 0.0 {
        true => Ok(base),
        false => Err(keys.error(key, format!("is {base}, expected a number above 0"))),
    }
}

/// Returns the preprocessing of an encoder whose pictures have one size.
fn preparation(keys: &Keys<'_>) -> Result<Preparation> {
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
    let sizing = Sizing::Square { side: keys.size("vision.image_size")? };
    Ok(Preparation { sizing, filter: Filter::Bicubic, mean, std })
}

/// Returns a sizing to multiples of `of` pixels within the bounds of the file, or else these.
pub(super) fn multiples(keys: &Keys<'_>, of: usize, bounds: [usize; 2]) -> Result<Sizing> {
    let [min_pixels, max_pixels] = pixels(keys, of, bounds)?;
    Ok(Sizing::Multiples { of, min_pixels, max_pixels, enlarges: false })
}

/// Returns the areas of the smallest and the largest picture: those of the file, or else these. A row is made of `of` x
/// `of` pixels.
pub(super) fn pixels(keys: &Keys<'_>, of: usize, [least, most]: [usize; 2]) -> Result<[usize; 2]> {
    let min_pixels = keys.opt_size("vision.image_min_pixels")?.unwrap_or(least);
    let of_file = keys.opt_size("vision.image_max_pixels")?.unwrap_or(most);
    let max_pixels = of_file.min(MOST_IMAGE_ROWS.saturating_mul(of * of));
    if max_pixels < of * of {
        return Err(keys.error("vision.image_max_pixels", format!("is {max_pixels}, less than {of} x {of}")));
    }
    match min_pixels <= max_pixels {
        true => Ok([min_pixels, max_pixels]),
        false => Err(keys.error("vision.image_min_pixels", format!("is {min_pixels}, more than {max_pixels}"))),
    }
}
