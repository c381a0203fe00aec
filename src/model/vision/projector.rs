//! Finds the file of the image encoder beside a text model.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use super::family::Family;
use super::spec::VisionSpec;
use crate::Result;
use crate::gguf::GgufFile;
use crate::spec::ModelSpec;

/// Part of the names of these files, by convention of the converters.
const MARK: &str = "mmproj";
/// Tensor types in the names of files, in order of preference.
const TYPES: [&str; 3] = ["f16", "bf16", "f32"];

/// Opens the file of an encoder for a text model.
///
/// # Errors
/// Errors of the file, and `Error::ModelFile` for an encoder that does not fit the model.
pub fn open_projector(path: &Path, model: &GgufFile, spec: &ModelSpec) -> Result<(GgufFile, VisionSpec)> {
    let gguf = GgufFile::open(path)?;
    let vision = VisionSpec::from_gguf(&gguf)?.fitted(gguf.metadata(), spec, model.metadata())?;
    Ok((gguf, vision))
}

/// Opens the encoder's file in the folder of a text model, and returns what `accept` makes of it. Among several files
/// that fit, it takes the one that shares the most words with the model's name, and F16 before other types. `None` if
/// there is none: the folder may hold encoders of other models of the same size.
pub fn find_projector<T>(
    model: &GgufFile,
    spec: &ModelSpec,
    accept: impl Fn(GgufFile, VisionSpec) -> Result<T>,
) -> Option<T> {
    if !Family::ALL.iter().any(|family| family.values().text_architectures.contains(&spec.architecture)) {
        return None;
    }
    let path = model.metadata().path();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = files.filter(|file| is_projector(file)).collect();
    let of_model = words(path);
    files.sort_by_cached_key(|file| {
        let words = words(file);
        let common = words.iter().filter(|word| of_model.contains(word)).count();
        let rank = TYPES.iter().position(|&name| words.iter().any(|word| word == name)).unwrap_or(TYPES.len());
        (Reverse(common), rank, file.clone())
    });
    files.into_iter().find_map(|file| {
        let opened = open_projector(&file, model, spec).and_then(|(file, vision)| accept(file, vision));
        opened.inspect_err(|error| tracing::info!("no image encoder for {}: {error}", path.display())).ok()
    })
}

fn is_projector(file: &Path) -> bool {
    let is_gguf = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    is_gguf && name(file).contains(MARK)
}

/// Returns the name of a file without its extension, in lower case.
fn name(file: &Path) -> String {
    file.file_stem().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn words(file: &Path) -> Vec<String> {
    name(file).split(['-', '_', '.', ' ']).map(str::to_owned).collect()
}
