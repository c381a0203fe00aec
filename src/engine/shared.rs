//! State that the engine thread, the output thread and the handles share.

pub(crate) mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::{Mutex, RwLock};

use super::guidance::Guidance;
use super::ids::RequestId;
use super::images::{Encoded, PromptImages};
use super::offload::FileEvent;
use super::output::SharedSink;
use super::output::records::Records;
use super::stats::Stats;
use crate::backend::MemoryLedger;
use crate::config::{PoolingParams, SamplingParams};
use crate::kv_cache::KvCache;
use crate::scheduler::{SchedulerConfig, WaitingReason};
use crate::{Error, Result};
use watch::Watch;

/// A request from another thread to the engine thread.
pub(super) enum Command {
    Add(Box<Admission>),
    Abort {
        id: RequestId,
        /// The time of the abort call, in microseconds of the engine's clock.
        asked: u64,
    },
    /// The consumer of this sink is gone, so all its requests are aborted.
    SinkGone(SharedSink),
    Encoded(Encoded),
    Files(FileEvent),
    ResetPrefixCache(Sender<bool>),
    CheckIntegrity(Sender<Result<()>>),
    Waiting(Sender<Vec<(Arc<str>, WaitingReason)>>),
    Shutdown,
}

/// A request that has been checked and has a place in the queue.
pub(super) struct Admission {
    pub id: RequestId,
    pub name: Arc<str>,
    pub prompt: Arc<[u32]>,
    pub images: Option<PromptImages>,
    pub priority: i32,
    pub cache_salt: Option<String>,
    pub client: Option<Arc<str>>,
    /// Microseconds of the engine's clock.
    pub arrival: u64,
    /// Seconds since the Unix epoch.
    pub arrival_time: f64,
    pub deadline: Option<u64>,
    pub kind: RequestKind,
}

/// The kind of result that a request asks for.
pub(super) enum RequestKind {
    Tokens { params: Arc<SamplingParams>, seed: u64, guidance: Option<Guidance>, sink: SharedSink },
    Vector { params: PoolingParams, sink: SharedSink },
    PromptLogits { reply: Sender<Result<Vec<f32>>> },
}

/// Microseconds since the engine started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns `None` for a time that the system cannot represent.
    pub(super) fn instant_of(&self, micros: u64) -> Option<Instant> {
        self.0.checked_add(Duration::from_micros(micros))
    }
}

/// Names of active requests, and of finished requests whose records are kept.
pub(super) struct Registry {
    /// The reason why no more requests are accepted.
    pub closed: Option<Error>,
    /// Requests that have neither ended nor been aborted, by name. An abort frees the name at once, although the
    /// request may still be part of a step.
    active: HashMap<Arc<str>, RequestId>,
    /// The inverse of `active`, since aborts and ends know requests by id.
    names: HashMap<RequestId, Arc<str>>,
    pub records: Records,
    last_id: u64,
}

impl Registry {
    fn take_name(&mut self, name: Arc<str>, id: RequestId) {
        self.active.insert(Arc::clone(&name), id);
        self.names.insert(id, name);
    }

    /// Frees the name of a request; `false` if it was free already. The name of a newer request has another id and
    /// stays.
    pub(super) fn free_name(&mut self, id: RequestId) -> bool {
        let name = self.names.remove(&id);
        name.is_some_and(|name| self.active.remove(&name).is_some())
    }
}

pub(super) struct Shared {
    pub clock: Clock,
    pub stats: RwLock<Stats>,
    pub memory: RwLock<MemoryLedger>,
    pub kv_cache: Arc<RwLock<KvCache>>,
    pub watch: Watch,
    /// Accepted requests that have not run yet; the queue's limit applies to them.
    waiting: AtomicUsize,
    /// Accepted requests that the engine thread has not included in `stats` yet. It is lowered only while `stats` is
    /// locked, so a reader finds each request exactly once.
    unseen: AtomicUsize,
    /// The scheduler's limits, against which requests are checked before they get a place in the queue.
    pub limits: SchedulerConfig,
    registry: Mutex<Registry>,
    commands: Sender<Command>,
    /// True if every output has reached its sink and there will be no more.
    delivered: AtomicBool,
}

impl Shared {
    pub(super) fn new(
        kv_cache: Arc<RwLock<KvCache>>,
        commands: Sender<Command>,
        records: Records,
        limits: SchedulerConfig,
        watch: Watch,
    ) -> Self {
        Self {
            clock: Clock::start(),
            stats: RwLock::default(),
            memory: RwLock::default(),
            kv_cache,
            watch,
            waiting: AtomicUsize::new(0),
            unseen: AtomicUsize::new(0),
            limits,
            registry: Mutex::new(Registry {
                closed: None,
                active: HashMap::new(),
                names: HashMap::new(),
                records,
                last_id: 0,
            }),
            commands,
            delivered: AtomicBool::new(false),
        }
    }

