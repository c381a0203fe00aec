//! Turns a conversation into the token ids of a prompt.
//!
//! A client's text must never become a control token, whatever it contains and whatever the template does with it. So
//! the rendered text comes with the ranges that the template itself wrote. A control token is accepted only within one
//! of them, where no byte came from a message, a tool, a document or another variable.
//!
//! This is safe because strings carry the origin of each byte through every operation of the template (see
//! `tokenizer::template`). Joining, cutting, replacing or rewriting them cannot turn a client's byte into the
//! template's. The search for control tokens looks at each range alone, so none can begin or end outside of it. There
//! are two exceptions: a message's role if it is a well-known word, since templates write `'<|' + message.role + '|>'`,
//! and the texts that a caller has secret placeholders for.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

use serde_json::{Map, Value, json};

use super::{ChatTemplate, Rendered, Tokenizer};
use crate::{Error, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    pub text: String,
    pub token_ids: Vec<u32>,
}

/// The form in which a template gets a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentFormat {
    /// Content stays as it is, but text parts are joined to one string if the template does not loop over parts.
    #[default]
    Auto,
    /// One string: text parts are joined.
    String,
    /// A list of parts: a string becomes a text part.
    OpenAi,
}

impl ContentFormat {
    /// # Errors
    /// `InvalidRequest` for an unknown name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "string" => Ok(Self::String),
            "openai" => Ok(Self::OpenAi),
            _ => Err(Error::invalid("chat_template_content_format", format!("'{name}'"), "auto, string or openai")),
        }
    }
}

/// Everything that a template gets to render.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// A list of `{role, content, …}`.
    pub messages: Value,
    /// A list, or null.
    pub tools: Value,
    /// Further variables.
    pub vars: Map<String, Value>,
    /// Begin the assistant's turn at the end of the prompt.
    pub add_generation_prompt: bool,
    /// End the prompt with the last message's text, which the model continues.
    pub continue_final_message: bool,
    pub content_format: ContentFormat,
    /// Placeholders in the messages, and the texts that the prompt has in their place. These texts count as the
    /// template's, so that they may become control tokens: no client may know the placeholders.
    pub control_texts: Vec<(String, String)>,
}

impl Conversation {
    pub fn new(messages: Value) -> Self {
        Self {
            messages,
            tools: Value::Null,
            vars: Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            content_format: ContentFormat::Auto,
            control_texts: Vec::new(),
        }
    }
}

/// Renders and tokenizes.
///
/// # Errors
/// The errors of `render_text`, and `InvalidRequest` for text that the vocabulary cannot spell.
pub fn render_chat(tokenizer: &Tokenizer, template: &ChatTemplate, conversation: &Conversation) -> Result<ChatPrompt> {
    let rendered = render_text(template, conversation)?;
    let Rendered { text, template } = match IMAGE_START.is_in(tokenizer) && IMAGE_END.is_in(tokenizer) {
        true => with_image_ends(rendered),
        false => rendered,
    };
    let token_ids = tokenizer.encode_trusting(&text, &template)?;
    Ok(ChatPrompt { text, token_ids })
}

/// Gemma's control tokens around the rows of an image. Templates write only the first one.
const IMAGE_START: ControlText = ControlText("<start_of_image>");
const IMAGE_END: ControlText = ControlText("<end_of_image>");

struct ControlText(&'static str);

impl ControlText {
    fn is_in(&self, tokenizer: &Tokenizer) -> bool {
        tokenizer.control_token(self.0).is_some()
    }
}

/// Ends each image that the template begins, and sets it apart by empty lines, as the model's own processor does. The
/// rows of the image follow the first token later.
fn with_image_ends(Rendered { text, template }: Rendered) -> Rendered {
    let (before, after) = ("\n\n", format!("{}\n\n", IMAGE_END.0));
    let mut ended = Rendered { text: String::with_capacity(text.len()), template: Vec::with_capacity(template.len()) };
    let mut copied = 0;
    for range in template {
        ended.text.push_str(&text[copied..range.start]);
        let start = ended.text.len();
        let mut parts = text[range.clone()].split(IMAGE_START.0);
        ended.text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            for piece in [before, IMAGE_START.0, &after, part] {
                ended.text.push_str(piece);
            }
        }
        ended.template.push(start..ended.text.len());
        copied = range.end;
    }
    ended.text.push_str(&text[copied..]);
    ended
}

/// Renders without tokenizing.
///
/// # Errors
/// The errors of [`ChatTemplate::render`]. `InvalidRequest` for content that the template cannot take, and for a last
/// message that cannot be continued.
pub fn render_text(template: &ChatTemplate, conversation: &Conversation) -> Result<Rendered> {
    let Conversation { tools, vars, add_generation_prompt, continue_final_message, .. } = conversation;
    if *add_generation_prompt && *continue_final_message {
        let got = "true together with add_generation_prompt";
        return Err(Error::invalid("continue_final_message", got, "add_generation_prompt to be false"));
    }
    let template = template.for_tools(tools);
    let messages = formatted(&conversation.messages, template, conversation.content_format)?;
    let rendered = template.render(&messages, tools, *add_generation_prompt, vars)?;
    let rendered = if *continue_final_message { ending_with(rendered, final_text(&messages)?)? } else { rendered };
    Ok(with_control_texts(rendered, &conversation.control_texts))
}

