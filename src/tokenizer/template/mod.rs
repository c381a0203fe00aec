//! Chat templates: Jinja as Hugging Face transformers runs it, in an interpreter of our own.
//!
//! A prompt has to be split into the template's text, which may become control tokens, and clients' text, which must
//! not. That requires strings that carry their origin (see `text`) through every operation of the language. It also
//! requires a budget that is checked before each allocation (see `meter`). General template engines have neither. The
//! language is small: `lexer`, `parser`, `run` and `eval` implement it, and the rest are Python's strings, lists and
//! numbers.

mod access;
mod args;
mod calls;
mod content;
mod eval;
mod fault;
mod format;
mod lists;
mod meter;
mod method_names;
mod operators;
mod run;
mod syntax;
mod text;
mod value;

use std::ops::Range;
use std::sync::OnceLock;

use serde_json::json;

use self::fault::{Fault, Res};
use self::run::Run;
use self::text::{Origin, Text};
use self::value::{Scope, Value};
use super::{Tokenizer, special};
use crate::gguf::Metadata;
use crate::{Error, Result};

const TEMPLATE: &str = "tokenizer.chat_template";
/// The file's template for conversations with tools, besides its default one.
const TOOL_USE_TEMPLATE: &str = "tokenizer.chat_template.tool_use";

/// The longest known template has 30 kB.
const MAX_SOURCE: usize = 128 << 10;
/// The text of a question that shows what a template makes of a content.
const PROBE: &str = "What is this?";
const MAX_OUTPUT: usize = 64 << 20;
/// Bytes of address space for the deepest recursion that `run` allows. Only used pages take memory.
const STACK: usize = 256 << 20;

/// A chat template, compiled once.
#[derive(Debug)]
pub struct ChatTemplate {
    /// If a file's template does not compile, chatting fails, but loading the model does not.
    body: Result<syntax::ast::Body>,
    source: String,
    loops_over_content: OnceLock<bool>,
    bos_token: String,
    eos_token: String,
    tool_use: Option<Box<Self>>,
}

