//! The engine's public handle: thread-safe and cheap to share. The engine thread is reached through a channel.

mod kv_events;
mod maps;
pub(crate) mod validate;

use std::convert::Infallible;
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use super::guidance::Guidance;
use super::ids::{RequestId, request_seed};
use super::images::{ImageReader, PromptImages};
use super::output::SharedSink;
use super::output::records::RequestRecord;
use super::shared::{Admission, Command, RequestKind, Shared};
use super::stats::Stats;
use crate::backend::MemoryLedger;
use crate::config::{EngineConfig, RequestParams, SamplingParams};
use crate::grammar::Grammars;
use crate::pixels::Picture;
use crate::scheduler::WaitingReason;
use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::{Error, Result};
use validate::Limits;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Tokenized with special tokens added. Special tokens written in the text are not parsed.
    Text(String),
    TokenIds(Vec<u32>),
}

pub struct NewRequest {
    /// The caller's name for the request, as `abort` takes it. It must not be in use. `None`: the engine makes one up.
    pub name: Option<String>,
    pub prompt: Prompt,
    /// The images of the prompt, in the order of their placeholders.
    pub images: Vec<Arc<Picture>>,
    pub params: RequestParams,
    /// Requests with lower values run earlier.
    pub priority: i32,
    /// Time from now to the request's deadline. The deadline is kept to within one step, or to within 100 ms where
    /// steps can be interrupted (`Executor::interrupt`).
    pub timeout: Option<Duration>,
    /// The prefix cache shares this request's blocks only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// The client of the request. Clients of one priority get equal numbers of computed tokens.
    pub client: Option<String>,
    pub sink: SharedSink,
}

/// The caller's view of an accepted request.
#[derive(Debug, Clone)]
pub struct AcceptedRequest {
    pub id: RequestId,
    pub name: String,
    pub prompt_token_ids: Arc<[u32]>,
}

/// A request that has passed its checks.
struct Checked {
    prompt: Vec<u32>,
    images: Option<PromptImages>,
    guidance: Option<Guidance>,
}

/// Dropping the last handle shuts the engine down. Handles are cheap to clone.
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    pub(super) config: EngineConfig,
    /// Requests without a seed derive theirs from this one.
    pub(super) seed: u64,
    pub(super) vocab_size: usize,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) chat_template: Option<Arc<ChatTemplate>>,
    /// `None` for a model without an image encoder.
    pub(super) images: Option<ImageReader>,
    /// The compiled grammars of structured output; `None` without a tokenizer.
    pub(super) grammars: Option<Grammars>,
    pub(super) description: String,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Disconnected once both threads have ended.
    pub(super) ended: Receiver<Infallible>,
    pub(super) own_threads: Vec<ThreadId>,
    /// The process that owns the threads.
    pub(super) owner: u32,
}

