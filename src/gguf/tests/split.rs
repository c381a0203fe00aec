//! Tests of models in several files.

use std::path::PathBuf;

use super::{assert_rejected, validate_values};
use crate::writer::{Tensor, Writer};
use crate::{Error, Result};
use crate::{GgufFile, Value};

/// The parts of a model, in their own directory.
struct Parts {
    directory: tempfile::TempDir,
    writers: Vec<Writer>,
}

impl Parts {
    /// Returns `count` parts with two tensors each.
    fn new(count: u16) -> Self {
        let part = |no: u16| {
            let writer = if no == 0 {
                Writer::new().key("general.architecture", &Value::String("llama".to_owned()))
            } else {
                Writer::new()
            };
            writer
                .key("split.no", &Value::U16(no))
                .key("split.count", &Value::U16(count))
                .key("split.tensors.count", &Value::I32(2 * i32::from(count)))
                .tensor(Tensor::ones(&format!("a.{no}"), 8 + u64::from(no)))
                .tensor(Tensor::ones(&format!("b.{no}"), 3))
        };
        Self { directory: tempfile::tempdir().unwrap(), writers: (0..count).map(part).collect() }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("model-{number:05}-of-{:05}.gguf", self.writers.len()))
    }

    fn write(&self) {
        for (i, writer) in self.writers.iter().enumerate() {
            std::fs::write(self.path(i + 1), writer.bytes()).unwrap();
        }
    }

    fn open(&self) -> Result<GgufFile> {
        self.write();
        GgufFile::open(&self.path(1))
    }

    /// Replaces a key of part `index`.
    fn set(&mut self, index: usize, key: &str, value: &Value) {
        let writer = &mut self.writers[index];
        let position = writer.keys.iter().position(|(k, _)| k == key.as_bytes()).unwrap();
        writer.keys[position].1 = crate::writer::encode(value);
    }
}

#[test]
fn test_parts_are_one_model() {
    let file = Parts::new(3).open().unwrap();
    let names: Vec<&str> = file.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["a.0", "b.0", "a.1", "b.1", "a.2", "b.2"]);
    assert_eq!(file.metadata().str("general.architecture").unwrap(), "llama");
    assert_eq!(file.tensor_bytes(), 4 * (8 + 9 + 10 + 3 * 3));
    for (no, cols) in [(0, 8), (1, 9), (2, 10)] {
        let view = file.view(file.tensor(&format!("a.{no}")).unwrap());
        assert_eq!((view.cols, view.data), (cols, &*1f32.to_le_bytes().repeat(cols)));
    }
    validate_values(&file).unwrap();
}

/// A model "split" into one file needs no keys; one that is named as one of several parts does.
#[test]
fn test_single_file_named_as_a_part() {
    let directory = tempfile::tempdir().unwrap();
    let plain = Writer::new().tensor(Tensor::ones("a", 1)).bytes();
    let path = directory.path().join("m-00001-of-00001.gguf");
    std::fs::write(&path, &plain).unwrap();
    assert_eq!(GgufFile::open(&path).unwrap().tensors().len(), 1);
    let path = directory.path().join("m-00001-of-00002.gguf");
    std::fs::write(&path, &plain).unwrap();
    assert_rejected(
        "no keys",
        GgufFile::open(&path),
        "split.count: the file says that the model has 1 parts, its name 2",
    );
}

#[test]
fn test_missing_part() {
    let parts = Parts::new(3);
    parts.write();
    std::fs::remove_file(parts.path(2)).unwrap();
    let error = GgufFile::open(&parts.path(1)).unwrap_err();
    assert!(matches!(&error, Error::FileNotFound { path } if *path == parts.path(2)), "{error:?}");
}

#[test]
fn test_opening_another_part() {
    let parts = Parts::new(2);
    parts.write();
    let result = GgufFile::open(&parts.path(2));
    assert_rejected("part 2", result, "split.no: this is part 2 of 2; open part 1: ");
}

#[test]
fn test_renamed_part() {
    let parts = Parts::new(2);
    parts.write();
    let renamed = parts.directory.path().join("model.gguf");
    std::fs::rename(parts.path(1), &renamed).unwrap();
    let result = GgufFile::open(&renamed);
    assert_rejected("renamed", result, "split.count: the file says that the model has 2 parts, its name 1");
}

#[test]
fn test_parts_that_contradict() {
    let with = |index: usize, key: &str, value: Value| {
        let mut parts = Parts::new(3);
        parts.set(index, key, &value);
        parts.open()
    };
    assert_rejected("no", with(1, "split.no", Value::U16(2)), "split.no: is 2 in this part, expected 1");
    assert_rejected("first", with(0, "split.no", Value::U16(1)), "split.no: is 1 in this part, expected 0");
    assert_rejected("count", with(2, "split.count", Value::U16(4)), "split.count: is 4 in this part, expected 3");
    assert_rejected("huge", with(0, "split.count", Value::U32(u32::MAX)), "the model has 4294967295 parts, its name 3");
    assert_rejected("zero", with(0, "split.count", Value::U32(0)), "the model has 0 parts, its name 3");
    assert_rejected("type", with(0, "split.count", Value::F32(3.0)), "split.count: holds f32 3");
    let tensors = with(1, "split.tensors.count", Value::I32(7));
    assert_rejected("tensors", tensors, "split.tensors.count: is 7 in this part, expected 6");

    let mut parts = Parts::new(2);
    parts.writers[1].tensors.pop();
    assert_rejected("fewer", parts.open(), "split.tensors.count: the parts hold 3 tensors, expected 4");
    let mut parts = Parts::new(2);
    parts.writers[1].tensors[0].name = b"a.0".to_vec();
    assert_rejected("twice", parts.open(), "a.0: the tensor is there twice");
    let mut parts = Parts::new(2);
    parts.writers[1].magic = *b"oops";
    let error = parts.open().unwrap_err();
    assert!(matches!(&error, Error::ModelFile { path, .. } if *path == parts.path(2)), "{error:?}");
}

/// F9: a part of another model, or one with a key that contradicts the first part, is an error that names the key.
#[test]
fn test_parts_of_other_models() {
    let with = |key: &str, value: &Value| {
        let mut parts = Parts::new(3);
        parts.writers[0] = parts.writers[0].clone().key("llama.block_count", &Value::U32(2));
        parts.writers[2] = parts.writers[2].clone().key(key, value);
        parts.open()
    };
    let text = |text: &str| Value::String(text.to_owned());
    let other = with("general.architecture", &text("qwen2"));
    let problem = "holds string \"qwen2\" in this part, string \"llama\" in the first one";
    assert_rejected("architecture", other, &format!("general.architecture: {problem}"));
    let count = with("llama.block_count", &Value::U32(3));
    assert_rejected("value", count, "llama.block_count: holds u32 3 in this part, u32 2 in the first one");
    let more = with("llama.rope.freq_base", &Value::F32(1e6));
    assert_rejected("another key", more, "llama.rope.freq_base: is not in the first part");
    let tokens = with("tokenizer.ggml.tokens", &Value::Array(crate::Array::String(vec!["a".to_owned()])));
    assert_rejected("tokens", tokens, "tokenizer.ggml.tokens: is not in the first part");
    // Keys that a part repeats, and its own name, are no contradiction.
    for (key, value) in [
        ("llama.block_count", Value::U32(2)),
        ("general.architecture", text("llama")),
        ("general.name", text("part 3")),
        ("general.alignment", Value::U32(32)),
    ] {
        assert_eq!(with(key, &value).unwrap().tensors().len(), 6, "{key}");
    }
}
