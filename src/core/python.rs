//! The only mapping from `Error` to Python exceptions. It is in this crate since Rust allows it only beside one of the
//! two types. The classes are in `rocmforge/errors.py`, because each has two bases.

use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyKeyboardInterrupt, PyOSError};

use crate::Error;

mod classes {
    use pyo3::import_exception;

    import_exception!(rocmforge.errors, RocmForgeError);
    import_exception!(rocmforge.errors, GrammarError);
    import_exception!(rocmforge.errors, InvalidRequestError);
    import_exception!(rocmforge.errors, ModelFileError);
    import_exception!(rocmforge.errors, OutOfMemoryError);
    import_exception!(rocmforge.errors, DeviceError);
    import_exception!(rocmforge.errors, EngineDeadError);
    import_exception!(rocmforge.errors, QueueFullError);
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::InvalidRequest { .. } | Error::ChatTemplate { .. } => classes::InvalidRequestError::new_err(message),
            Error::FileNotFound { path } => {
                PyFileNotFoundError::new_err((libc::ENOENT, missing(&path), path.into_os_string()))
            }
            Error::ModelFile { .. } => classes::ModelFileError::new_err(message),
            Error::Io { .. } => PyOSError::new_err(message),
            Error::OutOfMemory { .. } => classes::OutOfMemoryError::new_err(message),
            Error::QueueFull { .. } => classes::QueueFullError::new_err(message),
            Error::Device { .. } => classes::DeviceError::new_err(message),
            // Only our progress callback interrupts a load, and its exception is raised instead.
            Error::Interrupted => PyKeyboardInterrupt::new_err(message),
            Error::EngineDead { .. } | Error::Forked { .. } => classes::EngineDeadError::new_err(message),
            Error::GrammarFailed { .. } => classes::GrammarError::new_err(message),
            Error::StepFailed { .. } | Error::Internal { .. } => classes::RocmForgeError::new_err(message),
        }
    }
}

/// Returns advice for a missing model file. Common mistakes are a repository's name without `hf:`, and a name of Ollama
/// without `ollama:`.
fn missing(path: &Path) -> String {
    let problem = "No such file or directory; expected the path of a .gguf file";
    let text = path.to_string_lossy();
    if let Some(name) = repository(&text) {
        return format!("{problem}; for the repository of that name on the Hugging Face hub give hf:{name}");
    }
    if is_ollama_name(&text) {
        return format!("{problem}; for a model that Ollama has downloaded give ollama:{text}");
    }
    problem.into()
}

/// True for a word that may name a model of Ollama: `NAME` or `NAME:TAG`. Its dots are within numbers: `llama3.2` is a
/// name, `model.gguf` is a file.
fn is_ollama_name(text: &str) -> bool {
    let (name, tag) = text.split_once(':').unwrap_or((text, "latest"));
    let is_file = name.rsplit_once('.').is_some_and(|(_, end)| !end.starts_with(|c: char| c.is_ascii_digit()));
    [name, tag].iter().all(is_word) && !is_file
}

fn is_word(part: &&str) -> bool {
    part.starts_with(|c: char| c.is_alphanumeric()) && part.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
}

/// Returns the hub repository that a text may mean, as `OWNER/REPO` or `OWNER/REPO:QUANT`. The text may have the hub's
/// address before it.
fn repository(text: &str) -> Option<&str> {
    let name = text.strip_prefix("https://").unwrap_or(text);
    let name = ["hf.co/", "huggingface.co/"].iter().find_map(|host| name.strip_prefix(host)).unwrap_or(name);
    let (repo, quant) = name.split_once(':').unwrap_or((name, "any"));
    let parts: Vec<_> = repo.split('/').chain([quant]).collect();
    (parts.len() == 3 && parts.iter().all(is_word) && !repo.to_lowercase().ends_with(".gguf")).then_some(name)
}
