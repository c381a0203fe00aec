//! The GGUF file format, v2 and v3, little-endian, memory-mapped, split files included.
//! Everything is checked before it is used; no input can cause a panic or an unbounded allocation.

use std::path::{Path, PathBuf};

use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// A metadata value. Arrays of arrays are rejected at parse time.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    U64(u64),
    I64(i64),
    F64(f64),
    Array(Array),
}

/// A typed array of metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Key-value metadata, in file order. Typed getters give `Error::ModelFile` that names the key, what it holds and
/// what was expected. Integer getters accept any integer type whose value fits.
#[derive(Debug, Clone)]
pub struct Metadata {
    pub(crate) path: PathBuf,
    pub(crate) entries: Vec<(String, Value)>,
}

impl Metadata {
    pub fn path(&self) -> &Path {
        &self.path
    }
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }
    pub fn get(&self, key: &str) -> Option<&Value> {
        let _ = key;
        todo!("gguf")
    }
    /// Required keys: a missing one is an error that names it.
    pub fn u32(&self, key: &str) -> Result<u32> {
        let _ = key;
        todo!("gguf")
    }
    pub fn f32(&self, key: &str) -> Result<f32> {
        let _ = key;
        todo!("gguf")
    }
    pub fn str(&self, key: &str) -> Result<&str> {
        let _ = key;
        todo!("gguf")
    }
    pub fn strings(&self, key: &str) -> Result<&[String]> {
        let _ = key;
        todo!("gguf")
    }
    /// Optional keys: `None` when absent, still an error when of the wrong type.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>> {
        let _ = key;
        todo!("gguf")
    }
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        let _ = key;
        todo!("gguf")
    }
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        let _ = key;
        todo!("gguf")
    }
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        let _ = key;
        todo!("gguf")
    }
    pub fn opt_strings(&self, key: &str) -> Result<Option<&[String]>> {
        let _ = key;
        todo!("gguf")
    }
    pub fn opt_f32s(&self, key: &str) -> Result<Option<&[f32]>> {
        let _ = key;
        todo!("gguf")
    }
    /// Any integer array, widened.
    pub fn opt_ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        let _ = key;
        todo!("gguf")
    }
    /// An error about `location` (a key or tensor name) of this file.
    pub fn error(&self, location: impl ToString, problem: impl ToString) -> Error {
        Error::ModelFile { path: self.path.clone(), location: location.to_string(), problem: problem.to_string() }
    }
}

/// One entry of the tensor directory.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub name: String,
    /// GGUF order: `shape[0]` varies fastest. 1 to 4 dimensions, none zero.
    pub shape: Vec<u64>,
    pub ggml_type: GgmlType,
    pub num_bytes: usize,
    /// Which file of a split model, and where in that file (absolute).
    pub(crate) shard: usize,
    pub(crate) offset: usize,
}

/// An open model file (all shards of a split one), validated and mapped once.
#[derive(Debug)]
pub struct GgufFile {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl GgufFile {
    /// Opens `path`; for `…-00001-of-0000N.gguf` the other shards too.
    pub fn open(path: &Path) -> Result<Self> {
        let _ = path;
        todo!("gguf")
    }
    pub fn version(&self) -> u32 {
        todo!("gguf")
    }
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let _ = name;
        todo!("gguf")
    }
    /// The bytes of a tensor as a matrix: `cols = shape[0]`, `rows` = the product of the rest.
    pub fn view<'a>(&'a self, info: &'a TensorInfo) -> TensorView<'a> {
        let _ = info;
        todo!("gguf")
    }
    /// Tells the kernel that the tensor's pages of the mapping will not be read again (they stay readable).
    pub fn release_pages(&self, info: &TensorInfo) {
        let _ = info;
        todo!("gguf")
    }
    /// Sum of all tensors' bytes.
    pub fn tensor_bytes(&self) -> u64 {
        todo!("gguf")
    }
}
