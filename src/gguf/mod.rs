//! The GGUF file format, v2 and v3, little-endian, memory-mapped, including split files. Everything is checked before
//! it is used; no input can cause a panic or an unbounded allocation.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Bytes after the last tensor and gaps between
//! tensors are tolerated. Everything else that contradicts the specification is an error that names its place.

mod cursor;
mod directory;
mod file;
mod format;
mod header;
mod map;
mod metadata;
mod scan;
mod split;
mod value;

#[cfg(test)]
pub(crate) mod tests;

pub use directory::TensorInfo;
pub use file::GgufFile;
pub use metadata::Metadata;
pub use value::{Array, Value};
