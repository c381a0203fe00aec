//! Writes GGUF files for tests, including malformed ones. Nothing is checked, and everything can be overridden.

use crate::quant::GgmlType;
use crate::{Array, GgufFile, Metadata, Value};

impl GgufFile {
    /// Replaces the metadata, for tests with other keys.
    pub fn set_metadata(&mut self, metadata: Metadata) {
        self.metadata = metadata;
    }
}

/// A tensor as the directory describes it, which need not be correct.
#[derive(Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub shape: Vec<u64>,
    pub type_id: u32,
    /// The offset within the data section; `None` is the next free multiple of the alignment.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl Tensor {
    pub fn new(name: &str, shape: &[u64], ggml_type: GgmlType, data: &[u8]) -> Self {
        let (name, shape, data) = (name.as_bytes().to_vec(), shape.to_vec(), data.to_vec());
        Self { name, shape, type_id: ggml_type.id(), offset: None, data }
    }

    /// Returns an f32 vector of ones.
    pub fn ones(name: &str, len: u64) -> Self {
        Self::new(name, &[len], GgmlType::F32, &1f32.to_le_bytes().repeat(len as usize))
    }
}

/// The contents of a file.
#[derive(Clone)]
pub struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    pub num_tensors: Option<u64>,
    pub num_keys: Option<u64>,
    /// The alignment at which the writer places tensors. `general.alignment` is a key like any other.
    pub alignment: usize,
    /// The key, and the encoded type and value.
    pub keys: Vec<(Vec<u8>, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
}

impl Writer {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            num_tensors: None,
            num_keys: None,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Returns a writer with all keys of a file.
    pub fn with_keys(metadata: &Metadata) -> Self {
        metadata.iter().fold(Self::new(), |writer, (key, value)| writer.key(key, value))
    }

    pub fn key(self, key: &str, value: &Value) -> Self {
        self.raw_key(key.as_bytes(), encode(value))
    }

    pub fn raw_key(mut self, key: &[u8], type_and_value: Vec<u8>) -> Self {
        self.keys.push((key.to_vec(), type_and_value));
        self
    }

    pub fn tensor(mut self, tensor: Tensor) -> Self {
        self.tensors.push(tensor);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.num_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.num_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_string(&mut out, key);
            out.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        if !data.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(data);
        }
        out
    }
}

pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// Returns the encoded type and value (GGUF specification, `gguf_metadata_value_t`).
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::String(v) => {
            put(8, &[]);
            put_string(&mut out, v.as_bytes());
        }
        Value::Array(array) => {
            put(9, &[]);
            out.extend(encode_array(array));
        }
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
    }
    out
}

fn encode_array(array: &Array) -> Vec<u8> {
    macro_rules! numbers {
        ($kind:literal, $values:ident) => {
            array_of($kind, $values.len(), $values.iter().flat_map(|v| v.to_le_bytes()))
        };
    }
    match array {
        Array::U8(v) => numbers!(0, v),
        Array::I8(v) => numbers!(1, v),
        Array::U16(v) => numbers!(2, v),
        Array::I16(v) => numbers!(3, v),
        Array::U32(v) => numbers!(4, v),
        Array::I32(v) => numbers!(5, v),
        Array::F32(v) => numbers!(6, v),
        Array::Bool(v) => array_of(7, v.len(), v.iter().map(|&v| u8::from(v))),
        Array::String(v) => {
            let mut strings = Vec::new();
            v.iter().for_each(|s| put_string(&mut strings, s.as_bytes()));
            array_of(8, v.len(), strings)
        }
        Array::U64(v) => numbers!(10, v),
        Array::I64(v) => numbers!(11, v),
        Array::F64(v) => numbers!(12, v),
    }
}

/// Returns the encoded element type, count and elements.
pub fn array_of(kind: u32, count: usize, elements: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((count as u64).to_le_bytes());
    out.extend(elements);
    out
}
