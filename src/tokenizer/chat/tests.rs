//! Only templates write control tokens: tests of known attacks, and a property over random ones.

mod content;
mod injection;
mod prop;

use std::path::Path;
use std::sync::LazyLock;

use super::*;
use crate::gguf::{Array, Metadata, Value as Entry};
use crate::testdata;

/// The real templates of the fixtures, with the texts of BOS and EOS of their models.
const TEMPLATES: [(&str, &str, &str); 9] = [
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "<|begin_of_text|>", "<|im_end|>"),
    ("Qwen-Qwen2.5-7B-Instruct", "", "<|im_end|>"),
    ("Qwen-Qwen3-0.6B", "", "<|im_end|>"),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    ("google-gemma-2-2b-it", "<bos>", "<eos>"),
    ("ibm-granite-granite-4.0", "", "<|end_of_text|>"),
    ("meta-llama-Llama-3.1-8B-Instruct", "<|begin_of_text|>", "<|eot_id|>"),
    ("microsoft-Phi-3.5-mini-instruct", "<s>", "<|endoftext|>"),
    ("mistralai-Mistral-Nemo-Instruct-2407", "<s>", "</s>"),
];

/// Every token that one of the templates writes. All of them are control tokens here.
const CONTROL: [&str; 47] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|endoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|end_of_text|>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<s>",
    "</s>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|",
];

/// Returns a vocabulary of the 256 bytes and `CONTROL`.
fn tokenizer() -> Tokenizer {
    // In GPT-2's byte-level alphabet printable bytes stand for themselves, and the others for U+0100 onwards.
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let letter = |byte: u32| char::from_u32(if printable(byte) { byte } else { others.next().unwrap() }).unwrap();
    let mut tokens: Vec<String> = (0..256).map(letter).map(String::from).collect();
    let mut types = vec![1; tokens.len()];
    // The last is a piece of many others, and not a token.
    for token in &CONTROL[..CONTROL.len() - 1] {
        tokens.push((*token).to_owned());
        types.push(3);
    }
    byte_level(tokens, types, &[])
}

/// Returns a tokenizer of these tokens without merges, and with the end tokens that the file's keys name.
fn byte_level(tokens: Vec<String>, types: Vec<i32>, ends: &[(&'static str, u32)]) -> Tokenizer {
    let entries = [
        ("model", Entry::String("gpt2".into())),
        ("pre", Entry::String("gpt-2".into())),
        ("tokens", Entry::Array(Array::String(tokens))),
        ("token_type", Entry::Array(Array::I32(types))),
        ("merges", Entry::Array(Array::String(Vec::new()))),
    ];
    let entries = entries.into_iter().chain(ends.iter().map(|&(key, id)| (key, Entry::U32(id))));
    let entries = entries.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect();
    Tokenizer::from_metadata(&Metadata::new(Path::new("made-up.gguf"), entries).unwrap()).unwrap()
}

fn real(name: &str) -> &'static ChatTemplate {
    static REAL: LazyLock<Vec<ChatTemplate>> = LazyLock::new(|| {
        let template = |(name, bos, eos): &(&str, &str, &str)| {
            let source = String::from_utf8(testdata::bytes(&format!("templates/{name}.jinja"))).unwrap();
            ChatTemplate::new(&source, bos, eos).unwrap()
        };
        TEMPLATES.iter().map(template).collect()
    });
    &REAL[TEMPLATES.iter().position(|(full, ..)| full.contains(name)).unwrap()]
}

fn parts(texts: &[&str]) -> Value {
    texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
}

fn own(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>").unwrap()
}

/// Returns the control tokens of the prompt, in order, and checks that its tokens spell its text.
fn controls(tokenizer: &Tokenizer, template: &ChatTemplate, conversation: &Conversation) -> Result<Vec<String>> {
    let prompt = render_chat(tokenizer, template, conversation)?;
    assert_eq!(tokenizer.decode(&prompt.token_ids, false).unwrap(), prompt.text);
    let special = prompt.token_ids.iter().filter(|&&id| tokenizer.is_special(id));
    Ok(special.map(|&id| tokenizer.token_text(id).unwrap().to_owned()).collect())
}
