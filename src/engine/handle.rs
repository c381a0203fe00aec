//! The engine as its users see it: thread-safe, cheap to share; the engine thread lives behind a channel.

use std::convert::Infallible;
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use parking_lot::{Mutex, RwLock};

use super::core::Core;
use super::delivery;
use super::executor::Executor;
use super::guidance::Guidance;
use super::ids::{RequestId, request_seed};
use super::load::load_model;
use super::output::SharedSink;
use super::progress::LoadProgress;
use super::records::{Records, RequestRecord};
use super::shared::{Admission, Command, RequestKind, Shared};
use super::stats::Stats;
use super::thread;
use super::validate::{Limits, scheduler_config};
use super::watch::Watch;
use crate::backend::MemoryLedger;
use crate::config::{EngineArgs, EngineConfig, RequestParams, SamplingParams};
use crate::grammar::Grammars;
use crate::kv_cache::{KvCache, KvCacheConfig};
use crate::scheduler::{Scheduler, WaitingReason};
use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::{Error, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Tokenised with special tokens added and none parsed.
    Text(String),
    TokenIds(Vec<u32>),
}

pub struct NewRequest {
    /// The caller's name for it (`abort` takes it); must not be in use. `None`: the engine makes one up.
    pub name: Option<String>,
    pub prompt: Prompt,
    pub params: RequestParams,
    /// Requests with lower values run earlier.
    pub priority: i32,
    /// Time from now to the request's deadline. It is kept to within one step, or to within 100 ms where steps can be
    /// stopped (`Executor::interrupt`).
    pub timeout: Option<Duration>,
    /// The prefix cache shares what the request computes only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Whom the request is from: requests of one priority share the steps by client, equally many tokens to each.
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

/// Dropping the last handle (they are cheap to clone) shuts the engine down.
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    config: EngineConfig,
    /// Requests without a seed get theirs from this one.
    seed: u64,
    vocab_size: usize,
    tokenizer: Option<Arc<Tokenizer>>,
    chat_template: Option<Arc<ChatTemplate>>,
    /// The forms that requests give their texts; `None` without a tokenizer.
    grammars: Option<Grammars>,
    description: String,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Disconnected once both have ended.
    ended: Receiver<Infallible>,
    own_threads: [ThreadId; 2],
    /// The process that the threads live in.
    owner: u32,
}