/// Replaces placeholders by the texts that they stand for, which count as the template's.
fn with_control_texts(rendered: Rendered, control_texts: &[(String, String)]) -> Rendered {
    if control_texts.is_empty() {
        return rendered;
    }
    let Rendered { text, template } = rendered;
    let mut own: Vec<(Range<usize>, &str)> = template.into_iter().map(|range| (range.clone(), &text[range])).collect();
    for (placeholder, written) in control_texts {
        own.extend(text.match_indices(placeholder).map(|(at, found)| (at..at + found.len(), written.as_str())));
    }
    own.sort_by_key(|(range, _)| (range.start, Reverse(range.end)));
    let mut made = Rendered { text: String::with_capacity(text.len()), template: Vec::with_capacity(own.len()) };
    let mut copied = 0;
    for (range, written) in own.into_iter().filter(|(range, _)| !range.is_empty()) {
        if range.start < copied {
            continue;
        }
        made.text.push_str(&text[copied..range.start]);
        let start = made.text.len();
        made.text.push_str(written);
        match made.template.last_mut() {
            Some(last) if last.end == start => last.end = made.text.len(),
            _ => made.template.push(start..made.text.len()),
        }
        copied = range.end;
    }
    made.text.push_str(&text[copied..]);
    made
}

/// Returns the messages with their content in the form that the template takes.
fn formatted<'a>(messages: &'a Value, template: &ChatTemplate, format: ContentFormat) -> Result<Cow<'a, Value>> {
    let as_string = |parts: &[Value]| match format {
        ContentFormat::Auto => are_parts(parts) && !template.loops_over_content(),
        ContentFormat::String => true,
        ContentFormat::OpenAi => false,
    };
    let change = |content: &Value| -> Result<Option<Value>> {
        match content {
            Value::Array(parts) if as_string(parts) => joined(parts).map(Some),
            Value::String(text) if format == ContentFormat::OpenAi => Ok(Some(json!([{"type": "text", "text": text}]))),
            _ => Ok(None),
        }
    };
    let mut changed = Cow::Borrowed(messages);
    for (index, message) in messages.as_array().into_iter().flatten().enumerate() {
        if let Some(content) = message.get("content").map(change).transpose()?.flatten() {
            changed.to_mut()[index]["content"] = content;
        }
    }
    Ok(changed)
}

/// True if a list holds content parts, rather than data that a template may write as JSON.
fn are_parts(items: &[Value]) -> bool {
    !items.is_empty() && items.iter().all(|item| item.get("type").is_some_and(Value::is_string))
}

/// Joins text parts with one per line, as vLLM does.
fn joined(parts: &[Value]) -> Result<Value> {
    let text = |part: &Value| -> Result<String> {
        let kind = part.get("type").and_then(Value::as_str);
        let text = match kind {
            Some("text" | "input_text" | "output_text") | None => part.get("text").unwrap_or(part).as_str(),
            Some("refusal") => part.get("refusal").and_then(Value::as_str),
            Some(_) => None,
        };
        let got = || kind.map_or_else(|| part.to_string(), |kind| format!("a part of type '{kind}'"));
        text.map(str::to_owned)
            .ok_or_else(|| Error::invalid("messages", got(), "text content, which is all that this template accepts"))
    };
    let texts = parts.iter().map(text).collect::<Result<Vec<_>>>()?;
    Ok(Value::String(texts.join("\n")))
}

/// Returns the text of the last message, or of its last part with text.
fn final_text(messages: &Value) -> Result<&str> {
    let content = messages.as_array().and_then(|messages| messages.last()).and_then(|message| message.get("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.iter().rev().find_map(|part| part.get("text")).and_then(Value::as_str),
        content => content.and_then(Value::as_str),
    };
    let text = text.filter(|text| !text.trim().is_empty());
    text.ok_or_else(|| Error::invalid("continue_final_message", "a last message without text", "text to continue"))
}

/// Cuts off everything that the template wrote after the last message. White space at the message's end stays if the
/// template kept it there.
fn ending_with(rendered: Rendered, last: &str) -> Result<Rendered> {
    let Rendered { mut text, mut template } = rendered;
    let (core, with_space) = (last.trim(), last.trim_start());
    let is_clients = |start: usize| !template.iter().any(|own| own.start < start + core.len() && start < own.end);
    let found = text.rmatch_indices(core).map(|(start, _)| start).find(|&start| is_clients(start));
    let start = found.ok_or_else(|| {
        let got = "a template that changes the last message";
        Error::invalid("continue_final_message", got, "a template that writes it unchanged")
    })?;
    let end = start + if text[start..].starts_with(with_space) { with_space.len() } else { core.len() };
    text.truncate(end);
    template.retain_mut(|own| {
        own.end = own.end.min(end);
        own.start < own.end
    });
    Ok(Rendered { text, template })
}

#[cfg(test)]
mod tests;
