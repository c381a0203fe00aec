//! The file's tokenizer and chat template, with or without an engine.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};
use serde_json::{Map, Value};

use super::logging::{flush, prepare};
use super::values::arrays::{integer, name_of, switch, text, token_ids, wrong_type};
use super::values::json::to_json;
use crate::gguf::GgufFile;
use crate::tokenizer::chat::{ContentFormat, Conversation, render_chat, render_text};
use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

/// The tokenizer and chat template of a model file, without its weights. Safe to use from many threads.
#[pyclass(frozen, name = "Tokenizer", module = "rocmforge")]
pub(super) struct PyTokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The error explains how to supply a template for a file without one.
    template: Result<Arc<ChatTemplate>>,
    /// The file's absolute path, by which the tokenizer is pickled.
    model: PathBuf,
}

impl PyTokenizer {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, template: Result<Arc<ChatTemplate>>, model: PathBuf) -> Self {
        Self { tokenizer, template, model }
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn open(path: PathBuf) -> Result<Self> {
        let file = GgufFile::open(&path)?;
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata())?);
        let template = ChatTemplate::from_metadata(file.metadata()).and_then(|template| {
            template
                .map(Arc::new)
                .ok_or_else(|| Error::ChatTemplate { problem: "the file has none; pass one as chat_template".into() })
        });
        Ok(Self { tokenizer, template, model: absolute(path) })
    }

    /// Returns the template: the file's, unless `chat_template` replaces it.
    fn template(&self, chat_template: Option<String>) -> Result<Arc<ChatTemplate>> {
        let Some(source) = chat_template else { return self.template.clone() };
        Ok(Arc::new(ChatTemplate::for_tokenizer(&source, &self.tokenizer)?))
    }
}

/// Returns a path that is valid in other folders too. Returns it unchanged if the current folder is unknown.
pub(super) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// A conversation as a prompt. Immutable.
#[pyclass(frozen, get_all, eq, name = "ChatPrompt", module = "rocmforge")]
#[derive(PartialEq, Eq)]
pub(super) struct PyChatPrompt {
    text: String,
    token_ids: Vec<u32>,
}

#[pymethods]
impl PyChatPrompt {
    #[new]
    fn new(text: String, token_ids: Vec<u32>) -> Self {
        Self { text, token_ids }
    }

    /// Returns the arguments for copying and pickling.
    fn __getnewargs__(&self) -> (String, Vec<u32>) {
        (self.text.clone(), self.token_ids.clone())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (text, ids) = (slf.getattr("text")?.repr()?, slf.getattr("token_ids")?.repr()?);
        Ok(format!("ChatPrompt(text={text}, token_ids={ids})"))
    }
}

/// The options of a chat: the `ChatOptions` of `rocmforge/prompts.py`.
struct ChatOptions {
    add_generation_prompt: bool,
    continue_final_message: bool,
    tools: Value,
    content_format: ContentFormat,
    template_kwargs: Map<String, Value>,
    control_texts: Vec<(String, String)>,
    /// Replaces the file's template.
    chat_template: Option<String>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            continue_final_message: false,
            tools: Value::Null,
            content_format: ContentFormat::Auto,
            template_kwargs: Map::new(),
            control_texts: Vec::new(),
            chat_template: None,
        }
    }
}

impl ChatOptions {
    /// # Errors
    /// `TypeError` for an unknown option, or a value of a wrong type.
    fn new(given: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        const FORMAT: &str = "chat_template_content_format";
        let mut options = Self::default();
        for (name, value) in given.into_iter().flatten() {
            let some = Some(&value).filter(|value| !value.is_none());
            match name.cast::<PyString>()?.to_str()? {
                "add_generation_prompt" => options.add_generation_prompt = switch("add_generation_prompt", &value)?,
                "continue_final_message" => options.continue_final_message = switch("continue_final_message", &value)?,
                "tools" => options.tools = some.map_or(Ok(Value::Null), |tools| to_json("tools", tools))?,
                "chat_template" => options.chat_template = some.map(|t| name_of("chat_template", t)).transpose()?,
                FORMAT => options.content_format = ContentFormat::named(&name_of(FORMAT, &value)?)?,
                "chat_template_kwargs" => {
                    options.template_kwargs = some.map(template_kwargs).transpose()?.unwrap_or_default();
                }
                "control_texts" => options.control_texts = some.map(control_texts).transpose()?.unwrap_or_default(),
                other => return Err(PyTypeError::new_err(format!("got an unexpected keyword argument '{other}'"))),
            }
        }
        Ok(options)
    }

    fn conversation(&self, messages: &Bound<'_, PyAny>) -> PyResult<Conversation> {
        Ok(Conversation {
            messages: self::messages(messages)?,
            tools: self.tools.clone(),
            vars: self.template_kwargs.clone(),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            content_format: self.content_format,
            control_texts: self.control_texts.clone(),
        })
    }
}

/// Reads additional variables of the template. Variables with separate arguments are refused.
fn template_kwargs(value: &Bound<'_, PyAny>) -> PyResult<Map<String, Value>> {
    const KWARGS: &str = "chat_template_kwargs";
    let dict = value.cast::<PyDict>().map_err(|_| wrong_type(KWARGS, value, "a dictionary"))?;
    let vars = match to_json(KWARGS, dict)? {
        Value::Object(vars) => vars,
        _ => Map::new(),
    };
    if let Some(name) = ["messages", "tools", "add_generation_prompt"].iter().find(|name| vars.contains_key(**name)) {
        return Err(Error::invalid(KWARGS, format!("'{name}'"), "it as an argument of its own").into());
    }
    Ok(vars)
}