impl Engine {
    /// Opens, checks and loads a model and starts the engine thread. `progress` may return `false` to stop (Ctrl-C).
    ///
    /// # Errors
    /// `InvalidRequest` for an argument out of range, and whatever is wrong with file, device or memory.
    pub fn load(args: EngineArgs, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Result<Self> {
        let args = args.with_env()?;
        args.validate()?;
        let model = load_model(&args, progress)?;
        Self::start(model.executor, model.config, model.tokenizer, model.chat_template)
    }

    /// Starts an engine over anything that can run a step. The KV groups of `config` are those of the executor's model.
    /// Without a tokenizer prompts are token ids, outputs have no text, and nothing ends on the model's own end tokens.
    ///
    /// # Errors
    /// `InvalidRequest` where numbers of `config` contradict each other; `Internal` when the system gives no thread.
    pub fn start(
        executor: Box<dyn Executor>,
        config: EngineConfig,
        tokenizer: Option<Arc<Tokenizer>>,
        chat_template: Option<Arc<ChatTemplate>>,
    ) -> Result<Self> {
        let (mut hash_key, mut drawn_seed) = ([0u8; 32], [0u8; 8]);
        getrandom::fill(&mut hash_key).and_then(|()| getrandom::fill(&mut drawn_seed)).map_err(no_randomness)?;
        let seed = config.seed.unwrap_or_else(|| u64::from_le_bytes(drawn_seed));
        let kv_cache = KvCache::new(KvCacheConfig {
            block_size: config.block_size,
            groups: config.kv_groups.clone(),
            states: config.states,
            enable_prefix_caching: config.enable_prefix_caching,
            hash_key,
        })?;
        let kv_cache = Arc::new(RwLock::new(kv_cache));
        let limits = scheduler_config(&config, executor.as_ref());
        let scheduler = Scheduler::new(limits.clone(), Arc::clone(&kv_cache))?;
        let (commands, command_queue) = unbounded();
        let (outbox, outputs) = delivery::mailbox();
        let records = Records::new(config.retention);
        let watch = Watch::new(executor.interrupt());
        let shared = Arc::new(Shared::new(kv_cache, commands, records, limits, watch));
        *shared.memory.write() = executor.memory();
        let description = executor.describe();
        let vocab_size = executor.vocab_size();
        let mut core = Core::new(Arc::clone(&shared), config.clone(), executor, scheduler, tokenizer.clone(), outbox);
        core.flush();
        let for_outputs = Arc::clone(&shared);
        let (alive, ended) = bounded(0);
        let output_lives = alive.clone();
        let output_thread = thread::spawn("rocmforge-output", move || {
            delivery::run(&outputs, &for_outputs);
            drop(output_lives);
        })?;
        // Should this thread not start, `core` is dropped with it, and with that the output thread ends.
        let engine_thread = thread::spawn("rocmforge-engine", move || {
            thread::run(core, &command_queue);
            drop(alive);
        })?;
        let inner = Inner {
            shared,
            config,
            seed,
            vocab_size,
            grammars: tokenizer.clone().map(|tokenizer| Grammars::new(tokenizer, vocab_size)),
            tokenizer,
            chat_template,
            description,
            own_threads: [engine_thread.thread().id(), output_thread.thread().id()],
            // Joined in this order: the output thread ends after the engine thread.
            threads: Mutex::new(vec![engine_thread, output_thread]),
            ended,
            owner: std::process::id(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// # Errors
    /// `InvalidRequest` for an engine that was started without one.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        let missing = || Error::invalid("tokenizer", "an engine without one", "token ids in place of text");
        self.inner.tokenizer.as_ref().ok_or_else(missing)
    }

    /// # Errors
    /// `Error::ChatTemplate` where the file has none: it says how to give one.
    pub fn chat_template(&self) -> Result<&Arc<ChatTemplate>> {
        let problem = "the model file has none (key tokenizer.chat_template); pass one as chat_template, or generate \
                       from a prompt that is formatted already";
        self.inner.chat_template.as_ref().ok_or_else(|| Error::ChatTemplate { problem: problem.into() })
    }

    /// Checks and queues a request; never blocks on the device.
    ///
    /// `announce` is called with its id before the engine thread hears of it, and so before any output, for a sink that
    /// knows its requests by their ids. It is called under a lock of the engine's: it must not wait, and ask nothing of
    /// the engine. Of an id that was announced before an error nothing will be heard.
    ///
    /// # Errors
    /// `InvalidRequest`, `QueueFull`, `EngineDead`, `Forked`. Whatever happens after an `Ok` comes to the sink, which
    /// is given a last output for each of the request's sequences, always.
    pub fn add_request(&self, request: NewRequest, announce: impl FnOnce(RequestId)) -> Result<AcceptedRequest> {
        let NewRequest { name, prompt, params, priority, timeout, cache_salt, client, sink } = request;
        let limits = self.limits();
        for (what, text) in [("request id", &name), ("cache_salt", &cache_salt), ("client", &client)] {
            text.as_ref().map_or(Ok(()), |text| limits.check_text(what, text))?;
        }
        let (prompt, guidance) = self.check(prompt, &params)?;
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
            Admission { priority, cache_salt, client: client.map(Into::into), ..admission }
        })?;
        Ok(AcceptedRequest { id, name: name.to_string(), prompt_token_ids: prompt })
    }

    /// Checks a request as `add_request` does before it queues it; returns the prompt as token ids.
    ///
    /// # Errors
    /// `InvalidRequest`, `Forked`.
    pub fn prepare(&self, prompt: Prompt, params: &RequestParams) -> Result<Vec<u32>> {
        self.check(prompt, params).map(|(prompt, _)| prompt)
    }

    fn check(&self, prompt: Prompt, params: &RequestParams) -> Result<(Vec<u32>, Option<Guidance>)> {
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
        self.check_prompt(&prompt, sampling.map_or(0, |params| params.max_tokens))?;
        Ok((prompt, sampling.map_or(Ok(None), |params| self.guidance(params))?))
    }

    /// The rules of a text. Its form is compiled unless it is known, in milliseconds, for a large one in a second.
    fn guidance(&self, params: &SamplingParams) -> Result<Option<Guidance>> {
        let Some(form) = &params.structured_outputs else { return Ok(Guidance::new(params, None)) };
        let missing = || Error::invalid("structured_outputs", "an engine without a tokenizer", "a model that has one");
        let grammars = self.inner.grammars.as_ref().ok_or_else(missing)?;
        let guide = grammars.guide(form, !params.ignore_eos)?;
        Ok(Guidance::new(params, Some(guide)))
    }

    /// Whether the scheduler would take the prompt, and the model knows its tokens.
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
            priority: 0,
            cache_salt: None,
            client: None,
            arrival,
            arrival_time,
            deadline,
            kind,
        }
    }

    /// `false` when no such request is active. Its name is free at once, its blocks within one step, which may be
    /// stopped for it.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn abort(&self, name: &str) -> Result<bool> {
        self.check_process()?;
        self.inner.shared.abort(|active| active.get(name).copied())
    }

    /// Aborts the request of this id; does nothing for one that has ended.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn abort_id(&self, id: RequestId) -> Result<()> {
        self.check_process()?;
        self.inner.shared.abort(|_| Some(id)).map(drop)
    }

    /// Tells how a finished request ended, while its record is kept.
    pub fn record(&self, name: &str) -> Option<RequestRecord> {
        self.check_process().ok()?;
        let now = self.inner.shared.clock.now();
        self.inner.shared.with_registry(|registry| registry.records.get(name, now))
    }

    /// Counters and gauges as of the last step, or of the one that runs; an accepted request counts as waiting or
    /// running until it has ended. All zero in a forked process.
    pub fn stats(&self) -> Stats {
        if self.check_process().is_err() {
            return Stats::default();
        }
        let shared = &self.inner.shared;
        let mut stats = shared.read_stats();
        stats.finished_records = shared.with_registry(|registry| registry.records.len(shared.clock.now()));
        stats
    }

    /// Bytes that the engine holds on its device; zero once it is closed.
    pub fn memory(&self) -> MemoryLedger {
        self.check_process().map_or_else(|_| MemoryLedger::default(), |()| *self.inner.shared.memory.read())
    }

    /// `false` when refused because blocks are in use.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn reset_prefix_cache(&self) -> Result<bool> {
        self.ask(Command::ResetPrefixCache)
    }

    /// Asks for the logits of every position of `token_ids`, `[n * vocab_size]`, without the prefix cache. Their
    /// answer is an error where a step failed (`StepFailed`).
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

    /// Checks the invariants of KV cache and scheduler.
    ///
    /// # Errors
    /// `Internal` naming the broken one; `EngineDead`, `Forked`.
    pub fn check_integrity(&self) -> Result<()> {
        self.ask(Command::CheckIntegrity)?
    }

    /// Names the requests that wait and says what each waits for, between two steps.
    ///
    /// # Errors
    /// `EngineDead`, `Forked`.
    pub fn waiting(&self) -> Result<Vec<(Arc<str>, WaitingReason)>> {
        self.ask(Command::Waiting)
    }

    /// Describes the device and says which kernel serves which tensors.
    pub fn describe(&self) -> &str {
        &self.inner.description
    }

    /// Ends every request (as aborted), joins the threads and frees everything. A second call waits for the first.
    pub fn close(&self) {
        if self.check_process().is_ok() {
            self.inner.close();
        }
    }

    /// Closes the engine as `close` does, but waits for `timeout` at most, for callers that have something else to look
    /// at meanwhile. Returns `false` when the threads have not ended yet; they will end by themselves.
    pub fn close_within(&self, timeout: Duration) -> bool {
        self.check_process().is_err() || self.inner.close_by(Some(Instant::now() + timeout))
    }

    pub fn is_closed(&self) -> bool {
        self.check_process().is_err() || self.inner.shared.with_registry(|registry| registry.closed.is_some())
    }

    /// It is closed, and every request has been given its last output; `true` in a forked process.
    pub fn has_ended(&self) -> bool {
        self.check_process().is_err() || self.inner.shared.is_delivered()
    }

    /// Commands that the engine thread has not taken yet.
    #[cfg(test)]
    pub(super) fn commands_in_queue(&self) -> usize {
        self.inner.shared.commands_in_queue()
    }

    /// Sends a command and waits for its answer, which comes within one step.
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

    /// Comes before any lock: a lock that was held while the process forked stays locked in the child for ever.
    pub(super) fn check_process(&self) -> Result<()> {
        same_process(self.inner.owner, std::process::id())
    }
}

/// The logits of a prompt under way. Whoever drops it no longer waits: the request ends within one step.
pub struct PendingLogits {
    engine: Engine,
    id: RequestId,
    answer: Receiver<Result<Vec<f32>>>,
}

impl PendingLogits {
    /// Gives the logits, once; disconnected when the engine closes first.
    pub fn answer(&self) -> &Receiver<Result<Vec<f32>>> {
        &self.answer
    }
}

impl Drop for PendingLogits {
    fn drop(&mut self) {
        // A request that has been answered is not active any more, and a closed engine has ended it.
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

    /// Waits until the threads have ended, until `deadline` at most; returns whether they have.
    fn close_by(&self, deadline: Option<Instant>) -> bool {
        self.shared.close(Error::EngineDead { reason: "it was closed".into() });
        // A sink that closes its engine runs on one of these threads, which cannot wait for itself.
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
        // The threads do not exist in a forked child, and locks that they held stay locked: touch nothing of theirs.
        std::mem::forget(Arc::clone(&self.shared));
        std::mem::forget(std::mem::take(self.threads.get_mut()));
    }
}

fn no_randomness(error: getrandom::Error) -> Error {
    Error::internal(format!("the system gives no random numbers: {error}"))
}
