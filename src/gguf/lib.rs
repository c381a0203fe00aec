//! The GGUF file format, v2 and v3, little-endian, memory-mapped, including split files. Everything is checked before
//! it is used; no input can cause a panic or an unbounded allocation.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Bytes after the last tensor and gaps between
//! tensors are tolerated. Everything else that contradicts the specification is an error that names its place.
//!
//! Start with `file`. `quant` decodes blocks, and `tensor` is a matrix as it lies in the file. Of the workspace, this
//! crate knows the block formats and the errors of `rocmforge_core`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod cursor;
mod directory;
mod file;
mod format;
mod header;
mod map;
mod metadata;
pub mod quant;
mod scan;
mod split;
pub mod tensor;
mod value;
#[cfg(any(test, feature = "writer"))]
pub mod writer;

#[cfg(test)]
mod tests;

// The crates below, by the names that the files of this one use.
use rocmforge_core::{Error, Result};
#[cfg(test)]
use rocmforge_testdata as testdata;

pub use directory::TensorInfo;
pub use file::GgufFile;
pub use metadata::Metadata;
pub use value::{Array, Value};