impl Engine {
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// # Errors
    /// `InvalidRequest` for an engine without a tokenizer.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        let missing = || Error::invalid("tokenizer", "an engine without one", "token ids instead of text");
        self.inner.tokenizer.as_ref().ok_or_else(missing)
    }

    /// # Errors
    /// `Error::ChatTemplate` if the file has none; the error says how to pass one.
    pub fn chat_template(&self) -> Result<&Arc<ChatTemplate>> {
        let problem = "the model file has none (key tokenizer.chat_template); pass one as chat_template, or generate \
                       from a prompt that is formatted already";
        self.inner.chat_template.as_ref().ok_or_else(|| Error::ChatTemplate { problem: problem.into() })
    }

    /// Returns what the engine knows of images; `None` for a model without an image encoder.
    pub fn images(&self) -> Option<&ImageReader> {
        self.inner.images.as_ref()
    }

    /// Returns the number of tokens that stand for the rows of a picture.
    ///
    /// # Errors
    /// `InvalidRequest` for a shape that the encoder does not take, and for a model without an image encoder.
    pub fn image_tokens(&self, picture: &Picture) -> Result<u32> {
        self.image_reader()?.num_tokens(picture)
    }

    fn image_reader(&self) -> Result<&ImageReader> {
        let missing = || {
            let expected = "only text, since there is no image encoder next to the model's file; put its mmproj-*.gguf \
                            there, or name it (mmproj)";
            Error::invalid("images", "an image", expected)
        };
        self.images().ok_or_else(missing)
    }

    /// Checks and queues a request; never blocks on the device.
    ///
    /// `announce` gets the request's id before the engine thread learns of the request, and so before any output. Sinks
    /// need this if they know their requests by id. It runs under a lock of the engine, so it must neither wait nor
    /// call the engine. An id that was announced before an error never gets an output.
    ///
    /// # Errors
    /// `InvalidRequest`, `QueueFull`, `EngineDead`, `Forked`. Everything after an `Ok` reaches the sink. Each sequence
    /// of the request always gets a last output.
    pub fn add_request(&self, request: NewRequest, announce: impl FnOnce(RequestId)) -> Result<AcceptedRequest> {
        let NewRequest { name, prompt, images, params, priority, timeout, cache_salt, client, sink } = request;
        let limits = self.limits();
        for (what, text) in [("request id", &name), ("cache_salt", &cache_salt), ("client", &client)] {
            text.as_ref().map_or(Ok(()), |text| limits.check_text(what, text))?;
        }
        let Checked { prompt, images, guidance } = self.check(prompt, images, &params)?;
        let prompt: Arc<[u32]> = prompt.into();
        let engine_seed = self.inner.seed;
        let (id, name) = self.inner.shared.admit(name, |id, name| {
            let kind = match params {
                RequestParams::Sampling(params) => {
                    let seed = params.seed.unwrap_or_else(|| request_seed(engine_seed, id));
                    RequestKind::Tokens { params, seed, guidance, sink }
                }
                RequestParams::Pooling(params) => RequestKind::Vector { params, sink },
            };
            announce(id);
            let admission = self.admission(id, name, Arc::clone(&prompt), timeout, kind);
            Admission { images, priority, cache_salt, client: client.map(Into::into), ..admission }
        })?;
        Ok(AcceptedRequest { id, name: name.to_string(), prompt_token_ids: prompt })
    }

    /// Checks a request exactly as `add_request` does before queueing it. Returns the prompt as token ids.
    ///
    /// # Errors
    /// `InvalidRequest`, `Forked`.
    pub fn prepare(&self, prompt: Prompt, images: Vec<Arc<Picture>>, params: &RequestParams) -> Result<Vec<u32>> {
        self.check(prompt, images, params).map(|checked| checked.prompt)
    }

    fn check(&self, prompt: Prompt, images: Vec<Arc<Picture>>, params: &RequestParams) -> Result<Checked> {
        self.check_process()?;
        let sampling = match params {
            RequestParams::Sampling(params) => Some(params),
            RequestParams::Pooling(_) => None,
        };
        match params {
            RequestParams::Sampling(params) => {
                self.limits().check_generates()?;
                self.limits().check_params(params)?;
            }
            RequestParams::Pooling(params) => self.limits().check_pooling(params)?,
        }
        let prompt = match prompt {
            Prompt::TokenIds(ids) => ids,
            Prompt::Text(text) => self.tokenizer()?.encode(&text, true, false)?,
        };
        let (prompt, images) = self.expand(prompt, images)?;
        self.check_prompt(&prompt, sampling.map_or(0, |params| params.max_tokens))?;
        Ok(Checked { prompt, images, guidance: sampling.map_or(Ok(None), |params| self.guidance(params))? })
    }

    /// Replaces the placeholders of a prompt by the tokens of its images.
    fn expand(&self, prompt: Vec<u32>, images: Vec<Arc<Picture>>) -> Result<(Vec<u32>, Option<PromptImages>)> {
        if images.is_empty() {
            return Ok((prompt, None));
        }
        let (prompt, images, of_request) = self.image_reader()?.expand(&prompt, images)?;
        self.inner.shared.limits.check_images(&images)?;
        Ok((prompt, Some((Arc::new(images), of_request))))
    }

    /// Returns the constraints of a text. A grammar that is not cached is compiled, which takes milliseconds, or a
    /// second for a large one.
    fn guidance(&self, params: &SamplingParams) -> Result<Option<Guidance>> {
        let Some(outputs) = &params.structured_outputs else { return Ok(Guidance::new(params, None)) };
        let missing = || Error::invalid("structured_outputs", "an engine without a tokenizer", "a model that has one");
        let grammars = self.inner.grammars.as_ref().ok_or_else(missing)?;
        let guide = grammars.guide(outputs, !params.ignore_eos)?;
        Ok(Guidance::new(params, Some(guide)))
    }

    /// Checks that the prompt fits the scheduler's limits and that the model knows its tokens.
    fn check_prompt(&self, prompt: &[u32], max_tokens: usize) -> Result<()> {
        let shared = &self.inner.shared;
        shared.limits.check_length(prompt.len(), max_tokens, &shared.kv_cache.read())?;
        self.limits().check_token_ids("prompt token id", prompt.iter().copied())
    }

    fn admission(
        &self,
        id: RequestId,
        name: Arc<str>,
        prompt: Arc<[u32]>,
        timeout: Option<Duration>,
        kind: RequestKind,
    ) -> Admission {
        let arrival = self.inner.shared.clock.now();
        let micros = |timeout: Duration| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        let deadline = timeout.map(|timeout| arrival.saturating_add(micros(timeout)));
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let arrival_time = since_epoch.unwrap_or_default().as_secs_f64();
        Admission {
            id,
            name,
            prompt,
            images: None,
            priority: 0,
            cache_salt: None,
            client: None,
            arrival,
            arrival_time,
            deadline,
            kind,
        }
    }

    /// Aborts a request by name; `false` if no such request is active. The name is free at once and the blocks within
    /// one step, which may be interrupted for that.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn abort(&self, name: &str) -> Result<bool> {
        self.check_process()?;
        self.inner.shared.abort(|active| active.get(name).copied())
    }

    /// Aborts a request by id; does nothing if it has ended.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn abort_id(&self, id: RequestId) -> Result<()> {
        self.check_process()?;
        self.inner.shared.abort(|_| Some(id)).map(drop)
    }

    /// Returns how a finished request ended, as long as its record is kept.
    pub fn record(&self, name: &str) -> Option<RequestRecord> {
        self.check_process().ok()?;
        let now = self.inner.shared.clock.now();
        self.inner.shared.with_registry(|registry| registry.records.get(name, now))
    }

    /// Returns counters and gauges as of the last step or the one in flight. An accepted request counts as waiting or
    /// running until it has ended. All values are zero in a forked process.
    pub fn stats(&self) -> Stats {
        if self.check_process().is_err() {
            return Stats::default();
        }
        let shared = &self.inner.shared;
        let mut stats = shared.read_stats();
        stats.finished_records = shared.with_registry(|registry| registry.records.len(shared.clock.now()));
        stats
    }

    /// Returns the bytes that the engine holds on its device; zero once it is closed.
    pub fn memory(&self) -> MemoryLedger {
        self.check_process().map_or_else(|_| MemoryLedger::default(), |()| *self.inner.shared.memory.read())
    }

    /// Empties the prefix cache; `false` if blocks are in use.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn reset_prefix_cache(&self) -> Result<bool> {
        self.ask(Command::ResetPrefixCache)
    }

    /// Requests the logits of every position of `token_ids`, `[n * vocab_size]`, without the prefix cache. The answer
    /// is an error if a step failed (`StepFailed`).
    ///
    /// # Errors
    /// The errors of `add_request`.
    pub fn start_prompt_logits(&self, token_ids: Vec<u32>) -> Result<PendingLogits> {
        self.check_process()?;
        self.limits().check_generates()?;
        let shared = &self.inner.shared;
        self.check_prompt(&token_ids, 0)?;
        let (reply, answer) = bounded(1);
        let kind = RequestKind::PromptLogits { reply };
        let (id, _) = shared.admit(None, |id, name| self.admission(id, name, token_ids.into(), None, kind))?;
        Ok(PendingLogits { engine: self.clone(), id, answer })
    }

    /// Checks the invariants of the KV cache and the scheduler.
    ///
    /// # Errors
    /// `Internal` naming the broken invariant; `EngineDead`, `Forked`.
    pub fn check_integrity(&self) -> Result<()> {
        self.ask(Command::CheckIntegrity)?
    }

    /// Returns the names of waiting requests and what each waits for, as of the time between two steps.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn waiting(&self) -> Result<Vec<(Arc<str>, WaitingReason)>> {
        self.ask(Command::Waiting)
    }

    /// Describes the device and the kernel of each tensor type.
    pub fn describe(&self) -> &str {
        &self.inner.description
    }

    /// Ends every request (as aborted), joins the threads and frees everything. A second call waits for the first.
    pub fn close(&self) {
        if self.check_process().is_ok() {
            self.inner.close();
        }
    }

    /// Closes the engine as `close` does, but waits no longer than `timeout`, for callers with other work to do.
    /// Returns `false` if the threads have not ended yet. They will end by themselves.
    pub fn close_within(&self, timeout: Duration) -> bool {
        self.check_process().is_err() || self.inner.close_by(Some(Instant::now() + timeout))
    }

    pub fn is_closed(&self) -> bool {
        self.check_process().is_err() || self.inner.shared.with_registry(|registry| registry.closed.is_some())
    }

    /// True if the engine is closed and every request has got its last output, and in a forked process.
    pub fn has_ended(&self) -> bool {
        self.check_process().is_err() || self.inner.shared.is_delivered()
    }

    /// Commands that the engine thread has not taken yet.
    #[cfg(test)]
    pub(super) fn commands_in_queue(&self) -> usize {
        self.inner.shared.commands_in_queue()
    }

    /// Sends a command and waits for its answer, which arrives within one step.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T> {
        self.check_process()?;
        let (reply, answer) = bounded(1);
        self.inner.shared.send(command(reply))?;
        answer.recv().map_err(|_| self.closed_error())
    }

    pub(super) fn closed_error(&self) -> Error {
        let reason = self.inner.shared.with_registry(|registry| registry.closed.clone());
        reason.unwrap_or_else(|| Error::EngineDead { reason: "its thread has ended".into() })
    }

    fn limits(&self) -> Limits<'_> {
        let inner = &*self.inner;
        Limits { config: &inner.config, vocab_size: inner.vocab_size, has_tokenizer: inner.tokenizer.is_some() }
    }

    /// Must precede any lock: a lock that was held during the fork stays locked in the child for ever.
    pub(super) fn check_process(&self) -> Result<()> {
        same_process(self.inner.owner, std::process::id())
    }
}

