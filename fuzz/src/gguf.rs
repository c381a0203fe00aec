//! Any bytes as a model file. The result is a typed error, or a file whose parts all lie within it. Data read from an
//! accepted file (sizes, weights, vocabulary, chat template) may be refused, but must not panic.

use rocmforge::gguf::GgufFile;
use rocmforge::model::{ModelSpec, ModelTensors};
use rocmforge::tokenizer::{ChatTemplate, Tokenizer};
use serde_json::{Map, Value, json};

use super::allowed;
use super::file::TempFile;

pub fn check(bytes: &[u8]) {
    let file = TempFile::new(bytes);
    let Some(file) = allowed(GgufFile::open(file.path())) else { return };
    tensors_lie_apart_within(&file, bytes.len());
    for info in file.tensors() {
        allowed(file.validate_tensor(info));
    }
    if let Some(spec) = allowed(ModelSpec::from_gguf(&file, None))
        && let Some(tensors) = allowed(ModelTensors::collect(&file, &spec))
    {
        assert!(!tensors.uploads().is_empty(), "a model without a tensor");
    }
    if let Some(tokenizer) = allowed(Tokenizer::from_metadata(file.metadata()))
        && let Some(ids) = allowed(tokenizer.encode("Hello, wörld 12<s>\n", true, true))
    {
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()), "ids outside the vocabulary: {ids:?}");
        let text = allowed(tokenizer.decode(&ids, false));
        assert!(text.is_some(), "its own tokens are refused: {ids:?}");
    }
    if let Some(Some(template)) = allowed(ChatTemplate::from_metadata(file.metadata())) {
        let messages = json!([{"role": "user", "content": "Hello"}]);
        allowed(template.render(&messages, &Value::Null, true, &Map::new()));
    }
}

fn tensors_lie_apart_within(file: &GgufFile, file_len: usize) {
    let mut places: Vec<_> = file.tensors().iter().map(|info| file.view(info).data.as_ptr_range()).collect();
    places.sort_by_key(|place| (place.start, place.end));
    assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start), "tensors overlap");
    if let (Some(first), Some(last)) = (places.first(), places.last()) {
        assert!(last.end as usize - first.start as usize <= file_len, "tensors beyond the end of the file");
    }
    let sum: u64 = file.tensors().iter().map(|info| info.num_bytes as u64).sum();
    assert!(sum == file.tensor_bytes() && sum <= file_len as u64, "{sum} bytes of tensors in {file_len}");
}
