//! Chat templates: Jinja as Hugging Face transformers runs it, bounded in instructions, output and stack.
//!
//! Not bounded is what ONE instruction does with values that earlier ones made: minijinja has no hook on `~` and `+`, on
//! `{% set %}…{% endset %}`, on comparison, or on what `replace`, `join` and `tojson` return. A string that is joined to
//! itself doubles with every few instructions (as does the tree `[x, x]` when it is written out), and no count of
//! instructions that real templates can live with is low enough for that. A template is code of the model file: run only
//! those of files that you trust, or in a process whose memory the system limits.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind};

use super::special;
use super::template_functions::{self, Raised};
use crate::gguf::Metadata;
use crate::{Error, Result};

const TEMPLATE: &str = "tokenizer.chat_template";
const NAME: &str = "chat";

/// The longest template known has 30 kB.
const MAX_SOURCE: usize = 128 << 10;
/// Instructions; a long chat takes a hundred for each message.
const FUEL: u64 = 1_000_000;
const MAX_OUTPUT: usize = 64 << 20;
/// A template makes trees (`1+1+1…` in its source, lists in lists in its variables) that are walked recursively. Their
/// depth is bounded by the limits above, and a stack of this size (of address space: only what is used is paid for)
/// holds the deepest.
const STACK: usize = 256 << 20;

/// A chat template, compiled once.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// The file's template; `None` when it has none (a default is not invented).
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        let Some(source) = metadata.opt_str(TEMPLATE)? else { return Ok(None) };
        let tokens = metadata.opt_strings("tokenizer.ggml.tokens")?.unwrap_or_default();
        let text = |key| -> Result<&str> {
            let id = special::id(metadata, key, tokens.len())?;
            Ok(id.map_or("", |id| &tokens[id as usize]))
        };
        let (bos, eos) = (text("tokenizer.ggml.bos_token_id")?, text("tokenizer.ggml.eos_token_id")?);
        Self::new(source, bos, eos).map(Some)
    }

    /// `bos_token`/`eos_token` are the texts that templates may refer to.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(failed(format!("it has {} bytes, expected at most {MAX_SOURCE}", source.len())));
        }
        let source = source.to_owned();
        let env = on_deep_stack(move || compile(source))?;
        Ok(Self { env, bos_token: bos_token.to_owned(), eos_token: eos_token.to_owned() })
    }

    /// `messages`: a JSON list of `{role, content, …}`; `tools`: a JSON list or null; `vars`: a JSON object of further
    /// variables. Bounded in instructions and output, not in memory: see the module.
    ///
    /// # Errors
    /// `ChatTemplate` with the template's own message where it calls `raise_exception`, else with what went wrong.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: &serde_json::Value,
        add_generation_prompt: bool,
        vars: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String> {
        let mut context = BTreeMap::from([
            ("bos_token", Value::from(self.bos_token.as_str())),
            ("eos_token", Value::from(self.eos_token.as_str())),
            ("tools", Value::from(Serde(tools))),
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ]);
        context.extend(vars.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        on_deep_stack(|| {
            let mut out = Bounded(Vec::new());
            let template = self.env.get_template(NAME).map_err(describe)?;
            template.render_captured_to(Value::from(context), &mut out).map_err(describe)?;
            String::from_utf8(out.0).map_err(failed)
        })
    }
}

fn compile(source: String) -> Result<Environment<'static>> {
    let mut env = Environment::new();
    // As transformers sets up Jinja.
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(describe)?);
    template_functions::install(&mut env);
    env.set_fuel(Some(FUEL));
    env.add_template_owned(NAME, source).map_err(describe)?;
    Ok(env)
}

/// Runs `work` on a thread with room for the deepest recursion that a template can cause.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|e| failed(format!("no thread to run it: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(failed("the template engine panicked")))
    })
}

fn failed(problem: impl ToString) -> Error {
    Error::ChatTemplate { problem: problem.to_string() }
}

fn describe(error: minijinja::Error) -> Error {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return failed(message);
        }
        source = cause.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return failed(format!("it does not end within {FUEL} instructions"));
    }
    failed(error)
}

/// Output that refuses to grow beyond the limit.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_OUTPUT - self.0.len() {
            return Err(io::Error::other(format!("the output is longer than {MAX_OUTPUT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