    /// Sends a command unless the engine is closed. The registry stays locked meanwhile. So the engine thread sees
    /// every command sent before it closed, and no caller waits for an answer that cannot come. A refused command is
    /// dropped after the lock, since it may hold a sink with the engine's last handle.
    pub(super) fn send(&self, command: Command) -> Result<()> {
        let registry = self.registry.lock();
        if let Some(error) = &registry.closed {
            return Err(error.clone());
        }
        let sent = self.commands.send(command);
        drop(registry);
        sent.map_err(|_| Error::EngineDead { reason: "its thread has ended".into() })
    }

    /// Takes a place in the queue and a name, and hands the request to the engine thread.
    ///
    /// # Errors
    /// `EngineDead`, `InvalidRequest` for a name in use, `QueueFull`.
    pub(super) fn admit(
        &self,
        name: Option<String>,
        make: impl FnOnce(RequestId, Arc<str>) -> Admission,
    ) -> Result<(RequestId, Arc<str>)> {
        let mut registry = self.registry.lock();
        if let Some(error) = &registry.closed {
            return Err(error.clone());
        }
        self.limits.check_queue(self.waiting.load(Ordering::Acquire))?;
        registry.last_id += 1;
        let name: Arc<str> = match name {
            Some(name) if registry.active.contains_key(name.as_str()) => {
                return Err(Error::invalid("request id", format!("{name:?}, which is in use"), "one that is not"));
            }
            Some(name) => name.into(),
            None => {
                // A caller may already use the next generated name.
                while registry.active.contains_key(format!("request-{}", registry.last_id).as_str()) {
                    registry.last_id += 1;
                }
                format!("request-{}", registry.last_id).into()
            }
        };
        let id = RequestId(registry.last_id);
        let admission = make(id, Arc::clone(&name));
        // The watch comes first, so that no step can begin without knowing of the request.
        self.watch.expect(id, admission.priority, admission.client.clone());
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.unseen.fetch_add(1, Ordering::AcqRel);
        if let Err(refused) = self.commands.send(Command::Add(Box::new(admission))) {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.unseen.fetch_sub(1, Ordering::AcqRel);
            self.watch.take_in(id);
            drop(registry);
            drop(refused);
            return Err(Error::EngineDead { reason: "its thread has ended".into() });
        }
        registry.take_name(Arc::clone(&name), id);
        Ok((id, name))
    }

    /// Frees the name of a request and tells the engine thread to end it. Returns `false` if it has ended or was
    /// aborted already.
    ///
    /// # Errors
    /// `EngineDead`.
    pub(super) fn abort(&self, find: impl FnOnce(&HashMap<Arc<str>, RequestId>) -> Option<RequestId>) -> Result<bool> {
        let mut registry = self.registry.lock();
        let Some(id) = find(&registry.active) else { return Ok(false) };
        if let Some(error) = &registry.closed {
            return Err(error.clone());
        }
        if !registry.free_name(id) {
            return Ok(false);
        }
        // Interrupt the step if it is no longer needed.
        self.watch.abort(id);
        let sent = self.commands.send(Command::Abort { id, asked: self.clock.now() });
        sent.map(|()| true).map_err(|_| Error::EngineDead { reason: "its thread has ended".into() })
    }

    /// True if a request has neither ended nor been aborted.
    pub(super) fn is_active(&self, id: RequestId) -> bool {
        self.with_registry(|registry| registry.names.contains_key(&id))
    }

    /// Notes that the output thread has delivered everything.
    pub(super) fn end_delivery(&self) {
        self.delivered.store(true, Ordering::Release);
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.delivered.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(super) fn commands_in_queue(&self) -> usize {
        self.commands.len()
    }

    /// Frees a place in the queue, when a request runs for the first time or ends before that.
    pub(super) fn leave_queue(&self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Publishes the engine thread's counters, which now include `taken` more requests.
    pub(super) fn publish(&self, stats: &Stats, taken: usize) {
        let mut shown = self.stats.write();
        shown.clone_from(stats);
        self.unseen.fetch_sub(taken, Ordering::AcqRel);
    }

    /// Returns the counters that the engine thread published last. Requests that it has yet to admit count as waiting.
    pub(super) fn read_stats(&self) -> Stats {
        let shown = self.stats.read();
        let num_waiting = shown.num_waiting + self.unseen.load(Ordering::Acquire);
        Stats { num_waiting, ..shown.clone() }
    }

    pub(super) fn with_registry<T>(&self, read: impl FnOnce(&mut Registry) -> T) -> T {
        read(&mut self.registry.lock())
    }

    /// Stops accepting requests, for this reason unless there already is one, and tells the engine thread.
    pub(super) fn close(&self, reason: Error) {
        let mut registry = self.registry.lock();
        if registry.closed.is_none() {
            registry.closed = Some(reason);
            // An engine thread that has ended needs no message.
            let _ = self.commands.send(Command::Shutdown);
            self.watch.close();
        }
    }
}
