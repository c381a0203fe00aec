//! Tokens known by name: those that end a generation, and those that control the model although a file types them as
//! text.

use super::vocab::{Kind, Vocab};
use crate::Result;
use crate::gguf::Metadata;

/// The id that converters write for a token that a vocabulary lacks.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// Keys of tokens that end a generation.
const END_KEYS: &[&str] = &[
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Texts of tokens that end a generation. Files often give a single id for a model that has several.
const END_TEXTS: &[&str] = &[
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[e~[",
    // Fill-in-the-middle tokens, where the model turns to another file.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Further texts of tokens that control the model, whatever type the file gives them.
const CONTROL_TEXTS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// Returns the id that `key` gives, if present. An id outside the vocabulary is an error.
pub(super) fn id(metadata: &Metadata, key: &str, vocab_size: usize) -> Result<Option<u32>> {
    let Some(id) = metadata.opt_u32(key)?.filter(|&id| id != NO_TOKEN) else { return Ok(None) };
    if id as usize >= vocab_size {
        return Err(metadata.error(key, format!("is {id}, expected a token id below {vocab_size}")));
    }
    Ok(Some(id))
}

/// Returns the sorted ids of control tokens after which white space does not belong to the text. The file has no key
/// for this. Phi-3's own vocabulary behaves so; its `<|end|>` distinguishes it from similar ones.
pub(super) fn stripping_ids(metadata: &Metadata, vocab: &Vocab) -> Result<Vec<u32>> {
    let phi3 = metadata.opt_str("general.architecture")? == Some("phi3") && metadata.str(super::MODEL)? == "llama";
    let strips = |text: &str| !matches!(text, "<s>" | "<|endoftext|>");
    let control = vocab.iter().filter(|(_, text, kind)| *kind == Kind::Control && strips(text));
    Ok(control.filter(|_| phi3).map(|(id, ..)| id).collect())
}

/// Returns all end-of-generation ids, sorted. Makes those that a file types as text control tokens.
pub(super) fn end_of_generation(metadata: &Metadata, vocab: &mut Vocab) -> Result<Vec<u32>> {
    let known = |text: &str| vocab.id(text).is_some();
    // Vocabularies in which these tokens end a turn (gpt-oss, Solar) use `<|end|>` only to separate its parts.
    let harmony = known("<|call|>") && known("<|return|>");
    let solar = (known("<|call|>") || known("<|calls|>")) && known("<|flush|>");
    // In Gemma 4, `</s>` is an HTML tag.
    let gemma4 = known("<|tool_response>");
    let ends = |text: &str| match text {
        "<|end|>" => !(harmony || solar),
        "</s>" => !gemma4,
        _ => true,
    };
    let steers = |text: &str| text != "</s>" || !gemma4;
    let by_text = END_TEXTS.iter().filter_map(|text| vocab.id(text));
    let mut named = Vec::new();
    for key in END_KEYS {
        named.extend(id(metadata, key, vocab.len())?);
    }
    let ending = by_text.chain(named.iter().copied()).filter(|&id| vocab.text(id).is_some_and(ends));
    let mut ids: Vec<u32> = ending.collect();
    // A token for a single character stays text, since the vocabulary could not spell that character otherwise.
    let is_word = |&id: &u32| vocab.text(id).is_some_and(|text| text.chars().count() > 1);
    let may_steer = |id: &u32| is_word(id) && !matches!(vocab.kind(*id), Some(Kind::Byte | Kind::Unknown));
    let texts = END_TEXTS.iter().chain(CONTROL_TEXTS).filter(|text| steers(text));
    let control: Vec<u32> =
        texts.filter_map(|text| vocab.id(text)).chain(named.iter().copied().filter(may_steer)).collect();
    for id in control {
        vocab.set_control(id);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