/// Reads placeholders and the texts that they stand for.
fn control_texts(value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    const TEXTS: &str = "control_texts";
    let read = value.extract::<HashMap<String, String>>();
    let texts = read.map_err(|_| wrong_type(TEXTS, value, "a dictionary of texts"))?;
    if texts.contains_key("") {
        return Err(Error::invalid(TEXTS, "an empty placeholder", "one that occurs nowhere else").into());
    }
    Ok(texts.into_iter().collect())
}

/// Reads a list of messages with roles. Checked here because a template's error on anything else would only name an
/// operator.
fn messages(messages: &Bound<'_, PyAny>) -> PyResult<Value> {
    const MESSAGES: &str = "a list of messages such as {\"role\": \"user\", \"content\": \"...\"}";
    let value = to_json("messages", messages)?;
    let Some(items) = value.as_array() else { return Err(wrong_type("messages", messages, MESSAGES)) };
    for (index, item) in items.iter().enumerate() {
        let Some(message) = item.as_object() else {
            return Err(wrong_type("messages", &messages.get_item(index)?, MESSAGES));
        };
        if !message.get("role").is_some_and(Value::is_string) {
            return Err(Error::invalid("messages", format!("no role in message {index}"), MESSAGES).into());
        }
    }
    Ok(value)
}

#[pymethods]
impl PyTokenizer {
    #[new]
    fn py_new(py: Python<'_>, model: PathBuf) -> PyResult<Self> {
        prepare(py)?;
        let opened = py.detach(|| Self::open(model));
        flush(py);
        Ok(opened?)
    }

    /// Returns the token ids of a text. `add_special` adds the file's tokens at the beginning and the end.
    /// `parse_special` turns text that spells a control token into it: never use it with users' text.
    #[pyo3(signature = (text, *, add_special=true, parse_special=false))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &Bound<'_, PyString>,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let text = &self::text("text", text)?;
        Ok(py.detach(|| self.tokenizer.encode(text, add_special, parse_special))?)
    }

    /// Returns the token ids of a pair of texts, in the format of ranking models. No text becomes a control token.
    fn encode_pair(
        &self,
        py: Python<'_>,
        first: &Bound<'_, PyString>,
        second: &Bound<'_, PyString>,
    ) -> PyResult<Vec<u32>> {
        let (first, second) = (&self::text("first", first)?, &self::text("second", second)?);
        Ok(py.detach(|| self.tokenizer.encode_pair(first, second))?)
    }

    /// Returns the text of token ids; invalid UTF-8 becomes U+FFFD.
    #[pyo3(signature = (ids, *, skip_special=false))]
    fn decode(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, skip_special: bool) -> PyResult<String> {
        let ids = token_ids("ids", ids)?;
        Ok(py.detach(|| self.tokenizer.decode(&ids, skip_special))?)
    }

    /// Returns the bytes of token ids.
    #[pyo3(signature = (ids, *, skip_special=false))]
    fn decode_bytes<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        skip_special: bool,
    ) -> PyResult<std::borrow::Cow<'static, [u8]>> {
        let ids = token_ids("ids", ids)?;
        Ok(py.detach(|| self.tokenizer.decode_bytes(&ids, skip_special))?.into())
    }

    /// Renders a conversation with the file's chat template or with the one in the options.
    #[pyo3(signature = (messages, **options))]
    fn apply_chat_template(
        &self,
        messages: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<String> {
        let options = ChatOptions::new(options)?;
        let conversation = options.conversation(messages)?;
        let render = || render_text(&*self.template(options.chat_template)?, &conversation);
        Ok(messages.py().detach(render)?.text)
    }

    /// Returns a conversation as text and token ids. Only the template's text can become control tokens.
    #[pyo3(signature = (messages, **options))]
    fn encode_chat(&self, messages: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<PyChatPrompt> {
        let options = ChatOptions::new(options)?;
        let conversation = options.conversation(messages)?;
        if conversation.messages.as_array().is_none_or(Vec::is_empty) {
            return Err(Error::invalid("messages", "an empty list", "at least one message").into());
        }
        let render = || render_chat(&self.tokenizer, &*self.template(options.chat_template)?, &conversation);
        let prompt = messages.py().detach(render)?;
        Ok(PyChatPrompt { text: prompt.text, token_ids: prompt.token_ids })
    }

    /// Returns the maximum length in bytes of the text of this many tokens; `None` if the length is not limited.
    fn max_text_bytes(&self, num_tokens: usize) -> Option<usize> {
        self.tokenizer.max_text_bytes(num_tokens)
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// All tokens that end a generation, sorted.
    #[getter]
    fn eos_token_ids(&self) -> Vec<u32> {
        self.tokenizer.eos_token_ids().to_vec()
    }

    #[getter]
    fn bos_token_id(&self) -> Option<u32> {
        self.tokenizer.bos_token_id()
    }

    /// True if the file has a chat template.
    #[getter]
    fn has_chat_template(&self) -> bool {
        self.template.is_ok()
    }

    /// The text of the file's chat template, even if the engine cannot run it.
    #[getter]
    fn chat_template(&self) -> Option<&str> {
        self.template.as_ref().ok().map(|template| template.source())
    }

    /// The text of the template for conversations with tools: the file's `tool_use` template, or its only one.
    #[getter]
    fn tool_use_template(&self) -> Option<&str> {
        self.template.as_ref().ok().map(|template| template.for_tools(&Value::Array(Vec::new())).source())
    }

    /// True if a token is a control token.
    fn is_special(&self, token_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.tokenizer.is_special(integer("token_id", token_id)?))
    }

    /// Pickles the tokenizer by its path. Unpickling reads the file again.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (PathBuf,)) {
        (slf.get_type(), (slf.get().model.clone(),))
    }

    fn __repr__(&self) -> String {
        format!("Tokenizer(vocab_size={})", self.tokenizer.vocab_size())
    }
}
