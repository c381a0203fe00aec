//! Checks the images of a request, and finds their tokens in its prompt.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::RequestImage;
use crate::model::vision::{ImageEncoder, PartTexts, TokenTexts, VisionSpec};
use crate::pixels::{Parts, Picture};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use rocmforge_core::images::{ImageId, ImageSpan, SeqImages, Sight};

/// The most images of a request.
const MAX_IMAGES: usize = 256;

/// An image encoder, ready to be used by an engine.
pub struct LoadedImages {
    pub reader: ImageReader,
    pub encoder: Box<dyn ImageEncoder>,
}

/// Knows how a model takes the images of a request.
#[derive(Debug)]
pub struct ImageReader {
    path: PathBuf,
    spec: VisionSpec,
    tokens: ImageTokens,
    num_images: AtomicU64,
}

/// The tokens that stand for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ImageTokens {
    /// The token that a prompt has once for each image.
    placeholder: u32,
    /// The token before the rows.
    start: Option<u32>,
    /// The token for each row of the image. Its embedding is never used.
    row: u32,
    /// The token that ends each row of the image's grid but the last. Its embedding is never used.
    row_end: Option<u32>,
    /// The token after the rows.
    end: Option<u32>,
    /// The tokens before the parts of an image, in some families.
    parts: Option<PartTokens>,
}

/// The tokens before the parts of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PartTokens {
    only: Vec<u32>,
    /// The tokens before the tile of each row and column.
    tiles: Vec<Vec<Vec<u32>>>,
    whole: Vec<u32>,
}

impl PartTokens {
    /// `most` is the most tiles beside each other or below each other.
    fn new(texts: &PartTexts, most: usize, tokenizer: &Tokenizer) -> Result<Self> {
        let encode = |text: &str| tokenizer.encode(text, false, true);
        let of_row = |row: usize| (0..most).map(|column| encode(&texts.before_tile(row, column))).collect();
        Ok(Self {
            only: encode(texts.only)?,
            tiles: (0..most).map(of_row).collect::<Result<_>>()?,
            whole: encode(&[texts.row_end, texts.whole].concat())?,
        })
    }

    /// Returns the tokens before part `index` of an image.
    fn before(&self, Parts { tiles: [columns, rows], .. }: Parts, index: usize) -> &[u32] {
        match (columns * rows, index) {
            (1, _) => &self.only,
            (tiles, index) if index < tiles => &self.tiles[index / columns][index % columns],
            _ => &self.whole,
        }
    }
}

impl ImageTokens {
    /// # Errors
    /// `InvalidRequest` for a tokenizer without the tokens of the encoder's family.
    fn new(spec: &VisionSpec, tokenizer: &Tokenizer) -> Result<Self> {
        let find = |text: &str| tokenizer.control_token(text);
        let required = |text: &str| {
            let expected = "a model that was made for images";
            find(text).ok_or_else(|| Error::invalid("mmproj", format!("a tokenizer without {text}"), expected))
        };
        let TokenTexts { placeholder, start, row, row_end, end, parts } = spec.family.values().tokens;
        let placeholder = required(placeholder)?;
        let row = row.and_then(find).unwrap_or(placeholder);
        let [start, row_end, end] = [start, row_end, end].map(|text| text.map(required).transpose());
        let most = spec.preparation.sizing.most_tiles_of_side();
        let parts = parts.map(|texts| PartTokens::new(&texts, most, tokenizer)).transpose()?;
        Ok(Self { placeholder, start: start?, row, row_end: row_end?, end: end?, parts })
    }

    /// Appends the tokens for the rows of a part of an image.
    fn append_rows(&self, prompt: &mut Vec<u32>, [rows, columns]: [u32; 2]) {
        for row in 0..rows {
            prompt.extend(self.row_end.filter(|_| row > 0));
            prompt.extend(std::iter::repeat_n(self.row, columns as usize));
        }
    }
}

impl ImageReader {
    /// # Errors
    /// `InvalidRequest` for a tokenizer without tokens for images.
    pub fn new(path: PathBuf, spec: VisionSpec, tokenizer: &Tokenizer) -> Result<Self> {
        let tokens = ImageTokens::new(&spec, tokenizer)?;
        Ok(Self { path, spec, tokens, num_images: AtomicU64::new(0) })
    }

