//! `VisionSpec`: an image encoder and its projector, as described by the keys of their file.

use super::family::Family;
use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::gguf::Metadata;
use crate::images::Sight;
use crate::pixels::{CHANNELS, Preparation};
use crate::spec::{ModelSpec, NormSpec, Presence};

/// The base of the RoPE frequencies in most families.
pub(super) const ROPE_BASE: f32 = 10_000.0;
/// The frames that Qwen's encoders take at once. A picture stands for all of them.
pub(super) const FRAMES: usize = 2;

/// The value of `general.architecture` in these files, and the prefix of their keys.
pub(super) const ARCHITECTURE: &str = "clip";
/// The keys that name the family. The second one is of files that may also have an encoder of audio.
pub(super) const PROJECTOR_TYPES: [&str; 2] = ["projector_type", "vision.projector_type"];
/// The tensor of the learned positions.
pub(super) const POSITIONS: &str = "v.position_embd.weight";

/// The most rows of an image if the model's processor allows more, since the encoder's memory grows with them.
pub const MOST_IMAGE_ROWS: usize = 2048;

/// Everything about an encoder except its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionSpec {
    pub family: Family,
    pub hidden_size: usize,
    pub num_heads: usize,
    pub num_layers: usize,
    pub ffn_size: usize,
    pub feed_forward: FeedForward,
    /// The norms of the layers, and the one after the last layer.
    pub norm: NormSpec,
    /// The norms of the results of attention and of the feed-forward.
    pub post_norms: Option<NormSpec>,
    /// True if each head of q, k and v is normed.
    pub head_norms: bool,
    /// True if the inputs and outputs of a layer's matrices are kept within ranges.
    pub clips: bool,
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// The biases of the matrices of a layer and of the projector.
    pub biases: Presence,
    pub patch_bias: bool,
    /// True if a class token (CLS) follows the patches in the layers. It becomes no row.
    pub has_class: bool,
    /// Matrices for the patches, of which each has the whole picture as its frame.
    pub frames: usize,
    /// The names of the norms before the first layer and after the last one.
    pub first_norm: Option<&'static str>,
    pub last_norm: Option<&'static str>,
    /// The side of a patch in pixels.
    pub patch_size: usize,
    /// The side, in patches, of the square that becomes one row for the text model.
    pub merge: usize,
    /// The learned table of positions.
    pub positions: Option<Positions>,
    pub rope: Option<RopeAxes>,
    /// Attention windows, if the encoder has them.
    pub windows: Option<Windows>,
    /// Layers whose outputs become rows for the first layers of the text model (DeepStack).
    pub deepstack: Vec<usize>,
    /// The size of a row between the first matrix of the projector and its last one.
    pub inner_size: usize,
    /// The size of a row for the text model.
    pub output_size: usize,
    pub sight: Sight,
    pub preparation: Preparation,
}

/// The feed-forward of a layer. One with a gate comes with RMS norms, others with layer norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForward {
    Gelu,
    GeluErf,
    GatedGelu,
    GatedSilu,
}

impl FeedForward {
    pub fn activation(self) -> Activation {
        match self {
            Self::Gelu | Self::GatedGelu => Activation::Gelu,
            Self::GeluErf => Activation::GeluErf,
            Self::GatedSilu => Activation::Silu,
        }
    }

    pub fn is_gated(self) -> bool {
        matches!(self, Self::GatedGelu | Self::GatedSilu)
    }
}

/// A learned table of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// `side` x `side` positions. Other grids get bilinear interpolations, aligned at the corners.
    Corners { side: usize },
    /// `side` x `side` positions. Other grids get bilinear interpolations, in which each position of the table counts.
    Antialiased { side: usize },
    /// `side` x `side` positions. Other grids get bicubic interpolations of the nearest 4 x 4 positions.
    Bicubic { side: usize },
    /// `len` columns, then as many rows. A position is the sum of both.
    Axes { len: usize },
}

/// RoPE with the row and column of a patch. Each turns half of the pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeAxes {
    pub base: f32,
    pub kind: RopeKind,
    /// True if the first half of the pairs turns with the column.
    pub is_column_first: bool,
    /// The exponent of the first frequency of columns. Exponents of either go up by 4.
    pub first_of_columns: usize,
}

impl RopeAxes {
    /// Pairs are the halves of a head: the first quarter turns with the row, the next one with the column.
    pub(super) const IN_HALVES: Self =
        Self { base: ROPE_BASE, kind: RopeKind::Neox, is_column_first: false, first_of_columns: 0 };
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

    /// Returns the sizes of the rows within the projector: normed, after a matrix, and after an activation.
    pub fn projector_cols(&self) -> [usize; 3] {
        let (joined, inner, output) = (self.joined_cols(), self.inner_size, self.output_size);
        match self.family {
            Family::Glm4 => [output, output.max(2 * inner), output.max(inner)],
            Family::Gemma3
            | Family::Gemma4
            | Family::Idefics3
            | Family::InternVl
            | Family::Lfm2
            | Family::Pixtral
            | Family::Qwen25
            | Family::Qwen3 => [joined, inner, inner],
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

    /// Returns the number of patches of the largest picture, or of a tile.
    pub fn most_patches(&self) -> usize {
        self.preparation.sizing.most_pixels() / (self.patch_size * self.patch_size)
    }

    /// Returns the number of tokens of this many patches in the layers.
    pub fn tokens(&self, patches: usize) -> usize {
        patches + usize::from(self.has_class)
    }

    /// Returns the encoder as this text model uses it. It must have been made for the model: its architecture, its
    /// hidden size, and its DeepStack layers.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key of the encoder's file, with both values.
    pub fn fitted(self, projector: &Metadata, model: &ModelSpec, text: &Metadata) -> Result<Self> {
        let (name, file) = (model.architecture, text.path().display());
        let family = self.family.values();
        let known = family.text_architectures;
        if !known.contains(&name) {
            let kind = family.projector_type;
            let problem = format!("is '{kind}', which goes with {}; {file} is '{name}'", known.join(", "));
            let [first, second] = PROJECTOR_TYPES.map(|key| format!("{ARCHITECTURE}.{key}"));
            let key = if projector.get(&first).is_some() { first } else { second };
            return Err(projector.error(key, problem));
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
            return Err(projector.error("clip.vision.is_deepstack_layers", problem));
        }
        // The small models of Gemma 4, which have inputs for each layer, read images as they read text.
        let sight = if model.layer_inputs.is_some() { Sight::Causal } else { self.sight };
        Ok(Self { sight, ..self })
    }
}
