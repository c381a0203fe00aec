//! Reads the keys of image encoders: a file for each family, and what several have in common.

mod gemma3;
mod gemma4;
mod glm4v;
mod idefics3;
mod internvl;
mod lfm2;
mod pixtral;
mod qwen25;
mod qwen3;
mod read;

use super::family::Family;
use super::spec::{ARCHITECTURE, VisionSpec};
use crate::Result;
use crate::gguf::{GgufFile, Value};
use crate::keys::Keys;

/// Keys that do not affect the computation.
const HARMLESS: [&str; 1] = ["has_text_encoder"];
/// The prefix of the keys of an encoder of audio in the same file.
const AUDIO: &str = "audio.";

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
        let family = read::family(&keys)?;
        let spec = match family {
            Family::Gemma3 => gemma3::spec(&keys),
            Family::Gemma4 => gemma4::spec(&keys),
            Family::Glm4 => glm4v::spec(&keys),
            Family::Idefics3 => idefics3::spec(&keys),
            Family::InternVl => internvl::spec(&keys),
            Family::Lfm2 => lfm2::spec(&keys),
            Family::Pixtral => pixtral::spec(&keys),
            Family::Qwen25 => qwen25::spec(&keys),
            Family::Qwen3 => qwen3::spec(&keys),
        }?;
        let is_harmless = |key: &str| HARMLESS.contains(&key) || (family.values().has_audio && key.starts_with(AUDIO));
        read::check_heads(&keys, &spec)?;
        keys.check_read_or(|key, _: &Value| is_harmless(key))?;
        Ok(spec)
    }
}
