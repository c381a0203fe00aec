//! An open model: its files mapped, its headers merged.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::Path;

use super::directory::TensorInfo;
use super::header::{self, Header};
use super::map::MappedFile;
use super::metadata::Metadata;
use super::split::{self, Split};
use crate::tensor::TensorView;
use crate::{Error, Result};

/// An open model file (including all shards of a split one), mapped and validated once.
///
/// A mapped file must not be changed while it is open. If another process truncates it, the next read beyond its new
/// end kills this process with SIGBUS. If it is overwritten in place, the weights change. Replace a model by renaming a
/// new file over it, as download tools do; the open file then stays unchanged.
#[derive(Debug)]
pub struct GgufFile {
    version: u32,
    pub(super) metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    shards: Vec<MappedFile>,
}

impl GgufFile {
    /// Opens `path`, and for `…-00001-of-0000N.gguf` the other shards too.
    ///
    /// # Errors
    /// `FileNotFound` (also for a shard), `Io` if a file cannot be read, `ModelFile` if one is malformed.
    pub fn open(path: &Path) -> Result<Self> {
        let first = MappedFile::open(path)?;
        let Header { version, metadata, mut tensors } = header::parse(path, &first, 0)?;
        let mut shards = vec![first];
        if let Some(split) = Split::of(&metadata)? {
            for (no, path) in (1..).zip(&split.other_paths) {
                let file = MappedFile::open(path)?;
                let header = header::parse(path, &file, shards.len())?;
                split.check_part(&header.metadata, no)?;
                split::check_keys(&metadata, &header.metadata)?;
                tensors.extend(header.tensors);
                shards.push(file);
            }
            split.check_num_tensors(&metadata, tensors.len())?;
        }
        let by_name = index_names(&shards, &tensors)?;
        Ok(Self { version, metadata, tensors, by_name, shards })
    }

    /// Returns the version of the file format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the metadata of the first file; other files of a split model add nothing.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns all tensors in file order, shard after shard.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// Returns the bytes of a tensor as a matrix: `cols = shape[0]`, `rows` = the product of the rest.
    ///
    /// # Panics
    /// If `info` belongs to another file and does not lie within this one.
    pub fn view<'a>(&'a self, info: &'a TensorInfo) -> TensorView<'a> {
        let (cols, rows) = info.cols_and_rows();
        let data = &self.shards[info.shard][info.offset..info.offset + info.num_bytes];
        TensorView { name: &info.name, ggml_type: info.ggml_type, rows, cols, data, scales: &[] }
    }

    /// Tells the kernel that the tensor's pages of the mapping will not be read again; they stay readable. Pages that
    /// it shares with a neighbour are kept.
    pub fn release_pages(&self, info: &TensorInfo) {
        self.shards[info.shard].release(info.offset..info.offset + info.num_bytes);
    }

    /// Returns the bytes of each file of the model, and the file as it was when it was opened.
    pub fn contents(&self) -> impl Iterator<Item = (&[u8], &fs::Metadata)> {
        self.shards.iter().map(|shard| (&**shard, &shard.about))
    }

    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.num_bytes as u64).sum()
    }

    /// Returns an error about a tensor, with the path of the file that holds it.
    pub(super) fn tensor_error(&self, info: &TensorInfo, problem: String) -> Error {
        tensor_error(&self.shards, info, problem)
    }
}

fn tensor_error(shards: &[MappedFile], info: &TensorInfo, problem: String) -> Error {
    Error::ModelFile { path: shards[info.shard].path.clone(), location: info.name.clone(), problem }
}

fn index_names(shards: &[MappedFile], tensors: &[TensorInfo]) -> Result<HashMap<String, usize>> {
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (i, info) in tensors.iter().enumerate() {
        match by_name.entry(info.name.clone()) {
            Entry::Vacant(vacant) => vacant.insert(i),
            Entry::Occupied(_) => return Err(tensor_error(shards, info, "the tensor is there twice".to_owned())),
        };
    }
    Ok(by_name)
}