/// The logits of a prompt that is being computed. Dropping this ends the request within one step.
pub struct PendingLogits {
    engine: Engine,
    id: RequestId,
    answer: Receiver<Result<Vec<f32>>>,
}

impl PendingLogits {
    /// Returns the channel that yields the logits once. It is disconnected if the engine closes first.
    pub fn answer(&self) -> &Receiver<Result<Vec<f32>>> {
        &self.answer
    }
}

impl Drop for PendingLogits {
    fn drop(&mut self) {
        // An answered request is no longer active, and a closed engine has ended it.
        let _ = self.engine.abort_id(self.id);
    }
}

pub(super) fn same_process(owner: u32, current: u32) -> Result<()> {
    if owner == current { Ok(()) } else { Err(Error::Forked { owner, current }) }
}

impl Inner {
    fn close(&self) {
        self.close_by(None);
    }

    /// Waits for the threads to end, no longer than `deadline`; returns true if they have.
    fn close_by(&self, deadline: Option<Instant>) -> bool {
        self.shared.close(Error::EngineDead { reason: "it was closed".into() });
        // A sink that closes its engine runs on one of these threads, and a thread cannot wait for itself.
        if self.own_threads.contains(&std::thread::current().id()) {
            return true;
        }
        let waited = deadline.map_or_else(
            || self.ended.recv().map_err(RecvTimeoutError::from),
            |deadline| self.ended.recv_deadline(deadline),
        );
        if waited == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
        true
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if same_process(self.owner, std::process::id()).is_ok() {
            return self.close();
        }
        // The threads do not exist in a forked child, and locks that they held stay locked. Touch nothing of theirs.
        std::mem::forget(Arc::clone(&self.shared));
        std::mem::forget(std::mem::take(self.threads.get_mut()));
    }
}
