//! Tests of the tokenizer: golden data of llama.cpp and Hugging Face, properties, and malformed files.

mod bad_files;
mod chat;
mod chat_limits;
mod golden;
mod limits;
mod prop;
mod special;
mod unigram;
mod wordpiece;

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::gguf::{Array, GgufFile, Value};
use crate::testdata;

/// Returns the tokenizer of `tests/data/<name>.gguf`.
fn tokenizer(name: &str) -> Arc<Tokenizer> {
    let file = testdata::file(&format!("{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    Arc::new(Tokenizer::from_metadata(gguf.metadata()).unwrap())
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip_special: bool) -> String {
    let mut decoder = StreamDecoder::new(tokenizer.clone(), skip_special);
    let mut text: String = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
    text.push_str(&decoder.finish());
    text
}

fn strings(texts: &[&str]) -> Value {
    Value::Array(Array::String(texts.iter().map(|text| text.to_string()).collect()))
}

/// Returns a byte-level vocabulary: the 256 bytes, then `more` with their types. `merges` is as in a file.
fn byte_level_entries(more: &[(&str, i32)], merges: &[&str], pre: &str) -> Vec<(String, Value)> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_level::char_of(byte).to_string()).collect();
    let mut types = vec![1; 256];
    tokens.extend(more.iter().map(|(text, _)| text.to_string()));
    types.extend(more.iter().map(|(_, kind)| *kind));
    entries(&[
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String(pre.into())),
        ("tokens", Value::Array(Array::String(tokens))),
        ("token_type", Value::Array(Array::I32(types))),
        ("merges", strings(merges)),
    ])
}

/// Returns the 256 byte tokens of a SentencePiece vocabulary.
fn byte_tokens() -> Vec<String> {
    (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect()
}

/// Returns a vocabulary without merges that spells all bytes as the class of `pre` does, and `<s>`, token 256.
fn spelled_entries(pre: &str) -> Vec<(String, Value)> {
    let mut entries = byte_level_entries(&[("<s>", 3)], &[], pre);
    if pretokenizer::Class::named(pre).unwrap().spelling == Spelling::SentencePiece {
        let mut tokens = byte_tokens();
        tokens.extend(["<s>".into(), "▁".into()]);
        set(&mut entries, "tokens", Value::Array(Array::String(tokens)));
        set(&mut entries, "token_type", Value::Array(Array::I32([vec![6; 256], vec![3, 1]].concat())));
    }
    set(&mut entries, "bos_token_id", Value::U32(256));
    entries
}

/// Returns a SentencePiece vocabulary of `(text, score, type)`.
fn spm_entries(tokens: &[(&str, f32, i32)]) -> Vec<(String, Value)> {
    let texts: Vec<&str> = tokens.iter().map(|token| token.0).collect();
    entries(&[
        ("model", Value::String("llama".into())),
        ("tokens", strings(&texts)),
        ("scores", Value::Array(Array::F32(tokens.iter().map(|token| token.1).collect()))),
        ("token_type", Value::Array(Array::I32(tokens.iter().map(|token| token.2).collect()))),
        ("add_bos_token", Value::Bool(false)),
    ])
}

fn entries(entries: &[(&str, Value)]) -> Vec<(String, Value)> {
    entries.iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value.clone())).collect()
}

/// Replaces or adds `tokenizer.ggml.<key>`.
fn set(entries: &mut Vec<(String, Value)>, key: &str, value: Value) {
    let key = format!("tokenizer.ggml.{key}");
    entries.retain(|(other, _)| *other != key);
    entries.push((key, value));
}

fn build(entries: Vec<(String, Value)>) -> Result<Tokenizer> {
    Tokenizer::from_metadata(&Metadata::new(Path::new("made-up.gguf"), entries)?)
}
