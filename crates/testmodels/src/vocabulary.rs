//! Draft models with the vocabulary of the model.

use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{Array, GgufFile, Value};
use crate::testdata::{self, TempFile};

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Returns the file of a draft model whose first tokens have the texts of the model `like`.
pub fn of_vocabulary(draft: &TempFile, like: &TempFile) -> TempFile {
    cut_vocabulary(draft, like, 0)
}

/// Returns such a file without its last `cut` tokens.
pub fn cut_vocabulary(draft: &TempFile, like: &TempFile, cut: usize) -> TempFile {
    let like = GgufFile::open(&like.0).unwrap();
    let tokens = like.metadata().opt_strings(TOKENS).unwrap().unwrap();
    let name = |token: usize| tokens.get(token).cloned().unwrap_or_else(|| format!("<more {token}>"));
    rewritten(draft, cut, |key, value| match value {
        Value::Array(Array::String(own)) if key == TOKENS => {
            Some(Value::Array(Array::String((0..own.len() - cut).map(name).collect())))
        }
        other => Some(other.clone()),
    })
}

/// Returns the file with its keys changed or removed by `change`, and with `cut` fewer tokens.
pub fn rewritten(file: &TempFile, cut: usize, change: impl Fn(&str, &Value) -> Option<Value>) -> TempFile {
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        writer = change(key, value).iter().fold(writer, |writer, value| writer.key(key, value));
    }
    for info in gguf.tensors() {
        let view = gguf.view(info);
        let (mut shape, mut data) = (info.shape.clone(), view.data);
        if cut > 0 && ["token_embd.weight", "output.weight"].contains(&info.name.as_str()) {
            shape[1] -= cut as u64;
            data = &data[..data.len() / view.rows * (view.rows - cut)];
        }
        writer = writer.tensor(Tensor::new(&info.name, &shape, view.ggml_type, data));
    }
    testdata::temp_file("draft.gguf", &writer.bytes())
}