    /// Describes the encoder, for start-up and `doctor`.
    pub(crate) fn describe(&self) -> String {
        let VisionSpec { family, num_layers, hidden_size, .. } = &self.spec;
        let (kind, path) = (family.values().projector_type, self.path.display());
        format!("image encoder: {kind}, {num_layers} layers of {hidden_size}, {path}")
    }

    pub(crate) fn spec(&self) -> &VisionSpec {
        &self.spec
    }

    /// Returns the path of the encoder's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the maximum number of tokens of an image that a step may not cut; 0 if it may cut all of them.
    pub(crate) fn most_uncut_tokens(&self) -> usize {
        let of_largest = self.spec.most_patches() / self.spec.patches_per_row();
        if self.spec.sight == Sight::Causal { 0 } else { of_largest }
    }

    /// Returns the number of tokens that stand for the rows of a picture.
    ///
    /// # Errors
    /// `InvalidRequest` for a shape that the encoder does not take.
    pub(crate) fn num_tokens(&self, picture: &Picture) -> Result<u32> {
        let mut spans = Vec::new();
        self.append_parts(&mut Vec::new(), &mut spans, ImageId(0), picture)?;
        Ok(spans.iter().map(ImageSpan::num_tokens).sum())
    }

    /// Appends the tokens that stand for a picture to a prompt, and their spans.
    fn append_parts(
        &self,
        prompt: &mut Vec<u32>,
        spans: &mut Vec<ImageSpan>,
        image: ImageId,
        picture: &Picture,
    ) -> Result<()> {
        let (side, parts) =
            (self.spec.row_side(), self.spec.preparation.sizing.parts(picture.width(), picture.height())?);
        let mut first_row = 0;
        for (index, [width, height]) in parts.sizes().enumerate() {
            prompt.extend(self.tokens.parts.iter().flat_map(|tokens| tokens.before(parts, index)));
            let span = ImageSpan {
                first: u32::try_from(prompt.len()).map_err(Error::internal)?,
                image,
                digest: picture.digest(),
                first_row,
                grid: [height / side, width / side].map(|side| side as u32),
                has_row_ends: self.spec.family.has_row_ends(),
            };
            self.tokens.append_rows(prompt, span.grid);
            first_row += span.num_tokens();
            spans.push(span);
        }
        Ok(())
    }

    /// Replaces each placeholder of a prompt by the tokens of its image. Returns the prompt, where its images are, and
    /// the images.
    ///
    /// # Errors
    /// `InvalidRequest` for another number of placeholders than of images.
    pub(crate) fn expand(
        &self,
        prompt: &[u32],
        pictures: Vec<Arc<Picture>>,
    ) -> Result<(Vec<u32>, SeqImages, Vec<RequestImage>)> {
        let &ImageTokens { placeholder, start, end, .. } = &self.tokens;
        let found = prompt.iter().filter(|&&token| token == placeholder).count();
        if found != pictures.len() || found > MAX_IMAGES {
            let got = format!("{} images for {found} placeholders in the prompt", pictures.len());
            let expected = format!("a placeholder (token {placeholder}) for each image, and at most {MAX_IMAGES}");
            return Err(Error::invalid("images", got, expected));
        }
        let mut images = SeqImages {
            spans: Vec::with_capacity(found),
            mrope: self.spec.family.values().has_mrope,
            sight: self.spec.sight,
        };
        let (mut expanded, mut of_request) = (Vec::with_capacity(prompt.len()), Vec::with_capacity(found));
        let mut pictures = pictures.into_iter();
        for (at, &token) in prompt.iter().enumerate() {
            let picture = if token == placeholder { pictures.next() } else { None };
            let Some(picture) = picture else {
                expanded.push(token);
                continue;
            };
            // A client may have written the tokens around the rows.
            expanded.extend(start.filter(|start| expanded.last() != Some(start)));
            let image = ImageId(self.num_images.fetch_add(1, Ordering::Relaxed));
            self.append_parts(&mut expanded, &mut images.spans, image, &picture)?;
            expanded.extend(end.filter(|end| prompt.get(at + 1) != Some(end)));
            of_request.push(RequestImage { id: image, picture });
        }
        Ok((expanded, images, of_request))
    }
}
