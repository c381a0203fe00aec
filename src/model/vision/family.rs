//! The families of image encoders: how files and texts name them.

/// The families of image encoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Gemma3,
    Gemma4,
    Glm4,
    Idefics3,
    InternVl,
    Lfm2,
    Pixtral,
    Qwen25,
    Qwen3,
}

/// A family, apart from what its files state.
pub struct FamilyValues {
    /// `clip.projector_type`, or `clip.vision.projector_type`.
    pub projector_type: &'static str,
    /// The architectures of the text models that use such encoders.
    pub text_architectures: &'static [&'static str],
    /// True if the tokens of an image have three RoPE positions (M-RoPE).
    pub has_mrope: bool,
    /// The tokens that stand for an image.
    pub tokens: TokenTexts,
    /// True if encoders of audio may be in the same file. They are left out.
    pub(super) has_audio: bool,
}

/// The texts of the tokens that stand for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenTexts {
    /// The token that a prompt has once for each image.
    pub placeholder: &'static str,
    /// The token before the rows, in place of the placeholder or after it.
    pub start: Option<&'static str>,
    /// The token for each row of the image. `None` for the placeholder.
    pub row: Option<&'static str>,
    /// The token that ends each row of the image's grid but the last.
    pub row_end: Option<&'static str>,
    /// The token after the rows.
    pub end: Option<&'static str>,
    /// The texts before the parts of an image. `None` if they follow each other.
    pub parts: Option<PartTexts>,
}

/// The texts before the parts of an image, whose rows come after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartTexts {
    /// The text before an image that is one part.
    pub only: &'static str,
    /// The text before a tile. `ROW` and `COLUMN` stand for its place, which begins at 1.
    pub tile: &'static str,
    /// The text after each row of tiles.
    pub row_end: &'static str,
    /// The text before the whole image, which follows its tiles.
    pub whole: &'static str,
}

impl PartTexts {
    /// Returns the text before the tile in this row and column, which begin at 0.
    pub fn before_tile(&self, row: usize, column: usize) -> String {
        let row_end = if row > 0 && column == 0 { self.row_end } else { "" };
        let of_tile = self.tile.replace("ROW", &(row + 1).to_string());
        row_end.to_owned() + &of_tile.replace("COLUMN", &(column + 1).to_string())
    }
}

impl TokenTexts {
    /// Returns the tokens of an image whose placeholder is repeated for each row.
    const fn repeated(placeholder: &'static str) -> Self {
        Self { placeholder, start: None, row: None, row_end: None, end: None, parts: None }
    }
}

impl Family {
    pub(super) const ALL: [Self; 9] = [
        Self::Gemma3,
        Self::Gemma4,
        Self::Glm4,
        Self::Idefics3,
        Self::InternVl,
        Self::Lfm2,
        Self::Pixtral,
        Self::Qwen25,
        Self::Qwen3,
    ];

    pub fn values(self) -> &'static FamilyValues {
        match self {
            Self::Gemma3 => &GEMMA3,
            Self::Gemma4 => &GEMMA4,
            Self::Glm4 => &GLM4,
            Self::Idefics3 => &IDEFICS3,
            Self::InternVl => &INTERNVL,
            Self::Lfm2 => &LFM2,
            Self::Pixtral => &PIXTRAL,
            Self::Qwen25 => &QWEN25,
            Self::Qwen3 => &QWEN3,
        }
    }

    /// True if a token ends each row of an image but the last.
    pub fn has_row_ends(self) -> bool {
        self.values().tokens.row_end.is_some()
    }
}

const GEMMA3: FamilyValues = FamilyValues {
    projector_type: "gemma3",
    text_architectures: &["gemma3"],
    has_mrope: false,
    tokens: TokenTexts {
        placeholder: "<start_of_image>",
        start: Some("<start_of_image>"),
        row: Some("<image_soft_token>"),
        row_end: None,
        end: Some("<end_of_image>"),
        parts: None,
    },
    has_audio: false,
};

const GEMMA4: FamilyValues = FamilyValues {
    projector_type: "gemma4v",
    text_architectures: &["gemma4"],
    has_mrope: false,
    tokens: TokenTexts { start: Some("<|image>"), end: Some("<image|>"), ..TokenTexts::repeated("<|image|>") },
    has_audio: true,
};

const GLM4: FamilyValues = FamilyValues {
    projector_type: "glm4v",
    text_architectures: &["glm4", "glm4moe"],
    has_mrope: true,
    tokens: TokenTexts {
        start: Some("<|begin_of_image|>"),
        end: Some("<|end_of_image|>"),
        ..TokenTexts::repeated("<|image|>")
    },
    has_audio: false,
};

const IDEFICS3: FamilyValues = FamilyValues {
    projector_type: "idefics3",
    text_architectures: &["llama"],
    has_mrope: false,
    tokens: TokenTexts {
        end: Some("<fake_token_around_image>"),
        parts: Some(PartTexts {
            only: "<fake_token_around_image><global-img>",
            tile: "<fake_token_around_image><row_ROW_col_COLUMN>",
            row_end: "\n",
            whole: "\n<fake_token_around_image><global-img>",
        }),
        ..TokenTexts::repeated("<image>")
    },
    has_audio: false,
};

const INTERNVL: FamilyValues = FamilyValues {
    projector_type: "internvl",
    text_architectures: &["qwen2", "qwen3", "qwen3moe"],
    has_mrope: false,
    tokens: TokenTexts { start: Some("<img>"), end: Some("</img>"), ..TokenTexts::repeated("<IMG_CONTEXT>") },
    has_audio: false,
};

const LFM2: FamilyValues = FamilyValues {
    projector_type: "lfm2",
    text_architectures: &["lfm2"],
    has_mrope: false,
    tokens: TokenTexts {
        start: Some("<|image_start|>"),
        end: Some("<|image_end|>"),
        parts: Some(PartTexts {
            only: "",
            tile: "<|img_row_ROW_col_COLUMN|>",
            row_end: "",
            whole: "<|img_thumbnail|>",
        }),
        ..TokenTexts::repeated("<image>")
    },
    has_audio: false,
};

const PIXTRAL: FamilyValues = FamilyValues {
    projector_type: "pixtral",
    text_architectures: &["llama", "mistral3"],
    has_mrope: false,
    tokens: TokenTexts { row_end: Some("[IMG_BREAK]"), end: Some("[IMG_END]"), ..TokenTexts::repeated("[IMG]") },
    has_audio: false,
};

const QWEN25: FamilyValues = FamilyValues {
    projector_type: "qwen2.5vl_merger",
    text_architectures: &["qwen2vl"],
    has_mrope: true,
    tokens: TokenTexts::repeated("<|image_pad|>"),
    has_audio: false,
};

const QWEN3: FamilyValues = FamilyValues {
    projector_type: "qwen3vl_merger",
    text_architectures: &["qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe"],
    has_mrope: true,
    tokens: TokenTexts::repeated("<|image_pad|>"),
    has_audio: false,
};