/// A conversation as rendered by a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// The ranges (bytes) that the template wrote, in order and not adjacent. The rest came from the conversation, the
    /// tools or the variables, or was generated on the way (numbers, punctuation of JSON).
    pub template: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Returns the file's template; `None` if it has none, since there is no default. A template that does not compile
    /// is returned, and `check` and `render` give its error.
    ///
    /// # Errors
    /// `ModelFile` for keys of wrong types and ids outside the vocabulary.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        let Some(source) = metadata.opt_str(TEMPLATE)? else { return Ok(None) };
        let tokens = metadata.opt_strings("tokenizer.ggml.tokens")?.unwrap_or_default();
        let text = |key| -> Result<&str> {
            let id = special::id(metadata, key, tokens.len())?;
            Ok(id.map_or("", |id| &tokens[id as usize]))
        };
        let (bos, eos) = (text("tokenizer.ggml.bos_token_id")?, text("tokenizer.ggml.eos_token_id")?);
        let read = |key: &'static str, source: &str| {
            let of_file = |problem| metadata.error(key, format!("{problem}; pass another as chat_template"));
            Self::of(compile(source).map_err(of_file), source, bos, eos)
        };
        let tool_use = metadata.opt_str(TOOL_USE_TEMPLATE)?.map(|source| Box::new(read(TOOL_USE_TEMPLATE, source)));
        Ok(Some(Self { tool_use, ..read(TEMPLATE, source) }))
    }

    /// Returns the template for a conversation with these tools (null for none). That is the file's `tool_use` template
    /// if it has one, as in transformers.
    pub fn for_tools(&self, tools: &serde_json::Value) -> &Self {
        self.tool_use.as_deref().filter(|_| !tools.is_null()).unwrap_or(self)
    }

    /// Compiles a template. `bos_token` and `eos_token` are texts that templates may refer to.
    ///
    /// # Errors
    /// `ChatTemplate` if the source is too long or invalid.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self> {
        Ok(Self::of(Ok(compile(source).map_err(failed)?), source, bos_token, eos_token))
    }

    /// Compiles a template that replaces a file's, with the BOS and EOS tokens that the file's would get.
    ///
    /// # Errors
    /// The errors of `new`.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let spelled = |id: Option<u32>| id.map_or(Ok(""), |id| tokenizer.token_text(id));
        Self::new(source, spelled(tokenizer.bos_token_id())?, spelled(tokenizer.eos_token_id())?)
    }

    fn of(body: Result<syntax::ast::Body>, source: &str, bos_token: &str, eos_token: &str) -> Self {
        let [source, bos_token, eos_token] = [source, bos_token, eos_token].map(str::to_owned);
        Self { body, source, loops_over_content: OnceLock::new(), bos_token, eos_token, tool_use: None }
    }

    /// True if the template writes the text of a question with this content, and not the list that holds it.
    fn shows(&self, content: &serde_json::Value) -> bool {
        let messages = json!([{"role": "user", "content": content}]);
        let rendered = self.render(&messages, &serde_json::Value::Null, true, &serde_json::Map::new());
        let is_quoted = |text: &str| ['\'', '"'].iter().any(|quote| text.contains(&format!("{quote}{PROBE}{quote}")));
        rendered.is_ok_and(|Rendered { text, .. }| text.contains(PROBE) && !is_quoted(&text))
    }

    /// Returns the template's source, even if it is invalid.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// # Errors
    /// `ModelFile` if one of the file's templates is too long or invalid.
    pub fn check(&self) -> Result<()> {
        self.body.as_ref().map_err(Clone::clone)?;
        self.tool_use.as_ref().map_or(Ok(()), |template| template.check())
    }

    /// True if the template loops over the parts of a message's content, rather than taking it as one string.
    pub fn loops_over_content(&self) -> bool {
        *self.loops_over_content.get_or_init(|| {
            // It may do so for other messages only, such as results of tools, and refuse the parts of a question.
            self.body.as_ref().is_ok_and(content::loops_over_content)
                && (self.shows(&json!([{"type": "text", "text": PROBE}])) || !self.shows(&json!(PROBE)))
        })
    }

    /// Renders a conversation. `messages`: a JSON list of `{role, content, …}`. `tools`: a JSON list or null. `vars`: a
    /// JSON object of further variables. Steps, memory and output are limited.
    ///
    /// # Errors
    /// `ChatTemplate` with the template's own message if it calls `raise_exception`, else with the problem; the errors
    /// of `check`.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: &serde_json::Value,
        add_generation_prompt: bool,
        vars: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Rendered> {
        let body = self.body.as_ref().map_err(Clone::clone)?;
        on_deep_stack(|| {
            meter::start();
            let own = |text: &str| Text::new(text, Origin::Template).map(Value::Str);
            let context = Scope::default();
            for (name, value) in [
                ("bos_token", own(&self.bos_token)?),
                ("eos_token", own(&self.eos_token)?),
                ("tools", Value::from_client(tools)?),
                ("messages", Value::from_messages(messages)?),
                ("add_generation_prompt", Value::Bool(add_generation_prompt)),
            ] {
                context.variables().set(&name.into(), value)?;
            }
            for (name, value) in vars {
                context.variables().set(&name.as_str().into(), Value::from_client(value)?)?;
            }
            let (text, template) = Run::new(context).render(body, MAX_OUTPUT)?;
            Ok(Rendered { text, template })
        })
        .map_err(failed)
    }
}

/// Returns the syntax tree, or the problem with the source.
fn compile(source: &str) -> std::result::Result<syntax::ast::Body, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("the template has {} bytes, expected at most {MAX_SOURCE}", source.len()));
    }
    on_deep_stack(|| syntax::parser::parse(source))
}

/// Runs `work` on a thread with a stack for the deepest recursion that a template can cause.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Res<T> + Send) -> std::result::Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK);
        let work = || work().map_err(Fault::describe);
        let thread = thread.spawn_scoped(scope, work).map_err(|e| format!("no thread to run it: {e}"))?;
        thread.join().unwrap_or_else(|_| Err("the template engine panicked".into()))
    })
}

fn failed(problem: String) -> Error {
    Error::ChatTemplate { problem }
}
